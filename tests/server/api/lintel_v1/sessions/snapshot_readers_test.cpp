// SPDX-License-Identifier: Apache-2.0
// Readers of snapshots that take their time.
#include <memory>

#include "tests/server/support/snapshot_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A reader whose connection takes little ahead of what it reads, and that has read one piece.
struct SlowReader {
  SlowReader(TestServer& server, const std::string& id) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    sessions = v1::SessionService::NewStub(grpc::CreateCustomChannel(
        server.server().address(), grpc::InsecureChannelCredentials(), arguments));
    v1::SnapshotSessionRequest request;
    request.set_id(id);
    request.set_chunk_bytes(16);
    reader = sessions->Snapshot(&context, request);
    reads = reader->Read(&chunk);
    bytes = chunk.data();
  }
  grpc::Status read_all() {
    while (reader->Read(&chunk)) bytes += chunk.data();
    return reader->Finish();
  }

  std::unique_ptr<v1::SessionService::Stub> sessions;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::SnapshotChunk>> reader;
  v1::SnapshotChunk chunk;
  bool reads = false;
  std::string bytes;
};

// A session whose snapshot is more than lies on its way to such a reader.
v1::Session long_session(TestServer& server) {
  const v1::Session session = create_session(server, "tokens");
  go_on(server, session.id(), 1, std::vector<std::int32_t>(20'000, 3));
  return session;
}

TEST_CASE("a slow reader of a snapshot gets the session as it was, and delays no other call") {
  TestServer server({"tokens"});
  const SessionManager& store = server.server().store();
  const v1::Session session = long_session(server);
  const std::string digest = get_session(server, session.id()).digest();
  const std::size_t before = store.bytes_in_use();
  SlowReader slow(server, session.id());
  REQUIRE(slow.reads);
  CHECK(store.bytes_in_use() > before);
  // Meanwhile the session continues, others read it, and it is deleted.
  CHECK(go_on(server, session.id(), 5).tokens.size() == 5);
  CHECK(snapshot_of(server, session.id()).status.ok());
  CHECK(store.bytes_in_use() > before);
  v1::DeleteSessionRequest remove;
  remove.set_id(session.id());
  google::protobuf::Empty nothing;
  grpc::ClientContext removing;
  REQUIRE(server.sessions->Delete(&removing, remove, &nothing).ok());
  CHECK(store.bytes_in_use() > 0);  // bytes on their way

  REQUIRE(slow.read_all().ok());
  CHECK(store.bytes_in_use() == 0);
  v1::Session restored;
  REQUIRE(restore(server, messages_of(slow.bytes), &restored).ok());
  CHECK(restored.digest() == digest);
}

TEST_CASE("more slow readers of snapshots than there are places are refused, until one is done") {
  TestServer server({"tokens"});
  const v1::Session session = long_session(server);
  const std::size_t before = server.server().store().bytes_in_use();
  std::vector<std::unique_ptr<SlowReader>> readers;
  for (int i = 0; i < 16; ++i) {
    readers.push_back(std::make_unique<SlowReader>(server, session.id()));
    REQUIRE(readers.back()->reads);
  }
  const grpc::Status refused = snapshot_of(server, session.id()).status;
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused));
  CHECK(readers.back()->read_all().ok());
  readers.pop_back();
  CHECK(snapshot_of(server, session.id()).status.ok());
  for (const auto& reader : readers) reader->context.TryCancel();
  for (const auto& reader : readers) reader->read_all();
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == before; }));
}

}  // namespace
}  // namespace lintel::testing
