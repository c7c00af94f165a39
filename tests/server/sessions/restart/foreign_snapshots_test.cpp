// SPDX-License-Identifier: Apache-2.0
// Snapshots of sessions that came from a machine of other bits, in memory alone and stored.
#include <span>

#include "server/sessions/snapshot.h"
#include "tests/server/support/session_calls.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

const std::string kForeign(64, '0');

struct Travels {
  explicit Travels(const ServerOptions& options) : server({"tokens"}, options) {}

  SnapshotOf at(const std::string& id, std::int64_t position) {
    v1::SnapshotSessionRequest request;
    request.set_id(id);
    request.set_position(position);
    const std::string bytes = snapshot_of(server, request).bytes;
    return read_snapshot(std::as_bytes(std::span(bytes)));
  }
  // A session out of it, with what this takes.
  v1::Session take(const SnapshotOf& snapshot) {
    const std::vector<std::byte> bytes = write_snapshot(snapshot);
    Messages messages =
        messages_of(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    messages[0].mutable_header()->set_accept_other_numerics(snapshot.numerics == kForeign);
    v1::Session restored;
    const grpc::Status status = restore(server, messages, &restored);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return restored;
  }

  TestServer server;
};

}  // namespace

TEST_CASE("a snapshot names the numerics of its tokens, in memory and in the store") {
  const bool stored = GENERATE(false, true);
  const TemporaryDirectory files;
  ServerOptions options = test_options();
  if (stored) options.durable.store = files.path() / "store";
  Travels f(options);
  TestServer& server = f.server;
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 19, {1});
  SnapshotOf made_up = f.at(session.id(), 20);
  CHECK(made_up.numerics == session.numerics());
  made_up.numerics = kForeign;
  made_up.numerics_text = "elsewhere";
  const std::string id = f.take(made_up).id();
  CHECK(get_session(server, id).numerics_changed_at() == 0);
  SnapshotOf again = f.at(id, 20);
  CHECK(again.numerics == kForeign);
  if (!stored) CHECK(again.numerics_text == "elsewhere");
  CHECK(again.numerics_changed_at == 0);
  v1::NamedState state;
  v1::SaveStateRequest save;
  save.set_session_id(id);
  save.set_name("foreign");
  grpc::ClientContext context;
  REQUIRE(server.sessions->SaveState(&context, save, &state).ok());
  CHECK(state.numerics() == kForeign);
  v1::ForkSessionResponse forks;
  REQUIRE(fork_session(server, id, 10, 1, &forks).ok());
  const std::string fork = forks.sessions(0).id();
  CHECK(f.at(fork, 10).numerics == kForeign);

  // The session continues here, and its client hears of both machines.
  CHECK(go_on(server, id, 3).finish.numerics_changed());
  CHECK_FALSE(go_on(server, id, 3).finish.numerics_changed());
  CHECK(get_session(server, id).numerics_changed_at() == 20);
  again = f.at(id, 26);
  CHECK(again.numerics == session.numerics());
  CHECK(again.numerics_changed_at == 20);
  CHECK(f.at(id, 12).numerics == (stored ? "unknown" : kForeign));
  CHECK(f.at(id, 12).numerics_changed_at == 0);
  // Its last tokens are this machine's: nothing is to be accepted, and what it is stays said.
  const v1::Session mixed = f.take(again);
  CHECK(get_session(server, mixed.id()).numerics_changed_at() == 20);
  CHECK_FALSE(go_on(server, mixed.id(), 3).finish.numerics_changed());
  CHECK(f.at(mixed.id(), 29).numerics_changed_at == 20);

  CHECK(go_on(server, fork, 3).finish.numerics_changed());
  CHECK(f.at(fork, 13).numerics_changed_at == 10);
}

}  // namespace lintel::testing
