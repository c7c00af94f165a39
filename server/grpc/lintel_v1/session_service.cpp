#include "server/grpc/lintel_v1/session_service.h"

#include <string>

#include "model/core/sha256.h"
#include "server/api/generate_checks.h"
#include "server/api/refusals.h"
#include "server/api/resolve_adapter.h"
#include "server/api/resolve_model.h"
#include "server/api/resolve_state.h"
#include "server/api/session_checks.h"
#include "server/api/store_work.h"
#include "server/grpc/lintel_v1/store_calls.h"
#include "server/grpc/transport/status.h"
#include "server/grpc/transport/wire_time.h"

namespace lintel {

namespace {

// For balancers, in whose logs a session's id has no business.
std::string affinity_key(const std::string& id) {
  Sha256 hash;
  hash.add(id);
  return hash.hex().substr(0, 16);
}

}  // namespace

// Calls that hold a snapshot or a history on its way, of all callers.
constexpr int kMostCopies = 16;

SessionService::SessionService(const ServiceContext& context)
    : context_(context), copies_(kMostCopies) {
  serve(info_of(Method::kCreateSession).name, this, &SessionService::Create);
  serve(info_of(Method::kGetSession).name, this, &SessionService::Get);
  serve(info_of(Method::kListSessions).name, this, &SessionService::List);
  serve(info_of(Method::kDeleteSession).name, this, &SessionService::Delete);
  serve(info_of(Method::kForkSession).name, this, &SessionService::Fork);
  serve(info_of(Method::kRewindSession).name, this, &SessionService::Rewind);
  serve(info_of(Method::kSnapshotSession).name, this, &SessionService::Snapshot);
  serve(info_of(Method::kRestoreSession).name, this, &SessionService::Restore);
  serve(info_of(Method::kReadHistory).name, this, &SessionService::ReadHistory);
  serve(info_of(Method::kSaveState).name, this, &SessionService::SaveState);
  serve(info_of(Method::kListStates).name, this, &SessionService::ListStates);
  serve(info_of(Method::kDeleteState).name, this, &SessionService::DeleteState);
}

void write_session(const ServiceContext& context, const SessionInfo& info, v1::Session& wire) {
  wire.set_id(info.id);
  wire.set_model(info.model);
  wire.set_adapter(info.adapter);
  wire.set_position(info.num_values);
  wire.set_has_pending_value(info.has_pending);
  wire.set_busy(info.busy);
  wire.set_state_bytes(static_cast<std::int64_t>(info.state_bytes));
  wire.set_max_tokens(info.max_values);
  write_time(info.created, *wire.mutable_create_time());
  write_time(info.last_used, *wire.mutable_last_used_time());
  // Seconds: an operator's longest would overflow as nanoseconds.
  wire.mutable_idle_timeout()->set_seconds(context.store.options().idle_timeout.count());
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
    wire.set_numerics(model->numerics.hex);
  }
}

grpc::Status SessionService::create(CallScope& scope, const v1::CreateSessionRequest& wire,
                                    v1::Session& session) {
  if (context_.calls.closed()) return shutting_down();
  grpc::Status status;
  NamedStates::Shared initial;
  if (!wire.initial_state().empty()) {
    status = resolve_state(wire.initial_state(), scope.caller().name, wire.model(), context_.states,
                           &initial);
    if (!status.ok()) return status;
  }
  const SharedModel model = resolve_model(initial == nullptr ? wire.model() : initial->image.model,
                                          context_.models, &status);
  if (model == nullptr) return status;
  scope.set_model(model->name);
  Violations violations;
  SessionOptions options;
  const ModelConfig& config = model->transformer->config();
  options.window = wire.has_window()
                       ? check_window(wire.window(), config, violations)
                       : default_window(config, initial == nullptr ? nullptr : &initial->image);
  check_session_length(wire.max_tokens(), "max_tokens",
                       options.window > 0 ? 0 : config.max_values(), violations);
  options.max_values = wire.max_tokens();
  check_session_options(wire, options, violations);
  status = check_durability(wire.durability(), "durability", context_.durable,
                            default_durability(context_.durable), &options.durability);
  if (!status.ok()) return status;
  if (wire.has_expire_after()) {
    options.expire_after = check_expiry(wire.expire_after(), options.durability, violations);
  }
  if (!violations.empty()) return violations.status();
  SharedAdapter adapter;
  if (initial != nullptr) {
    status = check_state(*initial, *model, wire.adapter());
    if (!status.ok()) return status;
    status = check_window_of_state(options.window, initial->image);
    if (!status.ok()) return status;
    options.initial = {initial, &initial->image};
    if (initial->numerics != model->numerics.hex) options.numerics = initial->numerics;
    options.numerics_text = initial->numerics_text;
    options.numerics_changed_at = initial->numerics_changed_at;
  }
  status = initial == nullptr ? resolve_adapter(wire.adapter(), *model, &adapter)
                              : resolve_adapter(initial->image, *model, &adapter);
  if (!status.ok()) return status;
  SessionStore::CreateResult created = context_.store.create(
      model->name, model->transformer, options, scope.caller().name, std::move(adapter));
  if (created.refusal) {
    return store_refusal(created.refusal, context_.store.options(), /*session_id=*/"",
                         scope.caller().name);
  }
  status = keep_session(context_, scope.caller().name, created.info);
  if (status.ok()) write_session(context_, created.info, session);
  return status;
}

