// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/console.h"

namespace lintel::cli {

// JSON out.

// Writes one JSON value, compactly, on one line. Numbers read back exactly: floats have the fewest
// digits that give the same float again (as float, not as double), and always a point or an
// exponent. NaN and infinities, which JSON has not, become null.
//
// REQUIRES: calls in an order that makes sense; nothing is checked.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(float number);
  JsonWriter& value(double number);
  JsonWriter& value(bool truth) { return literal(truth ? "true" : "false"); }
  JsonWriter& value(std::integral auto number) { return literal(std::to_string(number)); }
  // Bytes that are no UTF-8 become U+FFFD.
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& null() { return literal("null"); }
  JsonWriter& raw(std::string_view json) { return literal(json); }  // a finished JSON value

  template <typename T>
  JsonWriter& field(std::string_view name, T&& what) {
    return key(name).value(std::forward<T>(what));
  }

  std::string take() { return std::move(text_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& literal(std::string_view text);
  void separate();

  std::string text_;
  bool needs_comma_ = false;
};

// A line: the JSON value that `write` makes of `what`.
template <typename Write, typename What>
std::string json_line(const Write& write, const What& what) {
  JsonWriter json;
  write(json, what);
  return json.take() + "\n";
}

// A line: an array with a value for each of `list`.
template <typename Write, typename List>
std::string json_array_line(const Write& write, const List& list) {
  JsonWriter json;
  json.begin_array();
  for (const auto& one : list) write(json, one);
  return json.end_array().take() + "\n";
}

// Files that commands write.

// A file that is opened before the work is done and written after it: what cannot be written is
// said at once, and what was in the file stays until there is something to put in its place.
//
// Threads: one at a time.
class OutputFile {
 public:
  // Opens `path`, makes it where there is none. Throws Failure naming `flag` and `path`.
  OutputFile(const std::string& flag, const std::string& path);
  // Removes what it made and nothing was written to.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Unbuffered. The first call empties the file. Throws Failure as the constructor.
  void write(std::string_view bytes);

 private:
  [[noreturn]] void fail(int error) const;

  const std::string name_;  // flag and path
  const std::string path_;
  int file_ = -1;
  bool made_ = false;
  bool written_ = false;
};

// A progress bar, on terminals only.

// "[#####-----] 512/1024 images", redrawn on standard error at most ten times a second, and erased
// at the end. Where standard error is no terminal nothing is printed.
// Threads: one at a time.
class Progress {
 public:
  // `total` 0: unknown, only the count is shown.
  Progress(Console& console, std::int64_t total, std::string unit, bool wanted = true);
  ~Progress();  // erases
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t count);
  // After the count from the next draw on, cut where the terminal ends: "12 MB/s, 9 s left".
  void set_note(std::string note) { note_ = std::move(note); }

 private:
  void erase();

  Console& console_;
  const std::int64_t total_;
  const std::string unit_;
  const bool shown_;
  std::string note_;
  std::int64_t done_ = 0;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

// Text in columns, for people.

// Rows of cells, each column as wide as its widest cell. The first row is the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace lintel::cli
