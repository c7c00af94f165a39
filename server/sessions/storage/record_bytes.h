// RecordWriter and RecordReader: fields of what is written of sessions, as bytes. Little-endian; a
// length before each text.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/sessions/digest.h"

namespace lintel {

class RecordWriter {
 public:
  template <typename T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  // Seven bits a byte, the lowest first: short where it is small.
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) number(static_cast<std::uint8_t>(value | 128));
    number(static_cast<std::uint8_t>(value));
  }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(const std::string& text) {
    number(static_cast<std::uint32_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  void time(std::chrono::system_clock::time_point time) {
    number<std::int64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads zeros once the bytes have ended, and ok() is false from then on.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    std::uint64_t value = 0;
    const std::span<const std::byte> from = raw(sizeof(T));
    for (std::size_t i = 0; i < from.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = number<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if ((byte & 128) == 0) return value;
    }
    ok_ = false;
    return 0;
  }
  std::span<const std::byte> raw(std::size_t count) {
    ok_ = ok_ && count <= bytes_.size();
    if (!ok_) return {};
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::string text() {
    const std::span<const std::byte> from = raw(number<std::uint32_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  Digest digest() {
    Digest digest;
    std::ranges::copy(raw(digest.bytes.size()), digest.bytes.begin());
    return digest;
  }
  std::chrono::system_clock::time_point time() {
    return std::chrono::system_clock::time_point(std::chrono::microseconds(number<std::int64_t>()));
  }
  std::span<const std::byte> rest() { return raw(bytes_.size()); }
  bool ok() const { return ok_; }
  bool all_read() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace lintel
