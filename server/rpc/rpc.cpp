// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/rpc.h"

namespace lintel {

void RpcReactor::StartRead(RequestMessage* request) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) read_ = request;
  }
  if (bound != nullptr) bound->read(*request);
}

void RpcReactor::StartSendInitialMetadata() {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) begins_ = true;
  }
  if (bound != nullptr) bound->begin();
}

void RpcReactor::StartWrite(const google::protobuf::Message* message) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) write_ = message;
  }
  if (bound != nullptr) bound->write(*message);
}

void RpcReactor::StartWriteAndFinish(const google::protobuf::Message* last, grpc::Status status) {
  RpcTransport* bound = nullptr;
  {
    const MutexLock lock(mutex_);
    bound = transport_;
    if (bound == nullptr) {
      write_ = last;
      finish_ = std::move(status);
      return;
    }
  }
  bound->finish(last, std::move(status));
}

void RpcReactor::Finish(grpc::Status status) { StartWriteAndFinish(nullptr, std::move(status)); }

void RpcReactor::when_cancelled(std::function<void()> hook) {
  {
    const MutexLock lock(mutex_);
    if (!is_cancelled_ || hook == nullptr) {
      when_cancelled_.swap(hook);  // the old hook is destroyed without the mutex
      return;
    }
  }
  hook();
}

void RpcReactor::cancel() {
  std::function<void()> hook;
  {
    const MutexLock lock(mutex_);
    is_cancelled_ = true;
    hook.swap(when_cancelled_);
  }
  if (hook != nullptr) hook();
  OnCancel();
}

void RpcReactor::bind(RpcTransport& transport) {
  RequestMessage* read = nullptr;
  bool begins = false;
  const google::protobuf::Message* write = nullptr;
  std::optional<grpc::Status> finish;
  {
    const MutexLock lock(mutex_);
    transport_ = &transport;
    read = read_;
    begins = begins_;
    write = write_;
    finish.swap(finish_);
  }
  // No operation of the same kind starts meanwhile, as these are in progress.
  if (read != nullptr) transport.read(*read);
  if (begins) return transport.begin();  // later operations wait for its end
  if (finish) return transport.finish(write, *std::move(finish));
  if (write != nullptr) transport.write(*write);
}

}  // namespace lintel
