// SPDX-License-Identifier: Apache-2.0
// Operations of Python's str on texts. All keep origins, and charge the arena for what they look
// through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/chat/template/values.h"

namespace lintel::jinja {

// The byte of the first or last occurrence at or after `from`; npos: there is none.
std::size_t find_bytes(Arena& arena, std::string_view text, std::string_view wanted,
                       std::size_t from = 0);
std::size_t find_last_bytes(Arena& arena, std::string_view text, std::string_view wanted);

enum class Side : std::uint8_t { kBoth, kLeft, kRight };
// `characters`: to be cut off; null: white space.
const Text* strip(Arena& arena, const Text& text, const Text* characters, Side side);
// `count` negative: all.
const Text* replace(Arena& arena, const Text& text, const Text& from, const Text& to,
                    std::int64_t count);
// `separator` null: runs of white space. `most`: splits; negative: all.
std::vector<Value> split(Arena& arena, const Text& text, const Text* separator, std::int64_t most);
std::vector<Value> split_right(Arena& arena, const Text& text, const Text* separator,
                               std::int64_t most);
std::vector<Value> split_lines(Arena& arena, const Text& text, bool keeps_ends);
// Joins texts; other kinds throw unless `converts`.
const Text* join(Arena& arena, const Text& separator, const List& items, bool converts);
const Text* escape_html(Arena& arena, const Text& text);

const Text* to_upper(Arena& arena, const Text& text);
const Text* to_lower(Arena& arena, const Text& text);
const Text* capitalize(Arena& arena, const Text& text);
const Text* to_title(Arena& arena, const Text& text);        // the method
const Text* title_of_words(Arena& arena, const Text& text);  // the filter
// islower, isupper.
bool is_lower_text(Arena& arena, const Text& text);
bool is_upper_text(Arena& arena, const Text& text);
// True if there are characters, and `fits` is true of each.
bool is_all(Arena& arena, const Text& text, bool (*fits)(char32_t));
std::size_t count_words(Arena& arena, const Text& text);

// Operands of `+` and the like: markup escapes what is none.
const Text* concatenate(Arena& arena, const Text& a, const Text& b);
const Text* repeat(Arena& arena, const Text& text, std::int64_t times);

}  // namespace lintel::jinja
