// SPDX-License-Identifier: Apache-2.0
// How the server's port is secured.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/rpc/call_scope.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"

namespace lintel {

// With certificates TLS: every handshake takes the current ones. gRPC's C++ interface has
// credentials that never change or that stop serving when a file is bad for a moment; these keep
// what was good. Without, plain text.
//
// With tokens, every call but those of health needs one, and is refused by its headers, before gRPC
// takes its request into memory. Reflection and channelz need one too, channelz one with the role
// admin. What roles a caller of ours needs CallScope says. Refused calls of ours are counted.
//
// Both may be null. The credentials outlive the server: it asks them, and keeps no hold on them.
// `local_plain_text` is needed where there are tokens and no certificates: the port is a loopback
// address or a unix socket.
enum class LocalPort { kTcp, kUnixSocket };
std::shared_ptr<grpc::ServerCredentials> port_credentials(
    std::shared_ptr<Certificates> certificates, std::shared_ptr<const BearerTokens> tokens,
    LocalPort local_port, RequestCounters& counters);

}  // namespace lintel
