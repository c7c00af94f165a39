// Envelopes: messages one after the other in a body, as Connect's streams and gRPC-Web have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lintel {

// A byte of flags, the length as four bytes, most significant first, and so many bytes.
inline constexpr std::size_t kEnvelopeHead = 5;
inline constexpr std::uint8_t kCompressed = 0x01;
inline constexpr std::uint8_t kEndOfStream = 0x02;  // Connect: JSON about how it ended
inline constexpr std::uint8_t kTrailers = 0x80;     // gRPC-Web: lines of trailers

std::string envelope(std::uint8_t flags, std::string_view message);
// What stands before a message of `size` bytes.
std::string envelope_head(std::uint8_t flags, std::size_t size);

// The message of a body that is one envelope, as a request is. False where it is anything else, and
// `why` says what.
bool open_envelope(std::string_view body, std::string_view* message, std::string* why);

// Base64 in one piece or several, each with its padding, as gRPC-Web's text form has it. False for
// anything else.
bool decode_base64(std::string_view text, std::string* bytes);

}  // namespace lintel
