// The servers behind one name.
#pragma once

#include <string>
#include <vector>

namespace lintel {

// "10.0.0.1:50051" and "10.0.0.2:50051" of "lintel.example:50051": every address that the name has,
// in the order of the system's resolver. Empty for what is no name (an IP address, a unix socket,
// gRPC's own ways of naming servers) and where nothing is found. Waits for the resolver.
std::vector<std::string> addresses_of(const std::string& address);

}  // namespace lintel
