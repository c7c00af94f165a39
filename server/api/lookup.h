// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/service_context.h"
#include "server/models/model_registry.h"
#include "server/sessions/named_states.h"
#include "server/sessions/session.h"
#include "server/sessions/session_history.h"

namespace lintel {

// Functions that find the model that a request means by name and version, or the status that says
// why there is none.

// The name of the model that a request means by `name`: that of the alias (--model-alias) which
// fits a name that no model has; else the same. Requests of operators, AdminService's and the
// repository's, know no aliases.
std::string meant_model(const std::string& name, const ServiceContext& context);
// Adds to NOT_FOUND of a model that a request names by an alias the name that was sent, `asked`.
grpc::Status named_by_alias(const std::string& asked, const std::string& name, grpc::Status status);

// The model a call means, by its highest version or that one. Empty `name` stands for the only
// model loaded. On failure null and `status`, which names `field` of the request.
SharedModel resolve_model(const std::string& name, const ModelRegistry& models,
                          grpc::Status* status, const std::string& field = "model",
                          std::optional<std::int64_t> version = std::nullopt);

// A model that a lookup lacked: it is not in memory, and a request loads it (--models). Kept from
// one lookup of a call to the next.
struct AbsentModel {
  std::string name;  // empty: none
  std::optional<std::int64_t> version = {};
  int loads = 0;            // so far
  SharedModel in_use = {};  // that was loaded last: it stays until it is found
  explicit operator bool() const { return !name.empty(); }
};

// The properties that a call needs of the model which its request does not name.
enum class ModelNeed {
  kAny,
  kChats,  // it has a chat template and a tokenizer
};

// The same for a call that runs on the model, which is in use for as long as the pointer lives.
// Null and OK where it is `absent`. Empty `name` stands for the only one that a request may name,
// or of several for the only one that meets the need. One that is not in memory may meet it, unless
// its last load failed.
SharedModel use_model(const std::string& name, const ServiceContext& context, AbsentModel& absent,
                      grpc::Status* status, const std::string& field = "model",
                      std::optional<std::int64_t> version = std::nullopt,
                      ModelNeed need = ModelNeed::kAny);

// NOT_FOUND, with at most ten of the names that there are.
grpc::Status unknown_model(const std::string& name, const std::vector<std::string>& names);

// OK if a request may name the model; else the status says why not.
grpc::Status check_model_known(const std::string& name, const ServiceContext& context);

// Finds the model of a session that cannot be had because its model has to be loaded.
void find_absent_model(const SessionRefusal& refusal, const std::string& session_id,
                       const Owner& caller, const ServiceContext& context, AbsentModel& absent);

// The model that a request of the other protocol asks about, by its version or the highest, in the
// fields PREFIXname and PREFIXversion.
SharedModel resolve_version(const std::string& name, const std::string& version,
                            const std::string& prefix, const ModelRegistry& models,
                            grpc::Status* status);

// A name or version that an operator gives; `field` of the request is named when it is none.
grpc::Status check_model_name(const std::string& name, const std::string& field);
// The same of anything that is named like a model: `what`, "an adapter".
grpc::Status check_name(const std::string& name, const std::string& what, const std::string& field);
grpc::Status read_model_version(const std::string& text, const std::string& field,
                                std::optional<std::int64_t>* version);  // empty: nullopt

// Functions that find the adapter that a request names, or the status that says why there is none.

// Null and OK for an empty name: the model as it is. NOT_FOUND names those there are.
grpc::Status resolve_adapter(const std::string& name, const ServedModel& model,
                             SharedAdapter* adapter);

// The adapter that an image's state was computed with, of the same weights.
grpc::Status resolve_adapter(const SessionImage& image, const ServedModel& model,
                             SharedAdapter* adapter);

// OK if a request that continues a session may name this adapter: the session's own, or none.
grpc::Status check_session_adapter(const std::string& name, const SessionLease& lease,
                                   const ServedModel& model);

// Functions that find the named state that a request begins with, or the status that says why there
// is none.

// The properties in which a model must equal the one of a state: weights, attention, weight type.
std::string model_identity(const ServedModel& model);

// NOT_FOUND, also for another owner's, with the same text.
grpc::Status state_not_found(const std::string& name);

// The state of this name, of the caller or public. `model`: that the request names, or empty.
grpc::Status resolve_state(const std::string& name, const Owner& caller, const std::string& model,
                           const NamedStates& states, NamedStates::Shared* state);
// OK if the model can continue the state, with the adapter that the request names (empty: the
// state's).
grpc::Status check_state(const NamedState& state, const ServedModel& model,
                         const std::string& adapter);

}  // namespace lintel
