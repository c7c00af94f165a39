// SPDX-License-Identifier: Apache-2.0
// TlsContexts: OpenSSL's side of the certificates that the server shows and trusts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/core/mutex.h"
#include "server/security/certificates.h"

typedef struct ssl_st SSL;

namespace boost::asio::ssl {
class context;
}

namespace lintel {

// Thread-safe.
class TlsContexts {
 public:
  explicit TlsContexts(std::shared_ptr<Certificates> certificates);
  ~TlsContexts();

  // The context of the current certificates, for a handshake that begins now. Throws OpenSSL's
  // error if it refuses them.
  std::shared_ptr<boost::asio::ssl::context> current() EXCLUDES(mutex_);

 private:
  const std::shared_ptr<Certificates> certificates_;
  Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_ GUARDED_BY(mutex_);
  std::uint64_t version_ GUARDED_BY(mutex_) = 0;
};

// The name in the certificate that the client showed, as gRPC's port has it: the first subject
// alternative name (DNS, e-mail, URI or address), without any the common name; empty without a
// certificate.
std::string certificate_name(const SSL* connection);

}  // namespace lintel
