// SPDX-License-Identifier: Apache-2.0
#include "proto/fields/field_names.h"

namespace lintel {

bool is_of_field(std::string_view field, std::string_view whole) {
  // A place within a schema begins with '#' or '/'.
  return field.starts_with(whole) &&
         (field.size() == whole.size() ||
          std::string_view(".[#/").find(field[whole.size()]) != std::string_view::npos);
}

std::string api_field(FieldName RequestField::*api, std::string_view field) {
  for (const RequestField& row : kRequestFields) {
    const std::string_view name = (row.*api).text;
    if (name.empty() || !is_of_field(field, row.name)) continue;
    return std::string(name) + std::string(field.substr(row.name.size()));
  }
  return std::string(field);
}

}  // namespace lintel
