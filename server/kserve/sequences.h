// ClientSequences: the Open Inference Protocol's sequences, each a session under a name of its
// owner's.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "server/base/mutex.h"
#include "server/kserve/tensors/request.h"
#include "server/requests/prepare_generation.h"
#include "server/requests/service_context.h"

namespace lintel {

// Names that clients give to sequences, and the sessions they stand for. A name belongs to an owner
// and a model. Thread-safe.
class SequenceNames {
 public:
  // The store outlives the object.
  explicit SequenceNames(const SessionStore& store) : store_(store) {}

  // Returns the session the name stood for before.
  std::optional<std::string> put(const Owner& owner, const std::string& model,
                                 const std::string& name, const std::string& session_id)
      EXCLUDES(mutex_);
  std::optional<std::string> find(const Owner& owner, const std::string& model,
                                  const std::string& name) const EXCLUDES(mutex_);
  // Forgets the name if it still stands for this session.
  void forget(const Owner& owner, const std::string& model, const std::string& name,
              const std::string& session_id) noexcept EXCLUDES(mutex_);
  std::size_t size() const EXCLUDES(mutex_);

 private:
  using Key = std::tuple<Owner, std::string, std::string>;  // model, name
  // Names of sessions that were evicted go when there are twice as many as after the last time.
  void forget_evicted() REQUIRES(mutex_);

  const SessionStore& store_;
  mutable Mutex mutex_;
  std::map<Key, std::string, std::less<>> ids_ GUARDED_BY(mutex_);
  std::size_t next_cleaning_ GUARDED_BY(mutex_) = 64;
};

// The session of a call that names a sequence.
struct ClientSequence {
  Owner owner;
  std::string model, name;
  std::string session_id;  // empty: no sequence
  bool is_new = false;
  bool ends = false;
};

// Thread-safe.
class ClientSequences {
 public:
  explicit ClientSequences(const ServiceContext& context)
      : context_(context), names_(context.store) {}

  // Leases the sequence that the request goes on with or starts. `target`: the model that it names,
  // and then what it runs on; a sequence goes on with the version that it began with. Where the
  // request names no sequence nothing happens.
  grpc::Status find(const Owner& owner, const TensorRequest& request, GenerationTarget& target,
                    ClientSequence& sequence);
  void end(const ClientSequence& sequence) noexcept;
  // The request that used it is over. A start that came to nothing leaves nothing.
  void end_if_last(const ClientSequence& sequence) noexcept;

 private:
  grpc::Status start(const TensorRequest& request, const std::optional<std::string>& before,
                     GenerationTarget& target, ClientSequence& sequence);
  // Whether its start was refused or ended before a value was read.
  bool never_began(const ClientSequence& sequence) const;

  const ServiceContext context_;
  SequenceNames names_;
};

}  // namespace lintel
