// SPDX-License-Identifier: Apache-2.0
// The way to a server: plain text, TLS or mutual TLS, straight or through a proxy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace lintel {

// The servers behind one name.

// "10.0.0.1:50051" and "10.0.0.2:50051" of "lintel.example:50051": every address that the name has,
// in the order of the system's resolver. Empty for what is no name (an IP address, a unix socket,
// gRPC's own ways of naming servers) and where nothing is found. Waits for the resolver.
std::vector<std::string> addresses_of(const std::string& address);

// Addresses of servers, as people write them.

inline constexpr const char* kDefaultPort = "50051";

// "HOST:PORT", "[IPV6]:PORT" or "unix:PATH" of an address that may lack its port, which is then
// 50051. Throws std::invalid_argument, saying what was expected, for what is no address: a URL, an
// empty host, a port that is none.
std::string full_address(const std::string& address);

// The addresses of several servers of which each will do, with commas between them. An address in
// gRPC's own way ("ipv4:///...") has its own commas.
std::vector<std::string> full_addresses(const std::string& addresses);

// The full address of an HTTP proxy: "HOST:PORT", which may begin with "http://". The port has to
// be there.
std::string proxy_address(const std::string& proxy);

// True if an address ("HOST:PORT", "[::1]:PORT", "unix:PATH") does not leave this machine. Names
// but localhost are taken to leave it.
bool is_local_address(const std::string& address);

// The files of an encrypted channel.

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

// `address` is one of full_address(). `proxy` is one of proxy_address(), of an HTTP proxy that
// CONNECT is sent to, or empty: none, regardless of the environment. An address on this machine is
// never called through it.
//
// Throws std::invalid_argument for a certificate without a key or the reverse, and when a token
// would go in plain text to another machine, which a proxy is; TlsFileError for a file.
// `arguments`: the caller's own, for channels that are used unlike a client's.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Tls& tls,
                                            bool sends_token, const std::string& proxy = "",
                                            grpc::ChannelArguments arguments = {});

}  // namespace lintel
