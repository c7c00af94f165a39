// SPDX-License-Identifier: Apache-2.0
// GenericCall: a call of any method by its name, one operation at a time.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace lintel::testing {

class GenericCall {
 public:
  // Sends the headers; the context outlives the call.
  GenericCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
              grpc::ClientContext& context)
      : stub_(channel), call_(stub_.PrepareCall(&context, method, &queue_)) {
    call_->StartCall(nullptr);
    wait();
  }

  void write_last(const std::string& message) {
    const grpc::Slice slice(message);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    wait();
  }
  // Waits for a message, or for there being none.
  void read() {
    grpc::ByteBuffer reply;
    call_->Read(&reply, nullptr);
    wait();
  }
  grpc::Status finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    wait();
    return status;
  }

 private:
  void wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace lintel::testing