grpc::Status SessionService::get(CallScope& scope, const v1::GetSessionRequest& wire,
                                 v1::Session& session) {
  Violations violations;
  check_session_id(wire.id(), violations);
  if (!violations.empty()) return violations.status();
  const Owner& caller = scope.caller().name;
  const std::optional<SessionInfo> info = context_.durable == nullptr
                                              ? context_.store.get(wire.id(), caller)
                                              : context_.durable->find(wire.id(), caller);
  if (!info) {
    return refused(context_.durable == nullptr ? context_.store.absence(wire.id(), caller)
                                               : context_.durable->absence(wire.id(), caller),
                   scope, wire.id());
  }
  scope.set_model(info->model);
  write_session(context_, *info, session);
  return grpc::Status::OK;
}

grpc::Status SessionService::list(CallScope& scope, const v1::ListSessionsRequest& wire,
                                  v1::ListSessionsResponse& page) {
  grpc::Status status;
  if (!wire.model().empty() && resolve_model(wire.model(), context_.models, &status) == nullptr) {
    return status;
  }
  Violations violations;
  const CheckedList checked = check_list(wire, violations);
  if (!violations.empty()) return violations.status();
  const Identity& caller = scope.caller();
  // One more than asked for shows whether there is a next page.
  const std::optional<Owner> owner =
      caller.roles.has(Role::kAdmin) ? std::nullopt : std::optional(caller.name);
  const std::size_t limit = checked.page_size + 1;
  std::vector<SessionInfo> found =
      context_.durable == nullptr
          ? context_.store.list(wire.model(), checked.after_id, limit, owner)
          : context_.durable->list(wire.model(), checked.after_id, limit, owner);
  if (found.size() > checked.page_size) {
    found.resize(checked.page_size);
    page.set_next_page_token(found.back().id);
  }
  for (const SessionInfo& info : found) write_session(context_, info, *page.add_sessions());
  return status;
}

grpc::Status SessionService::remove(CallScope& scope, const v1::DeleteSessionRequest& wire) {
  Violations violations;
  check_session_id(wire.id(), violations);
  if (!violations.empty()) return violations.status();
  const Owner& caller = scope.caller().name;
  if (const auto info = context_.store.get(wire.id(), caller)) scope.set_model(info->model);
  if (context_.durable == nullptr)
    return refused(context_.store.remove(wire.id(), caller), scope, wire.id());
  SessionRefusal refusal = context_.durable->remove(wire.id(), caller);
  if (refusal.error == SessionError::kNotFound) refusal = context_.store.absence(wire.id(), caller);
  return refused(refusal, scope, wire.id());
}

grpc::ServerUnaryReactor* SessionService::Create(grpc::CallbackServerContext* call,
                                                 const Received<v1::CreateSessionRequest>* request,
                                                 v1::Session* response) {
  return answer_by_store(context_, *call, Method::kCreateSession, *request,
                         [this, response](CallScope& scope, const auto& wire) {
                           return create(scope, wire, *response);
                         });
}

grpc::ServerUnaryReactor* SessionService::Get(grpc::CallbackServerContext* call,
                                              const Received<v1::GetSessionRequest>* request,
                                              v1::Session* response) {
  return answer_by_store(
      context_, *call, Method::kGetSession, *request,
      [this, response](CallScope& scope, const auto& wire) { return get(scope, wire, *response); });
}

grpc::ServerUnaryReactor* SessionService::List(grpc::CallbackServerContext* call,
                                               const Received<v1::ListSessionsRequest>* request,
                                               v1::ListSessionsResponse* response) {
  return answer_by_store(context_, *call, Method::kListSessions, *request,
                         [this, response](CallScope& scope, const auto& wire) {
                           return list(scope, wire, *response);
                         });
}

grpc::ServerUnaryReactor* SessionService::Delete(grpc::CallbackServerContext* call,
                                                 const Received<v1::DeleteSessionRequest>* request,
                                                 google::protobuf::Empty*) {
  return answer_by_store(
      context_, *call, Method::kDeleteSession, *request,
      [this](CallScope& scope, const auto& wire) { return remove(scope, wire); });
}

}  // namespace lintel
