// SPDX-License-Identifier: Apache-2.0
// MessageOutput: the pieces of a chat's answer as a message of Anthropic's API, or as its events.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/core/request_memory.h"
#include "server/http/encoding/json_bodies.h"

namespace lintel {

// The output of one answer. Its events do not depend on how pieces are grouped into messages. Used
// by one thread at a time.
class MessageOutput {
 public:
  struct Options {
    std::string id;
    std::string model;                        // empty: that of the first message
    std::vector<std::string> stop_sequences;  // of the request
    bool shows_thinking = true;
    std::function<std::string(const std::string& thinking)> seal;
    // A stream's memory for thinking that is kept for its signature. If there is no room, the
    // signature is empty, and the thinking is not recognized when the client sends it back.
    RequestMemory::Charge charge;
  };
  explicit MessageOutput(Options options) : options_(std::move(options)) {}

  // The events of a stream: those that a message makes, and the last ones.
  std::string events(const v1::ChatResponse& message);
  std::string last_events();
  // Adds a message to an answer that is not streamed. Fails if the answer is too large.
  grpc::Status gather(const v1::ChatResponse& message);
  // Takes what was gathered.
  JsonPieces body();

 private:
  using Json = nlohmann::ordered_json;
  enum class Kind { kNone, kThinking, kText, kCall };
  struct Block {
    Kind kind = Kind::kNone;
    std::string text;  // of a call its arguments
    v1::ToolCallDelta call;
  };

  void note(const v1::ChatResponse& message);
  Json usage() const;
  std::string stop_reason() const;
  Json stop_sequence() const;
  void begin(std::string& out);
  void open(Kind kind, Json block, std::string& out);
  void add_delta(Json delta, std::string& out) const;
  void keep_thinking(const std::string& text);
  void close(std::string& out);
  void write_block(Block& block, JsonPieces& out) const;

  Options options_;
  v1::ChatUsage usage_;
  v1::ChatFinish finish_;
  // State of a stream.
  bool has_begun_ = false;
  Kind kind_ = Kind::kNone;  // of the open block
  std::size_t index_ = 0;    // of the open block, or the next one
  std::string thinking_;     // of the open block
  bool keeps_thinking_ = true;
  // State of an answer that is not streamed.
  std::vector<Block> blocks_;
  std::size_t gathered_ = 0;  // bytes of texts
};

}  // namespace lintel
