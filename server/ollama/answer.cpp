// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/answer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/chat/chat_output.h"
#include "server/http/encoding/json_bodies.h"
#include "server/openai/json.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using LineJson = nlohmann::ordered_json;

std::string quoted_text(const std::string& text) { return dumped(LineJson(text)); }

std::chrono::nanoseconds nanoseconds_of(const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) + std::chrono::nanoseconds(duration.nanos());
}

// {"id", "function": {"index", "name", "arguments": {...}}}. Empty: the call broke off.
std::string whole_call(const v1::ToolCallDelta& call) {
  std::string arguments = call.arguments();
  if (arguments.find_first_not_of(" \t\r\n") == std::string::npos) arguments = "{}";
  if (!is_whole_json(arguments)) return "";
  // A line end is white space here: within a text it would be written as \n.
  std::ranges::replace_if(
      arguments, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  if (arguments.at(arguments.find_first_not_of(" \t")) != '{') {
    arguments = "{\"arguments\":" + arguments + "}";  // Ollama's are always objects
  }
  return R"({"id":)" + quoted_text(call.id()) + R"(,"function":{"index":)" +
         std::to_string(call.index()) + ",\"name\":" + quoted_text(call.name()) +
         ",\"arguments\":" + arguments + "}}";
}

// A token of a record, with the most likely alternatives.
std::string logprob_json(const TokenRecord& tokens, const TokenRecord::Cursor& at) {
  const auto json_of = [&](const TokenRecord::Value& value) {
    return token_json(tokens.text_of(value.id), value.log2_prob);
  };
  LineJson json = json_of(tokens.token_at(at));
  for (std::size_t i = 0; i < tokens.tops_at(at); ++i) {
    json["top_logprobs"].push_back(json_of(tokens.top_at(at, i)));
  }
  return dumped(json);
}

}  // namespace

std::string ollama_time(std::chrono::system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const std::time_t whole = seconds.count();
  std::tm utc{};
  gmtime_r(&whole, &utc);
  char text[64];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + size, sizeof text - size, ".%09lldZ",
                static_cast<long long>((since - seconds).count()));
  return text;
}

OllamaAnswer::OllamaAnswer(OllamaRoute route, std::string model, bool logprobs, bool bytes)
    : route_(route), logprobs_(logprobs), bytes_(bytes), model_(std::move(model)) {}

void OllamaAnswer::end_call() {
  if (!call_) return;
  const std::string call = whole_call(*call_);
  call_.reset();
  if (call.empty()) return;
  part_.calls += (part_.calls.empty() ? "" : ",") + call;
}

void OllamaAnswer::read(const v1::ChatDelta& delta) {
  if (!delta.has_call() || !delta.call().id().empty()) end_call();
  part_.text += delta.content();
  part_.thinking += delta.reasoning();
  if (logprobs_) {
    for (const v1::ContentToken& token : delta.tokens()) {
      part_.tokens.add(token.id(), token.text(), token.log2_prob());
      for (const v1::ContentToken& top : token.top()) {
        part_.tokens.add_top(top.id(), top.text(), top.log2_prob());
      }
    }
  }
  if (!delta.has_call()) return;
  if (!delta.call().id().empty()) {
    call_ = delta.call();
  } else if (call_) {
    call_->mutable_arguments()->append(delta.call().arguments());
  }
}

void OllamaAnswer::read(const v1::ChatResponse& message) {
  if (model_.empty()) model_ = message.model();
  if (message.has_usage()) {
    prompt_tokens_ = message.usage().prompt_tokens();
    tokens_ = message.usage().completion_tokens();
  }
  for (const v1::ChatFinish& finish : message.finished()) {
    // Ollama has no reason for calls.
    done_reason_ = finish.reason() == v1::CHAT_FINISH_REASON_LENGTH ? "length" : "stop";
    prompt_time_ = nanoseconds_of(finish.timings().prompt());
    token_time_ = nanoseconds_of(finish.timings().generation());
  }
}

std::string OllamaAnswer::lines(const v1::ChatResponse& message) {
  std::string out;
  read(message);
  for (const v1::ChatDelta& delta : message.deltas()) {
    read(delta);
    out += line();
  }
  if (message.finished_size() > 0) {
    end_call();
    out += line();
  }
  return out;
}

grpc::Status OllamaAnswer::gather(const v1::ChatResponse& message) {
  read(message);
  for (const v1::ChatDelta& delta : message.deltas()) read(delta);
  if (message.finished_size() > 0) end_call();
  return check_size();
}

void OllamaAnswer::read(const v1::Chunk& chunk) {
  const auto bytes_at = [&](const auto& message, int at) {
    if (bytes_) return std::string(1, static_cast<char>(message.tokens(at)));
    return at < message.token_bytes_size() ? message.token_bytes(at) : std::string();
  };
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    const std::string bytes = bytes_at(chunk, i);
    utf8_.push(bytes, part_.text);
    if (!logprobs_ || i >= chunk.log2_probs_size()) continue;
    part_.tokens.add(chunk.tokens(i), bytes, chunk.log2_probs(i));
    if (i >= chunk.top_size()) continue;
    const v1::TopValues& top = chunk.top(i);
    for (int k = 0; k < top.tokens_size(); ++k) {
      part_.tokens.add_top(top.tokens(k), bytes_at(top, k), top.log2_probs(k));
    }
  }
}

