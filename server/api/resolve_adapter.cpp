#include "server/api/resolve_adapter.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/lora/adapter.h"
#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

constexpr std::size_t kMostNames = 16;  // in an error's text

// "a, b and 3 more"
std::string names_of(const std::vector<SharedAdapter>& adapters) {
  std::string names;
  for (std::size_t i = 0; i < std::min(adapters.size(), kMostNames); ++i) {
    names += (names.empty() ? "" : ", ") + clip(adapters[i]->name);
  }
  if (adapters.size() <= kMostNames) return names;
  return names + " and " + std::to_string(adapters.size() - kMostNames) + " more";
}

}  // namespace

grpc::Status resolve_adapter(const std::string& name, const ServedModel& model,
                             SharedAdapter* adapter) {
  if (name.empty()) return grpc::Status::OK;
  *adapter = model.adapters->find(name);
  if (*adapter != nullptr) return grpc::Status::OK;
  const std::string subject = "adapter " + clip(name) + " of model " + clip(model.name);
  if (model.adapters->has(name)) return not_found("adapter", name, subject + " is being unloaded");
  const std::vector<SharedAdapter> known = model.adapters->ready();
  return not_found(
      "adapter", name,
      "there is no " + subject + (known.empty() ? ": it has none" : ": it has " + names_of(known)));
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

}  // namespace lintel
