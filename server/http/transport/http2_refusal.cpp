#include "server/http/transport/http2_refusal.h"

#include <grpcpp/support/status_code_enum.h>

namespace lintel {
namespace {

constexpr std::size_t kFrameHead = 9;  // bytes before a frame's own
enum FrameType : std::uint8_t { kHeaders = 1, kSettings = 4, kGoaway = 7 };
constexpr std::uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string big_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::uint32_t number_of(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

std::string frame(FrameType type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload) {
  return big_endian(payload.size(), 3) + big_endian(type, 1) + big_endian(flags, 1) +
         big_endian(stream, 4) + std::string(payload);
}

// HPACK's form of a text without Huffman's code (RFC 7541, 5.1 and 5.2).
std::string packed(std::string_view text) {
  constexpr std::size_t kPrefix = 127;
  if (text.size() < kPrefix) return big_endian(text.size(), 1) + std::string(text);
  std::string packed(1, static_cast<char>(kPrefix));
  std::size_t rest = text.size() - kPrefix;
  for (; rest >= 128; rest /= 128) packed.push_back(static_cast<char>(128 + rest % 128));
  packed.push_back(static_cast<char>(rest));
  return packed + std::string(text);
}

// A header that no table is to remember.
std::string field(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + packed(name) + packed(value);
}

}  // namespace

std::string http2_settings() { return frame(kSettings, 0, 0, {}) + frame(kSettings, kAck, 0, {}); }

Http2Frames http2_frames(std::string_view bytes) {
  Http2Frames frames;
  while (bytes.size() - frames.size >= kFrameHead) {
    const std::string_view next = bytes.substr(frames.size);
    if (static_cast<std::uint8_t>(next[3]) == kHeaders) {
      frames.stream = number_of(next.substr(5, 4)) & 0x7fffffff;
      return frames;
    }
    const std::size_t size = kFrameHead + number_of(next.substr(0, 3));
    if (next.size() < size) return frames;
    frames.size += size;
  }
  return frames;
}

std::string http2_refusal(std::uint32_t stream, std::string_view message) {
  // "Trailers-Only" of gRPC's protocol over HTTP/2.
  const std::string headers = field(":status", "200") + field("content-type", "application/grpc") +
                              field("grpc-status", std::to_string(grpc::UNIMPLEMENTED)) +
                              field("grpc-message", message);
  constexpr std::uint32_t kNoError = 0;
  return frame(kHeaders, kEndStream | kEndHeaders, stream, headers) +
         frame(kGoaway, 0, 0, big_endian(stream, 4) + big_endian(kNoError, 4));
}

}  // namespace lintel
