// SPDX-License-Identifier: Apache-2.0
// Stored sessions of several owners.
#include "tests/server/support/stored_server.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

TEST_CASE("a stored session is NOT_FOUND for all but its owner, word for word", "[threat-9]") {
  const TokenFile tokens;
  StoredServer stored(
      [&](ServerOptions& options) { options.security = options_with(tokens).security; });
  v1::Session session;
  REQUIRE(create_durable(*stored, v1::DURABILITY_INPUT, &session, "alice").ok());
  const bool in_memory = GENERATE(true, false);
  if (!in_memory) stored.restart();
  const std::string unknown(32, '0');
  // A method's answer about the other's session, with its id as that of a session that does not
  // exist.
  const auto said =
      [&](const std::function<grpc::Status(grpc::ClientContext&, const std::string&)>& call) {
        const auto text = [&](const std::string& id) {
          grpc::ClientContext context;
          set_token(context, "bob");
          const grpc::Status status = call(context, id);
          std::string all =
              std::to_string(status.error_code()) + status.error_message() + status.error_details();
          for (std::size_t at = 0; (at = all.find(id, at)) != std::string::npos;
               at += unknown.size()) {
            all.replace(at, id.size(), unknown);
          }
          return all;
        };
        const std::string of_other = text(session.id());
        CHECK(of_other.rfind(std::to_string(Code::NOT_FOUND), 0) == 0);
        CHECK(of_other == text(unknown));
      };
  const auto ending = [](auto reader, auto message) {
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  };
  auto& stub = *stored->sessions;
  const auto with_id = [](auto request, const std::string& id) {
    request.set_id(id);
    return request;
  };
  v1::Session out;
  google::protobuf::Empty nothing;
  v1::ForkSessionResponse forks;
  said([&](auto& context, auto& id) {
    return stub.Get(&context, with_id(v1::GetSessionRequest(), id), &out);
  });
  said([&](auto& context, auto& id) {
    return stub.Delete(&context, with_id(v1::DeleteSessionRequest(), id), &nothing);
  });
  said([&](auto& context, auto& id) {
    return stub.Fork(&context, with_id(v1::ForkSessionRequest(), id), &forks);
  });
  said([&](auto& context, auto& id) {
    return stub.Rewind(&context, with_id(v1::RewindSessionRequest(), id), &out);
  });
  said([&](auto& context, auto& id) {
    return ending(stub.Snapshot(&context, with_id(v1::SnapshotSessionRequest(), id)),
                  v1::SnapshotChunk());
  });
  said([&](auto& context, auto& id) {
    return ending(stub.ReadHistory(&context, with_id(v1::ReadHistoryRequest(), id)), v1::Chunk());
  });
  said([&](auto& context, auto& id) {
    v1::SaveStateRequest request;
    request.set_session_id(id);
    request.set_name("mine");
    v1::NamedState state;
    return stub.SaveState(&context, request, &state);
  });
  said([&](auto& context, auto& id) {
    return ending(stored->generation->Generate(&context, call_on(id, "", {1}, 2)),
                  v1::GenerateResponse());
  });
  said([&](auto& context, auto& id) {
    return ending(stored->generation->Generate(&context, call_on(id, "call", {1}, 2)),
                  v1::GenerateResponse());
  });
  const auto list = [&](const std::string& who) {
    v1::ListSessionsResponse page;
    grpc::ClientContext context;
    set_token(context, who);
    REQUIRE(stub.List(&context, {}, &page).ok());
    return page.sessions_size();
  };
  CHECK(list("bob") == 0);
  CHECK(list("alice") == 1);
}

}  // namespace
}  // namespace lintel::testing
