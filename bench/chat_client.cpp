// SPDX-License-Identifier: Apache-2.0
#include "bench/chat_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/cli/console.h"
#include "client/lib/channel.h"
#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"
#include "model/core/errors.h"

namespace lintel::bench {
namespace {

using ChatJson = nlohmann::ordered_json;
using Outcome = ChatAnswer::Outcome;

// Limit on the text of an answer, which max_tokens keeps far below it.
constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxErrorBytes = 300;

// Time for the server to say what it serves.
constexpr std::chrono::milliseconds kPatienceForModel{30'000};

// Replaces an answer without content, such as one whose reasoning took all its tokens, in the
// prompts of later turns: servers refuse messages without a text.
constexpr const char* kNoAnswer = "...";

const ChatJson* part_of(const ChatJson* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto found = object->find(name);
  return found == object->end() || found->is_null() ? nullptr : &*found;
}

std::string text_part(const ChatJson* object, const char* name) {
  const ChatJson* const found = part_of(object, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

void read_count(const ChatJson* object, const char* name, std::optional<std::int64_t>& count) {
  const ChatJson* const found = part_of(object, name);
  if (found != nullptr && found->is_number_integer() && *found >= 0) {
    count = found->get<std::int64_t>();
  }
}

void set_failed(ChatAnswer& answer, std::string status, const std::string& error) {
  answer.outcome = Outcome::kFailed;
  answer.status = std::move(status);
  answer.error = one_line(shorten(error, kMaxErrorBytes));
}

// Reads "error": {"message", "type", "code"} or "error": TEXT, of a body or an event.
void read_error(const ChatJson& whole, ChatAnswer& answer) {
  const ChatJson* const error = part_of(&whole, "error");
  std::string message = text_part(error, "message");
  if (message.empty()) message = text_part(&whole, "error");
  if (message.empty()) message = text_part(&whole, "message");
  if (message.empty()) message = whole.dump();
  answer.error = one_line(shorten(message, kMaxErrorBytes));
}

bool is_refusal(int status) { return status == 429 || status == 503 || status == 529; }

// Reads an error within a stream, whose status was 200. Its code may be the status that it would
// have had; types are those of OpenAI, llama.cpp and Anthropic.
void read_stream_error(const ChatJson& event, ChatAnswer& answer) {
  const ChatJson* const error = part_of(&event, "error");
  std::optional<std::int64_t> code;
  read_count(error, "code", code);
  std::string type = text_part(error, "type");
  if (type.empty()) type = text_part(error, "code");
  set_failed(answer, type.empty() ? "error in a stream" : one_line(shorten(type)), "");
  read_error(event, answer);
  if (code) answer.status = std::to_string(*code);
  constexpr const char* kRefusals[] = {"rate_limit", "overloaded", "unavailable", "exhausted"};
  const bool says_so = std::ranges::any_of(
      kRefusals, [&](const char* word) { return type.find(word) != std::string::npos; });
  if (says_so || (code && *code < 600 && is_refusal(static_cast<int>(*code)))) {
    answer.outcome = Outcome::kRefused;
  }
}

void add_text(ChatAnswer& answer, const std::string& text) {
  if (answer.text.size() + text.size() > kMaxAnswerBytes) {
    throw std::length_error("an answer of more than " + std::to_string(kMaxAnswerBytes) + " bytes");
  }
  answer.text += text;
}

// Sets the outcome of an answer that is no stream, by its status.
void read_refusal(const HttpAnswer& reply, ChatAnswer& answer) {
  if (reply.status == 200) {
    set_failed(answer, "stream",
               "the answer is " + (reply.type.empty() ? "nothing" : reply.type) +
                   ", not text/event-stream");
    return;
  }
  set_failed(answer, std::to_string(reply.status), reply.body);
  if (is_refusal(reply.status)) answer.outcome = Outcome::kRefused;
  const ChatJson body = ChatJson::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_object()) read_error(body, answer);
}

void read_failure(const HttpFailure& failure, ChatAnswer& answer) {
  using Kind = HttpFailure::Kind;
  if (failure.kind() == Kind::kCancelled) {
    answer.outcome = Outcome::kUnfinished;
    return;
  }
  set_failed(answer,
             failure.kind() == Kind::kConnect   ? "connection"
             : failure.kind() == Kind::kTimeout ? "timeout"
                                                : "broken",
             failure.what());
}

// is_connected: the channel has a connection after the call.
void read_call_error(const CallError& error, bool cancelled, bool is_connected,
                     ChatAnswer& answer) {
  if (cancelled && error.code() == grpc::StatusCode::CANCELLED) {
    answer.outcome = Outcome::kUnfinished;
    return;
  }
  const bool is_unreached =
      error.code() == grpc::StatusCode::UNAVAILABLE && !is_connected && answer.arrivals.empty();
  set_failed(answer, is_unreached ? "connection" : status_code_name(error.code()), error.message());
  if (error.code() == grpc::StatusCode::RESOURCE_EXHAUSTED) answer.outcome = Outcome::kRefused;
}

// Sets the outcome of a stream that has ended without an error.
void end_stream(bool is_whole, ChatAnswer& answer) {
  answer.outcome = Outcome::kAnswered;
  if (!is_whole) set_failed(answer, "broken", "the stream ended before the answer");
}

}  // namespace

std::shared_ptr<grpc::Channel> unshared_channel(const std::string& address, const Tls& tls,
                                                const std::string& token) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return make_channel(address, tls, /*sends_token=*/!token.empty(), /*proxy=*/"",
                      std::move(arguments));
}

std::string_view name_of(ChatApi api) {
  switch (api) {
    case ChatApi::kOpenAi:
      return "openai";
    case ChatApi::kAnthropic:
      return "anthropic";
    case ChatApi::kGrpc:
      return "grpc";
    case ChatApi::kGenerate:
      return "generate";
  }
  return "";
}

void OpenAiStream::add(const ServerEvent& event, ChatAnswer::Clock::time_point now) {
  if (has_error_) return;
  if (event.data == "[DONE]") {
    is_done_ = true;
    return;
  }
  const ChatJson chunk = ChatJson::parse(event.data, nullptr, /*allow_exceptions=*/false);
  if (!chunk.is_object()) {
    has_error_ = true;
    set_failed(answer_, "stream", "an event is no JSON object: " + event.data);
    return;
  }
  if (event.name == "error" || part_of(&chunk, "error") != nullptr) {
    has_error_ = true;
    read_stream_error(chunk, answer_);
    return;
  }
  if (const ChatJson* const usage = part_of(&chunk, "usage")) {
    read_count(usage, "prompt_tokens", answer_.prompt_tokens);
    read_count(usage, "completion_tokens", answer_.generated_tokens);
    read_count(part_of(usage, "prompt_tokens_details"), "cached_tokens", answer_.cached_tokens);
  }
  if (!answer_.cached_tokens) {
    read_count(part_of(&chunk, "timings"), "cache_n", answer_.cached_tokens);
  }
  const ChatJson* const choices = part_of(&chunk, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  const ChatJson& choice = choices->front();
  const ChatJson* const delta = part_of(&choice, "delta");
  const std::string content = text_part(delta, "content");
  const bool has_reasoning =
      !text_part(delta, "reasoning_content").empty() || !text_part(delta, "reasoning").empty();
  if (!content.empty() || has_reasoning) answer_.arrivals.push_back(now);
  add_text(answer_, content);
  if (part_of(&choice, "finish_reason") != nullptr) is_done_ = true;
}

void OpenAiStream::finish() {
  if (!has_error_) end_stream(is_done_, answer_);
}

void AnthropicStream::add(const ServerEvent& event, ChatAnswer::Clock::time_point now) {
  if (has_error_) return;
  const ChatJson data = ChatJson::parse(event.data, nullptr, /*allow_exceptions=*/false);
  if (!data.is_object()) {
    has_error_ = true;
    set_failed(answer_, "stream", "an event is no JSON object: " + event.data);
    return;
  }
  const std::string type = text_part(&data, "type");
  const auto read_usage = [&](const ChatJson* usage) {
    read_count(usage, "input_tokens", read_);
    read_count(usage, "cache_creation_input_tokens", written_);
    read_count(usage, "cache_read_input_tokens", cached_);
    read_count(usage, "output_tokens", answer_.generated_tokens);
  };
  if (event.name == "error" || type == "error") {
    has_error_ = true;
    read_stream_error(data, answer_);
  } else if (type == "message_start") {
    read_usage(part_of(part_of(&data, "message"), "usage"));
    answer_.generated_tokens.reset();  // so far; message_delta has them all
  } else if (type == "content_block_delta") {
    const ChatJson* const delta = part_of(&data, "delta");
    const std::string text = text_part(delta, "text");
    if (!text.empty() || !text_part(delta, "thinking").empty()) answer_.arrivals.push_back(now);
    add_text(answer_, text);
  } else if (type == "message_delta") {
    read_usage(part_of(&data, "usage"));
  } else if (type == "message_stop") {
    is_done_ = true;
  }
}

void AnthropicStream::finish() {
  if (read_) answer_.prompt_tokens = *read_ + written_.value_or(0) + cached_.value_or(0);
  answer_.cached_tokens = cached_;
  if (!has_error_) end_stream(is_done_, answer_);
}

ChatClient::ChatClient(const ChatTarget& target) : target_(target) {
  if (target.api == ChatApi::kOpenAi || target.api == ChatApi::kAnthropic) {
    http_ = std::make_unique<HttpStream>(target.tls);
  } else {
    channel_ = unshared_channel(target.address, target.tls, target.token);
    client_ = std::make_unique<Client>(channel_, target.timeout, target.token);
  }
}

ChatClient::~ChatClient() = default;

std::string ChatClient::find_model() {
  if (client_ != nullptr) {
    // A client with a connection of its own says why there is none.
    Client::Options options;
    options.address = target_.address;
    options.deadline = std::min(target_.timeout, kPatienceForModel);
    options.tls = target_.tls;
    options.token = target_.token;
    const v1::Model model = Client(options).get_model(target_.model);
    if (target_.api == ChatApi::kGenerate && model.tokenizer().empty()) {
      throw cli::Failure("model " + model.name() +
                         " has no tokenizer; `lintel-bench serve` measures such models");
    }
    return model.name();
  }
  const std::string url = target_.url + "/v1/models";
  HttpAnswer reply;
  try {
    Cancellation cancellation;
    reply = http_->send(
        {.url = url, .headers = headers(), .timeout = std::min(target_.timeout, kPatienceForModel)},
        nullptr, cancellation);
  } catch (const HttpFailure& failure) {
    const grpc::Status status(grpc::StatusCode::UNAVAILABLE, failure.what());
    throw CallError(status, target_.url, failure.what(), "is this its --target?");
  }
  if (!target_.model.empty()) return target_.model;  // it answers: that is all that was asked
  const ChatJson body = ChatJson::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  const ChatJson* const models = part_of(&body, "data");
  if (reply.status == 200 && models != nullptr && models->is_array() && !models->empty()) {
    const std::string name = text_part(&models->front(), "id");
    if (!name.empty()) return name;
  }
  throw cli::Failure("GET " + url + ": status " + std::to_string(reply.status) +
                     " and no model; --model names one" +
                     (reply.status == 401 || reply.status == 403 ? ", --token gives a token" : ""));
}

std::vector<std::string> ChatClient::headers() const {
  std::vector<std::string> headers = {"content-type: application/json"};
  if (target_.api == ChatApi::kAnthropic) headers.push_back("anthropic-version: 2023-06-01");
  if (!target_.token.empty()) {
    headers.push_back("authorization: Bearer " + target_.token);
    if (target_.api == ChatApi::kAnthropic) headers.push_back("x-api-key: " + target_.token);
  }
  return headers;
}

std::string ChatClient::body_of(const ChatQuestion& question) const {
  ChatJson messages = ChatJson::array();
  const auto say = [&](const char* role, const std::string& text) {
    messages.push_back({{"role", role}, {"content", text.empty() ? kNoAnswer : text}});
  };
  const bool is_anthropic = target_.api == ChatApi::kAnthropic;
  if (!question.system.empty() && !is_anthropic) say("system", question.system);
  for (const ChatTurn& turn : question.past) {
    say("user", turn.user);
    say("assistant", turn.answer);
  }
  say("user", question.text);
  ChatJson body = {{"model", target_.model}};
  if (!question.system.empty() && is_anthropic) body["system"] = question.system;
  body["messages"] = std::move(messages);
  body["max_tokens"] = question.max_tokens;
  body["stream"] = true;
  if (target_.api == ChatApi::kOpenAi) body["stream_options"] = {{"include_usage", true}};
  if (!is_anthropic) body["seed"] = question.seed;
  if (target_.ignore_eos) body["ignore_eos"] = true;
  if (!target_.members.empty()) body.update(ChatJson::parse(target_.members));
  return body.dump(-1, ' ', false, ChatJson::error_handler_t::replace);
}

void ChatClient::connect() {
  if (channel_ == nullptr) return;
  channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(1));
}

ChatAnswer ChatClient::ask(const ChatQuestion& question, Cancellation& cancellation) {
  ChatAnswer answer;
  try {
    if (target_.api == ChatApi::kGenerate) {
      generate(question, cancellation, answer);
    } else if (client_ != nullptr) {
      ask_over_grpc(question, cancellation, answer);
    } else {
      ask_over_http(question, cancellation, answer);
    }
  } catch (const HttpFailure& failure) {
    read_failure(failure, answer);
  } catch (const CallError& error) {
    const bool is_connected =
        channel_ != nullptr && channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
    read_call_error(error, cancellation.cancelled(), is_connected, answer);
  } catch (const std::length_error& error) {  // the server sends without end
    set_failed(answer, "stream", error.what());
  }
  return answer;
}

void ChatClient::ask_over_http(const ChatQuestion& question, Cancellation& cancellation,
                               ChatAnswer& answer) {
  const bool is_anthropic = target_.api == ChatApi::kAnthropic;
  const HttpStream::Request request{
      .url = target_.url + (is_anthropic ? "/v1/messages" : "/v1/chat/completions"),
      .headers = headers(),
      .body = body_of(question),
      .timeout = target_.timeout};
  EventReader reader;
  OpenAiStream open_ai(answer);
  AnthropicStream anthropic(answer);
  bool is_stream = false;
  const auto on_bytes = [&](std::string_view bytes) {
    is_stream = true;
    const ChatAnswer::Clock::time_point now = ChatAnswer::Clock::now();
    reader.add(bytes, [&](const ServerEvent& event) {
      is_anthropic ? anthropic.add(event, now) : open_ai.add(event, now);
    });
  };
  const HttpAnswer reply = http_->send(request, on_bytes, cancellation);
  if (!is_stream && !reply.type.starts_with("text/event-stream")) {
    read_refusal(reply, answer);
  } else {
    is_anthropic ? anthropic.finish() : open_ai.finish();
  }
}

void ChatClient::ask_over_grpc(const ChatQuestion& question, Cancellation& cancellation,
                               ChatAnswer& answer) {
  bool has_finish = false;
  client_->complete_chat(
      body_of(question),
      [&](const v1::ChatResponse& message) {
        bool has_text = false;
        for (const v1::ChatDelta& delta : message.deltas()) {
          has_text = has_text || !delta.content().empty() || !delta.reasoning().empty();
          add_text(answer, delta.content());
        }
        if (has_text) answer.arrivals.push_back(ChatAnswer::Clock::now());
        has_finish = has_finish || message.finished_size() > 0;
        if (message.has_usage()) {
          answer.prompt_tokens = message.usage().prompt_tokens();
          answer.cached_tokens = message.usage().cached_tokens();
          answer.generated_tokens = message.usage().completion_tokens();
        }
      },
      &cancellation);
  end_stream(has_finish, answer);
}

void ChatClient::generate(const ChatQuestion& question, Cancellation& cancellation,
                          ChatAnswer& answer) {
  std::string prompt = question.system.empty() ? "" : question.system + "\n\n";
  for (const ChatTurn& turn : question.past) prompt += turn.user + "\n\n" + turn.answer + "\n\n";
  prompt += question.text + "\n\n";
  v1::GenerateRequest request;
  request.set_model(target_.model);
  *request.mutable_prompt() = text_values(prompt);
  request.set_max_new_tokens(static_cast<std::uint32_t>(question.max_tokens));
  request.mutable_sampling()->set_seed(question.seed);
  request.mutable_stop()->set_ignore_eos(target_.ignore_eos);
  request.set_token_bytes(true);
  ChunkText characters;
  const std::vector<v1::SampleFinish> finished = client_->generate(
      request,
      [&](const v1::Chunk& chunk) {
        if (chunk.tokens_size() == 0) return;
        answer.arrivals.push_back(ChatAnswer::Clock::now());
        add_text(answer, characters.add(chunk));
      },
      &cancellation);
  add_text(answer, characters.finish());
  end_stream(!finished.empty(), answer);
  if (finished.empty()) return;
  const v1::SampleFinish& finish = finished.front();
  answer.prompt_tokens =
      std::int64_t{finish.prompt_tokens()} + finish.cached_tokens() + finish.skipped_tokens();
  answer.cached_tokens = finish.cached_tokens();
  answer.generated_tokens = finish.generated_tokens();
}

}  // namespace lintel::bench
