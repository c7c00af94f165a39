// SPDX-License-Identifier: Apache-2.0
// What comes from outside stays within its line of the log.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include "model/core/errors.h"
#include "server/observability/logging.h"
#include "server/rpc/status.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// The text that `body` writes to standard error.
std::string standard_error_of(const std::function<void()>& body) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "log";
  const int before = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(file, STDERR_FILENO);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  close(file);
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("a message and its fields with any bytes are one line of the log", "[threat-79]") {
  const bool json = GENERATE(false, true);
  CAPTURE(json);
  const auto before = spdlog::default_logger();
  const std::string forged = "x\n2024-01-31 00:00:00.000000 info forged\r\x1b[2J\x7f";
  const std::string text = standard_error_of([&] {
    set_up_logging({.level = "info", .json = json});
    LogFields fields;
    fields.add("identity", "x509:" + forged);
    const LogScope scope(fields);
    spdlog::warn("model {}: surplus", forged);
  });
  spdlog::set_default_logger(before);
  CAPTURE(text);
  CHECK(std::ranges::count(text, '\n') == 1);
  CHECK(text.back() == '\n');
  for (const char c : {'\r', '\x1b'}) CHECK(text.find(c) == std::string::npos);
  CHECK(text.find("x\\n2024-01-31") != std::string::npos);
}

TEST_CASE("control characters and bytes that are not UTF-8 are escaped, and nothing else") {
  CHECK(one_line("") == "");
  CHECK(one_line("plain \xc3\xa4 \\ \"text\"") == "plain \xc3\xa4 \\ \"text\"");
  CHECK(one_line("a\nb\tc\x7f") == "a\\nb\\x09c\\x7f");
  CHECK(one_line(std::string("\0", 1)) == "\\x00");
  // A terminal of 8 bits begins a sequence with 0x9B, one of UTF-8 with U+009B.
  CHECK(one_line("\x9b[2J") == "\\x9b[2J");
  CHECK(one_line("\xc2\x9b[2J\xc2\xa0") == "\\xc2\\x9b[2J\xc2\xa0");
  for (const std::string whole :
       {"\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    CHECK(one_line(whole + "a") == whole + "a");
    CHECK(one_line(whole.substr(0, whole.size() - 1)).starts_with("\\x"));
  }
  // Longer than it need be, a surrogate, beyond Unicode.
  for (const char* const wrong :
       {"\xc0\x8a", "\xe0\x80\x8a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    for (const char c : one_line(wrong)) CHECK(static_cast<unsigned char>(c) < 0x80);
  }
}

TEST_CASE("the text of a status is one line") {
  const grpc::Status status = failed_precondition("MODEL", "m", "cannot read a\nb\x1b[2J");
  CHECK(status.error_message() == "cannot read a\\nb\\x1b[2J");
}

}  // namespace
}  // namespace lintel::testing
