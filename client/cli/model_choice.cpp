#include "client/cli/model_choice.h"

#include <algorithm>

namespace lintel::cli {
namespace {

bool says_several(const CallError& error) {
  return std::any_of(error.violations().begin(), error.violations().end(),
                     [](const FieldViolation& violation) {
                       return violation.description.rfind("several models are loaded", 0) == 0;
                     });
}

}  // namespace

CallError load_hint(const Client& client, Cancellation& cancellation, const CallError& error) {
  std::string name;
  for (const ResourceProblem& resource : error.resources()) {
    if (resource.type == "model") name = resource.name;
  }
  if (error.code() != grpc::StatusCode::NOT_FOUND || name.empty()) return error;
  try {
    for (const v1::Model& model : client.list_all_models(&cancellation)) {
      if (model.name() != name || model.state() != v1::MODEL_STATE_UNAVAILABLE) continue;
      const bool failed = !model.reason().empty() && model.reason() != "not loaded";
      return CallError(error.code(), "model " + name + " is not loaded" +
                                         (failed ? " (" + model.reason() + ")" : "") +
                                         "; `lintel model load " + name + "` loads it" +
                                         (failed ? " from the server's --model-repository" : ""));
    }
  } catch (const CallError&) {  // the first one says more
  }
  return error;
}

v1::Model choose_model(const Client& client, const std::string& name, const std::string& modality,
                       Cancellation& cancellation) {
  try {
    return with_load_hint(client, cancellation,
                          [&] { return client.get_model(name, &cancellation); });
  } catch (const CallError& error) {
    if (!name.empty() || modality.empty() || !says_several(error)) throw;
    std::vector<v1::Model> fitting;
    for (v1::Model& model : client.list_models(&cancellation)) {
      if (model.modality() == modality) fitting.push_back(std::move(model));
    }
    if (fitting.empty()) throw;
    if (fitting.size() == 1) return fitting.front();
    std::string names;
    for (const v1::Model& model : fitting) names += (names.empty() ? "" : ", ") + model.name();
    throw UsageError("--model: several models of modality " + modality +
                     " are loaded, name one: " + names);
  }
}

}  // namespace lintel::cli
