// SPDX-License-Identifier: Apache-2.0
// SHA-256, for the fingerprint of a model directory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace lintel {

// Throws std::runtime_error where OpenSSL has no SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void add(std::span<const char> bytes);
  // 8 bytes, little-endian. Before each of several parts: moving bytes from one to the next then
  // changes the hash.
  void add_length(std::uint64_t length);
  std::string hex();  // of all that was added; once, as the last call

 private:
  struct FreeContext {
    void operator()(evp_md_ctx_st* context) const;
  };
  const std::unique_ptr<evp_md_ctx_st, FreeContext> context_;
};

}  // namespace lintel
