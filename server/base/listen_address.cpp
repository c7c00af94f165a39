#include "server/base/listen_address.h"

#include <arpa/inet.h>

namespace lintel {

std::string ListenAddress::to_string(int bound_port) const {
  if (!unix_path.empty()) return "unix:" + unix_path;
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(bound_port);
}

bool ListenAddress::is_local() const {
  if (!unix_path.empty() || host == "localhost" || host == "::1") return true;
  in_addr ipv4{};
  return inet_pton(AF_INET, host.c_str(), &ipv4) == 1 && ntohl(ipv4.s_addr) >> 24 == 127;
}

}  // namespace lintel
