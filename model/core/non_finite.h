// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace lintel {

// Numbers that Python writes and JSON does not have: Infinity, -Infinity and NaN.

// `text` with each of them as a string of that name. Every other byte stays, those within strings
// included.
std::string quote_non_finite(std::string_view text);
// Returns whether a string is one of these names.
bool is_non_finite_name(std::string_view text);

}  // namespace lintel
