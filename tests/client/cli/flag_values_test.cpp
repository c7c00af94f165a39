// SPDX-License-Identifier: Apache-2.0
#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "tests/support/catch.h"

namespace lintel::cli {

TEST_CASE("numbers are read strictly") {
  CHECK(parse_uint64("--seed", "18446744073709551615") == 18446744073709551615ull);
  CHECK(parse_uint64("--seed", "010") == 10);
  CHECK(parse_int32("--id", "-7") == -7);
  CHECK(parse_float("--x", "-0.5") == -0.5f);
  for (const char* text : {"-1", "", "1x", " 1", "+1", "0x10", "18446744073709551616", "1.0"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_uint64("--seed", text), UsageError);
  }
  for (const char* text : {"nan", "inf", "1e99", "", "1,5", "--1"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_float("--x", text), UsageError);
  }
  CHECK_THROWS_WITH(parse_uint32("--top-k", "-3"),
                    "--top-k '-3': expected a whole number, 0 or more");
}

TEST_CASE("token ids are separated by commas") {
  CHECK(parse_ids("--ids", "0,0,12") == std::vector<std::int32_t>{0, 0, 12});
  CHECK(parse_ids("--ids", "").empty());
  for (const char* text : {",", "1,", ",1", "1,,2", "1 ,2", "1;2", "2147483648"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_ids("--ids", text), UsageError);
  }
}

TEST_CASE("indices are ranges and single ones, in the order written") {
  CHECK(parse_indices("--index", "3,5,8", 9) == std::vector<std::int64_t>{3, 5, 8});
  CHECK(parse_indices("--index", "2-4,0", 9) == std::vector<std::int64_t>{2, 3, 4, 0});
  CHECK_THROWS_WITH(parse_indices("--index", "0-9", 9),
                    "--index '0-9': 9 is past the last image, 8");
  for (const char* text : {"4-2", "-1", "1-", "", "a", "1-2-3", "0-4294967296"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_indices("--index", text, 100), UsageError);
  }
}

TEST_CASE("--logit-bias and --given parse ID=VALUE and POSITION=IDS") {
  CHECK(parse_bias("--logit-bias", "12=-1.5") == std::pair<std::int32_t, float>(12, -1.5f));
  const GivenTokens given = parse_given("--given", "392=0,0,255");
  CHECK(given.position == 392);
  CHECK(given.tokens == std::vector<std::int32_t>{0, 0, 255});
  for (const char* text : {"12", "=1", "12=", "a=1"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_bias("--logit-bias", text), UsageError);
  }
  CHECK_THROWS_AS(parse_given("--given", "1,2"), UsageError);
}

TEST_CASE("a duration is a number and its unit") {
  CHECK(parse_duration("--d", "90s").count() == 90);
  CHECK(parse_duration("--d", "30m").count() == 1800);
  CHECK(parse_duration("--d", "72h").count() == 259200);
  CHECK(parse_duration("--d", "30d").count() == 2592000);
  for (const char* text :
       {"", "s", "0s", "-1h", "90", "1.5h", "1h30m", "36501d", "1 h", "99999999999999999999s"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_duration("--d", text), UsageError);
  }
}

TEST_CASE("escapes in stop texts are understood, others refused") {
  CHECK(unescape("--stop", R"(a\n\t\\\x41\0)") == std::string("a\n\t\\A\0", 6));
  CHECK(unescape("--stop", "plain") == "plain");
  for (const char* text : {"\\", "\\q", "\\x4", "\\xzz"}) {
    INFO(text);
    CHECK_THROWS_AS(unescape("--stop", text), UsageError);
  }
}

}  // namespace lintel::cli
