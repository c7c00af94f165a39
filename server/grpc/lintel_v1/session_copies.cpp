// Fork, Rewind, ReadHistory.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/api/refusals.h"
#include "server/api/session_checks.h"
#include "server/api/store_work.h"
#include "server/grpc/lintel_v1/open_stream.h"
#include "server/grpc/lintel_v1/session_service.h"
#include "server/grpc/lintel_v1/store_calls.h"
#include "server/grpc/lintel_v1/wire_source.h"
#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

constexpr std::size_t kHistoryPieceValues = 16384;  // of a message

}  // namespace

grpc::Status SessionService::take_place(std::shared_ptr<void>& place) {
  place = copies_.take();
  if (place != nullptr) return grpc::Status::OK;
  return resource_exhausted("too many snapshots and histories are on their way",
                            std::chrono::milliseconds(200));
}

grpc::Status SessionService::find(CallScope& scope, const std::string& id,
                                  SessionInfo& info) const {
  const Owner& caller = scope.caller().name;
  if (grpc::Status brought = bring_session(context_, id, caller); !brought.ok()) return brought;
  std::optional<SessionInfo> found = context_.store.get(id, caller);
  if (!found) return refused(context_.store.absence(id, caller), scope, id);
  scope.set_model(found->model);
  info = std::move(*found);
  return grpc::Status::OK;
}

grpc::Status SessionService::refused(const SessionRefusal& refusal, const CallScope& scope,
                                     const std::string& id) const {
  return store_refusal(refusal, context_.store.options(), id, scope.caller().name);
}

grpc::Status SessionService::fork(CallScope& scope, const v1::ForkSessionRequest& wire,
                                  v1::ForkSessionResponse& response) {
  if (context_.calls.closed()) return shutting_down();
  Violations violations;
  const CheckedFork checked = check_fork(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo source;
  if (grpc::Status found = find(scope, wire.id(), source); !found.ok()) return found;
  Durability durability{};
  grpc::Status may = check_durability(wire.durability(), "durability", context_.durable,
                                      source.durability, &durability);
  if (!may.ok()) return may;
  const Owner& caller = scope.caller().name;
  SessionStore::ForkResult forked =
      context_.store.fork(wire.id(), caller, checked.position, checked.count, durability);
  if (forked.refusal) return refused(forked.refusal, scope, wire.id());
  for (SessionInfo& info : forked.infos) {
    grpc::Status kept = keep_session(context_, caller, info);
    if (!kept.ok()) {  // all or none; a store that is there, as it was asked
      for (const SessionInfo& fork : forked.infos) context_.durable->remove(fork.id, caller);
      return kept;
    }
  }
  for (const SessionInfo& info : forked.infos) {
    write_session(context_, info, *response.add_sessions());
  }
  return grpc::Status::OK;
}

grpc::Status SessionService::rewind(CallScope& scope, const v1::RewindSessionRequest& wire,
                                    v1::Session& session) {
  Violations violations;
  const CheckedRewind checked = check_rewind(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo before;
  if (grpc::Status found = find(scope, wire.id(), before); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  const SessionStore::CreateResult rewound =
      context_.durable == nullptr
          ? context_.store.rewind(wire.id(), caller, checked.position, checked.expected)
          : context_.durable->rewind(wire.id(), caller, checked.position, checked.expected);
  if (rewound.refusal) return refused(rewound.refusal, scope, wire.id());
  write_session(context_, rewound.info, session);
  return grpc::Status::OK;
}

grpc::Status SessionService::read_history(const v1::ReadHistoryRequest& wire,
                                          HistoryStream::Reactor& reactor) {
  CallScope& scope = reactor.call().scope;
  Violations violations;
  const CheckedHistory checked = check_history(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.id(), info); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  std::shared_ptr<void> place;
  if (grpc::Status taken = take_place(place); !taken.ok()) return taken;
  // What is not there is refused below; a session in use may have gone on meanwhile, up to here.
  const std::int64_t to = checked.to.value_or(info.num_values);
  const std::int64_t count = std::clamp<std::int64_t>(to - checked.from, 0, info.num_values);
  SessionMemory::Result admitted =
      context_.store.admit_bytes(caller, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");
  SessionStore::HistoryResult found = context_.store.history(wire.id(), caller, checked.from, to);
  if (found.refusal) return refused(found.refusal, scope, wire.id());

  struct Sent {
    SessionMemory::Reservation memory;  // first: until the values are gone
    std::shared_ptr<void> place;
    SessionStore::HistoryResult history;
    std::size_t at = 0, mark = 0;
  };
  const auto sent = std::make_shared<Sent>(
      Sent{std::move(admitted.reservation), std::move(place), std::move(found), 0, 0});
  const auto stream = std::make_shared<HistoryStream>([sent](v1::Chunk& chunk) {
    const auto& [values, marks, first, refusal] = sent->history;
    if (values.empty()) return HistoryStream::Piece::kNone;
    const auto position = first + static_cast<std::int64_t>(sent->at);
    // The mark that holds here, and where another source follows.
    while (sent->mark + 1 < marks.size() && marks[sent->mark + 1].position <= position) {
      ++sent->mark;
    }
    const ValueSource source = marks.empty() ? ValueSource::kSampled : marks[sent->mark].source;
    std::size_t end = std::min(sent->at + kHistoryPieceValues, values.size());
    for (std::size_t next = sent->mark + 1; next < marks.size(); ++next) {
      if (marks[next].source == source) continue;
      end = std::min(end, static_cast<std::size_t>(marks[next].position - first));
      break;
    }
    chunk.set_first_position(position);
    chunk.set_source(wire_source(source));
    chunk.mutable_tokens()->Add(values.begin() + static_cast<std::ptrdiff_t>(sent->at),
                                values.begin() + static_cast<std::ptrdiff_t>(end));
    sent->at = end;
    return end < values.size() ? HistoryStream::Piece::kMore : HistoryStream::Piece::kLast;
  });
  reactor.run(stream);
  stream->begin();
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* SessionService::Fork(grpc::CallbackServerContext* call,
                                               const Received<v1::ForkSessionRequest>* request,
                                               v1::ForkSessionResponse* response) {
  return answer_by_store(context_, *call, Method::kForkSession, *request,
                         [this, response](CallScope& scope, const auto& wire) {
                           return with_session(context_, wire.id(), scope.caller().name,
                                               [&] { return fork(scope, wire, *response); });
                         });
}

grpc::ServerUnaryReactor* SessionService::Rewind(grpc::CallbackServerContext* call,
                                                 const Received<v1::RewindSessionRequest>* request,
                                                 v1::Session* response) {
  return answer_by_store(context_, *call, Method::kRewindSession, *request,
                         [this, response](CallScope& scope, const auto& wire) {
                           return with_session(context_, wire.id(), scope.caller().name,
                                               [&] { return rewind(scope, wire, *response); });
                         });
}

grpc::ServerWriteReactor<v1::Chunk>* SessionService::ReadHistory(
    grpc::CallbackServerContext* call, const Received<v1::ReadHistoryRequest>* request) {
  return open_stream<HistoryStream::Reactor>(
      context_, *call, Method::kReadHistory, *request,
      [this](HistoryStream::Reactor& reactor, const v1::ReadHistoryRequest& wire) {
        return with_session(context_, wire.id(), reactor.call().scope.caller().name,
                            [&] { return read_history(wire, reactor); });
      },
      [](const auto&) { return true; });
}

}  // namespace lintel
