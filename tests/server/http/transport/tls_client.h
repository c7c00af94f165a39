// SPDX-License-Identifier: Apache-2.0
// TlsClient: HTTPS connections of one client, for tests of who is served and who is not.
#pragma once

#include <memory>
#include <string>

#include "tests/server/support/http_client.h"
#include "tests/support/certificate_authority.h"

typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_session_st SSL_SESSION;

namespace lintel::testing {

// Trusts one authority for "localhost", and offers HTTP/2 before HTTP/1.1 as browsers do. Its wires
// must not outlive it.
class TlsClient {
 public:
  // `own`: the certificate that it shows where it is asked for one.
  explicit TlsClient(const CertificateAuthority& trusted, const IssuedCertificate* own = nullptr);
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // Connects and shakes hands. A wire whose handshake failed reads nothing. In TLS 1.3 a client
  // that is refused hears of it at its first read.
  Wire wire(int port, int receive_buffer_bytes = 0);

  void use_tls_1_2();  // and no later one
  void resume();       // from now on, where the server gave it a session to resume

  // Properties of the last wire:
  const std::string& problem() const { return problem_; }    // OpenSSL's word; empty: none
  const std::string& protocol() const { return protocol_; }  // "http/1.1"; empty: none was chosen
  bool resumed() const { return resumed_; }

 private:
  void note_problem();

  std::shared_ptr<SSL_CTX> context_;
  std::shared_ptr<SSL_SESSION> session_;  // the last that a server gave
  bool resumes_ = false, resumed_ = false;
  std::string problem_, protocol_;
};

}  // namespace lintel::testing
