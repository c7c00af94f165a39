// By which key a balancer sends a session's calls to where the session is in memory.
#pragma once

#include <string>

namespace lintel {

// Sent as metadata with calls that name a session: Session.affinity_key, the first 64 bits of
// SHA-256(id) in hexadecimal, for proxies' logs shall not hold ids.
inline constexpr const char* kAffinityHeader = "lintel-affinity";
std::string affinity_key(const std::string& session_id);

}  // namespace lintel
