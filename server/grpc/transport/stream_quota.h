// StreamQuota: what one stream holds of its identity's quotas.
#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "server/security/quotas.h"

namespace lintel {

// A stream's place among those of its identity, from enter() until the object goes, and what its
// requests pay from. Used by one thread at a time.
class StreamQuota {
 public:
  // Holds nothing yet. The quotas outlive the object.
  StreamQuota(Quotas& quotas, std::string identity)
      : quotas_(quotas), identity_(std::move(identity)) {}
  ~StreamQuota() { leave(); }
  StreamQuota(const StreamQuota&) = delete;
  StreamQuota& operator=(const StreamQuota&) = delete;

  // One stream more. Not OK: RESOURCE_EXHAUSTED, and nothing is held. Once.
  grpc::Status enter();
  // Whether a call that reads and produces tokens may begin.
  grpc::Status check_tokens() const;
  // What the call's requests pay from; null where tokens are not limited. REQUIRES: entered for as
  // long as they run.
  std::shared_ptr<TokenAllowance> allowance() const;

  // The stream runs no more: its place is free. To be called before the client can know that the
  // call is over, or its next one is counted beside this one. Idempotent, as leave() is.
  void finish() noexcept;
  // The call is gone. Finishes it, too.
  void leave() noexcept;

 private:
  enum class State { kOutside, kRunning, kFinished };

  Quotas& quotas_;
  const std::string identity_;
  State state_ = State::kOutside;
};

}  // namespace lintel
