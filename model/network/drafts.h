// DraftMemory: what a step keeps so that its drafts can be taken back.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "model/attention/attention.h"
#include "model/base/tensor.h"
#include "model/network/sequence.h"
#include "model/network/workspace.h"

namespace lintel {

// Grows to its high-water mark. One worker thread's.
class DraftMemory {
 public:
  using Backends = SequenceState::Backends;

  // Tells the states of the sequences that have drafts, with memory to take them back.
  void announce(std::span<const StepRow> rows, Backends backends) {
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts) {
      for (const auto& backend : backends) total += floats_of(*backend, drafts);
    });
    grow(total);
    used_ = std::max(used_, total);
    float* next = memory_.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts) {
      sequence.begin_drafts();
      for (std::size_t i = 0; i < backends.size(); ++i) {
        const std::size_t floats = floats_of(*backends[i], drafts);
        sequence.layer(i)->announce(drafts, {next, floats});
        next += floats;
      }
    });
  }

  // For any drafts in a step of `rows` rows: of one sequence, or of half as many as there are rows.
  void reserve(std::size_t rows, Backends backends) {
    if (rows < 2) return;
    std::size_t of_one = 0;
    std::size_t of_many = 0;
    for (const auto& backend : backends) {
      of_one += floats_of(*backend, rows - 1);
      of_many += rows / 2 * floats_of(*backend, 2);
    }
    grow(std::max(of_one, of_many));
  }

  // Zeroes what was kept.
  void forget() { zero_memory(std::span(memory_.get(), std::exchange(used_, 0))); }

 private:
  // Calls body(sequence, number of its drafts) for every sequence that has any.
  template <typename Body>
  static void for_each_drafting(std::span<const StepRow> rows, Body&& body) {
    for (std::size_t r = 0; r < rows.size();) {
      const std::size_t first = r;
      std::size_t drafts = 0;
      for (; r < rows.size() && rows[r].sequence == rows[first].sequence; ++r) {
        assert(drafts == 0 || rows[r].is_draft);
        if (rows[r].is_draft) ++drafts;
      }
      if (drafts > 0) body(*rows[first].sequence, drafts);
    }
  }

  // Memory of a sequence's drafts in a layer, in whole cache lines.
  static std::size_t floats_of(const AttentionBackend& backend, std::size_t drafts) {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    const std::size_t needed = backend.take_back_floats(drafts);
    return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }

  void grow(std::size_t floats) {
    if (floats <= floats_) return;
    forget();
    memory_ = make_aligned<float>(floats);
    floats_ = floats;
  }

  AlignedArray<float> memory_;
  std::size_t floats_ = 0;
  std::size_t used_ = 0;  // since they were zeroed
};

}  // namespace lintel
