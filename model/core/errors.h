// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lintel {

// ModelError: why a model directory cannot be served.

// A model directory that cannot be served. what() names the file, the key or tensor, and both
// values.
class ModelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Pieces of error messages. Those made from untrusted text are short, printable, valid UTF-8.

// At most max_bytes of `text`, cut between characters, with "..." when something is missing.
std::string shorten(std::string_view text, std::size_t max_bytes = 120);

// `text` as a JSON string, shortened: control characters and broken UTF-8 cannot reach a log.
std::string quote(std::string_view text);

// `text` on one line: control characters, and bytes that are not UTF-8, are escaped as in C, so
// that nothing which came from outside can begin a line of its own in a log or move a terminal's
// cursor.
std::string one_line(std::string_view text);

// "a whole number from 1 to 256"
std::string whole_number_text(std::int64_t low, std::int64_t high);

}  // namespace lintel
