// Where a server is, as people write it.
#pragma once

#include <string>
#include <vector>

namespace lintel {

inline constexpr const char* kDefaultPort = "50051";

// "HOST:PORT", "[IPV6]:PORT" or "unix:PATH" of an address that may lack its port, which is then
// 50051. Throws std::invalid_argument, saying what was expected, for what is no address: a URL, an
// empty host, a port that is none.
std::string full_address(const std::string& address);

// The addresses of several servers of which each will do, with commas between them. An address in
// gRPC's own way ("ipv4:///...") has its own commas.
std::vector<std::string> full_addresses(const std::string& addresses);

// As full_address for an HTTP proxy: "HOST:PORT", which may begin with "http://". The port has to
// be there.
std::string proxy_address(const std::string& proxy);

// Whether an address ("HOST:PORT", "[::1]:PORT", "unix:PATH") does not leave this machine. Names
// but localhost are taken to leave it.
bool is_local_address(const std::string& address);

}  // namespace lintel
