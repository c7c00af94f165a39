// A unary call without side effects as a GET.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/http/connect/rpc_format.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// What the query says (https://connectrpc.com/docs/protocol#unary-get-request):
// connect=v1&encoding=json&message=..., in base64 with base64=1.
struct ConnectGet {
  RpcFormat format{.protocol = RpcProtocol::kUnary, .is_json = true};
  std::string message;
};

// UNIMPLEMENTED for a compressed message, INVALID_ARGUMENT for what makes no sense, each by its
// name; `get` has the format to say so in.
grpc::Status read_connect_get(const HttpRequest& request, ConnectGet& get);

}  // namespace lintel
