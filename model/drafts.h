// DraftMemory: what a step keeps so that its drafts can be taken back.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "model/layers/attention/attention.h"
#include "model/sequence.h"
#include "model/workspace.h"

namespace lintel {

// Two halves in turn, as drafts of one step may enter their states with the rows of the next. Each
// grows to its high-water mark. One worker thread's.
class DraftMemory {
 public:
  using Backends = SequenceState::Backends;

  // Announces the drafts to the states of their sequences, with memory to take them back. What the
  // step before last announced is no longer needed.
  void announce(std::span<const StepRow> rows, Backends backends) {
    turn_ = 1 - turn_;
    Half& half = halves_[turn_];
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts, std::int64_t end) {
      for (const auto& backend : backends) total += floats_of(*backend, drafts, end);
    });
    half.grow(total);
    float* next = half.memory.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts, std::int64_t end) {
      sequence.begin_drafts();
      for (std::size_t i = 0; i < backends.size(); ++i) {
        const std::size_t floats = floats_of(*backends[i], drafts, end);
        sequence.layer(i)->announce(drafts, {next, floats});
        next += floats;
      }
    });
  }

  // For any drafts in a step of `rows` rows, but of long sequences: of one, or of half as many as
  // there are rows.
  void reserve(std::size_t rows, Backends backends) {
    if (rows < 2) return;
    std::size_t of_one = 0;
    std::size_t of_many = 0;
    for (const auto& backend : backends) {
      of_one += floats_of(*backend, rows - 1, 0);
      of_many += rows / 2 * floats_of(*backend, 2, 0);
    }
    for (Half& half : halves_) half.grow(std::max(of_one, of_many));
  }

 private:
  struct Half {
    // The states zero what they had there.
    void grow(std::size_t count) {
      if (count <= floats) return;
      memory = make_aligned<float>(count);
      floats = count;
    }
    AlignedArray<float> memory;
    std::size_t floats = 0;
  };

  // Calls body(sequence, number of its drafts, where they end) for every sequence that has any.
  template <typename Body>
  static void for_each_drafting(std::span<const StepRow> rows, Body&& body) {
    for (std::size_t r = 0; r < rows.size();) {
      const std::size_t first = r;
      std::size_t drafts = 0;
      for (; r < rows.size() && rows[r].sequence == rows[first].sequence; ++r) {
        assert(drafts == 0 || rows[r].is_draft);
        if (rows[r].is_draft) ++drafts;
      }
      if (drafts == 0) continue;
      SequenceState& sequence = *rows[first].sequence;
      body(sequence, drafts, sequence.position() + static_cast<std::int64_t>(r - first));
    }
  }

  // Memory of a sequence's drafts in a layer, in whole cache lines.
  static std::size_t floats_of(const AttentionBackend& backend, std::size_t drafts,
                               std::int64_t end) {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    const std::size_t needed = backend.take_back_floats(drafts, end);
    return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }

  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;  // whose half the last step has
};

}  // namespace lintel
