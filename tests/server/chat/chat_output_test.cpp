// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_output.h"

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("arguments of a call are whole where they are a document, of numbers of any size") {
  for (const char* const whole :
       {"{}", "[]", "1", "1e400", "-1E+400", R"({"n": 1e99999, "m": -0.5})",
        R"({"a": "\\\"12345", "b": [0, 10, 123456789012345678901234567890]})", R"({"a": "x\\"})"}) {
    CAPTURE(whole);
    CHECK(is_whole_json(whole));
  }
  CHECK(is_whole_json("[" + std::string(500, '9') + "]"));
  for (const char* const broken : {"", "{", R"({"n": 1e)", R"({"n": 1e400)", "1e+", "012", "-",
                                   "01234", R"({"a": "1)", R"({"a": "\"})", "1 2", "123 4"}) {
    CAPTURE(broken);
    CHECK_FALSE(is_whole_json(broken));
  }
}

}  // namespace
}  // namespace lintel::testing
