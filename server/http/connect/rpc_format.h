// RpcFormat: how a request to a method is written, and its answer will be.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"

namespace lintel {

enum class RpcProtocol {
  kUnary,      // Connect's unary calls: the body is the message
  kStream,     // Connect's streams: envelopes, the last of which has the status
  kGrpcWeb,    // frames, the last of which has the trailers
  kPlainJson,  // a server stream as lines of JSON, for clients without a library: curl
  kUnknown,
};

struct RpcFormat {
  RpcProtocol protocol = RpcProtocol::kUnknown;
  bool is_json = false;  // else the messages are in protobuf's own bytes
  bool is_text = false;  // gRPC-Web in base64, for browsers that show no bytes while they come

  // Of the answer.
  std::string content_type() const;
};

// What the header content-type stands for at a method that streams its answer, or does not. `curl
// -d` says that it sends a form; that counts as JSON from who is no browser (it sends no Origin: a
// page may send forms anywhere without being asked).
RpcFormat rpc_format(const HttpRequest& request, bool server_streaming);

// What keeps a request from being read: an encoding, a version of the protocol; empty: nothing.
std::string unsupported_header(const HttpRequest& request, const RpcFormat& format);

// connect-timeout-ms or grpc-timeout. Nothing: none is set. `valid`: false where it makes no sense.
std::optional<std::chrono::milliseconds> rpc_timeout(const HttpRequest& request,
                                                     const RpcFormat& format, bool* valid);

}  // namespace lintel
