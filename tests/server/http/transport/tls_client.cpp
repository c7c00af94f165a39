// SPDX-License-Identifier: Apache-2.0
#include "tests/server/http/transport/tls_client.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/catch.h"

namespace lintel::testing {

TlsClient::TlsClient(const CertificateAuthority& trusted, const IssuedCertificate* own)
    : context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  REQUIRE(SSL_CTX_load_verify_locations(context, trusted.ca().c_str(), nullptr) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  static constexpr unsigned char kProtocols[] = "\x02h2\x08http/1.1";
  REQUIRE(SSL_CTX_set_alpn_protos(context, kProtocols, sizeof(kProtocols) - 1) == 0);
  if (own != nullptr) {
    REQUIRE(SSL_CTX_use_certificate_chain_file(context, own->certificate.c_str()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(context, own->key.c_str(), SSL_FILETYPE_PEM) == 1);
  }
  SSL_CTX_set_app_data(context, this);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
  SSL_CTX_sess_set_new_cb(context, [](SSL* ssl, SSL_SESSION* session) {
    auto* const self = static_cast<TlsClient*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
    self->session_ = std::shared_ptr<SSL_SESSION>(session, &SSL_SESSION_free);
    return 1;  // it is ours
  });
}

void TlsClient::use_tls_1_2() {
  REQUIRE(SSL_CTX_set_max_proto_version(context_.get(), TLS1_2_VERSION) == 1);
}

void TlsClient::resume() { resumes_ = true; }

void TlsClient::note_problem() {
  const unsigned long code = ERR_get_error();
  if (code == 0 || !problem_.empty()) return;
  char text[256];
  ERR_error_string_n(code, text, sizeof(text));
  problem_ = text;
}

Wire TlsClient::wire(int port, int receive_buffer_bytes) {
  const int fd = connect_to(port, receive_buffer_bytes);
  const timeval minute{60, 0};  // for broken code, not for slow machines
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  const std::shared_ptr<SSL> ssl(SSL_new(context_.get()), &SSL_free);
  SSL_set_fd(ssl.get(), fd);
  SSL_set1_host(ssl.get(), "localhost");
  if (resumes_ && session_ != nullptr) SSL_set_session(ssl.get(), session_.get());
  problem_.clear();
  ERR_clear_error();
  const bool connected = SSL_connect(ssl.get()) == 1;
  if (!connected) note_problem();
  resumed_ = SSL_session_reused(ssl.get()) == 1;
  const unsigned char* chosen = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl.get(), &chosen, &size);
  protocol_.assign(reinterpret_cast<const char*>(chosen), size);
  return {[ssl, connected](std::string_view bytes) {
            if (connected) SSL_write(ssl.get(), bytes.data(), static_cast<int>(bytes.size()));
          },
          [this, ssl, connected] {
            std::string bytes(16384, '\0');
            ERR_clear_error();
            const int read =
                connected ? SSL_read(ssl.get(), bytes.data(), static_cast<int>(bytes.size())) : 0;
            if (read <= 0) note_problem();
            bytes.resize(static_cast<std::size_t>(std::max(read, 0)));
            return bytes;
          },
          [ssl, fd] {
            // A connection that was not shut down is not resumed.
            SSL_set_quiet_shutdown(ssl.get(), 1);
            SSL_shutdown(ssl.get());
            ::close(fd);
          }};
}

}  // namespace lintel::testing
