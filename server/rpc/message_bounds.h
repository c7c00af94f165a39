// SPDX-License-Identifier: Apache-2.0
// Bounds of a request's memory, checked before it is parsed or taken over.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <string>

#include "server/core/request_memory.h"

namespace lintel {

struct MessageBounds {
  std::size_t max_bytes = 0;  // on the wire
  // The bound in memory. Two bytes on the wire can become a message of two hundred; an honest
  // request stays below this: an id takes a byte or more on the wire, and four in memory.
  std::size_t max_parsed_bytes() const { return 4 * max_bytes; }
};

// The largest message that the server sends over gRPC.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

// The bounds of a request that needs no token: it is a name or empty.
inline constexpr MessageBounds kOpenMessage{4096};

// Parses `bytes` into `message`, which is empty. Fields that the type does not know are left out.
// INVALID_ARGUMENT: they are too many, would take too much memory, or are no such message; then the
// parser has not seen them.
grpc::Status parse_bounded(grpc::ByteBuffer& bytes, const MessageBounds& bounds,
                           google::protobuf::Message& message);

// Moves `from` into `message`, which is empty and of its type. INVALID_ARGUMENT: it is beyond the
// bounds.
grpc::Status take_bounded(google::protobuf::Message& from, const MessageBounds& bounds,
                          google::protobuf::Message& message);

// A request without memory: RESOURCE_EXHAUSTED with the time to retry; INVALID_ARGUMENT about
// `field`, with limit and flag, where it can never fit. OK: there is memory.
grpc::Status request_memory_refusal(const RequestRefusal& refusal, const std::string& identity,
                                    const char* field);

// Charges a request that was parsed. Not OK: as request_memory_refusal().
grpc::Status charge_message(const google::protobuf::Message& message, const std::string& identity,
                            RequestMemory::Charge& memory);

}  // namespace lintel
