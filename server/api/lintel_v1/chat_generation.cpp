// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/chat_generation.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/api/lintel_v1/generation_service.h"
#include "server/api/lintel_v1/model_service.h"
#include "server/api/lookup.h"
#include "server/chat/template/request_json.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// Turns whose end waits for its thread; what is kept of more stays until memory is needed.
constexpr std::size_t kMostTurns = 256;

// The tag that begins a call. REQUIRES: not kNone.
const char* call_tag(ToolDialect dialect) {
  return dialect == ToolDialect::kPythonic ? "<|tool_call_start|>" : "<tool_call>";
}

// The first token of what a call begins with cannot be drawn.
void forbid_calls(const Tokenizer& tokenizer, ToolDialect dialect, api::SamplingParams& sampling) {
  if (dialect == ToolDialect::kNone) return;
  const std::optional<std::int32_t> token = tokenizer.find_token(call_tag(dialect));
  if (!token) return;  // of several tokens, which text may have, too: it is read as text
  sampling.logit_bias[*token] = -100.0f;
}

// All but the prompt, which is ChatPrompt::tokens.
api::GenerateParams generate_params(const ReadChat& chat) {
  const Transformer& transformer = *chat.model->transformer;
  api::GenerateParams params = chat.request.base;
  params.model = chat.model->name;
  const api::StopParams& stop = chat.request.base.stop;
  params.stop.strings.clear();  // matched in the content, by ChatChoice: ChatOutput::stops
  params.sampling = with_defaults(chat.request.base.sampling, chat.model->chat->defaults());
  std::map<std::int32_t, float> biases;  // the last one of a token counts, but for those by id
  for (const auto& [text, bias] : chat.request.text_biases) {
    const std::vector<std::int32_t> ids =
        transformer.tokenizer()->encode(text, {.add_special = false});
    for (const std::int32_t id : ids) biases[id] = bias;
  }
  params.sampling.logit_bias.merge(biases);
  if (!chat.request.tools.is_null() &&
      chat.request.tool_choice == api::ChatParams::ToolChoice::kNone) {
    forbid_calls(*transformer.tokenizer(), chat.prompt.traits.dialect, params.sampling);
  }
  const RequestLimits& limits = chat.model->limits;
  std::int64_t most = limits.max_new_tokens;
  if (transformer.config().max_tokens() > 0) {
    most = std::min(most, transformer.config().max_tokens() -
                              static_cast<std::int64_t>(chat.prompt.tokens.ids.size()));
  }
  std::int64_t wanted = chat.request.max_tokens.value_or(limits.chat_max_tokens);
  const bool is_shortened = !chat.request.max_tokens || chat.request.shortens_answer;
  if (is_shortened) wanted = std::clamp<std::int64_t>(most, 0, wanted);
  params.max_new_tokens = static_cast<std::uint32_t>(wanted);
  params.shortens_answer = is_shortened;
  if (!stop.ignore_eos) {
    const auto eos = transformer.tokenizer()->eos();
    params.stop.token_ids.insert(params.stop.token_ids.end(), eos.begin(), eos.end());
  }
  params.num_samples = chat.request.num_choices;
  params.log2_probs = chat.request.logprobs;
  params.top_log2_probs = chat.request.top_logprobs;
  params.cache_prefix_tokens = static_cast<std::uint32_t>(chat.prompt.turn_boundary);
  return params;
}

// Adds the texts that end the model's turns as its end tokens do. A document may have them in it.
void add_model_stops(const ReadChat& chat, std::vector<std::string>& stops) {
  if (chat.request.format != api::ChatParams::Format::kText || chat.request.base.stop.ignore_eos) {
    return;
  }
  const std::vector<std::string>& own = chat.model->chat->defaults().stop_strings;
  stops.insert(stops.end(), own.begin(), own.end());
}

