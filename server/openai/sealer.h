// SPDX-License-Identifier: Apache-2.0
// Sealer: encrypts texts that a client keeps and cannot read or change.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace lintel {

// Uses AES-256-GCM. A text sealed for an owner and a purpose can be opened only for these, with the
// key of the same storage. Constant; copies are the same.
class Sealer {
 public:
  using Secret = std::array<std::byte, 32>;

  Sealer(const Secret& secret, std::string owner);

  // Returns the sealed text in Base64. Throws std::runtime_error if OpenSSL fails.
  std::string seal(const std::string& purpose, const std::string& text) const;
  // Returns nothing if the text was not sealed for this purpose, or was changed.
  std::optional<std::string> open(const std::string& purpose, const std::string& sealed) const;

 private:
  std::string context_of(const std::string& purpose) const;

  std::array<unsigned char, 32> key_{};
  std::string owner_;
};

}  // namespace lintel
