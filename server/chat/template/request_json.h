// SPDX-License-Identifier: Apache-2.0
// JSON of a request as templates see it: members in the client's order, digits of large integers.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"

namespace lintel {

// The whole text as a tree whose members are in the order in which they came; a repeated name keeps
// its first place and its last value. An integer beyond 64 bits is kept as its digits
// (big_integer_digits). Nothing: `failure` says why. Takes time and memory linear in the text.
std::optional<nlohmann::ordered_json> read_request_json(std::string_view text,
                                                        const JsonBounds& bounds,
                                                        JsonFailure& failure);

// Bytes that a tree holds, as the allocator gives them out: what the reader charges for it.
std::size_t tree_memory(const nlohmann::ordered_json& tree);

// An integer beyond 64 bits, as nlohmann::json has none: a binary value of a subtype of its own.
nlohmann::ordered_json big_integer(std::string_view digits);
// The digits of such a value, with its sign; nothing: it is another value.
std::optional<std::string> big_integer_digits(const nlohmann::ordered_json& value);
// A value as JSON, in one line and in UTF-8. Binary values are JSON already and stay as they are:
// large integers have all their digits. As deep as the tree is.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace lintel
