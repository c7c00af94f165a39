// SPDX-License-Identifier: Apache-2.0
#include "proto/fields/request_fields.h"

#include <algorithm>
#include <iterator>

namespace lintel {

std::optional<std::size_t> find_field(std::string_view RequestField::*api, std::string_view name) {
  if (name.empty()) return std::nullopt;
  const RequestField* const row = std::ranges::find(kRequestFields, name, api);
  if (row == std::end(kRequestFields)) return std::nullopt;
  return static_cast<std::size_t>(row - std::begin(kRequestFields));
}

}  // namespace lintel
