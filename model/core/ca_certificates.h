// SPDX-License-Identifier: Apache-2.0
// The certificate authorities of the system, for programs whose TLS library was built for another
// one.
#pragma once

#include <string>

namespace lintel {

// The PEM file of trusted authorities: $SSL_CERT_FILE where that is set, as OpenSSL and curl take
// it, else that of Debian or of Fedora, the one that is there. Empty: there is none, and the TLS
// library knows best.
std::string ca_file();

}  // namespace lintel
