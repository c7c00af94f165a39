#include "server/api/resolve_state.h"

#include "model/config/names.h"
#include "server/grpc/transport/status.h"

namespace lintel {

std::string model_identity(const ServedModel& model) {
  const Transformer& transformer = *model.transformer;
  return transformer.fingerprint() + " " + to_string(transformer.weight_type()) + " " +
         attention_names(transformer.config());
}

grpc::Status state_not_found(const std::string& name) {
  return not_found("state", name, "there is no state " + clip(name) + ", of the caller or public");
}

grpc::Status resolve_state(const std::string& name, const Owner& caller, const std::string& model,
                           const NamedStates& states, NamedStates::Shared* state) {
  *state = states.find(caller, name);
  if (*state == nullptr) return state_not_found(name);
  const std::string& own = (*state)->image.model;
  if (model.empty() || model == own) return grpc::Status::OK;
  return invalid_argument({{"initial_state", "'" + clip(name) + "' is of model '" + clip(own) +
                                                 "', not '" + clip(model) + "'"}});
}

grpc::Status check_state(const NamedState& state, const ServedModel& model,
                         const std::string& adapter) {
  if (state.model_identity != model_identity(model)) {
    return wrong_state("MODEL_MISMATCH",
                       "model " + clip(model.name) + " is no longer the one that state " +
                           clip(state.name) + " was saved from",
                       {{"state", state.model_identity}, {"model", model_identity(model)}});
  }
  const std::string& own = state.image.adapter;
  if (adapter.empty() || adapter == own) return grpc::Status::OK;
  return invalid_argument(
      {{"adapter",
        own.empty()
            ? "the initial state was computed without an adapter, not with '" + clip(adapter) + "'"
            : "'" + clip(adapter) + "' is not the initial state's adapter, '" + clip(own) + "'"}});
}

}  // namespace lintel
