// Snapshot and Restore.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "server/api/session_checks.h"
#include "server/grpc/lintel_v1/open_stream.h"
#include "server/grpc/lintel_v1/restore_call.h"
#include "server/grpc/lintel_v1/session_service.h"
#include "server/grpc/lintel_v1/snapshot_bytes.h"
#include "server/sessions/snapshot.h"

namespace lintel {

grpc::Status SessionService::snapshot(const v1::SnapshotSessionRequest& wire,
                                      SnapshotStream::Reactor& reactor) {
  CallScope& scope = reactor.call().scope;
  Violations violations;
  const CheckedSnapshot checked = check_snapshot(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.id(), info); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  const SharedModel model = context_.models.find(info.model, info.transformer);
  if (model == nullptr) return refused({SessionError::kUnloaded}, scope, wire.id());

  std::shared_ptr<void> place;
  if (grpc::Status taken = take_place(place); !taken.ok()) return taken;
  // Twice: the parts, and the bytes that they become.
  const std::int64_t held =
      info.window > 0 ? std::min(info.num_values, info.window) : info.num_values;
  const std::size_t bytes = 2 * most_snapshot_bytes(*model->transformer, held, info.num_values);
  SessionMemory::Result admitted = context_.store.admit_bytes(caller, bytes);
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");

  SnapshotOf about = snapshot_of({}, *model);
  // Of a stored session the store knows it.
  const std::optional<SessionInfo> stored =
      context_.durable == nullptr ? std::nullopt : context_.durable->find(wire.id(), caller);
  std::optional<SnapshotDraft> draft;
  SessionStore::ImageResult found = context_.store.image(
      wire.id(), caller, checked.position, !wire.without_history(), !wire.without_state(),
      [&](const SessionImage& image, std::size_t state_bytes) -> std::vector<std::byte>& {
        tell_numerics(stored ? *stored : info, image.position, about);
        return draft.emplace(about, image, state_bytes).bytes();
      });
  if (found.refusal) return refused(found.refusal, scope, wire.id());
  if (!draft) {
    tell_numerics(stored ? *stored : info, found.image.position, about);
    draft.emplace(about, found.image, 0);
  }
  struct Sent {
    SessionMemory::Reservation memory;  // first: until the bytes are gone
    std::shared_ptr<void> place;
    ZeroedBytes bytes;
    std::size_t at = 0;
  };
  const auto sent =
      std::make_shared<Sent>(Sent{std::move(admitted.reservation), std::move(place), {}, 0});
  sent->bytes = ZeroedBytes(draft->finish(found.image));
  zero(found.image);
  const auto stream = std::make_shared<SnapshotStream>(
      [sent, most = checked.chunk_bytes](v1::SnapshotChunk& chunk) {
        const std::span<const std::byte> all = sent->bytes.span();
        if (sent->at == 0) chunk.set_total_bytes(static_cast<std::int64_t>(all.size()));
        const auto piece = all.subspan(sent->at, std::min(most, all.size() - sent->at));
        chunk.set_data(piece.data(), piece.size());
        sent->at += piece.size();
        return sent->at < all.size() ? SnapshotStream::Piece::kMore : SnapshotStream::Piece::kLast;
      });
  reactor.run(stream);
  stream->begin();
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::SnapshotChunk>* SessionService::Snapshot(
    grpc::CallbackServerContext* call, const Received<v1::SnapshotSessionRequest>* request) {
  return open_stream<SnapshotStream::Reactor>(
      context_, *call, Method::kSnapshotSession, *request,
      [this](SnapshotStream::Reactor& reactor, const v1::SnapshotSessionRequest& wire) {
        return with_session(context_, wire.id(), reactor.call().scope.caller().name,
                            [&] { return snapshot(wire, reactor); });
      },
      [](const auto&) { return true; });
}

grpc::ServerReadReactor<Received<v1::RestoreSessionRequest>>* SessionService::Restore(
    grpc::CallbackServerContext* call, v1::Session* response) {
  return new RestoreCall(context_, copies_, *call, *response);  // deletes itself
}

}  // namespace lintel
