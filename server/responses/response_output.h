// SPDX-License-Identifier: Apache-2.0
// ResponseOutput: the pieces of a chat's answer as the items of a response, and as its events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/response.pb.h"

namespace lintel {

inline constexpr std::size_t kMostOutputItems = 1024;  // of a response

// A response object with nothing of its end: as it was when it began.
nlohmann::ordered_json begun_response(nlohmann::ordered_json response);

// The order and the members of events are those of Open Responses. Which events there are does not
// depend on how pieces are grouped into messages, so that they can be made again. Used by one
// thread at a time.
class ResponseOutput {
 public:
  // response: as begun_response() makes it. suffix: with which the ids of items end, before their
  // place.
  ResponseOutput(nlohmann::ordered_json response, std::string suffix)
      : response_(std::move(response)), suffix_(std::move(suffix)) {}

  // Reasoning comes sealed, too, by this function.
  void seal_reasoning(std::function<std::string(const std::string& text)> seal) {
    seal_ = std::move(seal);
  }

  // Each appends its events; `events` null: there is no stream.
  void begin(v1::ResponseEvents* events);
  // Of the one choice.
  void push(const v1::ChatResponse& message, v1::ResponseEvents* events);
  // An item of another one's output again, in its pieces.
  void repeat(const nlohmann::ordered_json& item, const nlohmann::ordered_json& pieces,
              v1::ResponseEvents* events);
  // The end; fail() also in the place of another one, which has not been sent. now: in seconds
  // since 1970.
  void finish(std::int64_t now, v1::ResponseEvents* events);  // as the last pushed message says
  void fail(const std::string& code, const std::string& message, v1::ResponseEvents* events);
  void cancel(v1::ResponseEvents* events);

  bool has_begun() const { return has_begun_; }
  const nlohmann::ordered_json& response() const { return response_; }
  // What make_events() needs: of each item the bytes of its deltas, each with the number of its
  // log-probabilities where it has any.
  const nlohmann::ordered_json& pieces() const { return pieces_; }

 private:
  using Json = nlohmann::ordered_json;
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  void emit(const char* type, Json members, v1::ResponseEvents* events);
  void emit_response(const char* type, v1::ResponseEvents* events);
  void open(Kind kind, Json item, v1::ResponseEvents* events);
  // logprobs: an array; null: it has none.
  void add_text(Kind kind, const std::string& text, Json logprobs, v1::ResponseEvents* events);
  void add_call(const v1::ToolCallDelta& call, v1::ResponseEvents* events);
  // The open item is over; is_cut: a limit or a failure ended it.
  void close(bool is_cut, v1::ResponseEvents* events);
  void end(const char* status, bool is_cut, const char* event, v1::ResponseEvents* events);
  std::string item_id(const char* prefix) const;

  Json response_;
  const std::string suffix_;
  std::function<std::string(const std::string&)> seal_;  // null: it does not
  bool has_begun_ = false, has_ended_ = false;
  std::int64_t sequence_ = 0;
  Json pieces_ = Json::array();
  // The open item, which is the last of pieces_ and not yet in the output.
  Kind kind_ = Kind::kNone;
  Json item_;
  std::string text_;
  Json logprobs_;  // null: none were asked for
  bool is_cut_ = false;
  v1::ChatUsage usage_;
};

// The events of a response that is over, as its stream had them, without those up to
// `starting_after`.
v1::ResponseEvents make_events(const nlohmann::ordered_json& response,
                               const nlohmann::ordered_json& pieces, const std::string& suffix,
                               std::int64_t starting_after);

// As a response has it.
nlohmann::ordered_json response_usage(const v1::ChatUsage& usage);
// The shortest decimal that is read as this float.
double decimal(float value);
// As text, with what is not UTF-8 in it replaced.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace lintel
