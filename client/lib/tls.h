// The files of an encrypted channel.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace lintel {

// PEM files. With a ca or a certificate the channel is encrypted and the server has to show a
// certificate for the address it is called by; with neither it is plain text.
struct Tls {
  std::string ca;           // who signs the server's certificate; empty: the system's authorities
  std::string certificate;  // ours, for servers that ask for one; with its key
  std::string key;
  bool enabled() const { return !ca.empty() || !certificate.empty(); }
};

// A file of Tls that cannot be read, or holds something else. gRPC would say of it that the server
// cannot be reached.
class TlsFileError : public std::runtime_error {
 public:
  enum class File { kCa, kCertificate, kKey };
  TlsFileError(File which, const std::string& what) : std::runtime_error(what), which_(which) {}
  File which() const { return which_; }

 private:
  File which_;
};

// Throws TlsFileError, also for a key that is not the certificate's.
std::shared_ptr<grpc::ChannelCredentials> tls_credentials(const Tls& tls);

}  // namespace lintel
