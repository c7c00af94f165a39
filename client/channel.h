// The way to a server: plain text, TLS or mutual TLS.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
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

// Throws std::invalid_argument for a certificate without a key or the reverse, and when a token
// would go in plain text to another machine; std::runtime_error naming a file that cannot be read.
// `arguments`: the caller's own, for channels that are used unlike a client's.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Tls& tls,
                                            bool sends_token,
                                            grpc::ChannelArguments arguments = {});

// What the failure of a call over plain text may come from, for people: a server that speaks TLS
// closes the connection without a word. Empty where the status tells of something else.
std::string plain_text_hint(const grpc::Status& status);

// Whether an address ("HOST:PORT", "[::1]:PORT", "unix:PATH") does not leave this machine. Names
// but localhost are taken to leave it.
bool is_local_address(const std::string& address);

}  // namespace lintel
