// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/chat_service.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string>
#include <utility>

#include "server/api/lintel_v1/session_calls.h"
#include "server/api/lookup.h"
#include "server/api/prepare_generation.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/chat_request.h"
#include "server/rpc/answer.h"
#include "server/rpc/status.h"

namespace lintel {

// A request with the model that it names, and the prompt that it becomes.
struct ReadChat {
  ChatRequest request;
  SharedModel model;
  SharedAdapter adapter;  // null: none
  LocalTime now;
  ChatPrompt prompt;
};

namespace {

constexpr std::int64_t kDefaultMaxTokens = 8192;  // of an answer whose request does not say
// Turns whose end waits for its thread; what is kept of more stays until memory is needed.
constexpr std::size_t kMostTurns = 256;

grpc::Status read_chat(const ServiceContext& context, const std::string& body, CallScope& scope,
                       ReadChat& chat) {
  grpc::Status status = read_chat_request(body, {}, chat.request);
  if (!status.ok()) return status;
  chat.model = resolve_model(chat.request.model, context.models, &status);
  if (chat.model == nullptr) return status;
  scope.set_model(chat.model->name);
  const Transformer& transformer = *chat.model->transformer;
  const Tokenizer* const tokenizer = transformer.tokenizer().get();
  if (chat.model->chat == nullptr || tokenizer == nullptr) {
    return chat_refusal("NO_CHAT_TEMPLATE", "model",
                        tokenizer == nullptr
                            ? "the model has no tokenizer: its tokens are ids alone"
                            : "the model has no chat template (--chat-template)");
  }
  chat.now = local_time(std::chrono::system_clock::to_time_t(context.clock.wall_time()));
  return make_chat_prompt(*chat.model->chat, *tokenizer, chat.request, chat.now, chat.prompt);
}

// The request's sampling, and what the checkpoint recommends where it names none.
v1::Sampling sampling_of(const ChatRequest& request, const SamplingDefaults& defaults) {
  v1::Sampling sampling = request.sampling;
  if (!sampling.has_temperature() && defaults.temperature) {
    sampling.set_temperature(*defaults.temperature);
  }
  if (!sampling.has_top_p() && defaults.top_p) sampling.set_top_p(*defaults.top_p);
  if (!sampling.has_top_k() && defaults.top_k) sampling.set_top_k(*defaults.top_k);
  if (!sampling.has_min_p() && defaults.min_p) sampling.set_min_p(*defaults.min_p);
  if (!sampling.has_repetition_penalty() && defaults.repetition_penalty) {
    sampling.set_repetition_penalty(*defaults.repetition_penalty);
  }
  return sampling;
}

// The first token of what a call begins with cannot be drawn.
void forbid_calls(const Tokenizer& tokenizer, ToolDialect dialect, v1::Sampling& sampling) {
  if (dialect == ToolDialect::kNone) return;
  const std::string tag = dialect == ToolDialect::kPythonic ? "<|tool_call_start|>" : "<tool_call>";
  const std::optional<std::int32_t> token = tokenizer.find_token(tag);
  if (!token) return;  // of several tokens, which text may have, too: it is read as text
  (*sampling.mutable_logit_bias())[*token] = -100.0f;
}

v1::GenerateRequest generate_request(const ReadChat& chat) {
  const Transformer& transformer = *chat.model->transformer;
  v1::GenerateRequest wire;
  wire.set_model(chat.model->name);
  wire.mutable_prompt()->mutable_tokens()->mutable_ids()->Add(chat.prompt.ids.begin(),
                                                              chat.prompt.ids.end());
  *wire.mutable_sampling() = sampling_of(chat.request, chat.model->chat->defaults());
  if (!chat.request.tools.is_null() && chat.request.tool_choice == ChatRequest::ToolChoice::kNone) {
    forbid_calls(*transformer.tokenizer(), chat.prompt.traits.dialect, *wire.mutable_sampling());
  }
  std::int64_t most = std::min<std::int64_t>(kDefaultMaxTokens, chat.model->limits.max_new_tokens);
  if (transformer.config().max_tokens() > 0) {
    most = std::min(most, transformer.config().max_tokens() -
                              static_cast<std::int64_t>(chat.prompt.ids.size()));
  }
  wire.set_max_new_tokens(chat.request.max_tokens.value_or(
      static_cast<std::uint32_t>(std::max<std::int64_t>(most, 0))));
  for (const std::int32_t id : transformer.tokenizer()->eos()) {
    wire.mutable_stop()->add_token_ids(id);
  }
  wire.set_num_samples(chat.request.num_choices);
  wire.set_log2_probs(chat.request.logprobs);
  wire.set_top_log2_probs(chat.request.top_logprobs);
  wire.set_adapter(chat.request.adapter);
  wire.set_cache_prefix_tokens(static_cast<std::uint32_t>(chat.prompt.turn_boundary));
  return wire;
}

// Where states are kept beside the turn's boundary. A template that writes old answers otherwise
// than they were generated shows it in the boundary, which is then within the prompt; but results
// of tools may follow such an answer as it is.
GenerationRequest::Turn turn_of(const ReadChat& chat) {
  const ChatPrompt& prompt = chat.prompt;
  const bool may_call =
      !chat.request.tools.is_null() && chat.request.tool_choice != ChatRequest::ToolChoice::kNone;
  const bool keeps_prompt =
      prompt.turn_boundary + 1 >= static_cast<std::int64_t>(prompt.ids.size());
  GenerationRequest::Turn turn;
  if (may_call && prompt.before_generation_prompt > prompt.turn_boundary) {
    turn.call = prompt.before_generation_prompt;
  }
  turn.keeps_end = (keeps_prompt || may_call) && chat.request.num_choices == 1 &&
                   chat.request.add_generation_prompt && !chat.request.continue_final_message;
  return turn;
}

nlohmann::ordered_json answer_of(const ChatTurn& turn) {
  nlohmann::ordered_json answer = {{"role", "assistant"}, {"content", turn.answer.content()}};
  const std::string& reasoning = turn.answer.reasoning();
  if (!reasoning.empty() && sends_reasoning_back(turn.request)) {
    answer["reasoning_content"] = reasoning;
  }
  for (const v1::ToolCallDelta& call : turn.calls) {
    answer["tool_calls"].push_back(
        {{"id", call.id()},
         {"type", "function"},
         {"function", {{"name", call.name()}, {"arguments", call.arguments()}}}});
  }
  return answer;
}

bool ended_by_itself(FinishReason reason) {
  return reason == FinishReason::kStopToken || reason == FinishReason::kStopString;
}

}  // namespace

grpc::Status ChatStream::begin(ChatOutput output, std::int64_t prompt_tokens,
                               PreparedGeneration prepared, const StreamingOptions& streaming,
                               const Clock& clock, std::unique_ptr<ChatTurn> turn, OnTurn on_turn) {
  turn_ = std::move(turn);
  on_turn_ = std::move(on_turn);
  output_ = std::move(output);
  prompt_tokens_ = prompt_tokens;
  output_.seed = prepared.checked.request.seed;
  const auto count = static_cast<std::uint32_t>(prepared.checked.request.num_samples);
  choices_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) choices_.emplace_back(output_, i);
  return run(std::move(prepared), streaming, clock);
}

