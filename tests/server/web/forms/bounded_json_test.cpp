// JSON of strangers.
#include "server/web/forms/bounded_json.h"

#include <catch2/catch.hpp>
#include <limits>

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const std::string& body, const JsonBounds& bounds = {}) {
  std::string why;
  CHECK_FALSE(parse_object(body, why, bounds));
  return why;
}

}  // namespace

TEST_CASE("what is no JSON object, or too much of one, is refused and says why") {
  CHECK_THAT(refusal(""), Contains("not JSON"));
  CHECK_THAT(refusal(R"({"a":)"), Contains("byte"));
  CHECK_THAT(refusal("[1]"), Contains("not a JSON object"));
  CHECK_THAT(refusal(R"({"a":1e999})"), Contains("out of range"));
  CHECK_THAT(refusal("{\"a\":\"\xff\"}"), Contains("not JSON"));
  CHECK_THAT(refusal("{\"a\":" + std::string(100'000, '[')), Contains("nested too deeply"));
  CHECK_THAT(refusal(R"({"a":[1,2,3,4]})", {.max_values = 3}), Contains("too many values"));
  CHECK_THAT(refusal(R"({"a":[[],[],[]]})", {.max_containers = 4}), Contains("too many names"));
  std::string why;
  CHECK(parse_object(R"({"a":[[],[],[1]]})", why));
}

TEST_CASE("a float is told by its shortest decimal, and what JSON has no number for by null") {
  CHECK(short_number(0.1f).dump() == "0.1");
  CHECK(short_number(-7.25f).dump() == "-7.25");
  CHECK(static_cast<float>(short_number(1.0f / 3).get<double>()) == 1.0f / 3);
  CHECK(short_number(std::numeric_limits<float>::quiet_NaN()).is_null());
  CHECK(short_number(-std::numeric_limits<float>::infinity()).is_null());
}

}  // namespace lintel::testing
