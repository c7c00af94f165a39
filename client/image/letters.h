// A few words on a canvas.
#pragma once

#include <string_view>

#include "client/image/image.h"

namespace lintel {

// Letters are 5 cells wide and 7 high, and a cell apart.
inline constexpr int kLetterWidth = 6, kLetterHeight = 7;

inline int text_width(std::string_view text, int scale) {
  return text.empty() ? 0 : (static_cast<int>(text.size()) * kLetterWidth - 1) * scale;
}

// Writes `text` in light grey with its upper left corner there, each cell of a letter a square of
// `scale`. Small letters, digits and the marks .:,-#/ ; capitals are small, all else is a blank.
// What lies outside the canvas is cut.
void write_text(Canvas& canvas, int row, int column, std::string_view text, int scale);

}  // namespace lintel
