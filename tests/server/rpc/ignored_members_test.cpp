// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/ignored_members.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::string header_of(const IgnoredMembers& ignored) {
  std::string header;
  REQUIRE(ignored.report(/*refuses=*/false, header).ok());
  return header;
}

TEST_CASE("ignored members: a header names each once, in at most 2 KiB", "[threat-120]") {
  IgnoredMembers ignored;
  CHECK(header_of(ignored).empty());
  ignored.add("logit_scale");
  ignored.add("stream_options.chunks");
  ignored.add("logit_scale");
  CHECK(header_of(ignored) == "logit_scale, stream_options.chunks");
  std::string header;
  const grpc::Status refused = ignored.report(/*refuses=*/true, header);
  CHECK(refused.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(refused.error_message(), Catch::Contains("logit_scale") &&
                                          Catch::Contains("is not a parameter of this server"));
  for (int i = 0; i < 1'000'000; ++i) ignored.add("member_" + std::to_string(i));
  header = header_of(ignored);
  CHECK(header.size() <= 2048);
  CHECK(header.size() > 2000);
  CHECK_THAT(header, Catch::EndsWith(", ..."));
}

TEST_CASE("ignored members: a hostile name cannot break a header or a line of the log",
          "[threat-120]") {
  IgnoredMembers ignored;
  ignored.add("a\r\nset-cookie: b, c");
  ignored.add("");
  ignored.add("\xE2\x82\xAC");
  ignored.add(std::string(1000, 'x'));
  CHECK(header_of(ignored) == "a??set-cookie:?b??c, ?, ???, " + std::string(64, 'x'));
}

TEST_CASE("ignored members: a slip is one edit from a name of six or more letters") {
  const std::vector<std::string_view> served = {"top_p", "temperature", "logit_bias", "stream"};
  for (const char* const slip :
       {"temprature", "temperatures", "temperaturE", "tempreature", "emperature", "temperatur"}) {
    CAPTURE(slip);
    CHECK(find_near_name(slip, served) == "temperature");
  }
  CHECK(find_near_name("steram", served) == "stream");
  for (const char* const other :
       {"top_k", "temp", "tmeperatrue", "temperature", "", "stre", "logit_scale"}) {
    CAPTURE(other);
    CHECK(find_near_name(other, served).empty());
  }
}

}  // namespace
}  // namespace lintel::testing
