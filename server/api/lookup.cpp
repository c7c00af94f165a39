// SPDX-License-Identifier: Apache-2.0
#include "server/api/lookup.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/lora/adapter.h"
#include "server/models/model_repository.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// Time after which a model that is being loaded may be asked for again.
constexpr std::chrono::milliseconds kLoadRetry{1000};

// "a, b and 3 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;  // in an error's text
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    list += (list.empty() ? "" : ", ") + clip(names[i]);
  }
  if (names.size() <= kMost) return list;
  return list + " and " + std::to_string(names.size() - kMost) + " more";
}

// A request that names no model, where not one alone is loaded.
grpc::Status nameless(const std::vector<std::string>& names, const std::string& field) {
  if (names.empty()) return not_found("model", "", "no model is loaded");
  return invalid_argument({{field, "several models are loaded, name one: " + listed(names)}});
}

// Names of the models that are ready, each once.
std::vector<std::string> ready_names(const ModelRegistry& models) {
  std::vector<std::string> names;  // of which there may be several versions
  for (const SharedModel& model : models.ready()) {
    if (names.empty() || names.back() != model->name) names.push_back(model->name);
  }
  return names;
}

// The field of the version for the one that names the model: "model_name" -> "model_version".
std::string version_field(const std::string& name_field) {
  const std::size_t name = name_field.rfind("name");
  return name == std::string::npos ? "version" : name_field.substr(0, name) + "version";
}

}  // namespace

grpc::Status unknown_model(const std::string& name, const std::vector<std::string>& names) {
  return not_found("model", name,
                   "no model is named " + clip(name) +
                       (names.empty() ? ": there is none" : ": there are " + listed(names)));
}

std::string meant_model(const std::string& name, const ServiceContext& context) {
  if (context.aliases.empty() || name.empty()) return name;
  const bool is_model = context.models.state(name) != ModelState::kUnavailable ||
                        context.manager.loads_on_request(name, std::nullopt);
  if (is_model) return name;
  std::string meant = aliased_model(context.aliases, name);
  return meant.empty() ? name : meant;
}

SharedModel resolve_model(const std::string& asked, const ModelRegistry& models,
                          grpc::Status* status, const std::string& field,
                          std::optional<std::int64_t> version) {
  std::string name = asked;
  if (name.empty()) {
    const SharedModel only = models.only();
    if (only == nullptr) {
      *status = nameless(ready_names(models), field);
      return nullptr;
    }
    name = only->name;
  }
  if (SharedModel found = models.find(name, version)) return found;
  switch (models.state(name)) {
    case ModelState::kReady:  // or it went between the two questions
      *status = not_found("model", name,
                          version_field(field) + ": model " + clip(name) + " has no version " +
                              std::to_string(version.value_or(0)) + " that is loaded");
      break;
    case ModelState::kLoading:
      *status = unavailable("model " + clip(name) + " is being loaded", kLoadRetry);
      break;
    case ModelState::kUnloading:
      *status = not_found("model", name, "model " + clip(name) + " is being unloaded");
      break;
    case ModelState::kUnavailable:
      *status = unknown_model(name, ready_names(models));
      break;
  }
  return nullptr;
}

namespace {

// Like resolve_model(), but the error also lists names of models that a request loads.
SharedModel resolve_known(const std::string& name, const ServiceContext& context,
                          grpc::Status* status, const std::string& field,
                          std::optional<std::int64_t> version) {
  SharedModel found = resolve_model(name, context.models, status, field, version);
  if (found == nullptr && context.manager.loads_on_request() &&
      context.models.state(name) == ModelState::kUnavailable) {
    *status = unknown_model(name, context.manager.names());
  }
  return found;
}

bool chats(const ServedModel& model) {
  return model.chat != nullptr && model.chat->find(/*has_tools=*/false) != nullptr &&
         model.transformer->tokenizer() != nullptr;
}

// The `names` that chat: models that are not in memory are judged by their files.
std::vector<std::string> chat_names(std::vector<std::string> names, const ServiceContext& context) {
  std::erase_if(names, [&](const std::string& name) {
    const SharedModel model = context.models.find(name);
    return model != nullptr ? !chats(*model) : !context.manager.can_chat(name);
  });
  return names;
}

// The name that a request without one means. Empty: there is none, and `status` says why.
std::string only_name(const ServiceContext& context, ModelNeed need, const std::string& field,
                      grpc::Status* status) {
  const std::vector<std::string> names = context.manager.names();
  if (names.size() == 1) return names.front();
  if (names.empty() || need == ModelNeed::kAny) {
    *status = nameless(names, field);
    return "";
  }
  const std::vector<std::string> fitting = chat_names(names, context);
  if (fitting.size() == 1) return fitting.front();
  if (fitting.empty()) {
    const std::string why =
        "none of the models has a chat template (--chat-template): " + listed(names);
    *status = invalid_argument({{field, why}}, "NO_CHAT_TEMPLATE");
  } else {
    *status = invalid_argument({{field, "several models chat, name one: " + listed(fitting)}});
  }
  return "";
}

}  // namespace

