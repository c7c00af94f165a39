// SPDX-License-Identifier: Apache-2.0
// Messages as JSON, and back.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lintel/v1/generation.pb.h"
#include "model/core/json_reader.h"
#include "model/core/utf8.h"

namespace lintel {

// protobuf's JSON (https://protobuf.dev/programming-guides/proto3/#json), which Connect uses: bytes
// are base64. An empty text is an empty message. Fills `message`, which is empty. INVALID_ARGUMENT,
// which says where it makes no sense; a field that there is none of is refused by its name.
// `budget`: null: the bounds of JsonBounds alone.
grpc::Status read_json(std::string_view json, JsonBudget* budget,
                       google::protobuf::Message& message);
std::string write_json(const google::protobuf::Message& message);

// The same for people: fields of bytes that people write as text, `text`, `strings`, `stop_string`
// and the `body` and `response` of OpenAI's API, are text as it is.
grpc::Status read_plain_json(std::string_view json, JsonBudget* budget,
                             google::protobuf::Message& message);

// PlainMessages: the messages of one answer as JSON for people.

// The texts in chunks of a GenerateResponse: all that the service sends; "text" in place of
// "tokenBytes"; or both.
enum class PlainText { kNone, kAlone, kWithBytes };

// protobuf's JSON, but such fields as text. "text" of a chunk is made of its token_bytes. A
// character that is cut by the end of a chunk comes with the next chunk of its sample, and where
// there is none in the sample's "finished" as U+FFFD, which also stands for what is no UTF-8.
//
// Used by one thread at a time, for the messages of one call in their order.
class PlainMessages {
 public:
  explicit PlainMessages(PlainText text) : text_(text) {}

  std::string line(const google::protobuf::Message& message);

 private:
  std::string line_of_tokens(const v1::GenerateResponse& message);  // where no sample ends
  // The whole characters of a chunk and of what was cut before it.
  std::string text_of(const v1::Chunk& chunk);

  const PlainText text_;
  std::map<std::uint32_t, Utf8Stream> characters_;  // by sample
};

}  // namespace lintel
