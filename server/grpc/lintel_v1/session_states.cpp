// SaveState, ListStates, DeleteState.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/resolve_model.h"
#include "server/api/resolve_state.h"
#include "server/api/session_checks.h"
#include "server/grpc/lintel_v1/session_service.h"
#include "server/grpc/lintel_v1/snapshot_bytes.h"
#include "server/grpc/lintel_v1/store_calls.h"
#include "server/grpc/transport/status.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {
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
                                        v1::NamedState& response) {
  if (grpc::Status may = check_public(scope, wire.is_public()); !may.ok()) return may;
  Violations violations;
  if (wire.session_id().empty()) violations.add("session_id", "is empty");
  if (wire.has_position()) check_position(wire.position(), "position", violations);
  if (!violations.empty()) return violations.status();
  if (grpc::Status named = check_name(wire.name(), "a state", "name"); !named.ok()) return named;
  SessionInfo info;
  if (grpc::Status found = find(scope, wire.session_id(), info); !found.ok()) return found;
  const Owner& caller = scope.caller().name;
  const SharedModel model = context_.models.find(info.model, info.transformer);
  if (model == nullptr) return refused({SessionError::kUnloaded}, scope, wire.session_id());
  std::string limit = std::to_string(NamedStates::kMostOfOwner);
  limit += " named states";
  const grpc::Status full = quota_exceeded(caller, limit);
  if (!context_.states.has_place(caller, wire.name(), wire.is_public())) return full;

  // The largest size of the state, and the values after it, which are few or there is no state.
  const std::int64_t most =
      wire.has_position() ? std::min(wire.position(), info.num_values) : info.num_values;
  const std::size_t bytes = sizeof(NamedState) + model->transformer->state_bytes(most) +
                            static_cast<std::size_t>(most) * sizeof(std::int32_t);
  SessionMemory::Result admitted = context_.store.admit_bytes(caller, bytes);
  if (admitted.refusal) return refused(admitted.refusal, scope, /*id=*/"");
  SessionStore::ImageResult found =
      context_.store.image(wire.session_id(), caller,
                           wire.has_position() ? std::optional(wire.position()) : std::nullopt,
                           /*with_history=*/false, /*with_state=*/true);
  if (found.refusal) return refused(found.refusal, scope, wire.session_id());
  const auto state =
      std::make_shared<NamedState>(std::move(admitted.reservation), std::move(found.image));
  state->name = wire.name();
  state->is_public = wire.is_public();
  SnapshotOf about = snapshot_of({}, *model);
  const std::optional<SessionInfo> stored = context_.durable == nullptr
                                                ? std::nullopt
                                                : context_.durable->find(wire.session_id(), caller);
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
  if (!wire.model().empty() && resolve_model(wire.model(), context_.models, &status) == nullptr) {
    return status;
  }
  const std::size_t size =
      wire.page_size() == 0 ? kDefaultStatesPage : static_cast<std::size_t>(wire.page_size());
  const auto after = wire.page_token().empty() ? std::nullopt : place_of(wire.page_token());
  // One more than asked for shows whether there is a next page.
  auto found = context_.states.list(scope.caller().name, wire.model(), after, size + 1);
  if (found.size() > size) {
    found.resize(size);
    page.set_next_page_token(token_of(*found.back()));
  }
  for (const NamedStates::Shared& state : found) write_state(*state, *page.add_states());
  return status;
}

grpc::Status SessionService::delete_state(CallScope& scope, const v1::DeleteStateRequest& wire) {
  if (grpc::Status may = check_public(scope, wire.is_public()); !may.ok()) return may;
  const bool was_there = context_.states.remove(scope.caller().name, wire.name(), wire.is_public());
  return was_there ? grpc::Status::OK : state_not_found(wire.name());
}

grpc::ServerUnaryReactor* SessionService::SaveState(grpc::CallbackServerContext* call,
                                                    const Received<v1::SaveStateRequest>* request,
                                                    v1::NamedState* response) {
  return answer_by_store(context_, *call, Method::kSaveState, *request,
                         [this, response](CallScope& scope, const auto& wire) {
                           return with_session(context_, wire.session_id(), scope.caller().name,
                                               [&] { return save_state(scope, wire, *response); });
                         });
}

grpc::ServerUnaryReactor* SessionService::ListStates(grpc::CallbackServerContext* call,
                                                     const Received<v1::ListStatesRequest>* request,
                                                     v1::ListStatesResponse* response) {
  return answer(
      context_.gate, *call, Method::kListStates, *request,
      [&](CallScope& scope, const auto& wire) { return list_states(scope, wire, *response); });
}

grpc::ServerUnaryReactor* SessionService::DeleteState(
    grpc::CallbackServerContext* call, const Received<v1::DeleteStateRequest>* request,
    google::protobuf::Empty*) {
  return answer(context_.gate, *call, Method::kDeleteState, *request,
                [&](CallScope& scope, const auto& wire) { return delete_state(scope, wire); });
}

}  // namespace lintel
