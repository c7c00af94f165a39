// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/ignored_members.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <memory>
#include <sstream>
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

// First: the log of a process names at most 256.
TEST_CASE("ignored members: the log names each once, those beyond the header, too") {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  IgnoredMembers ignored;
  for (int i = 100; i < 150; ++i) {
    ignored.add("beyond_" + std::to_string(i) + std::string(50, 'x'));
  }
  std::string header = header_of(ignored);
  header_of(ignored);
  spdlog::set_default_logger(before);
  CHECK_THAT(header, Catch::Contains("beyond_100x") && !Catch::Contains("beyond_149x") &&
                         Catch::EndsWith(", ..."));
  for (int i = 100; i < 150; ++i) {
    const std::string name = "beyond_" + std::to_string(i) + "x";
    CAPTURE(name);
    const std::size_t at = log.str().find(name);
    CHECK(at != std::string::npos);
    CHECK(log.str().find(name, at + 1) == std::string::npos);
  }
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
