#include "client/lib/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace lintel {
namespace {

using File = TlsFileError::File;

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

Bio over(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string read(File which, const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw TlsFileError(which, "cannot read " + file + ": it is a directory");
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (file.empty() || !in) {
    throw TlsFileError(which, "cannot read " + file + ": " + std::strerror(errno));
  }
  return std::move(text).str();
}

// What a file without what was wanted holds, as far as can be seen.
std::string found_in(const std::string& pem) {
  if (pem.find("PRIVATE KEY-----") != std::string::npos) return "a private key";
  if (pem.find("-----BEGIN CERTIFICATE REQUEST") != std::string::npos) return "a request for one";
  if (pem.find("-----BEGIN CERTIFICATE") != std::string::npos) return "a certificate";
  return "nothing in PEM";
}

Certificate first_certificate(File which, const std::string& file, const std::string& pem) {
  ERR_clear_error();
  Certificate certificate(PEM_read_bio_X509_AUX(over(pem).get(), nullptr, nullptr, nullptr));
  if (certificate) return certificate;
  ERR_clear_error();
  const std::string found = found_in(pem);
  throw TlsFileError(which,
                     file + (found == "a certificate" ? " holds a certificate that is damaged"
                                                      : " holds no certificate but " + found));
}

Key private_key(const std::string& file, const std::string& pem) {
  ERR_clear_error();
  // No passphrase is asked for: gRPC could not use the key.
  const auto none = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(over(pem).get(), nullptr, none, nullptr));
  ERR_clear_error();
  if (key) return key;
  const std::string found = found_in(pem);
  throw TlsFileError(File::kKey, file + (found == "a private key"
                                             ? " holds a private key that is encrypted or damaged"
                                             : " holds no private key but " + found));
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> tls_credentials(const Tls& tls) {
  grpc::SslCredentialsOptions options;
  if (!tls.ca.empty()) {
    options.pem_root_certs = read(File::kCa, tls.ca);
    first_certificate(File::kCa, tls.ca, options.pem_root_certs);
  }
  if (!tls.certificate.empty()) {
    options.pem_cert_chain = read(File::kCertificate, tls.certificate);
    options.pem_private_key = read(File::kKey, tls.key);
    const Certificate certificate =
        first_certificate(File::kCertificate, tls.certificate, options.pem_cert_chain);
    const Key key = private_key(tls.key, options.pem_private_key);
    const bool belongs = X509_check_private_key(certificate.get(), key.get()) == 1;
    ERR_clear_error();
    if (!belongs) {
      throw TlsFileError(File::kKey, tls.key + " is not the key of " + tls.certificate);
    }
  }
  return grpc::SslCredentials(options);
}

}  // namespace lintel