void ChatStream::fill(std::span<const OutboxEntry> entries, bool is_last,
                      v1::ChatResponse& message) {
  std::vector<std::pair<std::int32_t, float>> top;
  for (const OutboxEntry& entry : entries) {
    ChatChoice& choice = choices_.at(static_cast<std::size_t>(entry.sample));
    if (entry.finished != nullptr) {
      const SampleResult& result = *entry.finished;
      // The prompt is read once for all its samples.
      cached_tokens_ = std::max<std::int64_t>(cached_tokens_, result.cached_tokens);
      choice.finish(ended_by_itself(result.reason), message);
      if (turn_ != nullptr && result.stop_token) {
        turn_->ended_by_token = true;
        turn_->tokens.push_back(*result.stop_token);
      }
      continue;
    }
    if (turn_ != nullptr) turn_->tokens.push_back(entry.token);
    top.clear();
    for (const TopToken& token : entry.top) top.emplace_back(token.token, token.log2_prob);
    choice.push({.id = entry.token,
                 .log2_prob = entry.has_log2_prob ? std::optional(entry.log2_prob) : std::nullopt,
                 .top = top},
                message);
  }
  gather(message);
  if (!is_last && !ends_early()) return;
  add_usage(message);
  if (turn_ != nullptr) on_turn_(std::move(turn_));
}

