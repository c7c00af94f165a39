// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/fake_sessions.h"

namespace lintel::testing {
v1::Session FakeSessions::session(int i) const {
  v1::Session session;
  session.set_id("session-" + std::to_string(i));
  session.set_model("tiny");
  session.set_position(12);
  session.set_state_bytes(4096);
  session.mutable_create_time()->set_seconds(1'700'000'000);
  session.mutable_idle_timeout()->set_seconds(600);
  session.MergeFrom(like_);
  return session;
}

std::vector<std::string> FakeSessions::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

grpc::Status FakeSessions::Create(grpc::ServerContext* context,
                                  const v1::CreateSessionRequest* request, v1::Session* reply) {
  note_call_(*context, request->model());
  note("Create", *request);
  *reply = session(0);
  reply->set_adapter(request->adapter());
  return failure_.value_or(grpc::Status::OK);
}

grpc::Status FakeSessions::Get(grpc::ServerContext* context, const v1::GetSessionRequest*,
                               v1::Session* reply) {
  note_call_(*context, "");
  ++gets_;
  *reply = session(0);
  return failure_.value_or(grpc::Status::OK);
}

grpc::Status FakeSessions::List(grpc::ServerContext* context,
                                const v1::ListSessionsRequest* request,
                                v1::ListSessionsResponse* reply) {
  note_call_(*context, request->model());
  // Two pages of two.
  const int first = request->page_token().empty() ? 0 : 2;
  *reply->add_sessions() = session(first);
  *reply->add_sessions() = session(first + 1);
  if (first == 0) reply->set_next_page_token("more");
  return failure_.value_or(grpc::Status::OK);
}

grpc::Status FakeSessions::Delete(grpc::ServerContext* context, const v1::DeleteSessionRequest*,
                                  google::protobuf::Empty*) {
  note_call_(*context, "");
  return failure_.value_or(grpc::Status::OK);
}

grpc::Status FakeSessions::note(const char* method, const google::protobuf::Message& request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(method + (" " + request.ShortDebugString()));
  return failure_.value_or(grpc::Status::OK);
}

grpc::Status FakeSessions::Fork(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                                v1::ForkSessionResponse* reply) {
  for (std::uint32_t i = 0; i < request->count(); ++i) {
    *reply->add_sessions() = session(static_cast<int>(i));
  }
  return note("Fork", *request);
}

grpc::Status FakeSessions::Rewind(grpc::ServerContext*, const v1::RewindSessionRequest* request,
                                  v1::Session* reply) {
  *reply = session(0);
  reply->set_position(request->position());
  return note("Rewind", *request);
}

grpc::Status FakeSessions::Snapshot(grpc::ServerContext*, const v1::SnapshotSessionRequest* request,
                                    grpc::ServerWriter<v1::SnapshotChunk>* writer) {
  if (failure_) return *failure_;
  v1::SnapshotChunk chunk;
  chunk.set_total_bytes(10);
  chunk.set_data("012345");
  writer->Write(chunk);
  chunk.set_total_bytes(0);
  chunk.set_data("6789");
  if (!end_early_) writer->Write(chunk);
  return note("Snapshot", *request);
}

grpc::Status FakeSessions::Restore(grpc::ServerContext*,
                                   grpc::ServerReader<v1::RestoreSessionRequest>* reader,
                                   v1::Session* reply) {
  if (failure_) return *failure_;
  v1::RestoreSessionRequest message, whole;
  while (reader->Read(&message)) {
    if (message.has_header()) note("Restore", message.header());
    if (message.has_data()) whole.mutable_data()->append(message.data());
  }
  *reply = session(static_cast<int>(whole.data().size()));
  return note("Restored", whole);
}

grpc::Status FakeSessions::ReadHistory(grpc::ServerContext*, const v1::ReadHistoryRequest* request,
                                       grpc::ServerWriter<v1::Chunk>* writer) {
  v1::Chunk chunk;
  chunk.set_first_position(request->from_position());
  chunk.set_source(v1::VALUE_SOURCE_PROMPT);
  for (const char c : {'h', 'e'}) chunk.add_tokens(c);
  writer->Write(chunk);
  chunk.set_first_position(request->from_position() + 2);
  chunk.set_source(v1::VALUE_SOURCE_SAMPLED);
  chunk.set_tokens(0, 'y');
  chunk.mutable_tokens()->RemoveLast();
  writer->Write(chunk);
  return note("ReadHistory", *request);
}

grpc::Status FakeSessions::SaveState(grpc::ServerContext*, const v1::SaveStateRequest* request,
                                     v1::NamedState* reply) {
  reply->set_name(request->name());
  reply->set_position(12);
  reply->set_bytes(4096);
  return note("SaveState", *request);
}

grpc::Status FakeSessions::ListStates(grpc::ServerContext*, const v1::ListStatesRequest* request,
                                      v1::ListStatesResponse* reply) {
  const bool is_first = request->page_token().empty();
  reply->add_states()->set_name(is_first ? "a" : "b");
  if (is_first) reply->set_next_page_token("a");
  return note("ListStates", *request);
}

grpc::Status FakeSessions::DeleteState(grpc::ServerContext*, const v1::DeleteStateRequest* request,
                                       google::protobuf::Empty*) {
  return note("DeleteState", *request);
}

}  // namespace lintel::testing
