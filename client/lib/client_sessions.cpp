// Sessions, their copies, and named states.
#include <iterator>
#include <utility>

#include "client/lib/client_call.h"

namespace lintel {

v1::Session Client::create_session(const std::string& model, std::int64_t max_tokens,
                                   Cancellation* cancellation) const {
  v1::CreateSessionRequest request;
  request.set_model(model);
  request.set_max_tokens(max_tokens);
  return create_session(request, cancellation);
}

v1::Session Client::create_session(const v1::CreateSessionRequest& request,
                                   Cancellation* cancellation) const {
  v1::Session session;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server,
                 auto* context) { return server.sessions.Create(context, request, &session); },
             Again::kSafe);
  known_->durability.note(session);
  return session;
}

v1::Session Client::get_session(const std::string& id, Cancellation* cancellation) const {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  Call call(*this, cancellation, id);
  call.unary(
      [&](Stubs& server, auto* context) { return server.sessions.Get(context, request, &session); },
      Again::kSafe);
  known_->durability.note(session);
  return session;
}

std::vector<v1::Session> Client::list_sessions(const std::string& model,
                                               Cancellation* cancellation) const {
  std::vector<v1::Session> sessions;
  v1::ListSessionsRequest request;
  request.set_model(model);
  request.set_page_size(1000);
  do {
    v1::ListSessionsResponse page;
    Call call(*this, cancellation);
    call.unary(
        [&](Stubs& server, auto* context) { return server.sessions.List(context, request, &page); },
        Again::kSafe);
    for (v1::Session& session : *page.mutable_sessions()) sessions.push_back(std::move(session));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's list of sessions does not advance");
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

void Client::delete_session(const std::string& id, Cancellation* cancellation) const {
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty nothing;
  Call call(*this, cancellation, id);
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.Delete(context, request, &nothing);
  });
}

std::vector<v1::Session> Client::fork_session(const v1::ForkSessionRequest& request,
                                              Cancellation* cancellation) const {
  v1::ForkSessionResponse response;
  Call call(*this, cancellation, request.id());
  call.unary([&](Stubs& server,
                 auto* context) { return server.sessions.Fork(context, request, &response); },
             Again::kSafe);
  for (const v1::Session& fork : response.sessions()) known_->durability.note(fork);
  return {std::make_move_iterator(response.mutable_sessions()->begin()),
          std::make_move_iterator(response.mutable_sessions()->end())};
}

v1::Session Client::rewind_session(const v1::RewindSessionRequest& request,
                                   Cancellation* cancellation) const {
  v1::Session session;
  Call call(*this, cancellation, request.id());
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.Rewind(context, request, &session);
  });
  known_->durability.note(session);
  return session;
}

void Client::snapshot_session(const v1::SnapshotSessionRequest& request, const OnPiece& on_piece,
                              Cancellation* cancellation) const {
  std::int64_t total = -1, got = 0;
  Call call(*this, cancellation, request.id());
  const auto open = [&](Stubs& server, auto* context) {
    return server.sessions.Snapshot(context, request);
  };
  call.stream<v1::SnapshotChunk>(
      open,
      [&](const v1::SnapshotChunk& chunk) {
        if (total < 0) total = chunk.total_bytes();
        got += static_cast<std::int64_t>(chunk.data().size());
        on_piece(chunk.data(), total);
      },
      Again::kSafe);
  if (got != total) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before the snapshot had");
  }
}

std::string Client::snapshot_session(const v1::SnapshotSessionRequest& request,
                                     Cancellation* cancellation) const {
  std::string snapshot;
  snapshot_session(
      request, [&snapshot](std::string_view piece, std::int64_t) { snapshot += piece; },
      cancellation);
  return snapshot;
}

v1::Session Client::restore_session(v1::RestoreHeader header, std::string_view snapshot,
                                    const OnSent& on_sent, Cancellation* cancellation) const {
  constexpr std::size_t kPieceBytes = 256 << 10;
  header.set_total_bytes(static_cast<std::int64_t>(snapshot.size()));
  v1::Session session;
  Call call(*this, cancellation);
  call.upload(
      [&](Stubs& server, auto* context) { return server.sessions.Restore(context, &session); },
      [&](grpc::ClientWriterInterface<v1::RestoreSessionRequest>& writer) {
        v1::RestoreSessionRequest message;
        *message.mutable_header() = header;
        bool reads = writer.Write(message);
        for (std::size_t at = 0; reads && at < snapshot.size(); at += kPieceBytes) {
          const std::string_view piece = snapshot.substr(at, kPieceBytes);
          message.set_data(piece.data(), piece.size());
          reads = writer.Write(message);
          if (reads && on_sent) on_sent(static_cast<std::int64_t>(piece.size()));
        }
        if (reads) writer.WritesDone();
      });
  known_->durability.note(session);
  return session;
}

void Client::read_history(const v1::ReadHistoryRequest& request, const OnChunk& on_chunk,
                          Cancellation* cancellation) const {
  Call call(*this, cancellation, request.id());
  const auto open = [&](Stubs& server, auto* context) {
    return server.sessions.ReadHistory(context, request);
  };
  call.stream<v1::Chunk>(open, on_chunk, Again::kSafe);
}

v1::NamedState Client::save_state(const v1::SaveStateRequest& request,
                                  Cancellation* cancellation) const {
  v1::NamedState state;
  Call call(*this, cancellation, request.session_id());
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.SaveState(context, request, &state);
  });
  return state;
}

std::vector<v1::NamedState> Client::list_states(const std::string& model,
                                                Cancellation* cancellation) const {
  std::vector<v1::NamedState> states;
  v1::ListStatesRequest request;
  request.set_model(model);
  request.set_page_size(1000);
  do {
    v1::ListStatesResponse page;
    Call call(*this, cancellation);
    call.unary([&](Stubs& server,
                   auto* context) { return server.sessions.ListStates(context, request, &page); },
               Again::kSafe);
    for (v1::NamedState& state : *page.mutable_states()) states.push_back(std::move(state));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      throw CallError(grpc::StatusCode::INTERNAL, "the server's list of states does not advance");
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return states;
}

void Client::delete_state(const std::string& name, bool is_public,
                          Cancellation* cancellation) const {
  v1::DeleteStateRequest request;
  request.set_name(name);
  request.set_is_public(is_public);
  google::protobuf::Empty nothing;
  Call call(*this, cancellation);
  call.unary([&](Stubs& server, auto* context) {
    return server.sessions.DeleteState(context, request, &nothing);
  });
}

}  // namespace lintel
