// The refusal of HTTP/2 clients, such as gRPC's, at a port that speaks HTTP/1.1 only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lintel {

// The first bytes of every HTTP/2 client (RFC 9113, 3.4).
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// What a server says first, and to its client's settings: gRPC sends no call before.
std::string http2_settings();

struct Http2Frames {
  std::size_t size = 0;      // bytes of the whole frames, up to the one that opens a stream
  std::uint32_t stream = 0;  // that a client opened; 0: none yet
};
// Looks through frames; what they say is not read. `bytes`: without the preface.
Http2Frames http2_frames(std::string_view bytes);

// The answer to a call on `stream`: UNIMPLEMENTED with `message`, then the connection's end.
std::string http2_refusal(std::uint32_t stream, std::string_view message);

}  // namespace lintel
