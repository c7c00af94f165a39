// SPDX-License-Identifier: Apache-2.0
#include "client/lib/channel.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "model/core/ca_certificates.h"

namespace lintel {
namespace {

bool is_ip(const std::string& host) {
  in_addr ipv4{};
  return host.front() == '[' || inet_pton(AF_INET, host.c_str(), &ipv4) == 1;
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (address.rfind("unix", 0) == 0 || address.find("://") != std::string::npos ||
      colon == std::string::npos || colon == 0) {
    return {};
  }
  const std::string host = address.substr(0, colon), port = address.substr(colon);
  if (is_ip(host)) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  std::vector<std::string> all;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string ip = text.data();
    std::string one = (at->ai_family == AF_INET6 ? "[" + ip + "]" : ip) + port;
    if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(std::move(one));
  }
  ::freeaddrinfo(found);
  return all;
}

namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool is_ipv6(const std::string& host) {
  in6_addr ipv6{};
  return inet_pton(AF_INET6, host.c_str(), &ipv6) == 1;
}

[[noreturn]] void refuse(const std::string& address, const std::string& why) {
  throw std::invalid_argument("'" + address + "': " + why);
}

void check_port(const std::string& address, std::string_view port) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535) {
    refuse(address, "the port '" + std::string(port) + "' is not from 1 to 65535");
  }
}

// "HOST:PORT"; a port that is missing is `port`, or refused where that is empty.
std::string host_and_port(const std::string& address, const std::string& port) {
  const auto has_no_place = [](char c) { return c <= ' ' || c > '~' || c == '/' || c == '@'; };
  if (std::any_of(address.begin(), address.end(), has_no_place)) {
    refuse(address, "expected HOST:PORT, and nothing else");
  }
  std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (is_ipv6(address)) {  // without brackets there is no telling a port
    colon = std::string::npos;
    host = "[" + address + "]";
  } else if (starts_with(address, "[")) {
    const std::size_t close = address.find(']');
    if (close == std::string::npos || !is_ipv6(address.substr(1, close - 1)) ||
        (close + 1 < address.size() && address[close + 1] != ':')) {
      refuse(address, "expected [IPV6]:PORT");
    }
    host = address.substr(0, close + 1);
    colon = close + 1 < address.size() ? close + 1 : std::string::npos;
  } else if (host.find(':') != std::string::npos) {
    refuse(address, "expected HOST:PORT, and an IPv6 address in brackets: [::1]:PORT");
  }
  if (host.empty()) refuse(address, "expected HOST:PORT; the host is missing");
  if (colon != std::string::npos) {
    check_port(address, std::string_view(address).substr(colon + 1));
    return address;
  }
  if (port.empty()) refuse(address, "expected HOST:PORT; the port is missing");
  return host + ":" + port;
}

}  // namespace

std::string full_address(const std::string& address) {
  if (address.empty()) refuse(address, "expected HOST:PORT or unix:PATH");
  if (starts_with(address, "unix:") || starts_with(address, "unix-abstract:")) return address;
  const std::size_t scheme = address.find("://");
  if (scheme != std::string::npos) {
    const std::string name = address.substr(0, scheme);
    // gRPC's own ways of naming servers are its own to judge.
    if (name == "dns" || name == "ipv4" || name == "ipv6") return address;
    refuse(address, "expected HOST:PORT or unix:PATH, without " + address.substr(0, scheme + 3) +
                        (name == "https" ? "; what encrypts is a file of authorities (CA)" : ""));
  }
  return host_and_port(address, kDefaultPort);
}

std::vector<std::string> full_addresses(const std::string& addresses) {
  if (addresses.find("://") != std::string::npos) return {full_address(addresses)};
  std::vector<std::string> all;
  for (std::size_t begin = 0;;) {
    const std::size_t comma = addresses.find(',', begin);
    const std::string one = full_address(addresses.substr(begin, comma - begin));
    if (std::find(all.begin(), all.end(), one) != all.end()) refuse(one, "is given twice");
    all.push_back(one);
    if (comma == std::string::npos) return all;
    begin = comma + 1;
  }
}

std::string proxy_address(const std::string& proxy) {
  constexpr std::string_view kScheme = "http://";
  std::string address = starts_with(proxy, kScheme) ? proxy.substr(kScheme.size()) : proxy;
  if (!address.empty() && address.back() == '/') address.pop_back();
  if (address.find("://") != std::string::npos) {
    refuse(proxy, "expected HOST:PORT of an HTTP proxy");
  }
  return host_and_port(address, /*port=*/"");
}

bool is_local_address(const std::string& address) {
  if (starts_with(address, "unix:") || starts_with(address, "unix-abstract:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr ipv4{};
  return inet_pton(AF_INET, host.c_str(), &ipv4) == 1 && ntohl(ipv4.s_addr) >> 24 == 127;
}

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

// Names the contents of a file that lacks the expected PEM block, as far as can be seen.
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
  // Without any, those that gRPC knows.
  const std::string ca = tls.ca.empty() ? ca_file() : tls.ca;
  if (!ca.empty()) {
    options.pem_root_certs = read(File::kCa, ca);
    first_certificate(File::kCa, ca, options.pem_root_certs);
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

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Tls& tls,
                                            bool sends_token, const std::string& proxy,
                                            grpc::ChannelArguments arguments) {
  if (tls.certificate.empty() != tls.key.empty()) {
    throw std::invalid_argument("a client certificate and its key belong together");
  }
  const bool local = is_local_address(address);
  const bool through_proxy = !proxy.empty() && !local;
  if (sends_token && !tls.enabled() && (!local || through_proxy)) {
    throw std::invalid_argument("the token would go to " + (through_proxy ? proxy : address) +
                                " in plain text: use TLS (a CA file)");
  }
  // A chunk with the N best of many tokens can pass gRPC's 4 MB; the server bounds what it sends.
  arguments.SetMaxReceiveMessageSize(-1);
  // Left alone, gRPC would take http_proxy from the environment, for loopback addresses as well.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, through_proxy ? 1 : 0);
  if (through_proxy) arguments.SetString(GRPC_ARG_HTTP_PROXY, "http://" + proxy);
  return grpc::CreateCustomChannel(
      address, tls.enabled() ? tls_credentials(tls) : grpc::InsecureChannelCredentials(),
      arguments);
}

}  // namespace lintel
