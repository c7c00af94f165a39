// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/service_context.h"
#include "server/models/model_registry.h"
#include "server/sessions/lease.h"
#include "server/sessions/named_states.h"
#include "server/sessions/session_history.h"

namespace lintel {

// From the name and version in a request to the model they mean, or the status that says why there
// is none.

// The model a call means, by its highest version or that one. Empty `name` stands for the only
// model loaded. On failure null and `status`, which names `field` of the request.
SharedModel resolve_model(const std::string& name, const ModelRegistry& models,
                          grpc::Status* status, const std::string& field = "model",
                          std::optional<std::int64_t> version = std::nullopt);

// A call needs a model that is not in memory, and that a request loads (--models). Thrown through
// what the call runs to what waits for the model and runs it again (model_wait.h).
class ModelAbsent : public std::exception {
 public:
  explicit ModelAbsent(std::string name, std::optional<std::int64_t> version = std::nullopt)
      : name_(std::move(name)), version_(version) {}
  const char* what() const noexcept override { return "a model is not in memory"; }
  const std::string& name() const { return name_; }
  std::optional<std::int64_t> version() const { return version_; }

 private:
  std::string name_;
  std::optional<std::int64_t> version_;
};

// The same for a call that runs on the model, which is in use for as long as the pointer lives.
// Throws ModelAbsent. Empty `name` stands for the only one that a request may name.
SharedModel use_model(const std::string& name, const ServiceContext& context, grpc::Status* status,
                      const std::string& field = "model",
                      std::optional<std::int64_t> version = std::nullopt);

// NOT_FOUND, with at most ten of the names that there are.
grpc::Status unknown_model(const std::string& name, const std::vector<std::string>& names);

// Whether a request may name the model; else the status says why not.
grpc::Status check_model_known(const std::string& name, const ServiceContext& context);

// Of a session that cannot be had for this: throws ModelAbsent where its model has to be loaded.
void check_model_absent(const SessionRefusal& refusal, const std::string& session_id,
                        const Owner& caller, const ServiceContext& context);

// The model that a request of the other protocol names, by its version or the highest, in the
// fields PREFIXname and PREFIXversion.
SharedModel use_version(const std::string& name, const std::string& version,
                        const std::string& prefix, const ServiceContext& context,
                        grpc::Status* status);
// The same of calls that only ask about it.
SharedModel resolve_version(const std::string& name, const std::string& version,
                            const std::string& prefix, const ModelRegistry& models,
                            grpc::Status* status);

// A name or version that an operator gives; `field` of the request is named when it is none.
grpc::Status check_model_name(const std::string& name, const std::string& field);
// The same of anything that is named like a model: `what`, "an adapter".
grpc::Status check_name(const std::string& name, const std::string& what, const std::string& field);
grpc::Status read_model_version(const std::string& text, const std::string& field,
                                std::optional<std::int64_t>* version);  // empty: nullopt

// From the adapter that a request names to the one it means, or the status that says why not.

// Null and OK for an empty name: the model as it is. NOT_FOUND names those there are.
grpc::Status resolve_adapter(const std::string& name, const ServedModel& model,
                             SharedAdapter* adapter);

// The adapter that an image's state was computed with, of the same weights.
grpc::Status resolve_adapter(const SessionImage& image, const ServedModel& model,
                             SharedAdapter* adapter);

// Whether a request that continues a session may name this adapter: the session's own, or none.
grpc::Status check_session_adapter(const std::string& name, const SessionLease& lease,
                                   const ServedModel& model);

// From the named state that a request begins with to the one it means, or the status that says why
// not.

// What a state has to be the same of to be gone on with: weights, attention, weight type.
std::string model_identity(const ServedModel& model);

// NOT_FOUND, also for another owner's, with the same text.
grpc::Status state_not_found(const std::string& name);

// The state of this name, of the caller or public. `model`: that the request names, or empty.
grpc::Status resolve_state(const std::string& name, const Owner& caller, const std::string& model,
                           const NamedStates& states, NamedStates::Shared* state);
// Whether the model can continue it, and with the adapter that the request names (empty: the
// state's).
grpc::Status check_state(const NamedState& state, const ServedModel& model,
                         const std::string& adapter);

}  // namespace lintel