void ChatStream::gather(const v1::ChatResponse& message) {
  if (turn_ == nullptr) return;
  for (const v1::ChatDelta& delta : message.deltas()) {
    turn_->answer.mutable_content()->append(delta.content());
    turn_->answer.mutable_reasoning()->append(delta.reasoning());
    if (!delta.has_call()) continue;
    if (!delta.call().id().empty()) {
      turn_->calls.push_back(delta.call());
    } else if (!turn_->calls.empty()) {
      turn_->calls.back().mutable_arguments()->append(delta.call().arguments());
    }
  }
}

bool ChatStream::ends_early() const { return std::ranges::all_of(choices_, &ChatChoice::is_over); }

void ChatStream::add_use(TokenUse used, v1::ChatResponse& message) noexcept {
  // The sample that would say it was cut off.
  message.mutable_usage()->set_cached_tokens(
      std::max<std::int64_t>(cached_tokens_, used.prompt > 0 ? prompt_tokens_ - used.prompt : 0));
}

void ChatStream::add_usage(v1::ChatResponse& message) const {
  v1::ChatUsage& usage = *message.mutable_usage();
  usage.set_prompt_tokens(prompt_tokens_);
  usage.set_cached_tokens(cached_tokens_);
  for (const ChatChoice& choice : choices_) {
    usage.set_completion_tokens(usage.completion_tokens() + choice.tokens());
    usage.set_reasoning_tokens(usage.reasoning_tokens() + choice.reasoning_tokens());
  }
}

ChatService::ChatService(const ServiceContext& context)
    : context_(context), turns_(/*threads=*/1, kMostTurns) {
  serve(info_of(Method::kRenderChat).name, this, &ChatService::Render);
  serve_stream<v1::ChatResponse>(info_of(Method::kCompleteChat).name, this, &ChatService::Complete);
}

RpcReactor* ChatService::Render(RpcCall* call, const LazyMessage<v1::RenderChatRequest>* request,
                                v1::RenderChatResponse* response) {
  return answer(context_.gate, *call, Method::kRenderChat, *request,
                [&](CallScope& scope, const auto& wire) {
                  ReadChat chat;
                  grpc::Status status = read_chat(context_, wire.body(), scope, chat);
                  if (!status.ok()) return status;
                  response->set_text(std::move(chat.prompt.rendered.text));
                  response->mutable_ids()->Add(chat.prompt.ids.begin(), chat.prompt.ids.end());
                  response->set_turn_boundary(chat.prompt.turn_boundary);
                  response->set_before_generation_prompt(chat.prompt.before_generation_prompt);
                  response->set_model(chat.model->name);
                  return status;
                });
}

grpc::Status ChatService::add_grammar(RpcCall& context, const ChatRequest& request,
                                      const ChatPrompt& prompt, const Transformer& transformer,
                                      GenerationRequest& generation) {
  ChatGrammar made;
  grpc::Status status = make_chat_grammar(request, prompt.traits, grammars_, made);
  if (!status.ok() || made.grammar == nullptr) return status;
  if (!made.relaxed.empty()) context.add_header("lintel-schema-relaxed", made.relaxed);
  const bool is_asked_for = request.format != ChatRequest::Format::kText ||
                            request.tool_choice == ChatRequest::ToolChoice::kRequired;
  if (generation.stop.tokens.empty()) {
    // Calls that the model begins by itself are read all the same.
    if (!is_asked_for) return status;
    return invalid_argument(
        {{request.format == ChatRequest::Format::kText ? "tool_choice" : "response_format",
          "needs a model with a token that ends a text"}});
  }
  const ToolDialect dialect = request.tools.is_null() ? ToolDialect::kNone : prompt.traits.dialect;
  generation.constraint =
      GrammarConstraint{.grammar = std::move(made.grammar),
                        .vocabulary = vocabularies_.of(
                            transformer.tokenizer(),
                            static_cast<std::size_t>(transformer.config().vocab_size), dialect),
                        .after_reasoning = prompt.thinking != ThinkingStart::kClosed};
  return status;
}