// Names the messages that the template does not show.
void add_left_out(const ReadChat& chat, RpcCall& rpc) {
  const auto has = [&chat](const char* role) {
    return std::ranges::any_of(chat.request.messages,
                               [role](const nlohmann::ordered_json& message) {
                                 return message.value("role", "") == role;
                               });
  };
  std::string roles;
  if (!chat.prompt.traits.system && has("system")) roles = "system";
  if (chat.prompt.traits.drops_results && has("tool")) roles += roles.empty() ? "tool" : ", tool";
  if (!roles.empty()) rpc.add_header("lintel-chat-left-out", roles);
}

// The places where states are kept in addition to the turn's boundary. The boundary is within the
// prompt if a template writes old answers otherwise than they were generated; but results of tools
// may follow such an answer as it is.
GenerationRequest::Turn turn_of(const ReadChat& chat) {
  const ChatPrompt& prompt = chat.prompt;
  const bool may_call = !chat.request.tools.is_null() &&
                        chat.request.tool_choice != api::ChatParams::ToolChoice::kNone;
  const bool keeps_prompt =
      prompt.turn_boundary + 1 >= static_cast<std::int64_t>(prompt.tokens.ids.size());
  GenerationRequest::Turn turn;
  if (may_call && prompt.before_generation_prompt > prompt.turn_boundary) {
    turn.call = prompt.before_generation_prompt;
  }
  turn.keeps_end = (keeps_prompt || may_call) && chat.request.num_choices == 1 &&
                   chat.request.add_generation_prompt && !chat.request.continue_final_message;
  return turn;
}

// The answer as its client has it, from its tokens.
nlohmann::ordered_json answer_of(const ChatTurn& turn, const api::ChatParams& request) {
  v1::ChatResponse message;
  ChatChoice choice(*turn.output, 0);
  for (const std::int32_t token : turn.answer) choice.push({.id = token}, message);
  if (turn.is_ended_well) choice.finish(*turn.is_ended_well, message);
  std::string content, reasoning;
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();
  for (const v1::ChatDelta& delta : message.deltas()) {
    content += delta.content();
    reasoning += delta.reasoning();
    if (!delta.has_call()) continue;
    const v1::ToolCallDelta& call = delta.call();
    if (!call.id().empty()) {
      calls.push_back({{"id", call.id()},
                       {"type", "function"},
                       {"function", {{"name", call.name()}, {"arguments", call.arguments()}}}});
    } else if (!calls.empty()) {
      calls.back()["function"]["arguments"].get_ref<std::string&>() += call.arguments();
    }
  }
  nlohmann::ordered_json answer = {{"role", "assistant"}, {"content", std::move(content)}};
  if (!reasoning.empty() && sends_reasoning_back(request)) {
    answer["reasoning_content"] = std::move(reasoning);
  }
  if (!calls.empty()) answer["tool_calls"] = std::move(calls);
  return answer;
}

// The fewest tokens that an answer is shortened to if there is no memory for more. If the memory
// will be free again, a short answer is worth less than one that is asked for later.
std::uint32_t least_tokens(const grpc::Status& status) {
  constexpr std::uint32_t kWorthwhile = 1024;
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return kWorthwhile;
    case grpc::StatusCode::INVALID_ARGUMENT:  // of charge_output()
      return 1;
    default:
      return std::numeric_limits<std::uint32_t>::max();
  }
}

std::optional<ReasoningBudget> reasoning_budget(const ReadChat& chat, const ChatOutput& output) {
  if (!chat.request.thinking_budget) return std::nullopt;
  const Tokenizer& tokenizer = *chat.model->transformer->tokenizer();
  ReasoningBudget budget;
  budget.tokens = *chat.request.thinking_budget;
  budget.end = tokenizer.encode(chat.prompt.traits.reasoning_end,
                                {.add_special = false, .parse_special = true, .continues = true});
  if (output.thinking == ThinkingStart::kOpened) budget.before = "<think>";
  if (output.thinking == ThinkingStart::kOpenedHalf) budget.before = "<think";
  budget.calls = grammar_dialect(output.reader.dialect);
  return budget;
}

