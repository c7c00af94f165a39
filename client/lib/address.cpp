#include "client/lib/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

namespace lintel {
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

}  // namespace lintel
