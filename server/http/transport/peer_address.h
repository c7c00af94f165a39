// PeerAddress: where a connection comes from.
#pragma once

#include <string>

namespace lintel {

struct PeerAddress {
  std::string text;  // as gRPC writes it: "ipv4:127.0.0.1:40000", "ipv6:[::1]:40000", "unix:"
  std::string host;  // without the port; empty of a unix socket
};

PeerAddress peer_of(int fd);

}  // namespace lintel
