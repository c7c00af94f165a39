// SPDX-License-Identifier: Apache-2.0
// Bodies in JSON: of requests, read within bounds; of answers, written in pieces.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"
#include "server/rpc/rpc.h"

namespace lintel {

// The object that `body` is. Not OK: it is none, or beyond the bounds of JsonBounds or the
// budget's; the message says what is wrong.
grpc::Status parse_object(std::string_view body, JsonBudget* budget, nlohmann::json& object);

// The status that refuses a body which could not be read. `what` names the text: "the body".
grpc::Status json_refusal(const JsonFailure& failure, const std::string& what);

// The JSON as text, with invalid UTF-8 replaced.
template <typename Json>
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The shortest decimal that is read as this float; null where JSON has no number for it.
nlohmann::ordered_json short_number(float value);

// JsonPieces: a document of JSON that is written in pieces.

// A document of parts, which are written one after the other and freed as they are. So it takes the
// memory of its parts, and of one piece. Used by one thread at a time.
class JsonPieces {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

  // Adds the text unchanged.
  void raw(std::string text);
  // The same of a text that outlives the pieces.
  void refer(std::string_view text);
  // Adds the text as a JSON string, with invalid UTF-8 replaced.
  void quoted(std::string text);
  // The items of a list with commas between them, each appended by `item`, which returns false
  // without having appended anything where there is none. bytes: that it holds.
  void items(std::size_t bytes, std::function<bool(std::string& out)> item);

  // The next piece, of kPieceBytes and as much as its last item has more; empty: there is none.
  std::string next();
  bool is_over() const { return parts_.empty(); }
  // All that is left, of a document that is known to be short.
  std::string whole();
  // Bytes that the parts still hold.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Part {
    std::size_t bytes = 0;
    // Appends some; false: it was the last.
    std::function<bool(std::string& out)> write;
  };
  void add(std::size_t bytes, std::function<bool(std::string& out)> write);

  std::deque<Part> parts_;
  std::size_t bytes_ = 0;
};

// Answers with 200 and the document: at once where it is one piece, else in pieces. The charge of
// `kept` (null: there is none) shrinks with what is left. Returns what a GatherDone has to return.
HttpCalls::NextPiece answer_with(HttpExchange& exchange, JsonPieces pieces,
                                 std::shared_ptr<KeptAnswer> kept);

}  // namespace lintel
