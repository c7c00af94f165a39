// Received: a request as gRPC hands it over, still in its bytes.
#pragma once

#include <grpcpp/impl/codegen/serialization_traits.h>
#include <grpcpp/support/byte_buffer.h>

#include "server/grpc/transport/message_bounds.h"

namespace lintel {

// gRPC would parse a request before the server's code sees it, and keep it until its call is over:
// for as long as a stream lasts. This one is parsed when the caller is known and may ask for it,
// within bounds, and its bytes are gone with that.
//
// Used by one thread at a time.
template <typename Message>
class Received {
 public:
  // Parses into `message`, which is empty, and drops the bytes. To be called once, though gRPC
  // hands the object over as const.
  grpc::Status read(const MessageBounds& bounds, Message& message) const {
    const grpc::Status status = parse_bounded(bytes_, bounds, message);
    bytes_.Clear();
    return status;
  }

 private:
  friend class grpc::SerializationTraits<Received, void>;
  mutable grpc::ByteBuffer bytes_;
};

}  // namespace lintel

namespace grpc {

template <typename Message>
class SerializationTraits<lintel::Received<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, lintel::Received<Message>* received) {
    received->bytes_.Clear();
    received->bytes_.Swap(bytes);
    return Status::OK;
  }
};

}  // namespace grpc
