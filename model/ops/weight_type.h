// SPDX-License-Identifier: Apache-2.0
// WeightType: the form in which weights are held in memory and multiplied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lintel {

enum class WeightType {
  kF32,
  kBf16,
  kInt8,
  kBlocks,  // as a GGUF file holds them: blocks of integers, and f32 where it has floats
  // Types of checkpoints. Inputs have a scale for each 128:
  kInt8Groups,  // the int8 of families, a scale an output
  kInt4,        // a scale for each 32 inputs; kInt8Groups in the head and where inputs are no 32s
  kInt4Ffn,     // kInt4 in the channel mixers, else kInt8Groups
  kInt4All,     // kInt4 in the head, too
};

// The types that any model can be loaded as.
inline constexpr std::array kWeightTypes = {WeightType::kF32, WeightType::kBf16, WeightType::kInt8};

// "f32", "bf16", "int8", "blocks", "int4", "int4-ffn", "int4-all"
const char* to_string(WeightType type);
std::optional<WeightType> weight_type_named(std::string_view name);

// The place of a matrix among a layer's products.
enum class WeightRole { kMixer, kChannels, kHead };
// The type of a matrix in a model of this type: kInt8Groups or kInt4, else the type itself.
WeightType weight_type_of(WeightType model, WeightRole role);
// The type of the inputs that its products read: kInt8Groups for those in 4 bits, else itself.
WeightType input_type_of(WeightType type);

// The kernels that multiply matrices: our own, or oneDNN.

enum class KernelChoice {
  kAuto,    // for each weight type what is faster on this machine, by a table: ProductLibrary
  kOwn,     // our own kernels alone
  kOneDnn,  // oneDNN wherever its rows are independent of each other, else our own
};

inline constexpr std::array kKernelChoices = {KernelChoice::kAuto, KernelChoice::kOwn,
                                              KernelChoice::kOneDnn};

const char* to_string(KernelChoice choice);  // "auto", "own", "onednn"
std::optional<KernelChoice> kernels_named(std::string_view name);

// Sets the process's default for layers that are made from now on. kAuto at first.
void choose_kernels(KernelChoice choice);
KernelChoice chosen_kernels();

// PrefetchList: memory that will be read soon.

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
