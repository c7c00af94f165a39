#include "server/http/transport/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace lintel {

PeerAddress peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {"unknown", ""};
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
    return {"ipv4:" + std::string(text) + ":" + std::to_string(ntohs(ipv4.sin_port)), text};
  }
  if (address.ss_family != AF_INET6) return {"unix:", ""};
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    ::inet_ntop(AF_INET, &ipv6.sin6_addr.s6_addr[12], text, sizeof(text));
    return {"ipv4:" + std::string(text) + ":" + std::to_string(ntohs(ipv6.sin6_port)), text};
  }
  ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
  return {"ipv6:[" + std::string(text) + "]:" + std::to_string(ntohs(ipv6.sin6_port)), text};
}

}  // namespace lintel
