// SPDX-License-Identifier: Apache-2.0
#include "client/image/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace lintel {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The nearest colour of the palette's grey ramp (24 steps of 10 from 8) or its 6x6x6 cube.
int palette_index(Rgb color) {
  if (color.red == color.green && color.green == color.blue) {
    if (color.red < 4) return 16;
    if (color.red > 246) return 231;
    return 232 + std::clamp((color.red - 8 + 5) / 10, 0, 23);
  }
  const auto step = [](int value) { return value < 48 ? 0 : std::min(5, (value - 35) / 40); };
  return 16 + 36 * step(color.red) + 6 * step(color.green) + step(color.blue);
}

std::string color_code(Rgb color, TerminalStyle style) {
  if (style == TerminalStyle::kColor256) return "5;" + std::to_string(palette_index(color));
  return "2;" + std::to_string(color.red) + ";" + std::to_string(color.green) + ";" +
         std::to_string(color.blue);
}

// The lightness of a cell, 0 to 255: of colours the luma of Rec. 601.
int lightness(Cell cell) {
  const Rgb color = color_of(cell);
  return is_gray(cell) ? cell : (299 * color.red + 587 * color.green + 114 * color.blue) / 1000;
}

char ascii_of(Cell upper, Cell lower) {
  static constexpr std::string_view kRamp = " .:-=+*#%@";
  if (upper == kGapPixel || lower == kGapPixel) return ' ';
  if (upper == kHiddenPixel || lower == kHiddenPixel) return '?';
  const auto mean = static_cast<std::size_t>((lightness(upper) + lightness(lower)) / 2);
  return kRamp[mean * (kRamp.size() - 1) / 255];
}

}  // namespace

TerminalStyle terminal_style(const std::string& term, const std::string& color_term,
                             const std::string& locale) {
  std::string upper = locale;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const bool utf8 =
      upper.find("UTF-8") != std::string::npos || upper.find("UTF8") != std::string::npos;
  if (!utf8 || term.empty() || term == "dumb") return TerminalStyle::kAscii;
  if (color_term == "truecolor" || color_term == "24bit") return TerminalStyle::kTrueColor;
  return TerminalStyle::kColor256;
}

TerminalInfo terminal_info(int fd) {
  TerminalInfo info;
  if (isatty(fd) != 1) return info;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    info.columns = size.ws_col;
    info.rows = size.ws_row;
  }
  std::string locale = environment("LC_ALL");
  if (locale.empty()) locale = environment("LC_CTYPE");
  if (locale.empty()) locale = environment("LANG");
  info.style = terminal_style(environment("TERM"), environment("COLORTERM"), locale);
  return info;
}

std::string paint(const Canvas& canvas, TerminalStyle style) {
  std::string out;
  for (int row = 0; row < canvas.height; row += 2) {
    std::string last;
    for (int column = 0; column < canvas.width; ++column) {
      const Cell upper = canvas.at(row, column);
      const bool has_lower = row + 1 < canvas.height;
      const Cell lower = has_lower ? canvas.at(row + 1, column) : kGapPixel;
      if (style == TerminalStyle::kAscii) {
        out += ascii_of(upper, has_lower ? lower : upper);
        continue;
      }
      // An upper half block: its foreground is the upper pixel, its background the lower one.
      std::string code = "\x1b[38;" + color_code(color_of(upper), style) + ";48;" +
                         color_code(color_of(lower), style) + "m";
      if (code != last) out += code;
      last = std::move(code);
      out += "\u2580";
    }
    if (style != TerminalStyle::kAscii) out += "\x1b[0m";
    out += '\n';
  }
  return out;
}

std::string TerminalPainter::frame(const Canvas& canvas) {
  std::string out;
  const int lines = (canvas.height + 1) / 2;
  if (lines_ == lines) out = "\x1b[" + std::to_string(lines) + "A\r";
  lines_ = lines;
  return out + paint(canvas, style_);
}

std::string TerminalPainter::hide_cursor() const {
  return style_ == TerminalStyle::kAscii ? "" : "\x1b[?25l";
}

std::string TerminalPainter::show_cursor() const {
  return style_ == TerminalStyle::kAscii ? "" : "\x1b[?25h";
}

}  // namespace lintel
