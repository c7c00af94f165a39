// SPDX-License-Identifier: Apache-2.0
// Guards of the gRPC port: TLS, tokens, and the length of header fields.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/rpc/call_scope.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"

namespace lintel {

// TLS with certificates: every handshake takes the current ones. gRPC's C++ interface has
// credentials that never change or that stop serving when a file is bad for a moment; these keep
// the last good ones. Plain text without certificates.
//
// Tokens, if given, are needed for every call but those of health. A call without one is refused by
// its headers, before gRPC takes its request into memory. Reflection and channelz need a token too,
// channelz one with the role admin. CallScope says which roles calls of our services need. Refused
// calls of our services are counted.
//
// Both may be null. The credentials outlive the server: it asks them, and keeps no hold on them.
// `local_plain_text` is needed where there are tokens and no certificates: the port is a loopback
// address or a unix socket.
enum class LocalPort { kTcp, kUnixSocket };
std::shared_ptr<grpc::ServerCredentials> port_credentials(
    std::shared_ptr<Certificates> certificates, std::shared_ptr<const BearerTokens> tokens,
    LocalPort local_port, RequestCounters& counters);

// Closes connections, from now on, when a header field is longer than the longest coding of
// `max_metadata_bytes`. Applies to the whole process: its servers share the largest bound that was
// asked for. Thread-safe.
void guard_header_fields(int max_metadata_bytes);

}  // namespace lintel
