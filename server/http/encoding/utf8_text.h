// SPDX-License-Identifier: Apache-2.0
// Utf8Text: bytes as they come, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"

namespace lintel {

// A character that is not whole yet is held back. What is no UTF-8 becomes U+FFFD, one for each
// longest beginning of a character that is cut off (Unicode 15, section 3.9, "U+FFFD Substitution
// of Maximal Subparts"), as Python's errors="replace" and browsers' TextDecoder have it.
class Utf8Text {
 public:
  // Appends what is whole to `text`.
  void add(std::string_view bytes, std::string& text);
  // No byte follows: what was held back is cut off.
  void end(std::string& text);
  // Characters of the text so far.
  std::size_t num_characters() const { return num_characters_; }
  // Whether the text ends in an incomplete character.
  bool holds_back() const { return missing_ > 0; }

 private:
  void add(unsigned char byte, std::string& text);
  void replace(std::string& text);

  std::string begun_;         // of a character that is not whole yet
  int missing_ = 0;           // bytes of it
  unsigned char lowest_ = 0;  // the next of which lies within these
  unsigned char highest_ = 0;
  std::size_t num_characters_ = 0;
};

// Server-sent events: a stream of texts over HTTP that browsers and others read.

// https://html.spec.whatwg.org/multipage/server-sent-events.html. REQUIRES: `data` is one line.
inline std::string server_sent_event(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

inline HttpAnswer server_sent_head() {
  return {200, {{"content-type", "text/event-stream"}, {"cache-control", "no-cache"}}, ""};
}

}  // namespace lintel
