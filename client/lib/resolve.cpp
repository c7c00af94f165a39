#include "client/lib/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

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

}  // namespace lintel
