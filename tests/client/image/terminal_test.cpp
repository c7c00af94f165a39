// SPDX-License-Identifier: Apache-2.0
#include "client/image/terminal.h"

#include "tests/support/catch.h"

namespace lintel::testing {

TEST_CASE("the environment decides what a terminal shows") {
  CHECK(terminal_style("xterm", "truecolor", "en_US.UTF-8") == TerminalStyle::kTrueColor);
  CHECK(terminal_style("xterm-256color", "", "C.utf8") == TerminalStyle::kColor256);
  CHECK(terminal_style("xterm", "truecolor", "C") == TerminalStyle::kAscii);
  CHECK(terminal_style("dumb", "truecolor", "en_US.UTF-8") == TerminalStyle::kAscii);
  CHECK(terminal_style("", "", "") == TerminalStyle::kAscii);
}

TEST_CASE("two pixels share a character, the upper one in front") {
  Canvas canvas(2, 1, 0);
  canvas.set(0, 0, 255);
  CHECK(paint(canvas, TerminalStyle::kTrueColor) ==
        "\x1b[38;2;255;255;255;48;2;0;0;0m\u2580\x1b[0m\n");
  CHECK(paint(canvas, TerminalStyle::kColor256) == "\x1b[38;5;231;48;5;16m\u2580\x1b[0m\n");
}

TEST_CASE("colours are written only where they change") {
  const std::string line = paint(Canvas(2, 5, 100), TerminalStyle::kTrueColor);
  CHECK(line.find("38;2") == line.rfind("38;2"));
}

TEST_CASE("ASCII distinguishes black, white, hidden and gap") {
  Canvas canvas(3, 4, 0);
  for (int row = 0; row < 3; ++row) {
    canvas.set(row, 1, 255);
    canvas.set(row, 2, kHiddenPixel);
    canvas.set(row, 3, kGapPixel);
  }
  CHECK(paint(canvas, TerminalStyle::kAscii) == " @? \n @? \n");
}

TEST_CASE("frames are painted over each other until the painter starts below") {
  TerminalPainter painter(TerminalStyle::kAscii);
  const Canvas canvas(5, 2, 255);
  const std::string picture = "@@\n@@\n@@\n";
  CHECK(painter.frame(canvas) == picture);
  CHECK(painter.frame(canvas) == "\x1b[3A\r" + picture);
  painter.start_below();
  CHECK(painter.frame(canvas) == picture);
}

}  // namespace lintel::testing
