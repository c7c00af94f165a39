#include "server/port_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "server/certificates.h"

namespace lintel {
namespace {

// Hands the current certificates to gRPC, which asks at every handshake.
class CertificateFetcher {
 public:
  explicit CertificateFetcher(std::shared_ptr<Certificates> certificates)
      : certificates_(std::move(certificates)) {}

  static grpc_ssl_certificate_config_reload_status fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<CertificateFetcher*>(self)->fetch(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status fetch(grpc_ssl_server_certificate_config** config) {
    if (certificates_->version() == fetched_.load())
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    std::uint64_t version = 0;
    const CertificateBundle bundle = certificates_->current(&version);
    const grpc_ssl_pem_key_cert_pair pair = {bundle.key.c_str(), bundle.certificate.c_str()};
    // gRPC insists on an authority, also where no client certificate is asked for: any will do
    // then.
    const std::string& roots = bundle.client_ca.empty() ? bundle.certificate : bundle.client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    fetched_.store(version);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<Certificates> certificates_;
  std::atomic<std::uint64_t> fetched_{0};  // version
};

// Credentials made with gRPC's C interface, for the C++ server builder.
class PortCredentials final : public grpc::ServerCredentials {
 public:
  explicit PortCredentials(std::shared_ptr<Certificates> certificates) : fetcher_(certificates) {
    // Without the files' CA no client certificate is asked for.
    const auto request = certificates->needs_client_certificate()
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            request, &CertificateFetcher::fetch, &fetcher_));
  }
  ~PortCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  CertificateFetcher fetcher_;  // before credentials_, which asks it
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> tls_credentials(
    std::shared_ptr<Certificates> certificates) {
  return std::make_shared<PortCredentials>(std::move(certificates));
}

}  // namespace lintel
