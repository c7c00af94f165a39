// SPDX-License-Identifier: Apache-2.0
// Public initial states, from files.
#include <filesystem>
#include <fstream>
#include <span>

#include "server/sessions/snapshot.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

struct StateFiles {
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory.path() / name, std::ios::binary) << bytes;
  }
  void write(const std::string& name, const SnapshotOf& snapshot) const {
    const std::vector<std::byte> bytes = write_snapshot(snapshot);
    write(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  ServerOptions options(bool accept_other_numerics = false) const {
    ServerOptions options = test_options();
    options.initial_states = {directory.path(), accept_other_numerics};
    return options;
  }
  // The reason why a server with these files does not start; empty: it does.
  std::string error(const ServerOptions& options) const {
    try {
      TestServer server({"tokens"}, options);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
  std::string error() const { return error(options()); }

  TemporaryDirectory directory;
};

SnapshotOf read(const std::string& bytes) { return read_snapshot(std::as_bytes(std::span(bytes))); }

TEST_CASE("files of initial states are public named states that continue as their sessions") {
  StateFiles files;
  TestServer first({"tokens"});
  const v1::Session session = create_session(first, "tokens");
  go_on(first, session.id(), 10, {1, 2, 3});
  v1::SnapshotSessionRequest request;
  request.set_id(session.id());
  SECTION("whole") {}
  SECTION("without history") { request.set_without_history(true); }
  SECTION("without state") { request.set_without_state(true); }
  files.write("start.snapshot", snapshot_of(first, request).bytes);
  files.write(".hidden", "no snapshot");
  std::filesystem::create_directory(files.directory.path() / "lost+found");
  const Sample expected = go_on(first, session.id(), 5, {4});

  TestServer server({"tokens"}, files.options());
  const std::size_t held = server.server().store().bytes_in_use();
  CHECK(server.server().store().num_sessions() == 0);
  v1::ListStatesResponse page;
  grpc::ClientContext listing;
  REQUIRE(server.sessions->ListStates(&listing, {}, &page).ok());
  REQUIRE(page.states().size() == 1);
  CHECK(page.states(0).name() == "start");
  CHECK(page.states(0).is_public());
  CHECK(page.states(0).position() == 13);
  CHECK(static_cast<std::size_t>(page.states(0).bytes()) == held);
  v1::GenerateRequest once = request_for("", {4}, 5);
  once.set_initial_state("start");
  once.set_log2_probs(true);
  const Generated out = generate(server, once);
  INFO(out.status.error_message());
  REQUIRE(out.status.ok());
  CHECK(out.only().tokens == expected.tokens);
  CHECK(out.only().log2_probs == expected.log2_probs);
}

TEST_CASE("a file that cannot be an initial state keeps the server from starting, and is named") {
  TestServer first({"tokens", "bytes"});
  const v1::Session session = create_session(first, "tokens");
  go_on(first, session.id(), 10, {1, 2, 3});
  const std::string good = snapshot_of(first, session.id()).bytes;
  StateFiles files;
  CHECK(files.error() == "");  // none
  const auto refused = [&](const std::string& name, const auto& content) {
    files.write(name, content);
    const std::string error = files.error();
    CHECK_THAT(error, Contains("--initial-states: ") && Contains(name + ": "));
    std::filesystem::remove(files.directory.path() / name);
    return error;
  };
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  CHECK_THAT(refused("a.snapshot", flipped), Contains("checksum"));
  CHECK_THAT(refused("a.snapshot", good.substr(0, good.size() - 64)), Contains("bytes"));
  CHECK_THAT(refused("a.snapshot", std::string()), Contains("bytes"));
  CHECK_THAT(refused("a b.snapshot", good), Contains("name"));
  SnapshotOf other = read(good);
  other.model_fingerprint = std::string(64, '0');
  CHECK_THAT(refused("a.snapshot", other), Contains("another fingerprint"));
  other = read(good);
  other.weight_type = "int8";
  CHECK_THAT(refused("a.snapshot", other), Contains("another weight type"));
  const v1::Session of_bytes = create_session(first, "bytes");
  go_on(first, of_bytes.id(), 3, {1});
  CHECK_THAT(refused("a.snapshot", snapshot_of(first, of_bytes.id()).bytes),
             Contains("no model is named bytes"));
  // A state that the model cannot have, with a checksum that fits.
  other = read(good);
  other.image.state.resize(other.image.state.size() - 64);
  CHECK_THAT(refused("a.snapshot", other), Contains("a.snapshot"));
  files.write("a.snapshot", good);
  CHECK_THAT(refused("a.zip", good), Contains("another file is of the state a"));
  CHECK(files.error() == "");
  ServerOptions small = files.options();
  small.sessions.session_memory_bytes = 3000;
  CHECK_THAT(files.error(small), Contains("a.snapshot: "));
}

TEST_CASE("an initial state of other numerics is taken where that is accepted") {
  TestServer first({"tokens"});
  const v1::Session session = create_session(first, "tokens");
  go_on(first, session.id(), 10, {1, 2, 3});
  SnapshotOf other = read(snapshot_of(first, session.id()).bytes);
  other.numerics = std::string(64, '0');
  StateFiles files;
  files.write("theirs.snapshot", other);
  CHECK_THAT(files.error(), Contains("theirs.snapshot: this machine computes other bits"));
  TestServer server({"tokens"}, files.options(/*accept_other_numerics=*/true));
  v1::ListStatesResponse page;
  grpc::ClientContext listing;
  REQUIRE(server.sessions->ListStates(&listing, {}, &page).ok());
  CHECK(page.states(0).numerics() == other.numerics);  // of who computed it
}

}  // namespace
}  // namespace lintel::testing
