// What a method's messages become in each protocol that streams.
#pragma once

#include <google/protobuf/descriptor.h>

#include <memory>

#include "server/http/connect/rpc_format.h"
#include "server/http/transport/inner_calls.h"

namespace lintel {

// Connect's streams: envelopes (https://connectrpc.com/docs/protocol#streaming-rpcs).
// `type`: of the messages.
std::unique_ptr<StreamAnswer> connect_stream(const RpcFormat& format,
                                             const google::protobuf::Descriptor* type);

// gRPC-Web: frames (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md).
std::unique_ptr<StreamAnswer> grpc_web_stream(const RpcFormat& format);

// A line of JSON for each message, and one with "error" where the call failed after the first.
// `with_text`: chunks of values have `text` in addition to `tokens`, which are bytes.
std::unique_ptr<StreamAnswer> plain_json_stream(const google::protobuf::Descriptor* type,
                                                bool with_text);

}  // namespace lintel
