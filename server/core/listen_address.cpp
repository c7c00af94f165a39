// SPDX-License-Identifier: Apache-2.0
#include "server/core/listen_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

namespace lintel {
namespace {

void to_lower(std::string& text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
}

// "[::1]:80" and "localhost:80" as names.
std::string name_of(std::string_view authority) {
  if (authority.starts_with('[')) {
    return std::string(authority.substr(1, std::min(authority.find(']'), authority.size()) - 1));
  }
  return std::string(authority.substr(0, authority.find(':')));
}

bool is_of_this_machine(std::string name) {
  if (name.ends_with('.')) name.pop_back();
  if (name.ends_with(".localhost")) return true;  // RFC 6761, 6.3
  ListenAddress address;
  address.host = std::move(name);
  return address.is_local();
}

}  // namespace

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

HostRules::HostRules(const ListenAddress& address, std::vector<std::string> names)
    : looks_(address.unix_path.empty() && address.is_local()), names_(std::move(names)) {
  std::ranges::for_each(names_, to_lower);
}

bool HostRules::takes(std::string_view host) const {
  if (!looks_) return true;
  std::string authority(host);
  to_lower(authority);
  const std::string name = name_of(authority);
  return is_of_this_machine(name) || std::ranges::any_of(names_, [&](const std::string& known) {
           return known == authority || known == name || known == "[" + name + "]";
         });
}

}  // namespace lintel
