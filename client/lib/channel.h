// The way to a server: plain text, TLS or mutual TLS, straight or through a proxy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "client/lib/tls.h"

namespace lintel {

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
