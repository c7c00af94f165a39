#include "server/grpc/transport/stream_quota.h"

#include <chrono>

#include "server/grpc/transport/status.h"

namespace lintel {

grpc::Status StreamQuota::enter() {
  if (!quotas_.enter_stream(identity_)) {
    return quota_exceeded(identity_, "at most " + std::to_string(quotas_.limits().max_streams) +
                                         " streams at a time");
  }
  state_ = State::kRunning;
  return grpc::Status::OK;
}

grpc::Status StreamQuota::check_tokens() const {
  const Duration wait = quotas_.wait_to_begin(identity_);
  if (wait == Duration::zero()) return grpc::Status::OK;
  return quota_exceeded(identity_,
                        std::to_string(quotas_.limits().tokens_per_second) +
                            " tokens a second, of which its calls have used more",
                        std::chrono::ceil<std::chrono::milliseconds>(wait));
}

std::shared_ptr<TokenAllowance> StreamQuota::allowance() const {
  if (quotas_.limits().tokens_per_second == 0) return nullptr;
  return std::make_shared<QuotaAllowance>(quotas_, identity_);
}

void StreamQuota::finish() noexcept {
  if (state_ != State::kRunning) return;
  state_ = State::kFinished;
  quotas_.finish_stream(identity_);
}

void StreamQuota::leave() noexcept {
  finish();
  if (state_ != State::kFinished) return;
  state_ = State::kOutside;
  quotas_.leave_stream(identity_);
}

}  // namespace lintel