bool ended_by_itself(FinishReason reason) {
  return reason == FinishReason::kStopToken || reason == FinishReason::kStopString;
}

StoredChatStates::Reader reader_of(const CallScope& scope, const ReadChat& chat) {
  return {chat.model, chat.adapter, scope.caller().name};
}

// Returns true where states may be kept for the next turn: the cache has room for one of this
// model, which does not read its sequences again.
bool keeps_states(const ServiceContext& context, const ReadChat& chat) {
  const Transformer& transformer = *chat.model->transformer;
  return chat.request.cache && context.prefixes.takes(transformer, 1, /*is_turn=*/true) &&
         context.prefixes.may_keep(transformer, 1);
}

}  // namespace

grpc::Status report_ignored(const IgnoredMembers& ignored, bool refuses, RpcCall& rpc) {
  std::string names;
  grpc::Status status = ignored.report(refuses, names);
  if (!names.empty()) rpc.add_header(kIgnoredHeader, names);
  return status;
}

grpc::Status make_prompt(const ServiceContext& context, const CallScope& scope, ReadChat& chat,
                         PromptUse use, bool is_shown) {
  // Texts of the messages, and of the prompt in its renderings.
  constexpr std::size_t kTexts = 4;
  Violations violations;
  check_stop_strings(chat.request.base.stop.strings, "stop", chat.model->limits, violations);
  if (!violations.empty()) return violations.status();
  const Transformer& transformer = *chat.model->transformer;
  const Tokenizer* const tokenizer = transformer.tokenizer().get();
  if (chat.model->chat == nullptr || tokenizer == nullptr) {
    return chat_refusal("NO_CHAT_TEMPLATE", "model",
                        tokenizer == nullptr
                            ? "the model has no tokenizer: its tokens are ids alone"
                            : "the model has no chat template (--chat-template)");
  }
  if (const RequestRefusal refusal = chat.memory.add(kTexts * chat.text_bytes)) {
    return request_memory_refusal(refusal, scope.caller().name, "messages");
  }
  const bool has_use = is_shown || keeps_states(context, chat);
  if (use == PromptUse::kNextTurn && !has_use) use = PromptUse::kAnswer;
  chat.now = local_time(std::chrono::system_clock::to_time_t(context.clock.wall_time()));
  // Memory in addition to the messages', until the prompt is made.
  RequestMemory::Charge memory = chat.memory.beside();
  RequestBudget rendering(memory, /*copies=*/1, chat.is_cancelled);
  grpc::Status status = make_chat_prompt(*chat.model->chat, *tokenizer, chat.request, chat.now,
                                         chat.prompt, &rendering, use, context.late_system);
  if (rendering.refusal()) {
    return request_memory_refusal(rendering.refusal(), scope.caller().name, "messages");
  }
  if (!status.ok()) return status;
  return resolve_adapter(chat.request.base.adapter, *chat.model, &chat.adapter);
}

void ChatAnswerWriter::begin(PreparedChat& chat) {
  turn_ = std::move(chat.turn);
  on_turn_ = std::move(chat.on_turn);
  prompt_tokens_ = chat.prompt_tokens;
  const GenerationRequest& request = chat.prepared.checked.request;
  chat.output.seed = request.seed;
  if (chat.output.token_ids) prompt_ids_ = request.prompt;
  output_ = std::make_shared<const ChatOutput>(std::move(chat.output));
  if (turn_ != nullptr) turn_->output = output_;
  const auto count = static_cast<std::uint32_t>(request.num_samples);
  choices_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) choices_.emplace_back(*output_, i);
}

