// SPDX-License-Identifier: Apache-2.0
// OllamaAnswer: the messages of a call as Ollama's JSON, in lines or as one object.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"
#include "model/core/utf8.h"
#include "server/core/token_record.h"
#include "server/http/encoding/json_bodies.h"
#include "server/ollama/request.h"

namespace lintel {

// Messages of lintel.v1.ChatService/Complete for either route; for kGenerate also those of
// GenerationService/Generate. Used by one thread at a time.
class OllamaAnswer {
 public:
  // model: as the request has it; empty: the one that the first message names. bytes: of Generate,
  // where each token is a byte and messages have no texts.
  OllamaAnswer(OllamaRoute route, std::string model, bool logprobs, bool bytes = false);

  OllamaRoute route() const { return route_; }

  // Lines of a stream: of a message, and the last one.
  std::string lines(const v1::ChatResponse& message);
  std::string lines(const v1::GenerateResponse& message);
  std::string last_line();
  // A line that adds nothing, for clients that wait.
  std::string empty_line() const;
  // Adds a message to an answer that is sent whole. Not OK: it is too large.
  grpc::Status gather(const v1::ChatResponse& message);
  grpc::Status gather(const v1::GenerateResponse& message);
  // Takes what was gathered.
  JsonPieces body();

  // The answer to a request that is empty: "load" or "unload".
  std::string loaded(const char* done_reason) const;

 private:
  // The part of the answer that was read and is not written yet.
  struct Part {
    std::string text, thinking;
    std::string calls;  // of tools: objects of JSON with commas between them
    TokenRecord tokens;

    bool is_empty() const {
      return text.empty() && thinking.empty() && calls.empty() && tokens.empty();
    }
    std::size_t bytes() const {
      return text.size() + thinking.size() + calls.size() + tokens.bytes();
    }
  };

  void read(const v1::ChatDelta& delta);
  void read(const v1::ChatResponse& message);
  void read(const v1::Chunk& chunk);
  void read(const v1::SampleFinish& finish);
  // The call that came in pieces is whole.
  void end_call();
  std::string line();  // empty: there is nothing to write
  grpc::Status check_size() const;
  std::string beginning() const;  // up to the message or the response
  // Takes the part. is_last: with the reason and the counts.
  void write(Part part, bool is_last, JsonPieces& out) const;

  const OllamaRoute route_;
  const bool logprobs_, bytes_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string model_;
  Part part_;
  std::optional<v1::ToolCallDelta> call_;  // with the arguments so far
  Utf8Stream utf8_;                        // of Generate
  const char* done_reason_ = "length";
  std::int64_t prompt_tokens_ = 0, tokens_ = 0;
  std::chrono::nanoseconds prompt_time_{0}, token_time_{0};
};

// A time as Ollama writes it: "2026-11-30T05:18:19.123456789Z".
std::string ollama_time(std::chrono::system_clock::time_point time);

}  // namespace lintel
