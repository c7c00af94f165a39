// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/detached_call.h"

#include <utility>

namespace lintel {
namespace {

constexpr std::string_view kCertificatePrefix = "x509:";  // of names from CallScope

}  // namespace

DetachedCall::DetachedCall(Identity caller, std::function<void(const grpc::Status&)> on_end)
    : caller_(std::move(caller)), on_end_(std::move(on_end)) {}

void DetachedCall::run(Identity caller, std::function<void(const grpc::Status&)> on_end,
                       const std::function<RpcReactor*(RpcCall& call)>& begin) {
  // Deleted by finish(), or here if there is no reactor.
  auto* const call = new DetachedCall(std::move(caller), std::move(on_end));
  try {
    call->reactor_ = begin(*call);
  } catch (...) {
    delete call;
    throw;
  }
  call->reactor_->bind(*call);
}

std::string DetachedCall::certificate() const {
  const std::string_view name = caller_.name;
  return name.starts_with(kCertificatePrefix) ? std::string(name.substr(kCertificatePrefix.size()))
                                              : "";
}

void DetachedCall::read(RequestMessage&) { reactor_->OnReadDone(/*ok=*/false); }

void DetachedCall::begin() { reactor_->OnWriteDone(/*ok=*/true); }

void DetachedCall::write(const google::protobuf::Message&) { reactor_->OnWriteDone(/*ok=*/true); }

void DetachedCall::finish(const google::protobuf::Message*, grpc::Status status) {
  on_end_(status);
  reactor_->OnDone();
  delete this;
}

}  // namespace lintel
