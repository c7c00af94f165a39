// SPDX-License-Identifier: Apache-2.0
#include "model/core/ca_certificates.h"

#include <unistd.h>

#include <cstdlib>

namespace lintel {

std::string ca_file() {
  const char* const named = std::getenv("SSL_CERT_FILE");
  if (named != nullptr && *named != '\0') return named;
  for (const char* const file : {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Arch, Alpine
                                 "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
                                 "/etc/ssl/ca-bundle.pem"}) {           // openSUSE
    if (access(file, R_OK) == 0) return file;
  }
  return {};
}

}  // namespace lintel
