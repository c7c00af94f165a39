// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/session_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/sha256.h"
#include "server/api/lintel_v1/restore_call.h"
#include "server/api/lintel_v1/session_calls.h"
#include "server/api/lintel_v1/snapshot_bytes.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/api/service_context.h"
#include "server/api/session_checks.h"
#include "server/rpc/status.h"
#include "server/sessions/snapshot.h"

namespace lintel {

namespace {

// A key for balancers, in whose logs a session's id has no business.
std::string affinity_key(const std::string& id) {
  Sha256 hash;
  hash.add(id);
  return hash.hex().substr(0, 16);
}

}  // namespace

// Calls that hold a snapshot or a history on its way, of all callers.
constexpr int kMostCopies = 16;

SessionService::SessionService(const ServiceContext& context)
    : HandlerService(context), copies_(kMostCopies) {
  using Self = SessionService;
  serve(Method::kCreateSession, &Self::create);
  serve(Method::kGetSession, &Self::get);
  serve(Method::kListSessions, &Self::list);
  serve(Method::kDeleteSession, &Self::remove);
  serve(Method::kForkSession,
        &Self::on_session<v1::ForkSessionRequest, v1::ForkSessionResponse, &Self::fork>);
  serve(Method::kRewindSession,
        &Self::on_session<v1::RewindSessionRequest, v1::Session, &Self::rewind>);
  serve_stream<v1::SnapshotChunk>(
      Method::kSnapshotSession,
      &Self::on_session<v1::SnapshotSessionRequest, SnapshotStream::Reactor, &Self::snapshot>);
  serve_client_stream(info_of(Method::kRestoreSession).name, this, &Self::Restore);
  serve_stream<v1::Chunk>(
      Method::kReadHistory,
      &Self::on_session<v1::ReadHistoryRequest, HistoryStream::Reactor, &Self::read_history>);
  serve(Method::kSaveState,
        &Self::on_session<v1::SaveStateRequest, v1::NamedState, &Self::save_state>);
  serve(Method::kListStates, &Self::list_states);
  serve(Method::kDeleteState, &Self::delete_state);
}

void write_session(const ServiceContext& context, const SessionInfo& info, v1::Session& wire) {
  wire.set_id(info.id);
  wire.set_model(info.model);
  wire.set_adapter(info.adapter);
  wire.set_position(info.num_tokens);
  wire.set_has_pending_value(info.has_pending);
  wire.set_busy(info.busy);
  wire.set_state_bytes(static_cast<std::int64_t>(info.state_bytes));
  wire.set_max_tokens(info.max_tokens);
  write_time(info.created, *wire.mutable_create_time());
  write_time(info.last_used, *wire.mutable_last_used_time());
  // Seconds: an operator's longest would overflow as nanoseconds.
  wire.mutable_idle_timeout()->set_seconds(context.sessions.options().idle_timeout.count());
  wire.set_oldest_position(info.oldest_position);
  wire.set_digest(info.digest);
  wire.set_window(info.window);
  wire.set_durability(
      static_cast<v1::Durability>(v1::DURABILITY_NONE + static_cast<int>(info.durability)));
  wire.set_in_memory(info.in_memory);
  wire.set_numerics_changed_at(info.numerics_changed_at);
  wire.set_affinity_key(affinity_key(info.id));
  if (info.interrupted) {
    wire.mutable_interrupted()->set_call_id(info.interrupted->call_id);
    wire.mutable_interrupted()->set_start_position(info.interrupted->start_position);
    wire.mutable_interrupted()->set_stored_position(info.interrupted->stored_position);
  }
  if (info.durability != Durability::kNone) write_time(info.expires, *wire.mutable_expire_time());
  if (const SharedModel model = context.models.find(info.model, info.transformer)) {
    if (model->knows_numerics()) wire.set_numerics(model->numerics().hex);
  }
}

Task<grpc::Status> SessionService::create(Call call, v1::CreateSessionRequest wire,
                                          v1::Session& session) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  if (context_.calls.closed()) co_return shutting_down();
  const std::string& caller = call.scope.caller().name;
  NamedStates::Shared initial;
  if (!wire.initial_state().empty()) {
    status = resolve_state(wire.initial_state(), caller, meant_model(wire.model(), context_),
                           context_.states, &initial);
    if (!status.ok()) co_return status;
  }
  const std::string& name = initial == nullptr ? wire.model() : initial->image.model;
  const SharedModel model = co_await model_use(call, name, status);
  if (model == nullptr) co_return status;
  Violations violations;
  SessionOptions options;
  const ModelConfig& config = model->transformer->config();
  options.window = wire.has_window()
                       ? check_window(wire.window(), config, violations)
                       : default_window(config, initial == nullptr ? nullptr : &initial->image);
  check_session_length(wire.max_tokens(), "max_tokens",
                       options.window > 0 ? 0 : config.max_tokens(), violations);
  options.max_tokens = wire.max_tokens();
  check_session_options(wire, options, violations);
  status = check_durability(wire.durability(), "durability", context_.persistent_sessions,
                            default_durability(context_.persistent_sessions), &options.durability);
  if (!status.ok()) co_return status;
  if (wire.has_expire_after()) {
    options.expire_after = check_expiry(wire.expire_after(), options.durability, violations);
  }
  if (!violations.empty()) co_return violations.status();
  SharedAdapter adapter;
  if (initial != nullptr) {
    status = check_state(*initial, *model, wire.adapter());
    if (!status.ok()) co_return status;
    status = check_window_of_state(options.window, initial->image);
    if (!status.ok()) co_return status;
    options.initial = {initial, &initial->image};
    if (initial->numerics != model->numerics().hex) options.numerics = initial->numerics;
    options.numerics_text = initial->numerics_text;
    options.numerics_changed_at = initial->numerics_changed_at;
  }
  status = initial == nullptr ? resolve_adapter(wire.adapter(), *model, &adapter)
                              : resolve_adapter(initial->image, *model, &adapter);
  if (!status.ok()) co_return status;
  SessionManager::CreateResult created = context_.sessions.create(
      model->name, model->transformer, options, caller, std::move(adapter));
  if (created.refusal) {
    co_return store_refusal(created.refusal, context_.sessions.options(), /*session_id=*/"",
                            caller);
  }
  status = keep_session(context_, caller, created.info);
  if (status.ok()) write_session(context_, created.info, session);
  co_return status;
}

