// SPDX-License-Identifier: Apache-2.0
#include "client/lib/call_error.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "google/rpc/code.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

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

std::string status_code_name(grpc::StatusCode code) {
  const int number = static_cast<int>(code);
  return google::rpc::Code_IsValid(number)
             ? google::rpc::Code_Name(static_cast<google::rpc::Code>(number))
             : "status " + std::to_string(number);
}

CallError::Details CallError::decode(const grpc::Status& status) {
  Details details;
  google::rpc::Status rich;
  // A status without details, or with those of an unknown proxy, is still a status.
  if (status.error_details().empty() || !rich.ParseFromString(status.error_details())) {
    return details;
  }
  for (const google::protobuf::Any& any : rich.details()) {
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    google::rpc::ResourceInfo resource;
    google::rpc::ErrorInfo info;
    if (any.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        details.violations.push_back({violation.field(), violation.description()});
      }
    } else if (any.UnpackTo(&retry)) {
      const auto& delay = retry.retry_delay();
      details.retry_delay =
          std::chrono::milliseconds(delay.seconds() * 1000 + delay.nanos() / 1'000'000);
    } else if (any.UnpackTo(&resource)) {
      details.resources.push_back(
          {resource.resource_type(), resource.resource_name(), resource.description()});
    } else if (any.UnpackTo(&info)) {
      details.error_reason = info.reason();
    }
  }
  return details;
}

std::string CallError::describe(const grpc::Status& status, const Details& details) {
  std::string text = status_code_name(status.error_code());
  if (!status.error_message().empty()) text += ": " + status.error_message();
  // Servers often repeat the details in the message; say each thing once.
  const auto add = [&text](const std::string& part) {
    if (!part.empty() && text.find(part) == std::string::npos) text += "; " + part;
  };
  for (const FieldViolation& violation : details.violations) {
    if (text.find(violation.description) == std::string::npos) {
      add(violation.field + ": " + violation.description);
    } else {
      add(violation.field);
    }
  }
  for (const ResourceProblem& resource : details.resources) {
    if (!resource.name.empty()) add(resource.type + " " + resource.name);
  }
  if (details.retry_delay) {
    text += "; try again in " + std::to_string(details.retry_delay->count()) + " ms";
  }
  return text;
}

CallError::CallError(const grpc::Status& status, Details details)
    : std::runtime_error(describe(status, details)),
      code_(status.error_code()),
      message_(status.error_message()),
      violations_(std::move(details.violations)),
      resources_(std::move(details.resources)),
      error_reason_(std::move(details.error_reason)),
      retry_delay_(details.retry_delay) {}

CallError::CallError(const grpc::Status& status, const std::string& address,
                     const std::string& reason, const std::string& hint)
    : std::runtime_error(status_code_name(status.error_code()) + ": no server answers at " +
                         address + ": " + reason + (hint.empty() ? "" : "; " + hint)),
      code_(status.error_code()),
      message_(status.error_message()),
      unreached_(address),
      reason_(reason),
      hint_(hint) {}

}  // namespace lintel
