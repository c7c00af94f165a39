// PlainMessages: the messages of one answer as JSON for people.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <map>
#include <string>

#include "lintel/v1/generation.pb.h"

namespace lintel {

// protobuf's JSON, but bytes that are text (`is_text`) as text. With text, chunks of a
// GenerateResponse have "text" besides: their values as bytes of UTF-8. A character that is cut by
// the end of a chunk comes with the next chunk of its sample, and where there is none in the
// sample's "finished" as U+FFFD, which also stands for what is no UTF-8.
//
// Used by one thread at a time, for the messages of one call in their order.
class PlainMessages {
 public:
  explicit PlainMessages(bool with_text) : with_text_(with_text) {}

  std::string line(const google::protobuf::Message& message);

 private:
  std::string line_of_values(const v1::GenerateResponse& message);  // where no sample ends
  // The whole characters of a chunk and of what was cut before it.
  std::string text_of(const v1::Chunk& chunk);

  const bool with_text_;
  std::map<std::uint32_t, std::string> cut_;  // by sample: bytes of a character that is not whole
};

// How many bytes of `text` are whole characters, if more bytes may follow its end: "a\xc3"
// has 1.
std::size_t whole_utf8(std::string_view text);

}  // namespace lintel