void OllamaAnswer::read(const v1::SampleFinish& finish) {
  utf8_.finish(part_.text);
  done_reason_ = finish_reason_name(finish.reason());
  prompt_tokens_ = finish.prompt_tokens() + finish.cached_tokens() + finish.skipped_tokens();
  tokens_ = finish.generated_tokens();
  prompt_time_ = nanoseconds_of(finish.timings().prompt());
  token_time_ = nanoseconds_of(finish.timings().generation());
}

std::string OllamaAnswer::lines(const v1::GenerateResponse& message) {
  for (const v1::Chunk& chunk : message.chunks()) read(chunk);
  for (const v1::SampleFinish& finish : message.finished()) read(finish);
  return line();
}

grpc::Status OllamaAnswer::gather(const v1::GenerateResponse& message) {
  for (const v1::Chunk& chunk : message.chunks()) read(chunk);
  for (const v1::SampleFinish& finish : message.finished()) read(finish);
  return check_size();
}

grpc::Status OllamaAnswer::check_size() const {
  if (part_.bytes() + (call_ ? call_->arguments().size() : 0) <= kMaxMessageBytes) {
    return grpc::Status::OK;
  }
  return invalid_argument({{"stream", "is false, and the answer is larger than " +
                                          std::to_string(kMaxMessageBytes) + " bytes"}});
}

std::string OllamaAnswer::beginning() const {
  return "{\"model\":" + quoted_text(model_) + ",\"created_at\":\"" +
         ollama_time(std::chrono::system_clock::now()) + "\",";
}

void OllamaAnswer::write(Part part, bool is_last, JsonPieces& out) const {
  const bool is_chat = route_ == OllamaRoute::kChat;
  out.raw(beginning() +
          (is_chat ? R"("message":{"role":"assistant","content":)" : "\"response\":"));
  out.quoted(std::move(part.text));
  if (!part.thinking.empty()) {
    out.raw(",\"thinking\":");
    out.quoted(std::move(part.thinking));
  }
  if (!part.calls.empty()) out.raw(",\"tool_calls\":[" + std::move(part.calls) + "]");
  out.raw(std::string(is_chat ? "}" : "") + ",\"done\":" + (is_last ? "true" : "false"));
  if (!part.tokens.empty()) {
    out.raw(",\"logprobs\":[");
    const std::size_t bytes = part.tokens.bytes();
    out.items(bytes, [tokens = std::make_shared<TokenRecord>(std::move(part.tokens)),
                      at = TokenRecord::Cursor()](std::string& text) mutable {
      if (at.token == tokens->size()) return false;
      text += logprob_json(*tokens, at);
      tokens->advance(at);
      return true;
    });
    out.raw("]");
  }
  if (is_last) {
    const std::chrono::nanoseconds total = std::chrono::steady_clock::now() - begin_;
    // The rest of the time: loading, the template, the queue, the way to the client.
    const auto load =
        std::max(total - prompt_time_ - token_time_, std::chrono::nanoseconds::zero());
    out.raw(R"(,"done_reason":")" + std::string(done_reason_) + "\",\"total_duration\":" +
            std::to_string(total.count()) + ",\"load_duration\":" + std::to_string(load.count()) +
            ",\"prompt_eval_count\":" + std::to_string(prompt_tokens_) +
            ",\"prompt_eval_duration\":" + std::to_string(prompt_time_.count()) +
            ",\"eval_count\":" + std::to_string(tokens_) +
            ",\"eval_duration\":" + std::to_string(token_time_.count()));
  }
  out.raw("}");
}

std::string OllamaAnswer::line() {
  if (part_.is_empty()) return "";
  JsonPieces out;
  write(std::exchange(part_, {}), /*is_last=*/false, out);
  return out.whole() + "\n";
}

std::string OllamaAnswer::last_line() {
  end_call();
  std::string out = line();
  JsonPieces last;
  write({}, /*is_last=*/true, last);
  return out + last.whole() + "\n";
}

std::string OllamaAnswer::empty_line() const {
  JsonPieces out;
  write({}, /*is_last=*/false, out);
  return out.whole() + "\n";
}

JsonPieces OllamaAnswer::body() {
  end_call();
  JsonPieces out;
  write(std::exchange(part_, {}), /*is_last=*/true, out);
  return out;
}

std::string OllamaAnswer::loaded(const char* done_reason) const {
  return beginning() +
         (route_ == OllamaRoute::kChat ? R"("message":{"role":"assistant","content":""})"
                                       : R"("response":"")") +
         ",\"done\":true,\"done_reason\":\"" + done_reason + "\"}\n";
}

}  // namespace lintel
