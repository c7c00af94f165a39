// SPDX-License-Identifier: Apache-2.0
// Certificates for tests, made when they are needed. Nothing secret, and nothing to expire, in the
// repository.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/temporary_directory.h"

namespace lintel::testing {

struct IssuedCertificate {
  std::string certificate, key;  // paths
};

// An authority of its own; uses the openssl command.
class CertificateAuthority {
 public:
  CertificateAuthority();

  const std::string& ca() const { return ca_; }  // path of its certificate
  // A certificate for DNS:localhost and IP:127.0.0.1, and `name`. Not more than `days` from now; a
  // negative number makes one that has expired.
  IssuedCertificate issue(const std::string& name, int days = 2) const;

 private:
  TemporaryDirectory directory_;
  std::string ca_;
};

}  // namespace lintel::testing