Task<grpc::Status> SessionService::get(Call call, v1::GetSessionRequest wire,
                                       v1::Session& session) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  Violations violations;
  check_session_id(wire.id(), violations);
  if (!violations.empty()) co_return violations.status();
  const Owner& caller = call.scope.caller().name;
  const std::optional<SessionInfo> info =
      context_.persistent_sessions == nullptr
          ? context_.sessions.get(wire.id(), caller)
          : context_.persistent_sessions->find(wire.id(), caller);
  if (!info) {
    co_return refused(context_.persistent_sessions == nullptr
                          ? context_.sessions.absence(wire.id(), caller)
                          : context_.persistent_sessions->absence(wire.id(), caller),
                      call.scope, wire.id());
  }
  call.scope.set_model(info->model);
  write_session(context_, *info, session);
  co_return grpc::Status::OK;
}

Task<grpc::Status> SessionService::list(Call call, v1::ListSessionsRequest wire,
                                        v1::ListSessionsResponse& page) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::string model = meant_model(wire.model(), context_);
  if (!model.empty()) status = check_model_known(model, context_);
  if (!status.ok()) co_return status;
  Violations violations;
  const CheckedList checked = check_list(wire, violations);
  if (!violations.empty()) co_return violations.status();
  const Identity& caller = call.scope.caller();
  // One more than asked for shows whether there is a next page.
  const std::optional<Owner> owner =
      caller.roles.has(Role::kAdmin) ? std::nullopt : std::optional(caller.name);
  const std::size_t limit = checked.page_size + 1;
  std::vector<SessionInfo> found =
      context_.persistent_sessions == nullptr
          ? context_.sessions.list(model, checked.after_id, limit, owner)
          : context_.persistent_sessions->list(model, checked.after_id, limit, owner);
  if (found.size() > checked.page_size) {
    found.resize(checked.page_size);
    page.set_next_page_token(found.back().id);
  }
  for (const SessionInfo& info : found) write_session(context_, info, *page.add_sessions());
  co_return status;
}

