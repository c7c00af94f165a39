// InferSequences: the Open Inference Protocol's sequences, each a session under a name of its
// owner's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "server/kserve/request.h"
#include "server/kserve/sequence_names.h"
#include "server/requests/service_context.h"

namespace lintel {

// The session of a call that names a sequence.
struct InferSequence {
  Owner owner;
  std::string model, name;
  std::string session_id;  // empty: no sequence
  bool is_new = false;
  bool ends = false;
};

// Thread-safe.
class InferSequences {
 public:
  explicit InferSequences(const ServiceContext& context)
      : context_(context), names_(context.store) {}

  // The sequence that the request goes on with or starts.
  grpc::Status find(const Owner& owner, const ServedModel& model, const InferRequest& request,
                    InferSequence& sequence);
  void end(const InferSequence& sequence) noexcept;
  // The request that used it is over. A start that came to nothing leaves nothing.
  void end_if_last(const InferSequence& sequence) noexcept;

 private:
  // Whether its start was refused or ended before a value was read.
  bool never_began(const InferSequence& sequence) const;

  const ServiceContext context_;
  SequenceNames names_;
};

}  // namespace lintel
