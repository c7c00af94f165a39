// SPDX-License-Identifier: Apache-2.0
// RpcFormat: how a request to a method is written, and its answer will be.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"

namespace lintel {

// Envelopes: messages one after the other in a body, as Connect's streams and gRPC-Web have them.

// A byte of flags, the length as four bytes, most significant first, and so many bytes.
inline constexpr std::size_t kEnvelopeHead = 5;
inline constexpr std::uint8_t kCompressed = 0x01;
inline constexpr std::uint8_t kEndOfStream = 0x02;  // Connect: JSON about how it ended
inline constexpr std::uint8_t kTrailers = 0x80;     // gRPC-Web: lines of trailers

std::string envelope(std::uint8_t flags, std::string_view message);

// The message of a body that is one envelope, as a request is. False where it is anything else, and
// `why` says what.
bool open_envelope(std::string_view body, std::string_view* message, std::string* why);

// Base64 in one piece or several, each with its padding, as gRPC-Web's text form has it. False for
// anything else.
bool decode_base64(std::string_view text, std::string* bytes);

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

  // The answer's content type.
  std::string content_type() const;
};

// The format that the header content-type names for a method that streams its answer, or does not.
// `curl -d` says that it sends a form; that counts as JSON if the client is no browser (it sends no
// Origin: a page may send forms anywhere without being asked).
RpcFormat rpc_format(const HttpRequest& request, bool server_streaming);

// The encoding or protocol version that keeps a request from being read; empty: none.
std::string unsupported_header(const HttpRequest& request, const RpcFormat& format);

// connect-timeout-ms or grpc-timeout. Nothing: none is set. `valid`: false where it makes no sense.
std::optional<std::chrono::milliseconds> rpc_timeout(const HttpRequest& request,
                                                     const RpcFormat& format, bool* valid);

// Errors of calls, as each protocol's clients read them.

// Connect's JSON of an error: {"code": "not_found", "message": ..., "details": [...]}
// (https://connectrpc.com/docs/protocol#error-end-stream).
std::string connect_error_json(const grpc::Status& status);

// The end of a gRPC-Web answer: grpc-status, grpc-message and grpc-status-details-bin, a line each.
HttpHeaders grpc_trailers(const grpc::Status& status);

// An answer that is an error and nothing else, in the shape that a request of this format expects.
HttpAnswer rpc_refusal(const RpcFormat& format, int http_status, const grpc::Status& status);
// The same with the HTTP status of the call's status.
HttpAnswer rpc_refusal(const RpcFormat& format, const grpc::Status& status);

}  // namespace lintel
