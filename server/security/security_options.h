// SecurityOptions: authentication of callers and of the server.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lintel {

struct SecurityOptions {
  std::filesystem::path tls_cert, tls_key;  // both empty: plain text
  std::filesystem::path tls_client_ca;      // not empty: clients need a certificate signed by it
  // Names of certificates with the role admin, where there are no tokens.
  std::vector<std::string> admin_certificates;
  bool insecure_public = false;       // plain text beyond this machine
  std::filesystem::path auth_tokens;  // BearerTokenTable; empty: no token is asked for
  bool tls() const { return !tls_cert.empty(); }
};

}  // namespace lintel
