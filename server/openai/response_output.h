// SPDX-License-Identifier: Apache-2.0
// ResponseOutput: the pieces of a chat's answer as the items of a response, and as its events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/response.pb.h"
#include "server/core/token_record.h"
#include "server/openai/custom_tools.h"
#include "server/openai/json.h"

namespace lintel {

inline constexpr std::size_t kMostOutputItems = 1024;  // of a response
// Bound of the texts of a response's output and their log-probabilities, as JSON: a longer one ends
// as at a limit. With its last events it fits into a message of gRPC.
inline constexpr std::size_t kMostOutputBytes = std::size_t{10} << 20;

// A response object without the members of its end: as it was when it began.
nlohmann::ordered_json begun_response(nlohmann::ordered_json response);

// The order and the members of events are those of Open Responses. Events do not depend on how
// pieces are grouped into messages, so that they can be repeated. Used by one thread at a time.
class ResponseOutput {
 public:
  // response: as begun_response() makes it; its tools tell custom calls from others, its reasoning
  // determines if there is a summary. suffix: the end of the ids of items, before their place.
  ResponseOutput(nlohmann::ordered_json response, std::string suffix);

  // Adds the text of reasoning as sealed by this function, too.
  void seal_reasoning(std::function<std::string(const std::string& text)> seal) {
    seal_ = std::move(seal);
  }

  // The response has the timings of its answer in the end.
  void show_timings() { has_timings_ = true; }

  // Each appends its events; `events` null: there is no stream, and calls that broke off are left
  // out.
  void begin(v1::ResponseEvents* events);
  // Adds a message of the only choice.
  void push(const v1::ChatResponse& message, v1::ResponseEvents* events);
  // End the response; fail() also replaces another end that was not sent. now: in seconds since
  // 1970.
  void finish(std::int64_t now, v1::ResponseEvents* events);  // as in the last pushed message
  void fail(const std::string& code, const std::string& message, v1::ResponseEvents* events);
  void cancel(v1::ResponseEvents* events);

  bool has_begun() const { return has_begun_; }
  // True if the output has kMostOutputBytes: it has to end as at a limit.
  bool is_full() const { return output_bytes_ > kMostOutputBytes; }
  void cut() { is_cut_ = true; }
  // The response, for json_text(): its log-probabilities are text already.
  const nlohmann::ordered_json& response() const { return response_; }
  // The data for RepeatedEvents: for each item the bytes of its deltas, each with the number of its
  // log-probabilities if it has any.
  nlohmann::ordered_json pieces() const;

 private:
  friend class RepeatedEvents;

  using Json = nlohmann::ordered_json;
  enum class Kind { kNone, kReasoning, kMessage, kCall, kCustomCall };

  void emit(const char* type, Json members, v1::ResponseEvents* events);
  void emit_response(const char* type, v1::ResponseEvents* events);
  void open(Kind kind, Json item, v1::ResponseEvents* events);
  // logprobs: a list as raw_json(), if there are events; null: none. count: their number.
  void add_text(Kind kind, const std::string& text, Json logprobs, std::size_t count,
                v1::ResponseEvents* events);
  void add_tokens(const v1::ChatDelta& delta);
  // The log-probabilities of the open item, as a list.
  std::string logprobs_text() const;
  void add_call(const v1::ToolCallDelta& call, v1::ResponseEvents* events);
  void open_call(Kind kind, const std::string& id, const std::string& name,
                 v1::ResponseEvents* events);
  // Adds to the open call's arguments, or its input.
  void add_call_text(const std::string& text, v1::ResponseEvents* events);
  bool is_whole_call() const;
  // Ends the open item; is_cut: by a limit or a failure.
  void close(bool is_cut, v1::ResponseEvents* events);
  void end(const char* status, bool is_cut, const char* event, v1::ResponseEvents* events);
  std::string item_id(const char* prefix) const;

  Json response_;
  const std::string suffix_;
  std::set<std::string> custom_tools_;
  // True: the text of reasoning is its summary, too.
  bool has_summaries_ = false;
  std::function<std::string(const std::string&)> seal_;  // null: it does not
  bool has_timings_ = false;
  AnswerTimings timings_;
  bool has_begun_ = false, has_ended_ = false;
  bool is_streamed_ = false;
  std::int64_t sequence_ = 0;
  struct Piece {
    static constexpr std::uint32_t kNone = UINT32_MAX;
    std::uint32_t bytes = 0;
    std::uint32_t logprobs = kNone;
  };
  std::vector<std::deque<Piece>> pieces_;
  std::size_t output_bytes_ = 0;
  // The open item, which is the last of pieces_ and not yet in the output.
  Kind kind_ = Kind::kNone;
  Json item_;
  std::string text_;
  CustomInput input_;            // makes the text of a custom call
  bool is_whole_input_ = false;  // replaces input_ for a repeated item
  bool has_logprobs_ = false;
  TokenRecord logprobs_;
  std::string repeated_logprobs_;  // replaces it for a repeated item, as text
  bool is_cut_ = false;
  v1::ChatUsage usage_;
};

// The events of a response that is over, as in its stream, made while they are read. Used by one
// thread at a time.
class RepeatedEvents {
 public:
  // Events up to `starting_after` are left out.
  RepeatedEvents(nlohmann::ordered_json response, nlohmann::ordered_json pieces,
                 const std::string& suffix, std::int64_t starting_after);
  RepeatedEvents(const RepeatedEvents&) = delete;
  RepeatedEvents& operator=(const RepeatedEvents&) = delete;

  // Appends the next events, about `most`. Returns true if these are the last; then `events` has
  // the response, too.
  bool read(int most, v1::ResponseEvents& events);

 private:
  using Json = nlohmann::ordered_json;
  void step(v1::ResponseEvents& events);
  void end(v1::ResponseEvents& events);

  const Json response_;
  const Json pieces_;
  ResponseOutput output_;
  std::int64_t skipped_;      // number of events still to leave out
  std::size_t item_ = 0;      // being repeated
  std::size_t piece_ = 0;     // next piece of it
  std::size_t at_ = 0;        // bytes of its text so far
  std::size_t at_token_ = 0;  // log-probabilities so far
  bool has_begun_ = false, is_over_ = false;
};

// Text of JSON as a value of a tree, for json_text().
nlohmann::ordered_json raw_json(const std::string& text);

}  // namespace lintel
