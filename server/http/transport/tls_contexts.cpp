// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/tls_contexts.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <utility>

namespace lintel {
namespace {

namespace ssl = boost::asio::ssl;

std::string text_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string address_of(const ASN1_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  ::inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text));
  return text;
}

std::string alternative_name(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    switch (name->type) {
      case GEN_DNS:
      case GEN_EMAIL:
      case GEN_URI:
        return text_of(name->d.ia5);
      case GEN_IPADD:
        return address_of(name->d.iPAddress);
      default:
        break;
    }
  }
  return {};
}

std::string common_name(const X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return {};
  unsigned char* utf8 = nullptr;
  const int size =
      ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size < 0) return {};
  const std::string name(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(size));
  OPENSSL_free(utf8);
  return name;
}

// Clients that ask for HTTP/2 as well get HTTP/1.1. Those that ask for nothing else, as gRPC's do,
// get it, to hear in their own words that they want the other port.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kKnown[] = "\x08http/1.1\x02h2";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_size, kKnown, sizeof(kKnown) - 1, offered,
                            offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

std::shared_ptr<ssl::context> context_of(const CertificateBundle& bundle) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 |
                       ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION);
  context->use_certificate_chain(boost::asio::buffer(bundle.certificate));
  context->use_private_key(boost::asio::buffer(bundle.key), ssl::context::pem);
  if (!bundle.client_ca.empty()) {
    context->add_certificate_authority(boost::asio::buffer(bundle.client_ca));
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
    // Sessions that are resumed belong to who shows the same certificates.
    static constexpr unsigned char kId[] = "lintel";
    SSL_CTX_set_session_id_context(context->native_handle(), kId, sizeof(kId) - 1);
  }
  SSL_CTX_set_alpn_select_cb(context->native_handle(), &choose_protocol, nullptr);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  return context;
}

}  // namespace

TlsContexts::TlsContexts(std::shared_ptr<Certificates> certificates)
    : certificates_(std::move(certificates)) {}

TlsContexts::~TlsContexts() = default;

std::shared_ptr<ssl::context> TlsContexts::current() {
  const MutexLock lock(mutex_);
  if (context_ == nullptr || version_ != certificates_->version()) {
    std::uint64_t version = 0;
    context_ = context_of(certificates_->current(&version));
    version_ = version;
  }
  return context_;
}

std::string certificate_name(const SSL* connection) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(connection), &X509_free);
  if (certificate == nullptr) return {};
  const std::string name = alternative_name(certificate.get());
  return name.empty() ? common_name(certificate.get()) : name;
}

}  // namespace lintel
