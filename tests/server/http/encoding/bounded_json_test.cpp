// SPDX-License-Identifier: Apache-2.0
// Untrusted JSON.
#include <limits>

#include "server/http/encoding/json_bodies.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const std::string& body) {
  nlohmann::json object;
  const grpc::Status parsed = parse_object(body, nullptr, object);
  CHECK(parsed.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(object.is_null());
  return parsed.error_message();
}

// Either cancelled or without room.
struct EmptyBudget final : JsonBudget {
  bool charge(std::int64_t) override { return has_room; }
  bool cancelled() const override { return has_room; }
  bool has_room = false;
};

}  // namespace

TEST_CASE("a body that is no JSON object, or exceeds its bounds, is refused with the reason") {
  CHECK_THAT(refusal(""), Contains("not JSON"));
  CHECK_THAT(refusal(R"({"a":)"), Contains("byte"));
  CHECK_THAT(refusal("[1]"), Contains("not a JSON object"));
  CHECK_THAT(refusal(R"({"a":1e999})"), Contains("out of range"));
  CHECK_THAT(refusal("{\"a\":\"\xff\"}"), Contains("not JSON"));
  CHECK_THAT(refusal("{\"a\":" + std::string(100'000, '[')), Contains("nested more than 128 deep"));
  std::string objects = "{\"a\":[{}";
  while (objects.size() < std::size_t{4} << 20) objects += ",{},{},{},{}";
  CHECK_THAT(refusal(objects + "]}"), Contains("MiB of memory"));
  for (const std::string text : {"{", "[tru]", "{\"a\":1e999}", "\"\x01\""}) {
    CHECK_THAT(refusal(text), !Contains("exception"));
  }
  nlohmann::json object;
  CHECK(parse_object(R"({"a":[[],[],[1]]})", nullptr, object).ok());
  CHECK(object["a"].size() == 3);
}

TEST_CASE("a body without room and a cancelled one are UNAVAILABLE, with the reason") {
  nlohmann::json object;
  EmptyBudget budget;
  const grpc::Status full = parse_object("{}", &budget, object);
  CHECK(full.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(full.error_message(), Contains("--http-memory"));
  budget.has_room = true;
  const grpc::Status left = parse_object(std::string(1 << 20, ' '), &budget, object);
  CHECK(left.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(left.error_message(), Contains("shutting down"));
}

TEST_CASE("a float is written as its shortest decimal, and NaN and infinity as null") {
  CHECK(short_number(0.1f).dump() == "0.1");
  CHECK(short_number(-7.25f).dump() == "-7.25");
  CHECK(static_cast<float>(short_number(1.0f / 3).get<double>()) == 1.0f / 3);
  CHECK(short_number(std::numeric_limits<float>::quiet_NaN()).is_null());
  CHECK(short_number(-std::numeric_limits<float>::infinity()).is_null());
}

}  // namespace lintel::testing
