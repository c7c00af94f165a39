// SPDX-License-Identifier: Apache-2.0
// ChargedTree: charges a request for the tree of JSON that it is read into.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/core/json_reader.h"
#include "server/core/request_memory.h"

namespace lintel {

// The tree and its copies are charged while it is read, before they are made. Used by one thread.
class ChargedTree final : public JsonBudget {
 public:
  // copies: that are there at a time, with the tree itself. The charge outlives the object.
  ChargedTree(RequestMemory::Charge& memory, std::size_t copies)
      : memory_(memory), copies_(copies) {}

  bool charge(std::int64_t bytes) override {
    bytes_ += bytes;
    const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(bytes_, 0)) * copies_;
    if (needed <= charged_) return true;
    const std::size_t more = needed - charged_;
    // In the large: the account is shared by threads. What does not fit so may fit exactly.
    refusal_ = memory_.add(more + kStep);
    if (!refusal_) {
      charged_ += more + kStep;
      return true;
    }
    refusal_ = memory_.add(more);
    if (refusal_) return false;
    charged_ += more;
    return true;
  }
  bool cancelled() const override { return false; }

  // Of the tree alone.
  std::size_t bytes() const { return static_cast<std::size_t>(std::max<std::int64_t>(bytes_, 0)); }
  // Why the reading has failed; false: for another reason, or not at all.
  const RequestRefusal& refusal() const { return refusal_; }

 private:
  static constexpr std::size_t kStep = std::size_t{64} << 10;

  RequestMemory::Charge& memory_;
  const std::size_t copies_;
  std::int64_t bytes_ = 0;
  std::size_t charged_ = 0;
  RequestRefusal refusal_;
};

}  // namespace lintel
