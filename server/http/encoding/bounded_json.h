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

// The status that refuses a body which could not be read. `what` names the text: "the body".
grpc::Status json_refusal(const JsonFailure& failure, const std::string& what);

// The JSON as text, with invalid UTF-8 replaced.
template <typename Json>
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The shortest decimal that is read as this float; null where JSON has no number for it.
nlohmann::ordered_json short_number(float value);

}  // namespace lintel
