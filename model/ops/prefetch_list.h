// PrefetchList: memory that will be read soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lintel {

// Blocks that a matrix product asks into its core's cache while it computes, a line with every cell
// of its weights: a product waits for arithmetic, and what follows it would wait for memory.
class PrefetchList {
 public:
  static constexpr std::size_t kLineFloats = 16;  // of 64 bytes

  void reserve(std::size_t blocks) { blocks_.reserve(blocks); }
  void clear() {
    blocks_.clear();
    next_ = 0;
    done_ = 0;
  }
  void add(std::span<const float> block) {
    if (!block.empty()) blocks_.push_back(block);
  }

  // The first of `lines` lines to ask for; null when nothing is left. The last of them may lie
  // beyond their block: asking for memory reads nothing.
  const float* take(std::size_t lines) {
    if (next_ == blocks_.size()) return nullptr;
    const std::span<const float> block = blocks_[next_];
    const float* const first = block.data() + done_;
    done_ += lines * kLineFloats;
    if (done_ >= block.size()) {
      ++next_;
      done_ = 0;
    }
    return first;
  }

 private:
  std::vector<std::span<const float>> blocks_;
  std::size_t next_ = 0;  // block
  std::size_t done_ = 0;  // floats of it
};

}  // namespace lintel
