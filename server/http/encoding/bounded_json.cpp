// SPDX-License-Identifier: Apache-2.0
#include "server/http/encoding/bounded_json.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "server/rpc/status.h"

namespace lintel {

grpc::Status json_refusal(const JsonFailure& failure, const std::string& what) {
  const auto invalid = [](const std::string& message) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message);
  };
  switch (failure.kind) {
    case JsonFailure::Kind::kNotJson:
      return invalid(what + " is not JSON: " + failure.what + " (byte " +
                     std::to_string(failure.byte) + ")");
    case JsonFailure::Kind::kNoSpace:
      return unavailable(
          "requests that are being read take all of the memory there is for them (--http-memory)",
          std::chrono::milliseconds(1000));
    case JsonFailure::Kind::kCancelled:
      return shutting_down();
    default:
      return invalid(what + " " + failure.what);
  }
}

grpc::Status parse_object(std::string_view body, JsonBudget* budget, nlohmann::json& object) {
  JsonFailure failure;
  std::optional<nlohmann::json> tree = read_json_tree(body, {.budget = budget}, failure);
  if (!tree) return json_refusal(failure, "the body");
  if (!tree->is_object()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the body is not a JSON object"};
  }
  object = *std::move(tree);
  return grpc::Status::OK;
}

nlohmann::ordered_json short_number(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text - 1, value);
  *written.ptr = '\0';
  return std::strtod(text, nullptr);
}

}  // namespace lintel
