// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "client/cli/output.h"
#include "tests/support/catch.h"

namespace lintel::cli {

TEST_CASE("floats read back bit for bit") {
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    float number;
    std::memcpy(&number, &bits, sizeof number);
    if (!std::isfinite(number)) continue;
    const std::string text = JsonWriter().value(number).take();
    const float back = std::strtof(text.c_str(), nullptr);
    INFO(text);
    REQUIRE(std::memcmp(&back, &number, sizeof number) == 0);
    // Also through a parser that knows doubles only, as most JSON parsers do.
    const auto through_double = static_cast<float>(nlohmann::json::parse(text).get<double>());
    REQUIRE(std::memcmp(&through_double, &number, sizeof number) == 0);
  }
}

TEST_CASE("floats have the fewest digits, and are never integers") {
  CHECK(JsonWriter().value(-3.1f).take() == "-3.1");
  CHECK(JsonWriter().value(3.0f).take() == "3.0");
  CHECK(JsonWriter().value(-0.0f).take() == "-0.0");
  CHECK(JsonWriter().value(1e-20f).take() == "1e-20");
  CHECK(JsonWriter().value(0.1).take() == "0.1");
  CHECK(JsonWriter().value(std::numeric_limits<float>::quiet_NaN()).take() == "null");
  CHECK(JsonWriter().value(-std::numeric_limits<double>::infinity()).take() == "null");
}

TEST_CASE("seeds keep all their 64 bits") {
  CHECK(JsonWriter().value(std::uint64_t{18446744073709551615ull}).take() ==
        "18446744073709551615");
}

TEST_CASE("objects and arrays nest") {
  JsonWriter json;
  json.begin_object().field("a", 1).key("b").begin_array().value(true).null().begin_object();
  json.end_object().end_array().field("c", "x").end_object();
  CHECK(json.take() == R"({"a":1,"b":[true,null,{}],"c":"x"})");
}

TEST_CASE("text is escaped, and bytes that are no UTF-8 replaced") {
  CHECK(JsonWriter().value("a\"\n\x01").take() == R"("a\"\n\u0001")");
  CHECK(JsonWriter().value("\xff").take() == "\"\xef\xbf\xbd\"");
}

}  // namespace lintel::cli