void ChatAnswerWriter::fill(std::span<const OutboxEntry> entries, bool is_last,
                            v1::ChatResponse& message) {
  const bool keeps_answer = turn_ != nullptr && choices_.size() == 1;
  if (!std::exchange(has_begun_, true)) {
    message.set_prompt_tokens(prompt_tokens_);
    message.mutable_prompt_ids()->Add(prompt_ids_.begin(), prompt_ids_.end());
    std::vector<std::int32_t>().swap(prompt_ids_);
  }
  std::vector<std::pair<std::int32_t, float>> top;
  for (const OutboxEntry& entry : entries) {
    if (entry.finished != nullptr) {
      finish(*entry.finished, message);
      continue;
    }
    ChatChoice& choice = choices_.at(static_cast<std::size_t>(entry.sample));
    if (keeps_answer) turn_->answer.push_back(entry.token);
    top.clear();
    for (const TopToken& token : entry.top) top.emplace_back(token.token, token.log2_prob);
    choice.push({.id = entry.token,
                 .log2_prob = entry.has_log2_prob ? std::optional(entry.log2_prob) : std::nullopt,
                 .top = top},
                message);
  }
  if (turn_ != nullptr) {
    turn_->has_calls |= std::ranges::any_of(message.deltas(), &v1::ChatDelta::has_call);
  }
  if (!is_last && !ends_early()) return;
  add_usage(message);
  if (turn_ != nullptr) on_turn_(std::move(turn_));
}

void ChatAnswerWriter::finish(const SampleResult& result, v1::ChatResponse& message) {
  // The prompt is read once for all its samples.
  cached_tokens_ = std::max<std::int64_t>(cached_tokens_, result.cached_tokens);
  // The request's outcome follows and says why; the answer has no end of its own.
  if (result.reason == FinishReason::kCancelled) return;
  const bool is_by_itself = ended_by_itself(result.reason);
  const int finished = message.finished_size();
  ChatChoice& choice = choices_.at(static_cast<std::size_t>(result.sample));
  for (const std::int32_t token : result.omitted_tokens) choice.end_with(token);
  choice.finish(is_by_itself, message);
  if (message.finished_size() > finished) {  // else its choice was over before
    v1::ChatFinish& wire = *message.mutable_finished(finished);
    wire.set_at_context_end(wire.reason() == v1::CHAT_FINISH_REASON_LENGTH &&
                            result.reason == FinishReason::kEndOfSequence);
  }
  for (v1::ChatFinish& wire : *message.mutable_finished()) {
    if (static_cast<int>(wire.choice()) != result.sample) continue;
    write_times(SampleTimes(result), *wire.mutable_timings());
  }
  if (turn_ == nullptr || choices_.size() > 1) return;
  turn_->is_ended_well = is_by_itself;
  if (!result.stop_token) return;
  turn_->ended_by_token = true;
  turn_->stop_token = *result.stop_token;
  if (output_->has_stop_token && !turn_->answer.empty()) turn_->answer.pop_back();
}

bool ChatAnswerWriter::ends_early() const {
  return std::ranges::all_of(choices_, &ChatChoice::is_over);
}

void ChatAnswerWriter::add_use(TokenUse used, const SampleTimes& times,
                               v1::ChatResponse& message) const {
  message.mutable_usage()->set_cached_tokens(
      std::max<std::int64_t>(cached_tokens_, used.prompt > 0 ? prompt_tokens_ - used.prompt : 0));
  for (v1::ChatFinish& finish : *message.mutable_finished()) {
    if (!finish.has_timings()) write_times(times, *finish.mutable_timings());
  }
}

void ChatAnswerWriter::add_usage(v1::ChatResponse& message) const {
  v1::ChatUsage& usage = *message.mutable_usage();
  usage.set_prompt_tokens(prompt_tokens_);
  usage.set_cached_tokens(cached_tokens_);
  for (const ChatChoice& choice : choices_) {
    usage.set_completion_tokens(usage.completion_tokens() + choice.tokens());
    usage.set_reasoning_tokens(usage.reasoning_tokens() + choice.reasoning_tokens());
  }
}

