// SPDX-License-Identifier: Apache-2.0
// What an attention state saves, in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"

namespace lintel::testing {

class StateBytes final : public StateWriter, public StateReader {
 public:
  std::vector<std::byte> bytes;

 private:
  void write(std::span<const std::byte> from) override {
    bytes.insert(bytes.end(), from.begin(), from.end());
  }
  void read(std::span<std::byte> to) override {
    if (bytes.size() - at_ < to.size()) throw ModelError("saved state: too short");
    std::memcpy(to.data(), bytes.data() + at_, to.size());
    at_ += to.size();
  }

  std::size_t at_ = 0;
};

}  // namespace lintel::testing
