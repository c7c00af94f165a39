// SPDX-License-Identifier: Apache-2.0
// packaging/lintel.toml.in, the configuration that is installed.
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "server/app/options.h"
#include "server/config/flags.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

// The shipped file with its places filled in.
std::string shipped() {
  std::ifstream in(LINTEL_PACKAGING "/lintel.toml.in");
  std::string text(std::istreambuf_iterator<char>(in), {});
  text = std::regex_replace(text, std::regex("@datadir@"), "/usr/share");
  return std::regex_replace(text, std::regex("@sysconfdir@"), "/etc");
}

// "#key = value" and nothing else: prose has a blank after #.
const std::regex kCommented(R"(^#([a-z-]+) = (.*)$)");

ServerOptions parse(const std::string& configuration) {
  const testing::TemporaryDirectory directory;
  const std::string file = directory.path() / "lintel.toml";
  std::ofstream(file) << configuration;
  const char* const arguments[] = {"lintel-server", "--config", file.c_str()};
  ServerOptions options;
  std::string help;
  REQUIRE(parse_server_options(3, arguments, &options, &help));
  return options;
}

}  // namespace

TEST_CASE("the installed configuration serves what a start without flags does, on loopback",
          "[threat-35]") {
  const char* const arguments[] = {"lintel-server"};
  ServerOptions bare;
  std::string help;
  REQUIRE(parse_server_options(1, arguments, &bare, &help));
  REQUIRE(bare.serves_packaged_models);
  const ServerOptions options = parse(shipped());
  REQUIRE(options.models.directories.size() == bare.models.directories.size());
  for (std::size_t i = 0; i < options.models.directories.size(); ++i) {
    const std::string& name = options.models.directories[i].name;
    CHECK(name == bare.models.directories[i].name);
    CHECK(options.models.directories[i].path == "/usr/share/lintel/models/" + name);
  }
  const auto text_of = [](const ListenAddress& address) { return address.to_string(address.port); };
  CHECK(text_of(options.listen) == "127.0.0.1:50051");
  REQUIRE(options.http.listen.has_value());
  CHECK(text_of(*options.http.listen) == "127.0.0.1:8080");
  CHECK(text_of(*options.http.listen) == text_of(*bare.http.listen));
}

TEST_CASE("every key that the installed configuration offers is accepted") {
  std::istringstream in(shipped());
  std::string all;
  int offered = 0;
  for (std::string line; std::getline(in, line);) {
    offered += std::regex_match(line, kCommented);
    all += std::regex_replace(line, kCommented, "$1 = $2") + "\n";
  }
  CHECK(offered >= 10);
  const ServerOptions options = parse(all);
  CHECK(options.security.tls_cert == "/etc/lintel/server.pem");
  CHECK(options.models.on_request == "/var/lib/lintel/hub");
  REQUIRE(options.monitoring.metrics_listen);
}

TEST_CASE("the shared store that the installed configuration describes is accepted") {
  std::istringstream in(shipped());
  const std::regex described(R"(^#   ([a-z-]+ = .*)$)");
  std::string all = "model = [\"m\"]\n";
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, described)) all += std::regex_replace(line, described, "$1\n");
  }
  const ServerOptions options = parse(all), defaults;
  CHECK(options.durable.store.string().rfind("rediss://", 0) == 0);
  CHECK(options.replica_id == "server-1");
  CHECK(options.shared.credentials == "/etc/lintel/session-store");
  CHECK(options.shared.ca == "/etc/lintel/session-store-ca.pem");
  CHECK(options.shared.lease_ms == defaults.shared.lease_ms);
  CHECK(options.shared.wait_ms == defaults.shared.wait_ms);
  CHECK(options.shared.wait_replicas == 1);
  CHECK(handover_after(options.durable) == handover_after({.store = options.durable.store}));
}

TEST_CASE("values that the installed configuration shows as defaults are those of --help") {
  ServerOptions options;
  std::string help;
  const char* const arguments[] = {"lintel-server", "--help-all"};
  REQUIRE_FALSE(parse_server_options(2, arguments, &options, &help));
  // Examples, and what depends on the machine.
  const std::set<std::string> without = {"models",    "load-model",    "tls-cert",
                                         "tls-key",   "auth-tokens",   "metrics-listen",
                                         "workers",   "session-store", "session-durability",
                                         "chat-spill"};
  std::istringstream in(shipped());
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, kCommented) || without.contains(match[1])) continue;
    const std::string value = std::regex_replace(match[2].str(), std::regex("\""), "");
    INFO(line);
    CHECK(std::regex_search(help,
                            std::regex("\n  --" + match[1].str() + " [^\n]*=" + value + "( |\n)")));
    ++compared;
  }
  CHECK(compared >= 7);
}

}  // namespace lintel