ChatGeneration::ChatGeneration(const ServiceContext& context, AnswerGrammars& grammars)
    : context_(context), grammars_(grammars), turns_(/*threads=*/1, kMostTurns) {}

ChatGeneration::~ChatGeneration() { is_stopping_ = true; }

grpc::Status ChatGeneration::charge_output(RpcCall& rpc, const CallScope& scope,
                                           PreparedChat& chat) {
  constexpr const char* kField = "max_tokens";
  PreparedGeneration& prepared = chat.prepared;
  const GenerationRequest& request = prepared.checked.request;
  const bool may_call = chat.output.reader.dialect != ToolDialect::kNone;
  if (chat.output.token_ids) {
    // Ids of the prompt wait for the first message, and are in it; all of them as text.
    constexpr std::size_t kIdBytes = 2 * sizeof(std::int32_t) + 12;
    const std::size_t ids =
        request.prompt.size() + static_cast<std::size_t>(request.num_samples) *
                                    static_cast<std::size_t>(request.max_new_tokens);
    const RequestRefusal refusal = prepared.memory.add(ids * kIdBytes);
    if (refusal) return request_memory_refusal(refusal, scope.caller().name, kField);
  }
  // Tokens whose place a call in its middle leaves open wait with their log-probabilities.
  constexpr std::size_t kWaitingBytes = 80;
  if (request.log2_probs && may_call) {
    const std::size_t tokens = static_cast<std::size_t>(request.num_samples) *
                               static_cast<std::size_t>(request.max_new_tokens);
    const std::size_t each = kWaitingBytes + static_cast<std::size_t>(request.top_log2_probs) *
                                                 sizeof(std::pair<std::int32_t, float>);
    const RequestRefusal refusal = prepared.memory.add(tokens * each);
    if (refusal) return request_memory_refusal(refusal, scope.caller().name, kField);
  }
  return charge_kept_answer(rpc, scope, prepared, kField);
}

grpc::Status ChatGeneration::admit(RpcCall& rpc, StreamCall& call, const ReadChat& chat,
                                   PreparedChat& prepared) const {
  api::GenerateParams params = generate_params(chat);
  for (;;) {
    GenerationTarget target;
    target.model = chat.model;
    prepared.prepared = {};
    prepared.prepared.memory = call.scope.charge();
    grpc::Status status = prepare_generation(context_, call.scope.caller().name, params,
                                             chat.prompt.tokens, call_deadline(rpc, context_.clock),
                                             std::move(target), prepared.prepared);
    // A value that is wrong stays so with fewer tokens.
    if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) return status;
    if (status.ok()) status = charge_output(rpc, call.scope, prepared);
    const std::uint32_t least = std::max(least_tokens(status), params.stop.min_tokens);
    std::uint32_t& most = *params.max_new_tokens;
    if (status.ok() || !chat.request.shortens_answer || most <= least) return status;
    most = std::max(most / 2, least);
  }
}

bool ChatGeneration::has_stored(const CallScope& scope, const ReadChat& chat) const {
  StoredChatStates* const stored = context_.chat_states;
  return stored != nullptr && keeps_states(context_, chat) &&
         stored->has_more(reader_of(scope, chat), chat.prompt.tokens.ids);
}

void ChatGeneration::restore(const CallScope& scope, const ReadChat& chat) const {
  context_.chat_states->restore(reader_of(scope, chat), chat.prompt.tokens.ids);
}

