// SPDX-License-Identifier: Apache-2.0
#include "server/security/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace lintel {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  ERR_clear_error();
  throw std::runtime_error(file.string() + ": " + why);
}

std::string read_pem(const std::filesystem::path& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) fail(file, std::string("cannot be read: ") + std::strerror(errno == 0 ? EIO : errno));
  return std::move(text).str();
}

bool holds(const std::string& pem, const char* what) { return pem.find(what) != std::string::npos; }

Bio bio_of(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// The first certificate of a file.
Certificate first_certificate(const std::filesystem::path& file, const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(bio_of(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    fail(file, holds(pem, "PRIVATE KEY-----")
                   ? "holds a private key, no PEM certificate (--tls-key is for the key)"
                   : "holds no PEM certificate");
  }
  return certificate;
}

// OpenSSL would ask on the terminal for the password of an encrypted key; a server has none.
int no_password(char*, int, int, void*) { return -1; }

}  // namespace

CertificateBundle read_certificates(const CertificatePaths& paths) {
  CertificateBundle bundle;
  bundle.certificate = read_pem(paths.certificate);
  bundle.key = read_pem(paths.key);
  const Certificate certificate = first_certificate(paths.certificate, bundle.certificate);
  const Key key(PEM_read_bio_PrivateKey(bio_of(bundle.key).get(), nullptr, &no_password, nullptr));
  if (key == nullptr) {
    fail(paths.key,
         holds(bundle.key, "ENCRYPTED")
             ? "holds a private key with a password, and the server needs one without"
         : holds(bundle.key, "BEGIN CERTIFICATE")
             ? "holds a certificate, no PEM private key (--tls-cert is for the certificate)"
             : "holds no PEM private key without a password");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    fail(paths.key, "is not the key of " + paths.certificate.string());
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    spdlog::warn("{}: the certificate has expired", paths.certificate.string());
  }
  if (!paths.client_ca.empty()) {
    bundle.client_ca = read_pem(paths.client_ca);
    first_certificate(paths.client_ca, bundle.client_ca);
  }
  return bundle;
}

Certificates::Certificates(CertificatePaths paths) : paths_(std::move(paths)) {
  // Stamps are taken first: a change while the files are read is found the next time.
  Stamps before = stamps();
  CertificateBundle bundle = read_certificates(paths_);
  MutexLock lock(mutex_);
  stamps_ = before;
  bundle_ = std::move(bundle);
  version_ = 1;
}

Certificates::Stamps Certificates::stamps() const {
  return {FileStamp::of(paths_.certificate), FileStamp::of(paths_.key),
          FileStamp::of(paths_.client_ca)};
}

bool Certificates::reload_if_changed() {
  const Stamps now = stamps();
  {
    MutexLock lock(mutex_);
    if (now == stamps_) return false;
  }
  try {
    CertificateBundle bundle = read_certificates(paths_);
    MutexLock lock(mutex_);
    bundle_ = std::move(bundle);
    ++version_;
    stamps_ = now;  // only now: files that could not be read are tried again
    failed_.reset();
  } catch (const std::exception& error) {
    MutexLock lock(mutex_);
    if (std::exchange(failed_, now) == now) return false;
    spdlog::error("certificates not reloaded, the old ones stay: {}", error.what());
    return false;
  }
  spdlog::info("certificates reloaded from {}", paths_.certificate.string());
  return true;
}

CertificateBundle Certificates::current(std::uint64_t* version) const {
  MutexLock lock(mutex_);
  *version = version_;
  return bundle_;
}

std::uint64_t Certificates::version() const {
  MutexLock lock(mutex_);
  return version_;
}

}  // namespace lintel
