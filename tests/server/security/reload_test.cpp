// SPDX-License-Identifier: Apache-2.0
// Token and certificate files that change, also those that cannot be read at the first look.
#include <fcntl.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <sstream>

#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

// While it lives no file can be opened, but for what stat() says of it nothing has changed.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Records the log while it lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  int count(const std::string& what) const {
    int found = 0;
    const std::string text = text_.str();
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
    return found;
  }

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_;
};

TEST_CASE("a token is revoked although the new file could not be read at first", "[threat-23]") {
  const TokenFile file;
  BearerTokens tokens(file.path);
  REQUIRE(tokens.find("token-alice"));
  file.write(token_line("bob", "generate"));
  {
    const Log log;
    const NoDescriptors none;
    for (int i = 0; i < 5; ++i) CHECK_FALSE(tokens.reload_if_changed());
    CHECK(log.count("tokens not reloaded") == 1);
  }
  CHECK(tokens.find("token-alice"));  // nothing better is known
  CHECK(tokens.reload_if_changed());
  CHECK_FALSE(tokens.find("token-alice"));
  CHECK(tokens.find("token-bob"));
  CHECK_FALSE(tokens.reload_if_changed());
}

TEST_CASE("an invalid file is logged once for each change") {
  const TokenFile file;
  BearerTokens tokens(file.path);
  const Log log;
  file.write("nonsense\n");
  for (int i = 0; i < 3; ++i) CHECK_FALSE(tokens.reload_if_changed());
  CHECK(log.count("tokens not reloaded") == 1);
  file.write("more nonsense\n");
  for (int i = 0; i < 3; ++i) CHECK_FALSE(tokens.reload_if_changed());
  CHECK(log.count("tokens not reloaded") == 2);
  file.write(kAllTokens);
  CHECK(tokens.reload_if_changed());
}

TEST_CASE("a token is revoked although the new file has the size and time of the old one",
          "[threat-23]") {
  const TokenFile file;
  file.write(token_line("alice", "generate"));
  BearerTokens tokens(file.path);
  struct stat before {};
  REQUIRE(stat(file.path.c_str(), &before) == 0);
  // Writes in place, as an editor or a copy that keeps times does.
  REQUIRE(eventually([&] {
    file.write(token_line("clive", "generate"));
    const timespec times[2] = {before.st_atim, before.st_mtim};
    utimensat(AT_FDCWD, file.path.c_str(), times, 0);
    struct stat after {};
    stat(file.path.c_str(), &after);
    return after.st_ctim.tv_sec != before.st_ctim.tv_sec ||
           after.st_ctim.tv_nsec != before.st_ctim.tv_nsec;
  }));
  CHECK(tokens.reload_if_changed());
  CHECK_FALSE(tokens.find("token-alice"));
  CHECK(tokens.find("token-clive"));
}

TEST_CASE("a certificate is replaced although the new one could not be read at first") {
  const CertificateAuthority authority;
  const IssuedCertificate first = authority.issue("first");
  const IssuedCertificate second = authority.issue("second");
  Certificates certificates({first.certificate, first.key, ""});
  std::filesystem::rename(second.certificate, first.certificate);
  std::filesystem::rename(second.key, first.key);
  {
    const Log log;
    const NoDescriptors none;
    for (int i = 0; i < 5; ++i) CHECK_FALSE(certificates.reload_if_changed());
    CHECK(log.count("certificates not reloaded") == 1);
  }
  CHECK(certificates.version() == 1);
  CHECK(certificates.reload_if_changed());
  CHECK(certificates.version() == 2);
  CHECK_FALSE(certificates.reload_if_changed());
}

}  // namespace
}  // namespace lintel::testing