grpc::Status ChatGeneration::prepare(RpcCall& rpc, StreamCall& call, ReadChat& chat,
                                     bool is_stored_at_once, PreparedChat& prepared) {
  const std::int64_t most = chat.model->transformer->config().max_tokens();
  if (most > 0 && static_cast<std::int64_t>(chat.prompt.tokens.ids.size()) >= most) {
    return chat_refusal("CONTEXT_LENGTH_EXCEEDED", "messages",
                        "have " + std::to_string(chat.prompt.tokens.ids.size()) +
                            " tokens, the model takes fewer than " + std::to_string(most));
  }
  grpc::Status spelt = spell_grammar_tokens(*chat.model->transformer->tokenizer(), chat.request);
  if (!spelt.ok()) return spelt;
  prepared.output = chat_output(chat.request, chat.prompt, chat.model->transformer->tokenizer());
  add_model_stops(chat, prepared.output.stops);
  add_left_out(chat, rpc);
  grpc::Status status = admit(rpc, call, chat, prepared);
  GenerationRequest& request = prepared.prepared.checked.request;
  if (status.ok()) {
    status = grammars_.constrain(rpc, chat.request, chat.prompt.traits,
                                 chat.prompt.thinking != ThinkingStart::kClosed,
                                 *chat.model->transformer, request);
  }
  if (!status.ok()) return status;
  request.caches_prefix = chat.request.cache;
  const bool caches = keeps_states(context_, chat);
  request.reasoning = reasoning_budget(chat, prepared.output);
  request.allowance = call.quota.allowance();
  request.caller = call.scope.turn_name();
  prepared.prompt_tokens = static_cast<std::int64_t>(chat.prompt.tokens.ids.size());
  const GenerationRequest::Turn kept = caches ? turn_of(chat) : GenerationRequest::Turn();
  if (caches) request.turn = kept;
  const bool is_stored = context_.chat_states != nullptr &&
                         (is_stored_at_once || context_.chat_states->options().stores_all);
  const bool is_read_ahead = context_.prefixes.options().reads_ahead;
  if (caches && (kept.call > 0 || kept.keeps_end || is_stored || is_read_ahead)) {
    // The turn's states only save time: without memory for them the answer is the same.
    if (make_turn(chat, call.scope.caller().name, request.max_new_tokens, prepared.turn).ok()) {
      prepared.turn->kept = kept;
      prepared.turn->is_stored_at_once = is_stored_at_once;
    } else {
      prepared.turn = nullptr;
    }
  }
  prepared.on_turn = [this](std::unique_ptr<ChatTurn> ended) {
    turns_.run([this, shared = std::shared_ptr<const ChatTurn>(std::move(ended))] {
      try {
        if (!is_stopping_) end_turn(*shared);
      } catch (const RenderCancelled&) {  // by the destructor, or for want of memory
      }
    });
  };
  return status;
}

grpc::Status ChatGeneration::make_turn(ReadChat& chat, const Owner& owner,
                                       std::int64_t max_new_tokens,
                                       std::unique_ptr<ChatTurn>& turn) const {
  api::ChatParams& request = chat.request;
  nlohmann::ordered_json trees = {{"messages", std::move(request.messages)},
                                  {"tools", std::move(request.tools)},
                                  {"documents", std::move(request.documents)},
                                  {"kwargs", std::move(request.kwargs)}};
  std::string text = json_text(trees);
  text.shrink_to_fit();
  const auto answer = static_cast<std::size_t>(request.num_choices == 1 ? max_new_tokens : 0);
  RequestMemory::Charge memory = chat.memory.beside();
  const RequestRefusal refusal =
      memory.add(text.capacity() + (chat.prompt.tokens.ids.size() + answer) * sizeof(std::int32_t));
  if (refusal) return request_memory_refusal(refusal, owner, "messages");
  turn = std::make_unique<ChatTurn>(ChatTurn{.memory = std::move(memory),
                                             .model = chat.model,
                                             .adapter = chat.adapter,
                                             .owner = owner,
                                             .request = std::move(request),
                                             .trees = std::move(text),
                                             .now = chat.now,
                                             .boundary = chat.prompt.turn_boundary,
                                             .tokens = std::move(chat.prompt.tokens.ids)});
  return grpc::Status::OK;
}