Task<grpc::Status> SessionService::remove(Call call, v1::DeleteSessionRequest wire,
                                          google::protobuf::Empty&) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  Violations violations;
  check_session_id(wire.id(), violations);
  if (!violations.empty()) co_return violations.status();
  const Owner& caller = call.scope.caller().name;
  if (const auto info = context_.sessions.get(wire.id(), caller)) call.scope.set_model(info->model);
  if (context_.persistent_sessions == nullptr)
    co_return refused(context_.sessions.remove(wire.id(), caller), call.scope, wire.id());
  SessionRefusal refusal = context_.persistent_sessions->remove(wire.id(), caller);
  if (refusal.error == SessionError::kNotFound)
    refusal = context_.sessions.absence(wire.id(), caller);
  co_return refused(refusal, call.scope, wire.id());
}

// Fork, Rewind, ReadHistory.

namespace {

constexpr std::size_t kHistoryPieceTokens = 16384;  // of a message

}  // namespace

grpc::Status SessionService::take_place(std::shared_ptr<void>& place) {
  place = copies_.take();
  if (place != nullptr) return grpc::Status::OK;
  return resource_exhausted("too many snapshots and histories are on their way",
                            std::chrono::milliseconds(200));
}

namespace {

// Runs `body`, which finds the session and uses it, and keeps it in memory meanwhile. A copy that
// another server has continued may be dropped in between: then it is run again.
template <typename Body>
grpc::Status with_session(const ServiceContext& context, const std::string& id, const Owner& owner,
                          const Body& body) {
  grpc::Status status;
  const SessionRefusal refusal = until_current([&]() -> SessionRefusal {
    SessionPin pin;
    status = body(pin);
    const bool was_dropped =
        status.error_code() == grpc::StatusCode::NOT_FOUND && pin && !pin.is_current();
    return {was_dropped ? SessionError::kStale : SessionError::kNone};
  });
  return refusal ? store_refusal(refusal, context.sessions.options(), id, owner) : status;
}

template <typename Request>
const std::string& session_of(const Request& wire) {
  if constexpr (requires { wire.session_id(); }) {
    return wire.session_id();
  } else {
    return wire.id();
  }
}

}  // namespace

template <typename Request, typename Answer, SessionService::Body<Request, Answer> kBody>
Task<grpc::Status> SessionService::on_session(Call call, Request wire, Answer& answer) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::string& id = session_of(wire);
  AbsentModel absent;
  do {
    status = with_session(context_, id, call.scope.caller().name, [&](SessionPin& pin) {
      return (this->*kBody)(call.scope, wire, pin, absent, answer);
    });
  } while (co_await model_load(call, absent, status));
  co_return status;
}

grpc::Status SessionService::find(CallScope& scope, const std::string& id, SessionPin& pin,
                                  AbsentModel& absent, SessionInfo& info) const {
  const Owner& caller = scope.caller().name;
  if (context_.persistent_sessions != nullptr && !id.empty()) {
    SessionManager::LoadResult loaded = context_.persistent_sessions->load(id, caller);
    find_absent_model(loaded.refusal, id, caller, context_, absent);
    if (loaded.refusal) return refused(loaded.refusal, scope, id);
    pin = std::move(loaded.pin);
  }
  std::optional<SessionInfo> found = context_.sessions.get(id, caller);
  if (!found) return refused(context_.sessions.absence(id, caller), scope, id);
  scope.set_model(found->model);
  info = std::move(*found);
  return grpc::Status::OK;
}

grpc::Status SessionService::refused(const SessionRefusal& refusal, const CallScope& scope,
                                     const std::string& id) const {
  return store_refusal(refusal, context_.sessions.options(), id, scope.caller().name);
}

