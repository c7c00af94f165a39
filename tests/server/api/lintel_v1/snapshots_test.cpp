// SPDX-License-Identifier: Apache-2.0
// Snapshots of sessions over gRPC, and what comes back as one.
#include <span>

#include "server/sessions/snapshot.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("a session restored from a snapshot continues as the first one, bit for bit") {
  // Also of one whose state has restarted in a window, and will again.
  const std::int64_t window = GENERATE(0, 8);
  CAPTURE(window);
  TestServer server({"tokens"});
  const v1::Session session = create_windowed(server, "tokens", window);
  go_on(server, session.id(), 20, {1, 2});
  v1::SnapshotSessionRequest request;
  request.set_id(session.id());
  request.set_chunk_bytes(512);
  bool verify = false;
  SECTION("whole") {}
  SECTION("whole, and proven") { verify = true; }
  SECTION("without history") { request.set_without_history(true); }
  SECTION("without state") { request.set_without_state(true); }
  SECTION("as of an earlier position") { request.set_position(9); }
  const Snapshot snapshot = snapshot_of(server, request);
  REQUIRE(snapshot.status.ok());
  CHECK(snapshot.chunks.front().total_bytes() == static_cast<std::int64_t>(snapshot.bytes.size()));
  for (const v1::SnapshotChunk& chunk : snapshot.chunks) CHECK(chunk.data().size() <= 512);

  TestServer other({"tokens"});
  v1::Session restored;
  const grpc::Status status = restore(other, messages_of(snapshot.bytes, verify), &restored);
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK(restored.window() == window);
  CHECK(restored.position() == (request.has_position() ? 9 : 22));
  if (request.has_position()) {
    v1::Session rewound;
    REQUIRE(rewind_session(server, session.id(), 9, &rewound).ok());
  }
  CHECK(restored.digest() == get_session(server, session.id()).digest());
  const Sample expected = go_on(server, session.id(), 20, {3});
  const Sample got = go_on(other, restored.id(), 20, {3});
  CHECK(got.tokens == expected.tokens);
  CHECK(got.log2_probs == expected.log2_probs);
  CHECK(other.server().store().num_sessions() == 1);
}

TEST_CASE("a snapshot's memory is free when its reader has the last of it") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 20, {1, 2});
  const std::size_t before = server.server().store().bytes_in_use();
  for (int time = 0; time < 100; ++time) {
    REQUIRE(snapshot_of(server, session.id()).status.ok());
    REQUIRE(server.server().store().bytes_in_use() == before);
  }
}

TEST_CASE("hostile restore streams are refused, and leave nothing behind", "[threat-51]") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 20, {1, 2});
  const std::size_t before = server.server().store().bytes_in_use();
  const std::string good = snapshot_of(server, session.id()).bytes;
  const auto total = static_cast<std::int64_t>(good.size());
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  const Messages whole = messages_of(good);
  const auto with = [&](const auto& change) {
    Messages messages = whole;
    change(messages);
    return messages;
  };
  using Code = grpc::StatusCode;
  const std::vector<std::tuple<const char*, Messages, Code>> streams = {
      {"nothing", {}, Code::INVALID_ARGUMENT},
      {"no header", with([](Messages& m) { m.erase(m.begin()); }), Code::INVALID_ARGUMENT},
      {"two headers", with([](Messages& m) { m.insert(m.begin(), m[0]); }), Code::INVALID_ARGUMENT},
      {"header only", {whole[0]}, Code::DATA_LOSS},
      {"too short", with([](Messages& m) { m.pop_back(); }), Code::DATA_LOSS},
      {"too long", with([](Messages& m) { m.push_back(m.back()); }), Code::DATA_LOSS},
      {"out of order", with([](Messages& m) { std::swap(m[2], m[3]); }), Code::DATA_LOSS},
      {"something else", with([](Messages& m) { std::swap(m[1], m[2]); }), Code::INVALID_ARGUMENT},
      {"a bit flipped", messages_of(flipped), Code::DATA_LOSS},
      {"no bytes", {header_of(0)}, Code::INVALID_ARGUMENT},
      {"negative", {header_of(-1)}, Code::INVALID_ARGUMENT},
      {"more than a session can have", {header_of(std::int64_t{1} << 50)}, Code::INVALID_ARGUMENT},
      {"a piece too large",
       {header_of(total), data_of(std::string((1 << 20) + 1, 'x'))},
       Code::INVALID_ARGUMENT},
      {"an empty message", {whole[0], {}}, Code::DATA_LOSS},
  };
  for (const auto& [name, messages, code] : streams) {
    INFO(name);
    v1::Session restored;
    const grpc::Status status = restore(server, messages, &restored);
    INFO(status.error_message());
    CHECK(status.error_code() == code);
    CHECK(server.server().store().bytes_in_use() == before);
    CHECK(server.server().store().num_sessions() == 1);
  }
}

