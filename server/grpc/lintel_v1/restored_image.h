// Checks that a snapshot can become a session here.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>

#include "server/models/model_registry.h"
#include "server/sessions/session_store.h"
#include "server/sessions/snapshot.h"

namespace lintel {

// The most bytes a snapshot of the model's sessions may have: a state and a history as long as
// there can be, and 64 KiB. Of any model that is ready where it is null. At most the memory for
// sessions.
std::size_t most_restored_bytes(const ModelRegistry& models, const ServedModel* model,
                                const SessionStore::Options& store);

// DATA_LOSS for bytes that are damaged, INVALID_ARGUMENT for a field that makes no sense.
grpc::Status snapshot_refused(const SnapshotError& error);

// Whether the model can continue the snapshot: its weights, attention and weight type, its
// numerics unless other ones are accepted, and values that it has.
grpc::Status check_restored(const SnapshotOf& snapshot, const ServedModel& model,
                            bool accept_other_numerics);

}  // namespace lintel
