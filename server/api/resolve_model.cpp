#include "server/api/resolve_model.h"

#include "model/config/names.h"
#include "server/grpc/transport/status.h"
#include "server/models/model_repository.h"

namespace lintel {
namespace {

// How soon a model that is being loaded may be asked for again.
constexpr std::chrono::milliseconds kLoadRetry{1000};

// A request that names no model, where not one alone is loaded.
grpc::Status nameless(const ModelRegistry& models, const std::string& field) {
  std::string names;
  std::string last;  // of which there may be several versions
  for (const SharedModel& model : models.ready()) {
    if (model->name == last) continue;
    last = model->name;
    names += (names.empty() ? "" : ", ") + last;
  }
  if (names.empty()) return not_found("model", "", "no model is loaded");
  return invalid_argument({{field, "several models are loaded, name one: " + names}});
}

// The field of the version for the one that names the model: "model_name" -> "model_version".
std::string version_field(const std::string& name_field) {
  const std::size_t name = name_field.rfind("name");
  return name == std::string::npos ? "version" : name_field.substr(0, name) + "version";
}

}  // namespace

SharedModel resolve_model(const std::string& asked, const ModelRegistry& models,
                          grpc::Status* status, const std::string& field,
                          std::optional<std::int64_t> version) {
  std::string name = asked;
  if (name.empty()) {
    const SharedModel only = models.only();
    if (only == nullptr) {
      *status = nameless(models, field);
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
      *status = not_found("model", name, "no model is named " + clip(name));
      break;
  }
  return nullptr;
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
  return check_name(name, "a model", field);
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

}  // namespace lintel
