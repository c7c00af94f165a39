// SPDX-License-Identifier: Apache-2.0
// Pictures in a terminal.
#pragma once

#include <string>

#include "client/image/image.h"

namespace lintel {

// Ways in which a terminal can show pixels.
enum class TerminalStyle {
  kTrueColor,  // half blocks, 24-bit colour
  kColor256,   // half blocks, the 256-colour palette
  kAscii,      // one character for two pixels, one above the other; '?' where hidden
};

struct TerminalInfo {
  TerminalStyle style = TerminalStyle::kAscii;
  int columns = 80;
  int rows = 24;
};

// Properties of the terminal behind `fd`, from its size and the environment (COLORTERM, TERM,
// LC_ALL, LC_CTYPE, LANG). For something that is no terminal: 80x24 characters of ASCII.
TerminalInfo terminal_info(int fd);

// The style by the words of the environment alone; an empty one is unset.
TerminalStyle terminal_style(const std::string& term, const std::string& color_term,
                             const std::string& locale);

// Lines of the picture, each ended by a newline: (height + 1) / 2 of them, width characters each.
std::string paint(const Canvas& canvas, TerminalStyle style);

// Repaints a picture in place: each frame begins with the cursor movement that puts it over the
// last one. frame() returns what to write; a frame of another height than the last goes where that
// ended. hide_cursor() and show_cursor() belong around the whole.
class TerminalPainter {
 public:
  explicit TerminalPainter(TerminalStyle style) : style_(style) {}
  std::string frame(const Canvas& canvas);
  void start_below() { lines_ = 0; }  // leaves the last frame where it is
  std::string hide_cursor() const;
  std::string show_cursor() const;

 private:
  const TerminalStyle style_;
  int lines_ = 0;  // of the last frame
};

}  // namespace lintel
