#include "server/port_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "server/call_scope.h"
#include "server/status.h"

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

// The call's path and token, as gRPC has them before any service sees the call.
struct Headers {
  std::string_view path, token;
};

Headers headers_of(const grpc_metadata* metadata, std::size_t count) {
  const auto view = [](const grpc_slice& slice) {
    return std::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                            GRPC_SLICE_LENGTH(slice));
  };
  Headers headers;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = view(metadata[i].key);
    if (key == ":path") headers.path = view(metadata[i].value);
    if (key == "authorization") headers.token = bearer_token(view(metadata[i].value));
  }
  return headers;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Stands before the services that cannot look at tokens themselves.
struct Fence {
  static void process(void* self, grpc_auth_context*, const grpc_metadata* metadata,
                      std::size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
    const grpc::Status status = static_cast<Fence*>(self)->check(headers_of(metadata, count));
    done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
         status.error_message().c_str());
  }

  grpc::Status check(const Headers& headers) const {
    if (starts_with(headers.path, "/grpc.health.v1.Health/")) return grpc::Status::OK;
    for (const char* const ours : {"/lintel.v1.", "/inference.GRPCInferenceService/"}) {
      if (starts_with(headers.path, ours)) return grpc::Status::OK;
    }
    const auto caller = headers.token.empty() ? std::nullopt : tokens->find(headers.token);
    if (!caller) return unauthenticated("a token is needed: authorization: Bearer TOKEN");
    if (starts_with(headers.path, "/grpc.channelz.") && !caller->roles.has(Role::kAdmin)) {
      return permission_denied("this needs the role admin");
    }
    return grpc::Status::OK;
  }

  const std::shared_ptr<const Tokens> tokens;
};

// Credentials made with gRPC's C interface, for the C++ server builder.
class PortCredentials final : public grpc::ServerCredentials {
 public:
  PortCredentials(std::shared_ptr<Certificates> certificates, std::shared_ptr<const Tokens> tokens,
                  LocalPort local_port)
      : fetcher_(certificates), fence_{std::move(tokens)} {
    if (certificates == nullptr) {
      credentials_ =
          grpc_local_server_credentials_create(local_port == LocalPort::kTcp ? LOCAL_TCP : UDS);
    } else {
      const auto request = certificates->needs_client_certificate()
                               ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                               : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
      credentials_ = grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              request, &CertificateFetcher::fetch, &fetcher_));
    }
    if (fence_.tokens != nullptr) {
      grpc_server_credentials_set_auth_metadata_processor(
          credentials_, {&Fence::process, /*destroy=*/nullptr, &fence_});
    }
  }
  ~PortCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Before credentials_, which asks them.
  CertificateFetcher fetcher_;
  Fence fence_;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> port_credentials(
    std::shared_ptr<Certificates> certificates, std::shared_ptr<const Tokens> tokens,
    LocalPort local_port) {
  if (certificates == nullptr && tokens == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<PortCredentials>(std::move(certificates), std::move(tokens), local_port);
}

}  // namespace lintel
