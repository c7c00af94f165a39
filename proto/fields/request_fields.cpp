// SPDX-License-Identifier: Apache-2.0
#include "proto/fields/request_fields.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace lintel {

std::string FieldRange::text() const {
  const auto decimal = [](float value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  };
  return is_above_low ? "more than " + decimal(low) + " and at most " + decimal(high)
                      : "from " + decimal(low) + " to " + decimal(high);
}

std::optional<std::size_t> find_field(FieldName RequestField::*api, std::string_view name) {
  const RequestField* const row = std::ranges::find_if(kRequestFields, [&](const auto& field) {
    return (field.*api).is_read_by_table() && (field.*api).text == name;
  });
  if (row == std::end(kRequestFields)) return std::nullopt;
  return static_cast<std::size_t>(row - std::begin(kRequestFields));
}

}  // namespace lintel
