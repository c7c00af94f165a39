// SPDX-License-Identifier: Apache-2.0
// Which flags of the session store go together.
#include <string>
#include <vector>

#include "server/app/options.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using Words = std::vector<std::string>;

// The error of such flags, or "" where they are taken.
std::string refusal_of(const Words& flags) {
  Words words = {"lintel-server", "--model", "m"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  ServerOptions options;
  std::string printed;
  try {
    parse_server_options(static_cast<int>(argv.size()), argv.data(), &options, &printed);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

Words with_store(const std::string& store, Words flags) {
  flags.insert(flags.begin(), {"--session-store", store});
  return flags;
}

TEST_CASE("flags of a shared store are refused by name without one", "[threat-68]") {
  const std::vector<Words> all = {{"--session-lease", "5s"},
                                  {"--session-store-wait-replicas", "0"},
                                  {"--session-store-wait", "1s"},
                                  {"--session-store-credentials", "f"}};
  for (const Words& flags : all) {
    CAPTURE(flags[0]);
    const auto is_told = Contains(flags[0] + " needs --session-store redis:// or rediss://");
    CHECK_THAT(refusal_of(flags), is_told);
    CHECK_THAT(refusal_of(with_store("dir", flags)), is_told);
    CHECK(refusal_of(with_store("redis://a", flags)).empty());
    CHECK(refusal_of(with_store("rediss://a:7,b", flags)).empty());
  }
}

TEST_CASE("files of TLS are refused for a store without TLS, and a certificate without its key",
          "[threat-68]") {
  const std::vector<Words> all = {{"--session-store-ca", "f"},
                                  {"--session-store-cert", "f", "--session-store-key", "k"}};
  for (const Words& flags : all) {
    CAPTURE(flags[0]);
    const auto is_told = Contains(flags[0] + " needs --session-store rediss://");
    CHECK_THAT(refusal_of(flags), is_told);
    CHECK_THAT(refusal_of(with_store("dir", flags)), is_told);
    CHECK_THAT(refusal_of(with_store("redis://a", flags)), is_told);
    CHECK(refusal_of(with_store("rediss://a", flags)).empty());
  }
  for (const std::string alone : {"--session-store-cert", "--session-store-key"}) {
    CHECK_THAT(refusal_of(with_store("rediss://a", {alone, "f"})), Contains("belong together"));
  }
}

TEST_CASE("flag --drain-handover is refused without a store") {
  CHECK_THAT(refusal_of({"--drain-handover", "5s"}),
             Contains("--drain-handover needs --session-store, but for off"));
  CHECK(refusal_of({"--drain-handover", "off"}).empty());
  CHECK(refusal_of(with_store("dir", {"--drain-handover", "5s"})).empty());
  CHECK(refusal_of(with_store("redis://a", {"--drain-handover", "0"})).empty());
}

TEST_CASE("an invalid --session-store is refused, and --session-store-size with a shared store",
          "[threat-14]") {
  CHECK_THAT(refusal_of({"--session-store", "http://a"}),
             Contains("neither a directory nor redis:// nor rediss://"));
  for (const std::string url :
       {"redis://", "redis://a:0", "redis://a:65536", "redis://a,,b", "redis://user:secret@a"}) {
    CAPTURE(url);
    CHECK_THAT(refusal_of({"--session-store", url}),
               Contains("--session-store") && !Contains("secret"));
  }
  CHECK_THAT(refusal_of(with_store("redis://a", {"--session-store-size", "1GiB"})),
             Contains("--session-store-size is of a directory"));
  CHECK(refusal_of(with_store("dir", {"--session-store-size", "1GiB"})).empty());
}

TEST_CASE("a lease, a number of replicas and a replica's name are refused beyond their bounds") {
  const std::vector<Words> all = {{"--session-lease", "1s"},
                                  {"--session-lease", "1999ms"},
                                  {"--session-store-wait", "0"},
                                  {"--session-store-wait-replicas", "17"},
                                  {"--session-store-wait-replicas", "-1"},
                                  {"--session-store-wait-replicas", "one"},
                                  {"--replica-id", "two words"},
                                  {"--replica-id", "a,b"},
                                  {"--replica-id", "a\nb"},
                                  {"--replica-id", std::string(65, 'a')}};
  for (const Words& flags : all) {
    CAPTURE(flags[0], flags[1]);
    CHECK_THAT(refusal_of(with_store("redis://a", flags)), Contains(flags[0]));
  }
  CHECK(refusal_of(with_store("redis://a",
                              {"--replica-id", std::string(64, 'a'), "--session-lease", "2s"}))
            .empty());
}

}  // namespace
}  // namespace lintel::testing
