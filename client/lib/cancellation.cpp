#include "client/lib/cancellation.h"

#include <grpcpp/grpcpp.h>

namespace lintel {

void Cancellation::cancel() {
  // TryCancel under the mutex: an attachment cannot go, nor its context with it, meanwhile. It does
  // not call back into us.
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
  changed_.notify_all();
}

bool Cancellation::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

bool Cancellation::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return cancelled_; });
}

Cancellation::Attachment::Attachment(Cancellation* cancellation, grpc::ClientContext& context)
    : cancellation_(cancellation), context_(context) {
  if (cancellation_ == nullptr) return;
  const std::lock_guard lock(cancellation_->mutex_);
  cancellation_->contexts_.insert(&context_);
  if (cancellation_->cancelled_) context_.TryCancel();  // before the call starts is fine with gRPC
}

Cancellation::Attachment::~Attachment() {
  if (cancellation_ == nullptr) return;
  const std::lock_guard lock(cancellation_->mutex_);
  cancellation_->contexts_.erase(&context_);
}

}  // namespace lintel
