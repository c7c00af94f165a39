// SPDX-License-Identifier: Apache-2.0
// Snapshots and named states of sessions with an adapter, whose weights are others by now.
#include "tests/server/support/adapter_calls.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

void require_mismatch(const grpc::Status& status) {
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  const auto info = detail_of<google::rpc::ErrorInfo>(status);
  REQUIRE(info);
  CHECK(info->reason() == "MODEL_MISMATCH");
  CHECK(info->metadata().at("what") == "adapter");
  CHECK(info->metadata().at("state") != info->metadata().at("model"));
}

TEST_CASE(
    "a state that was computed with an adapter of other weights is refused wherever one begins") {
  AdapterServer f;
  TestServer& server = *f.server;
  f.write("second");
  REQUIRE(f.load("second").ok());
  const auto serve_adapter = [&](std::uint64_t seed) {
    f.write_adapter("second", "a", seed);
    REQUIRE(f.load_adapter("a").ok());
  };
  serve_adapter(1);
  v1::Session session;
  REQUIRE(f.create_session("a", &session).ok());
  go_on(server, session.id(), 10, {1, 2, 3});
  const Messages snapshot = messages_of(snapshot_of(server, session.id()).bytes);
  v1::SaveStateRequest save;
  save.set_session_id(session.id());
  save.set_name("start");
  v1::NamedState saved;
  grpc::ClientContext saving;
  REQUIRE(server.sessions->SaveState(&saving, save, &saved).ok());
  const Sample expected = go_on(server, session.id(), 5, {4});
  v1::DeleteSessionRequest remove;
  remove.set_id(session.id());
  google::protobuf::Empty nothing;
  grpc::ClientContext removing;
  REQUIRE(server.sessions->Delete(&removing, remove, &nothing).ok());

  const auto restored = [&](v1::Session* out) { return restore(server, snapshot, out); };
  const auto created = [&](v1::Session* out) {
    v1::CreateSessionRequest request;
    request.set_initial_state("start");
    grpc::ClientContext context;
    return server.sessions->Create(&context, request, out);
  };
  v1::GenerateRequest once = request_for("", {4}, 5);
  once.set_initial_state("start");
  once.set_log2_probs(true);

  // Another adapter of that name.
  REQUIRE(f.unload_adapter("a").ok());
  serve_adapter(9);
  v1::Session other;
  require_mismatch(restored(&other));
  require_mismatch(created(&other));
  require_mismatch(generate(server, once).status);

  // None.
  REQUIRE(f.unload_adapter("a").ok());
  CHECK(restored(&other).error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(created(&other).error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(generate(server, once).status.error_code() == grpc::StatusCode::NOT_FOUND);

  // And the one it was.
  serve_adapter(1);
  REQUIRE(restored(&other).ok());
  CHECK(go_on(server, other.id(), 5, {4}).log2_probs == expected.log2_probs);
  REQUIRE(created(&other).ok());
  CHECK(go_on(server, other.id(), 5, {4}).log2_probs == expected.log2_probs);
  CHECK(generate(server, once).only().log2_probs == expected.log2_probs);
}

}  // namespace
}  // namespace lintel::testing