std::optional<api::ChatParams> ChatGeneration::request_of(const ChatTurn& turn,
                                                          JsonBudget& budget) const {
  JsonFailure failure;
  auto trees = read_request_json(turn.trees, {.budget = &budget}, failure);
  if (!trees) return std::nullopt;
  api::ChatParams request = turn.request;
  request.messages = std::move((*trees)["messages"]);
  request.tools = std::move((*trees)["tools"]);
  request.documents = std::move((*trees)["documents"]);
  request.kwargs = std::move((*trees)["kwargs"]);
  return request;
}

void ChatGeneration::end_turn(const ChatTurn& turn) const {
  const Transformer& transformer = *turn.model->transformer;
  const PrefixCache::Reader reader{transformer, turn.adapter, turn.owner};
  const std::span<const std::int32_t> prompt(turn.tokens);
  const bool has_end = turn.kept.keeps_end && turn.ended_by_token;
  const bool may_read_ahead =
      context_.prefixes.options().reads_ahead && turn.request.num_choices == 1;
  RequestMemory::Charge memory(context_.gate.memory, turn.owner);
  const std::function<bool()> is_stopping = [this] { return is_stopping_.load(); };
  RequestBudget budget(memory, /*copies=*/1, is_stopping);
  std::optional<api::ChatParams> request;
  if (has_end || may_read_ahead) request = request_of(turn, budget);
  bool keeps_end = false;
  if (has_end) {
    std::vector<std::int32_t> tokens = turn.tokens;
    tokens.insert(tokens.end(), turn.answer.begin(), turn.answer.end());
    tokens.push_back(turn.stop_token);
    try {
      keeps_end =
          request && next_turn_begins_with(*turn.model->chat, *transformer.tokenizer(), *request,
                                           turn.now, answer_of(turn, *request), tokens, &budget);
    } catch (const RenderCancelled&) {  // it may begin otherwise
    }
    if (!keeps_end) context_.prefixes.drop(reader, tokens, KeptFor::kEnd);
  }
  if (turn.kept.call > 0 && (keeps_end || !turn.has_calls)) {
    context_.prefixes.drop(reader, prompt.first(static_cast<std::size_t>(turn.kept.call)),
                           KeptFor::kCall);
  }
  if (context_.chat_states != nullptr) {
    context_.chat_states->note_turn({turn.model, turn.adapter, turn.owner},
                                    prompt.first(static_cast<std::size_t>(turn.boundary)),
                                    turn.is_stored_at_once);
  }
  if (!keeps_end && may_read_ahead && request) read_ahead(turn, *request, budget);
}

namespace {

// Drops the output of a prompt that is read ahead: nothing is sent to anyone.
class AheadSink final : public TokenSink {
  bool on_token(const TokenEvent& /*event*/) override { return true; }
  void on_sample_finish(const SampleResult& /*result*/) override {}
  void on_step_end() override {}
  void on_finish(RequestOutcome /*outcome*/) override {}
};

}  // namespace

void ChatGeneration::read_ahead(const ChatTurn& turn, api::ChatParams& chat,
                                JsonBudget& budget) const {
  const Transformer& transformer = *turn.model->transformer;
  const Scheduler::Stats stats = turn.model->scheduler->stats();
  if (stats.running + stats.queued > 0) return;
  GenerationRequest request;
  request.prompt = next_turn_beginning(*turn.model->chat, *transformer.tokenizer(), chat, turn.now,
                                       answer_of(turn, chat), &budget);
  const auto size = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t most = transformer.config().max_tokens();
  if (size <= turn.boundary || (most > 0 && size >= most)) return;
  request.cache_prefix_tokens = size;
  request.turn = GenerationRequest::Turn{.is_ahead = true};
  SessionManager::LeaseResult leased = context_.sessions.lease_one_shot(
      turn.model->name, turn.model->transformer, size,
      /*num_samples=*/1, turn.owner, /*call_bytes=*/0, turn.adapter);
  if (leased.refusal) return;
  turn.model->scheduler->submit(std::move(request), std::move(leased.lease),
                                std::make_shared<AheadSink>(), RequestHandle());
}

}  // namespace lintel
