// Lines that people type, edited as they are used to.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/cli/console.h"

namespace lintel::cli {

// On a terminal libedit's: arrows, Emacs' keys, the lines of this run to go back to, all of UTF-8.
// Ctrl-C clears the line, Ctrl-D on an empty one is the end. Nothing is written to a file: prompts
// are their owner's. Where standard input, or error, on which lines are edited, is no terminal:
// lines as they are, and no prompt is shown.
//
// Threads: one at a time.
class LineEditor {
 public:
  explicit LineEditor(Console& console);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next line without its newline; nothing at the end. Throws as Console::read_line().
  std::optional<std::string> read(const std::string& prompt);
  bool edits() const { return terminal_ != nullptr; }

 private:
  class Terminal;
  Console& console_;
  std::unique_ptr<Terminal> terminal_;  // null: lines as they are
};

}  // namespace lintel::cli
