// SPDX-License-Identifier: Apache-2.0
// Snapshots to try: what tests of them share.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "server/sessions/snapshot.h"

namespace lintel::testing {

using Bytes = std::vector<std::byte>;

inline SnapshotOf small_snapshot() {
  SnapshotOf of;
  of.image.model = "bytes";
  of.image.adapter = "polite";
  of.image.adapter_fingerprint = std::string(64, 'c');
  of.image.window = 512;
  of.image.max_tokens = 1000;
  of.image.base = 3;
  of.image.position = 8;
  of.image.tokens = {0, 255, 7, 7, 65};
  of.image.marks = {
      {3, TokenSource::kPrompt}, {5, TokenSource::kGiven}, {6, TokenSource::kSampled}};
  for (std::size_t i = 0; i < 16; ++i) {
    of.image.digest.bytes[i] = static_cast<std::byte>(17 * i);
    of.image.base_digest.bytes[i] = static_cast<std::byte>(255 - i);
  }
  for (int i = 0; i < 70; ++i) of.image.state.push_back(static_cast<std::byte>(3 * i + 1));
  of.image.state_position = 6;
  of.model_fingerprint = std::string(64, 'a');
  of.attention = "linear";
  of.weight_type = "int8";
  of.numerics = std::string(64, 'b');
  of.numerics_text = "int8 avx512_vnni, AVX3, lintel 0.2.0";
  of.lintel_version = "0.2.0";
  of.made = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'790'000'000'123));
  return of;
}

inline bool same(const SnapshotOf& a, const SnapshotOf& b) {
  const SessionImage& x = a.image;
  const SessionImage& y = b.image;
  return x.model == y.model && x.adapter == y.adapter &&
         x.adapter_fingerprint == y.adapter_fingerprint && x.window == y.window &&
         x.max_tokens == y.max_tokens && x.base == y.base && x.position == y.position &&
         x.tokens == y.tokens && x.marks == y.marks && x.digest == y.digest &&
         x.base_digest == y.base_digest && std::ranges::equal(x.state_bytes(), y.state_bytes()) &&
         x.state_position == y.state_position && a.model_fingerprint == b.model_fingerprint &&
         a.attention == b.attention && a.weight_type == b.weight_type && a.kv_type == b.kv_type &&
         a.numerics == b.numerics && a.numerics_text == b.numerics_text &&
         a.numerics_changed_at == b.numerics_changed_at && a.lintel_version == b.lintel_version &&
         a.made == b.made;
}

// A snapshot of a header and a body, with the right lengths and checksum, as a stranger could send
// it.
inline Bytes sealed(std::string header, const Bytes& body) {
  header.resize((header.size() + 63) / 64 * 64, ' ');
  Bytes rest(header.size() + body.size());
  std::memcpy(rest.data(), header.data(), header.size());
  std::copy(body.begin(), body.end(), rest.begin() + static_cast<std::ptrdiff_t>(header.size()));
  const SnapshotPreamble preamble{.header_bytes = static_cast<std::uint32_t>(header.size()),
                                  .body_bytes = body.size(),
                                  .checksum = digest_of(rest)};
  const auto front = preamble.encode();
  Bytes all(front.begin(), front.end());
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

struct Parts {
  std::string header;
  Bytes body;
};

inline Parts parts_of(const Bytes& bytes) {
  const SnapshotPreamble preamble = read_snapshot_preamble(bytes);
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + kSnapshotPreambleBytes;
  const auto body = bytes.begin() + kSnapshotPreambleBytes + preamble.header_bytes;
  return {{text, preamble.header_bytes}, {body, bytes.end()}};
}

// The error of reading the bytes; nothing: they are accepted.
inline std::optional<SnapshotError> refusal_of(std::span<const std::byte> bytes) {
  try {
    read_snapshot(bytes);
  } catch (const SnapshotError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace lintel::testing
