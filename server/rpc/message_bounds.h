// SPDX-License-Identifier: Apache-2.0
// Bounds of a request's memory, checked in its bytes before they are parsed.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstddef>

namespace lintel {

struct MessageBounds {
  std::size_t max_bytes = 0;  // on the wire
  // In memory. Two bytes on the wire can become a message of two hundred; an honest request stays
  // below this: an id takes a byte or more on the wire, and four in memory.
  std::size_t max_parsed_bytes() const { return 4 * max_bytes; }
};

// What gRPC lets the server send in one message.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

// Of a request that needs no token: it is a name or empty.
inline constexpr MessageBounds kOpenMessage{4096};

// Parses `bytes` into `message`, which is empty. Fields that the type does not know are left out.
// INVALID_ARGUMENT: they are too many, would take too much memory, or are no such message; then the
// parser has not seen them.
grpc::Status parse_bounded(grpc::ByteBuffer& bytes, const MessageBounds& bounds,
                           google::protobuf::Message& message);

}  // namespace lintel
