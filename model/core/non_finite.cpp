// SPDX-License-Identifier: Apache-2.0
#include "model/core/non_finite.h"

#include <algorithm>
#include <iterator>

namespace lintel {
namespace {

constexpr std::string_view kNames[] = {"Infinity", "-Infinity", "NaN"};

}  // namespace

bool is_non_finite_name(std::string_view text) {
  return std::ranges::find(kNames, text) != std::end(kNames);
}

std::string quote_non_finite(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  while (!text.empty()) {
    std::string_view piece = text.substr(0, 1);
    if (in_string) {
      if (piece == "\\") piece = text.substr(0, 2);
      in_string = piece != "\"";
    } else if (piece == "\"") {
      in_string = true;
    } else if (const auto name = std::ranges::find_if(
                   kNames, [&](std::string_view each) { return text.starts_with(each); });
               name != std::end(kNames)) {
      piece = *name;
      quoted.append("\"").append(piece).append("\"");
      text.remove_prefix(piece.size());
      continue;
    }
    quoted.append(piece);
    text.remove_prefix(piece.size());
  }
  return quoted;
}

}  // namespace lintel