grpc::Status ChatService::complete(RpcCall& context, const v1::ChatRequest& wire,
                                   ChatStream& stream) {
  StreamCall& call = stream.call();
  if (grpc::Status begins = call.quota.check_tokens(); !begins.ok()) return begins;
  const auto shared = std::make_shared<ReadChat>();
  ReadChat& chat = *shared;
  grpc::Status status = read_chat(context_, wire.body(), call.scope, chat);
  if (status.ok()) status = resolve_adapter(chat.request.adapter, *chat.model, &chat.adapter);
  if (!status.ok()) return status;
  const std::int64_t most = chat.model->transformer->config().max_tokens();
  if (most > 0 && static_cast<std::int64_t>(chat.prompt.ids.size()) >= most) {
    return chat_refusal("CONTEXT_LENGTH_EXCEEDED", "messages",
                        "have " + std::to_string(chat.prompt.ids.size()) +
                            " tokens, the model takes fewer than " + std::to_string(most));
  }
  StoredChatStates* const stored = context_.chat_states;
  const StoredChatStates::Reader reader{chat.model, chat.adapter, call.scope.caller().name};
  if (stored == nullptr || !stored->has_more(reader, chat.prompt.ids)) {
    return generate(context, chat, stream);
  }
  return run_by_store(
      context_, call.scope.log_fields(), [this, &context, &stream, stored, reader, shared] {
        stored->restore(reader, shared->prompt.ids);
        grpc::Status started = catch_exceptions([&] { return generate(context, *shared, stream); });
        if (!started.ok()) stream.refuse(std::move(started));
      });
}

grpc::Status ChatService::generate(RpcCall& context, ReadChat& chat, ChatStream& stream) {
  StreamCall& call = stream.call();
  ChatOutput output = chat_output(chat.request, chat.prompt, chat.model->transformer->tokenizer());
  const v1::GenerateRequest generate = generate_request(chat);
  PreparedGeneration prepared;
  GenerationTarget target;
  target.model = chat.model;
  grpc::Status status =
      prepare_generation(context_, call.scope.caller().name, generate, generate.prompt(),
                         call_deadline(context, context_.clock), std::move(target), prepared);
  if (!status.ok()) return status;
  status = add_grammar(context, chat.request, chat.prompt, *chat.model->transformer,
                       prepared.checked.request);
  if (!status.ok()) return status;
  prepared.checked.request.allowance = call.quota.allowance();
  prepared.checked.request.caller = call.scope.turn_name();
  const auto prompt_size = static_cast<std::int64_t>(chat.prompt.ids.size());
  const GenerationRequest::Turn kept = turn_of(chat);
  prepared.checked.request.turn = kept;
  const bool is_stored = context_.chat_states != nullptr;
  std::unique_ptr<ChatTurn> turn;
  if (kept.call > 0 || kept.keeps_end || is_stored) {
    turn = std::make_unique<ChatTurn>(ChatTurn{.model = chat.model,
                                               .adapter = chat.adapter,
                                               .owner = call.scope.caller().name,
                                               .request = std::move(chat.request),
                                               .now = chat.now,
                                               .kept = kept,
                                               .boundary = chat.prompt.turn_boundary,
                                               .tokens = std::move(chat.prompt.ids)});
  }
  const auto on_turn = [this](std::unique_ptr<ChatTurn> ended) {
    turns_.run(
        [this, shared = std::shared_ptr<const ChatTurn>(std::move(ended))] { end_turn(*shared); });
  };
  return stream.begin(std::move(output), prompt_size, std::move(prepared), context_.streaming,
                      context_.clock, std::move(turn), on_turn);
}

void ChatService::end_turn(const ChatTurn& turn) const {
  const Transformer& transformer = *turn.model->transformer;
  const PrefixCache::Reader reader{transformer, turn.adapter, turn.owner};
  const std::span<const std::int32_t> tokens(turn.tokens);
  const bool has_end = turn.kept.keeps_end && turn.ended_by_token;
  const bool keeps_end =
      has_end && next_turn_begins_with(*turn.model->chat, *transformer.tokenizer(), turn.request,
                                       turn.now, answer_of(turn), tokens);
  if (has_end && !keeps_end) context_.prefixes.drop(reader, tokens, KeptFor::kEnd);
  if (turn.kept.call > 0 && (keeps_end || turn.calls.empty())) {
    context_.prefixes.drop(reader, tokens.first(static_cast<std::size_t>(turn.kept.call)),
                           KeptFor::kCall);
  }
  if (context_.chat_states == nullptr) return;
  context_.chat_states->note_turn({turn.model, turn.adapter, turn.owner},
                                  tokens.first(static_cast<std::size_t>(turn.boundary)),
                                  /*at_once=*/false);
}

RpcReactor* ChatService::Complete(RpcCall* context, const LazyMessage<v1::ChatRequest>* request) {
  return open_stream<ChatStream>(context_, *context, Method::kCompleteChat, *request,
                                 [this, context](ChatStream& stream, const v1::ChatRequest& wire) {
                                   return complete(*context, wire, stream);
                                 });
}

}  // namespace lintel
