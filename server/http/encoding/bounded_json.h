// SPDX-License-Identifier: Apache-2.0
// Bodies in JSON, read within bounds.
#pragma once

#include <grpcpp/support/status.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"

namespace lintel {

// The object that `body` is. Not OK: it is none, or beyond the bounds of JsonBounds or the
// budget's; the message says what is wrong.
grpc::Status parse_object(std::string_view body, JsonBudget* budget, nlohmann::json& object);

// What a body that was not read is refused with. `what`: the text, "the body".
grpc::Status json_refusal(const JsonFailure& failure, const std::string& what);

// As text, with what is not UTF-8 in it replaced.
template <typename Json>
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The shortest decimal that is read as this float; null where JSON has no number for it.
nlohmann::ordered_json short_number(float value);

}  // namespace lintel
