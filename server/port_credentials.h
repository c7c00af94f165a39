// How the server's port is secured.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace lintel {

class Certificates;

// TLS with these certificates; every handshake takes the current ones. gRPC's C++ interface has
// credentials that never change or that stop serving when a file is bad for a moment; these keep
// what was good. They outlive the server: it asks them, and keeps no hold on them.
std::shared_ptr<grpc::ServerCredentials> tls_credentials(
    std::shared_ptr<Certificates> certificates);

}  // namespace lintel