SharedModel use_model(const std::string& asked, const ServiceContext& context, AbsentModel& absent,
                      grpc::Status* status, const std::string& field,
                      std::optional<std::int64_t> version, ModelNeed need) {
  const std::string name =
      asked.empty() ? only_name(context, need, field, status) : meant_model(asked, context);
  if (name.empty()) return nullptr;
  if (SharedModel found = context.models.use(name, version)) return found;
  if (context.manager.loads_on_request(name, version)) {
    absent.name = name;
    absent.version = version;
    return nullptr;
  }
  // The status says why, unless the model came meanwhile.
  SharedModel found = resolve_known(name, context, status, field, version);
  if (found == nullptr) *status = named_by_alias(asked, name, std::move(*status));
  return found;
}

grpc::Status named_by_alias(const std::string& asked, const std::string& name,
                            grpc::Status status) {
  if (asked.empty() || asked == name || status.error_code() != grpc::StatusCode::NOT_FOUND) {
    return status;
  }
  return not_found(
      "model", name,
      "'" + clip(asked) + "' means " + clip(name) + " (--model-alias): " + status.error_message());
}

grpc::Status check_model_known(const std::string& name, const ServiceContext& context) {
  grpc::Status status;
  if (!context.manager.loads_on_request(name, std::nullopt)) {
    resolve_known(name, context, &status, "model", std::nullopt);
  }
  return status;
}

void find_absent_model(const SessionRefusal& refusal, const std::string& session_id,
                       const Owner& caller, const ServiceContext& context, AbsentModel& absent) {
  // A busy session's state may be on the way into the store, as its model goes.
  const bool may_be =
      refusal.error == SessionError::kModelMismatch || refusal.error == SessionError::kBusy;
  if (!may_be || context.persistent_sessions == nullptr) return;
  const std::optional<SessionInfo> info = context.persistent_sessions->find(session_id, caller);
  if (!info || context.models.find(info->model) != nullptr) return;
  if (context.manager.loads_on_request(info->model, std::nullopt)) absent.name = info->model;
}

SharedModel resolve_version(const std::string& name, const std::string& version,
                            const std::string& prefix, const ModelRegistry& models,
                            grpc::Status* status) {
  std::optional<std::int64_t> wanted;
  *status = read_model_version(version, prefix + "version", &wanted);
  if (!status->ok()) return nullptr;
  return resolve_model(name, models, status, prefix + "name", wanted);
}

grpc::Status check_model_name(const std::string& name, const std::string& field) {
  return is_repository_name(name) ? grpc::Status::OK : check_name(name, "a model", field);
}

grpc::Status check_name(const std::string& name, const std::string& what,
                        const std::string& field) {
  if (is_model_name(name)) return grpc::Status::OK;
  return invalid_argument({{field, "'" + clip(name) + "' cannot name " + what +
                                       ": 1 to 128 of letters, digits, '.', '-' and '_', not "
                                       "beginning with '.'"}});
}

grpc::Status read_model_version(const std::string& text, const std::string& field,
                                std::optional<std::int64_t>* version) {
  if (text.empty()) return grpc::Status::OK;
  *version = parse_model_version(text);
  if (*version) return grpc::Status::OK;
  return invalid_argument({{field, "'" + clip(text) + "' is not a whole number from 1"}});
}

grpc::Status resolve_adapter(const std::string& name, const ServedModel& model,
                             SharedAdapter* adapter) {
  if (name.empty()) return grpc::Status::OK;
  *adapter = model.adapters->find(name);
  if (*adapter != nullptr) return grpc::Status::OK;
  const std::string subject = "adapter " + clip(name) + " of model " + clip(model.name);
  if (model.adapters->has(name)) return not_found("adapter", name, subject + " is being unloaded");
  std::vector<std::string> known;
  for (const SharedAdapter& each : model.adapters->ready()) known.push_back(each->name);
  return not_found(
      "adapter", name,
      "there is no " + subject + (known.empty() ? ": it has none" : ": it has " + listed(known)));
}

grpc::Status resolve_adapter(const SessionImage& image, const ServedModel& model,
                             SharedAdapter* adapter) {
  if (grpc::Status named = resolve_adapter(image.adapter, model, adapter); !named.ok())
    return named;
  if (*adapter == nullptr) return grpc::Status::OK;
  const std::string& here = (*adapter)->weights->fingerprint();
  if (here == image.adapter_fingerprint) return grpc::Status::OK;
  return wrong_state("MODEL_MISMATCH",
                     "adapter " + clip(image.adapter) + " of model " + clip(model.name) +
                         " has other weights than the one that the state was computed with: " +
                         clip(here) + ", not " + clip(image.adapter_fingerprint),
                     {{"what", "adapter"}, {"state", image.adapter_fingerprint}, {"model", here}});
}

grpc::Status check_session_adapter(const std::string& name, const SessionLease& lease,
                                   const ServedModel& model) {
  const std::string own = lease.adapter() == nullptr ? "" : lease.adapter()->name;
  if (name.empty() || name == own) return grpc::Status::OK;
  SharedAdapter other;
  if (grpc::Status found = resolve_adapter(name, model, &other); !found.ok()) return found;
  return invalid_argument(
      {{"adapter",
        own.empty() ? "the session was created without an adapter, not with '" + clip(name) + "'"
                    : "'" + clip(name) + "' is not the session's adapter, '" + clip(own) + "'"}});
}

std::string model_identity(const ServedModel& model) {
  const Transformer& transformer = *model.transformer;
  const std::string cache =
      transformer.kv_type() ? " kv " + std::string(to_string(*transformer.kv_type())) : "";
  return transformer.fingerprint() + " " + to_string(transformer.weight_type()) + " " +
         attention_names(transformer.config()) + cache;
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
