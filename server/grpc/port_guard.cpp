// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/port_guard.h"

#include <absl/status/status.h>
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "server/observability/logging.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/status.h"

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
  std::string_view path, token, request_id;
};

Headers headers_of(const grpc_metadata* metadata, std::size_t count) {
  const auto view = [](const grpc_slice& slice) {
    return std::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                            GRPC_SLICE_LENGTH(slice));
  };
  Headers headers;
  int tokens = 0, request_ids = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = view(metadata[i].key);
    if (key == ":path") headers.path = view(metadata[i].value);
    if (key == "x-request-id" && ++request_ids == 1) headers.request_id = view(metadata[i].value);
    if (key == "authorization" && ++tokens == 1) {
      headers.token = bearer_token(view(metadata[i].value));
    }
  }
  // An ambiguous header is no header, for every service alike.
  if (request_ids > 1) headers.request_id = {};
  if (tokens > 1) headers.token = {};
  return headers;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// The method of one of our services; null for another's.
const MethodInfo* method_of(std::string_view path) {
  for (const MethodInfo& method : kMethods) {
    if (!path.empty() && path.substr(1) == method.name) return &method;
  }
  return nullptr;
}

// Stands before all services. Ours look at tokens themselves, but only once gRPC has read a request
// into memory: strangers shall not have so much of it. Who calls cannot be handed on to them:
// gRPC's auth context is the connection's, and each call on it may have a token of its own.
struct Fence {
  static void process(void* self, grpc_auth_context*, const grpc_metadata* metadata,
                      std::size_t count, grpc_process_auth_metadata_done_cb done, void* user_data) {
    const Headers headers = headers_of(metadata, count);
    const grpc::Status status = static_cast<Fence*>(self)->check(headers);
    if (!status.ok()) static_cast<Fence*>(self)->record(headers, status);
    done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
         status.error_message().c_str());
  }

  grpc::Status check(const Headers& headers) const {
    if (starts_with(headers.path, "/grpc.health.v1.Health/")) return grpc::Status::OK;
    const MethodInfo* const ours = method_of(headers.path);
    if (ours != nullptr && ours->is_health) return grpc::Status::OK;
    Identity caller;
    grpc::Status known = identify(*tokens, headers.token, caller);
    if (!known.ok()) return known;
    if (starts_with(headers.path, "/grpc.channelz.") && !caller.roles.has(Role::kAdmin)) {
      return permission_denied("this needs the role admin");
    }
    return known;
  }

  // A refused call reaches no CallScope.
  void record(const Headers& headers, const grpc::Status& status) const {
    const MethodInfo* const ours = method_of(headers.path);
    if (ours == nullptr) return;
    LogFields fields;
    fields.add("request_id", request_id_from(headers.request_id));
    fields.add("method", ours->name);
    record_end(counters, {.method = ours->method}, status, fields);
  }

  const std::shared_ptr<const BearerTokens> tokens;
  RequestCounters& counters;
};

// Credentials made with gRPC's C interface, for the C++ server builder.
class PortCredentials final : public grpc::ServerCredentials {
 public:
  PortCredentials(std::shared_ptr<Certificates> certificates,
                  std::shared_ptr<const BearerTokens> tokens, LocalPort local_port,
                  RequestCounters& counters)
      : fetcher_(certificates), fence_{std::move(tokens), counters} {
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

  // Members that credentials_ uses, and which therefore stand before it.
  CertificateFetcher fetcher_;
  Fence fence_;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> port_credentials(
    std::shared_ptr<Certificates> certificates, std::shared_ptr<const BearerTokens> tokens,
    LocalPort local_port, RequestCounters& counters) {
  if (certificates == nullptr && tokens == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<PortCredentials>(std::move(certificates), std::move(tokens), local_port,
                                           counters);
}

// gRPC 1.51 keeps what came of a header field whose end has not come, and goes through all of it
// again with every piece that follows (CVE-2023-33953): a field that is announced as 2 GiB and
// comes in CONTINUATION frames takes memory that no quota counts, and time that grows with its
// square; 20 MiB keep a processor busy for 15 s. Versions from 1.53.2 on bound it themselves.
//
// libgrpc calls this function of its own through the dynamic linker, which finds ours first. Ours
// looks at the length, and passes on what is honest. It belongs to gRPC 1.51 alone: the build
// leaves it out of others.
namespace {

// gRPC's bound is on what has come in whole. Huffman's code has up to 30 bits for a byte; a piece
// is as long as one read.
constexpr std::size_t kMostCodedBytes = 4;
constexpr std::size_t kLongestPiece = std::size_t{64} << 10;

std::atomic<std::size_t> max_unparsed_bytes{0};  // no server yet

}  // namespace

void guard_header_fields(int max_metadata_bytes) {
  const std::size_t wanted =
      kMostCodedBytes * static_cast<std::size_t>(max_metadata_bytes) + kLongestPiece;
  max_unparsed_bytes.store(std::max(max_unparsed_bytes.load(), wanted));
}

#if LINTEL_GUARD_HEADERS

// The head of grpc_core::HPackParser::Input: what is left of before, and the piece that came.
struct HeaderInput {
  void* slice_refcount;
  const std::uint8_t* begin;
  const std::uint8_t* end;
};

// grpc_core::HPackParser::ParseInput(HPackParser::Input, bool). The Itanium ABI passes an object
// with a destructor by its address.
#define LINTEL_PARSE_INPUT "_ZN9grpc_core11HPackParser10ParseInputENS0_5InputEb"
__attribute__((visibility("default"))) absl::Status guarded_parse_input(
    void* parser, HeaderInput* input, bool is_last) __asm__(LINTEL_PARSE_INPUT);

absl::Status guarded_parse_input(void* parser, HeaderInput* input, bool is_last) {
  using ParseInput = absl::Status (*)(void*, HeaderInput*, bool);
  static const auto original = reinterpret_cast<ParseInput>(::dlsym(RTLD_NEXT, LINTEL_PARSE_INPUT));
  const std::size_t bound = max_unparsed_bytes.load(std::memory_order_relaxed);
  if (bound != 0 && static_cast<std::size_t>(input->end - input->begin) > bound) {
    return absl::ResourceExhaustedError("a header field without an end");
  }
  return original(parser, input, is_last);
}

#endif

}  // namespace lintel
