// SPDX-License-Identifier: Apache-2.0
// RequestBudget: charges a request for the objects made of its text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "model/core/json_reader.h"
#include "server/core/request_memory.h"

namespace lintel {

// Charges a tree of JSON while it is read, or the values of a template while it is rendered, before
// they are made. Used by one thread.
class RequestBudget final : public JsonBudget {
 public:
  // copies: their number at a time, including the tree itself. is_cancelled: empty: never.
  // Referenced objects outlive this one.
  RequestBudget(RequestMemory::Charge& memory, std::size_t copies,
                const std::function<bool()>& is_cancelled)
      : memory_(memory), copies_(copies), is_cancelled_(is_cancelled) {}

  // A refusal is final: the reader ends, and memory that it frees on the way changes nothing.
  bool charge(std::int64_t bytes) override {
    if (refusal_) return false;
    bytes_ += bytes;
    const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(bytes_, 0)) * copies_;
    if (needed <= charged_) return true;
    const std::size_t more = needed - charged_;
    // Charges in large steps, as threads share the account; bytes that do not fit so may fit
    // exactly.
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
  bool cancelled() const override { return is_cancelled_ && is_cancelled_(); }

  // The reason why there was no room; false: there was room.
  const RequestRefusal& refusal() const { return refusal_; }

 private:
  static constexpr std::size_t kStep = std::size_t{64} << 10;

  RequestMemory::Charge& memory_;
  const std::size_t copies_;
  const std::function<bool()>& is_cancelled_;
  std::int64_t bytes_ = 0;
  std::size_t charged_ = 0;
  RequestRefusal refusal_;
};

}  // namespace lintel
