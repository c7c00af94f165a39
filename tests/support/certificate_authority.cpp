// SPDX-License-Identifier: Apache-2.0
#include "tests/support/certificate_authority.h"

#include <cstdlib>
#include <stdexcept>

namespace lintel::testing {
namespace {

const std::string kNewKey = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";

void openssl(const std::string& arguments) {
  const std::string command = "openssl " + arguments + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

}  // namespace

CertificateAuthority::CertificateAuthority() : ca_(directory_.path() / "ca.pem") {
  openssl("req -x509 " + kNewKey + "-days 2 -subj /CN=Test -keyout " + ca_ + ".key -out " + ca_);
}

IssuedCertificate CertificateAuthority::issue(const std::string& name, int days) const {
  const std::string stem = directory_.path() / name;
  const IssuedCertificate issued = {stem + ".pem", stem + ".key"};
  openssl("req " + kNewKey + "-subj /CN=" + name + " -addext subjectAltName=DNS:" + name +
          ",DNS:localhost,IP:127.0.0.1 -keyout " + issued.key + " -out " + stem + ".csr");
  openssl("x509 -req -in " + stem + ".csr -CA " + ca_ + " -CAkey " + ca_ +
          ".key -CAcreateserial -copy_extensions copy -days " + std::to_string(days) + " -out " +
          issued.certificate);
  return issued;
}

}  // namespace lintel::testing