TEST_CASE("a snapshot of another model is refused with both fingerprints", "[threat-51]") {
  TestServer server({"tokens", "bytes"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 3, {1});
  Messages messages = messages_of(snapshot_of(server, session.id()).bytes);
  messages[0].mutable_header()->set_model("bytes");
  v1::Session restored;
  const grpc::Status refused = restore(server, messages, &restored);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  const auto info = detail_of<google::rpc::ErrorInfo>(refused);
  REQUIRE(info);
  CHECK(info->reason() == "MODEL_MISMATCH");
  CHECK(info->metadata().at("snapshot") != info->metadata().at("model"));
  messages[0].mutable_header()->set_model("nosuch");
  CHECK(restore(server, messages, &restored).error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("a snapshot of other numerics is refused unless they are accepted") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  CHECK(session.numerics().size() == 64);
  go_on(server, session.id(), 3, {1});
  const std::string bytes = snapshot_of(server, session.id()).bytes;
  SnapshotOf snapshot = read_snapshot(std::as_bytes(std::span(bytes)));
  CHECK(snapshot.numerics == session.numerics());
  snapshot.numerics = std::string(64, '0');
  const std::vector<std::byte> other = write_snapshot(snapshot);
  Messages messages =
      messages_of(std::string(reinterpret_cast<const char*>(other.data()), other.size()));
  v1::Session restored;
  const grpc::Status refused = restore(server, messages, &restored);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(detail_of<google::rpc::ErrorInfo>(refused)->reason() == "NUMERICS_CHANGED");
  messages[0].mutable_header()->set_accept_other_numerics(true);
  CHECK(restore(server, messages, &restored).ok());
}

TEST_CASE("a restored state that its tokens do not lead to is refused where it is to be proven") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 20, {1, 2});
  const std::string bytes = snapshot_of(server, session.id()).bytes;
  SnapshotOf snapshot = read_snapshot(std::as_bytes(std::span(bytes)));
  snapshot.image.state[snapshot.image.state.size() / 2] ^= std::byte{1};  // of a finite float
  const std::vector<std::byte> other = write_snapshot(snapshot);
  const std::string forged(reinterpret_cast<const char*>(other.data()), other.size());
  v1::Session restored;
  const grpc::Status refused = restore(server, messages_of(forged, /*verify=*/true), &restored);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(detail_of<google::rpc::ErrorInfo>(refused)->reason() == "STATE_NOT_PROVEN");
  CHECK(server.server().store().num_sessions() == 1);
}

TEST_CASE("a state whose tokens are not there cannot be proven") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 20, {1, 2});
  v1::SnapshotSessionRequest request;
  request.set_id(session.id());
  request.set_without_history(true);
  const std::string bytes = snapshot_of(server, request).bytes;
  v1::Session restored;
  const grpc::Status refused = restore(server, messages_of(bytes, /*verify=*/true), &restored);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(detail_of<google::rpc::ErrorInfo>(refused)->reason() == "STATE_NOT_PROVEN");
  CHECK(server.server().store().num_sessions() == 1);
}

TEST_CASE("clients that vanish from snapshots and restores leave nothing behind", "[threat-52]") {
  TestServer server({"tokens"});
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 20, {1, 2});
  const Messages messages = messages_of(snapshot_of(server, session.id()).bytes);
  const std::size_t before = server.server().store().bytes_in_use();
  for (int i = 0; i < 40; ++i) {  // more than there are places
    grpc::ClientContext restoring;
    v1::Session restored;
    const auto writer = server.sessions->Restore(&restoring, &restored);
    writer->Write(messages[0]);
    restoring.TryCancel();
    CHECK(writer->Finish().error_code() == grpc::StatusCode::CANCELLED);
    grpc::ClientContext context;
    v1::SnapshotSessionRequest request;
    request.set_id(session.id());
    request.set_chunk_bytes(1);
    const auto reader = server.sessions->Snapshot(&context, request);
    v1::SnapshotChunk chunk;
    reader->Read(&chunk);
    context.TryCancel();
    reader->Finish();
  }
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == before; }));
  v1::Session restored;
  CHECK(eventually([&] { return restore(server, messages, &restored).ok(); }));
}

TEST_CASE("a snapshot request is checked, and another's session is not there", "[threat-4]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  v1::Session session;
  REQUIRE(create_as(server, "alice", &session).ok());
  v1::SnapshotSessionRequest request;
  request.set_position(-1);
  request.set_without_history(true);
  request.set_without_state(true);
  request.set_chunk_bytes((1 << 20) + 1);
  CHECK(violated_fields(snapshot_of(server, request, "alice").status) ==
        std::vector<std::string>{"id", "position", "without_state", "chunk_bytes"});
  request.Clear();
  request.set_id(session.id());
  CHECK(snapshot_of(server, request, "alice").status.ok());
  const grpc::Status refused = snapshot_of(server, request, "bob").status;
  CHECK(refused.error_code() == grpc::StatusCode::NOT_FOUND);
  const std::string unknown(32, 'a');
  request.set_id(unknown);
  std::string expected = snapshot_of(server, request, "bob").status.error_message();
  expected.replace(expected.find(unknown), unknown.size(), session.id());
  CHECK(refused.error_message() == expected);
}

}  // namespace
}  // namespace lintel::testing