grpc::Status SessionService::fork(CallScope& scope, const v1::ForkSessionRequest& wire,
                                  SessionPin& pin, AbsentModel& absent,
                                  v1::ForkSessionResponse& response) {
  if (context_.calls.closed()) return shutting_down();
  Violations violations;
  const CheckedFork checked = check_fork(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo source;
  if (grpc::Status found = find(scope, wire.id(), pin, absent, source); !found.ok()) return found;
  Durability durability{};
  grpc::Status may = check_durability(wire.durability(), "durability", context_.persistent_sessions,
                                      source.durability, &durability);
  if (!may.ok()) return may;
  const Owner& caller = scope.caller().name;
  SessionManager::ForkResult forked =
      context_.sessions.fork(wire.id(), caller, checked.position, checked.count, durability);
  pin = SessionPin();  // others may need its place while the forks are stored
  if (forked.refusal) return refused(forked.refusal, scope, wire.id());
  for (SessionInfo& info : forked.infos) {
    grpc::Status kept = keep_session(context_, caller, info);
    if (!kept.ok()) {  // all or none; a store that is there, as it was asked
      for (const SessionInfo& fork : forked.infos)
        context_.persistent_sessions->remove(fork.id, caller);
      return kept;
    }
  }
  for (const SessionInfo& info : forked.infos) {
    write_session(context_, info, *response.add_sessions());
  }
  return grpc::Status::OK;
}

grpc::Status SessionService::rewind(CallScope& scope, const v1::RewindSessionRequest& wire,
                                    SessionPin& pin, AbsentModel& absent, v1::Session& session) {
  Violations violations;
  const CheckedRewind checked = check_rewind(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo before;
  if (grpc::Status found = find(scope, wire.id(), pin, absent, before); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  pin = SessionPin();  // a stale copy is dropped, with its memory, for the one that is rewound
  const SessionManager::CreateResult rewound =
      context_.persistent_sessions == nullptr
          ? context_.sessions.rewind(wire.id(), caller, checked.position, checked.expected)
          : context_.persistent_sessions->rewind(wire.id(), caller, checked.position,
                                                 checked.expected);
  if (rewound.refusal) return refused(rewound.refusal, scope, wire.id());
  write_session(context_, rewound.info, session);
  return grpc::Status::OK;
}

grpc::Status SessionService::read_history(CallScope& scope, const v1::ReadHistoryRequest& wire,
                                          SessionPin& pin, AbsentModel& absent,
                                          HistoryStream::Reactor& reactor) {
  Violations violations;
  const CheckedHistory checked = check_history(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.id(), pin, absent, info); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  std::shared_ptr<void> place;
  if (grpc::Status taken = take_place(place); !taken.ok()) return taken;
  // Tokens that are not there are refused below; a session in use may have more by then.
  const std::int64_t to = checked.to.value_or(info.num_tokens);
  const std::int64_t count = std::clamp<std::int64_t>(to - checked.from, 0, info.num_tokens);
  SessionMemory::Result admitted =
      context_.sessions.admit_bytes(caller, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");
  SessionManager::HistoryResult found =
      context_.sessions.history(wire.id(), caller, checked.from, to);
  if (found.refusal) return refused(found.refusal, scope, wire.id());

  struct Sent {
    SessionMemory::Reservation memory;  // first: until the tokens are gone
    std::shared_ptr<void> place;
    SessionManager::HistoryResult history;
    std::size_t at = 0, mark = 0;
  };
  const auto sent = std::make_shared<Sent>(
      Sent{std::move(admitted.reservation), std::move(place), std::move(found), 0, 0});
  const auto stream = std::make_shared<HistoryStream>([sent](v1::Chunk& chunk) {
    const auto& [tokens, marks, first, refusal] = sent->history;
    if (tokens.empty()) return HistoryStream::Piece::kNone;
    const auto position = first + static_cast<std::int64_t>(sent->at);
    // The mark that holds here, and where another source follows.
    while (sent->mark + 1 < marks.size() && marks[sent->mark + 1].position <= position) {
      ++sent->mark;
    }
    const TokenSource source = marks.empty() ? TokenSource::kSampled : marks[sent->mark].source;
    std::size_t end = std::min(sent->at + kHistoryPieceTokens, tokens.size());
    for (std::size_t next = sent->mark + 1; next < marks.size(); ++next) {
      if (marks[next].source == source) continue;
      end = std::min(end, static_cast<std::size_t>(marks[next].position - first));
      break;
    }
    chunk.set_first_position(position);
    chunk.set_source(wire_source(source));
    chunk.mutable_tokens()->Add(tokens.begin() + static_cast<std::ptrdiff_t>(sent->at),
                                tokens.begin() + static_cast<std::ptrdiff_t>(end));
    sent->at = end;
    return end < tokens.size() ? HistoryStream::Piece::kMore : HistoryStream::Piece::kLast;
  });
  reactor.run(stream);
  stream->begin();
  return grpc::Status::OK;
}

// Snapshot and Restore.

grpc::Status SessionService::snapshot(CallScope& scope, const v1::SnapshotSessionRequest& wire,
                                      SessionPin& pin, AbsentModel& absent,
                                      SnapshotStream::Reactor& reactor) {
  Violations violations;
  const CheckedSnapshot checked = check_snapshot(wire, violations);
  if (!violations.empty()) return violations.status();
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.id(), pin, absent, info); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  const SharedModel model = context_.models.use(info.model, info.transformer);
  if (model == nullptr) return refused({SessionError::kUnloaded}, scope, wire.id());

  std::shared_ptr<void> place;
  if (grpc::Status taken = take_place(place); !taken.ok()) return taken;
  // Charged twice: for the parts, and for the bytes that they become.
  const std::int64_t held =
      info.window > 0 ? std::min(info.num_tokens, info.window) : info.num_tokens;
  const std::size_t bytes = 2 * most_snapshot_bytes(*model->transformer, held, info.num_tokens);
  SessionMemory::Result admitted = context_.sessions.admit_bytes(caller, bytes);
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");

  SnapshotOf about = snapshot_of({}, *model);
  // The store knows the numerics of a stored session.
  const std::optional<SessionInfo> stored =
      context_.persistent_sessions == nullptr
          ? std::nullopt
          : context_.persistent_sessions->find(wire.id(), caller);
  std::optional<SnapshotDraft> draft;
  SessionManager::ImageResult found = context_.sessions.image(
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

RpcReactor* SessionService::Restore(RpcCall* call, v1::Session* response) {
  return new RestoreCall(context_, copies_, *call, *response);  // deletes itself
}

// SaveState, ListStates, DeleteState.

namespace {

constexpr std::size_t kDefaultStatesPage = 100;
constexpr int kMostStatesPage = 1000;

grpc::Status check_public(const CallScope& scope, bool is_public) {
  if (!is_public || scope.caller().roles.has(Role::kAdmin)) return grpc::Status::OK;
  return permission_denied("a public state needs the role admin");
}

// "p:NAME" of a public state, "o:NAME" of the caller's own.
std::string token_of(const NamedState& state) {
  return (state.is_public ? "p:" : "o:") + state.name;
}

std::optional<NamedStates::Place> place_of(const std::string& token) {
  return NamedStates::Place{token.substr(2), token[0] == 'p'};
}

bool is_token(const std::string& token) {
  return token.size() > 2 && (token[0] == 'p' || token[0] == 'o') && token[1] == ':';
}

}  // namespace

void SessionService::write_state(const NamedState& state, v1::NamedState& wire) const {
  wire.set_name(state.name);
  wire.set_model(state.image.model);
  wire.set_adapter(state.image.adapter);
  wire.set_position(state.image.position);
  wire.set_bytes(static_cast<std::int64_t>(state.memory.bytes()));
  wire.set_is_public(state.is_public);
  wire.set_digest(to_hex(state.image.digest));
  wire.set_numerics(state.numerics);
}

grpc::Status SessionService::save_state(CallScope& scope, const v1::SaveStateRequest& wire,
                                        SessionPin& pin, AbsentModel& absent,
                                        v1::NamedState& response) {
  if (grpc::Status may = check_public(scope, wire.is_public()); !may.ok()) return may;
  Violations violations;
  if (wire.session_id().empty()) violations.add("session_id", "is empty");
  if (wire.has_position()) check_position(wire.position(), "position", violations);
  if (!violations.empty()) return violations.status();
  if (grpc::Status named = check_name(wire.name(), "a state", "name"); !named.ok()) return named;
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.session_id(), pin, absent, info); !found.ok())
    return found;
  const Owner& caller = scope.caller().name;
  const SharedModel model = context_.models.use(info.model, info.transformer);
  if (model == nullptr) return refused({SessionError::kUnloaded}, scope, wire.session_id());
  std::string limit = std::to_string(NamedStates::kMostOfOwner);
  limit += " named states";
  const grpc::Status full = quota_exceeded(caller, limit);
  if (!context_.states.has_place(caller, wire.name(), wire.is_public())) return full;

  // The largest size of the state, and the tokens after it, which are few or there is no state.
  const std::int64_t most =
      wire.has_position() ? std::min(wire.position(), info.num_tokens) : info.num_tokens;
  const std::size_t bytes = sizeof(NamedState) + model->transformer->state_bytes(most) +
                            static_cast<std::size_t>(most) * sizeof(std::int32_t);
  SessionMemory::Result admitted = context_.sessions.admit_bytes(caller, bytes);
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");
  SessionManager::ImageResult found =
      context_.sessions.image(wire.session_id(), caller,
                              wire.has_position() ? std::optional(wire.position()) : std::nullopt,
                              /*with_history=*/false, /*with_state=*/true);
  if (found.refusal) return refused(found.refusal, scope, wire.session_id());
  const auto state =
      std::make_shared<NamedState>(std::move(admitted.reservation), std::move(found.image));
  state->name = wire.name();
  state->is_public = wire.is_public();
  SnapshotOf about = snapshot_of({}, *model);
  const std::optional<SessionInfo> stored =
      context_.persistent_sessions == nullptr
          ? std::nullopt
          : context_.persistent_sessions->find(wire.session_id(), caller);
  tell_numerics(stored ? *stored : info, state->image.position, about);
  state->numerics = about.numerics;
  state->numerics_text = about.numerics_text;
  state->numerics_changed_at = about.numerics_changed_at;
  state->model_identity = model_identity(*model);
  write_state(*state, response);
  return context_.states.save(caller, state) ? grpc::Status::OK : full;
}

grpc::Status SessionService::list_states(CallScope& scope, const v1::ListStatesRequest& wire,
                                         v1::ListStatesResponse& page) {
  Violations violations;
  if (wire.page_size() < 0 || wire.page_size() > kMostStatesPage) {
    violations.add("page_size", std::to_string(wire.page_size()) + " is not from 0 to " +
                                    std::to_string(kMostStatesPage));
  }
  if (!wire.page_token().empty() && !is_token(wire.page_token())) {
    violations.add("page_token",
                   "'" + clip(wire.page_token()) + "' is not a next_page_token of this server");
  }
  if (!violations.empty()) return violations.status();
  grpc::Status status;
  const std::string model = meant_model(wire.model(), context_);
  if (!model.empty()) status = check_model_known(model, context_);
  if (!status.ok()) return status;
  const std::size_t size =
      wire.page_size() == 0 ? kDefaultStatesPage : static_cast<std::size_t>(wire.page_size());
  const auto after = wire.page_token().empty() ? std::nullopt : place_of(wire.page_token());
  // One more than asked for shows whether there is a next page.
  auto found = context_.states.list(scope.caller().name, model, after, size + 1);
  if (found.size() > size) {
    found.resize(size);
    page.set_next_page_token(token_of(*found.back()));
  }
  for (const NamedStates::Shared& state : found) write_state(*state, *page.add_states());
  return status;
}

grpc::Status SessionService::delete_state(CallScope& scope, const v1::DeleteStateRequest& wire,
                                          google::protobuf::Empty&) {
  if (grpc::Status may = check_public(scope, wire.is_public()); !may.ok()) return may;
  const bool was_there = context_.states.remove(scope.caller().name, wire.name(), wire.is_public());
  return was_there ? grpc::Status::OK : state_not_found(wire.name());
}

}  // namespace lintel
