// Largest dimensions a config may ask for. Far beyond what is served today, and small enough that
// no product of them overflows 64 bits. Stated in docs/model_format.md. The keys of a kind of
// attention have theirs in its declaration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/config/config.h"

namespace lintel {

inline constexpr std::size_t kMaxConfigBytes = 1 << 20;
inline constexpr int kMaxVocabSize = 1 << 20;
inline constexpr std::int64_t kMaxMaxLength = INT32_MAX;
inline constexpr int kMaxModelWidth = 1 << 16;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadWidth = 4096;
inline constexpr int kMaxProjectionWidth = 1 << 16;  // n_heads * d_head
inline constexpr int kMaxFeedForwardWidth = 1 << 18;
inline constexpr int kMaxMixtures = 1024;
inline constexpr int kMaxImageSide = 1 << 14;
inline constexpr int kMaxImageChannels = 4;
inline constexpr double kMaxEpsilon = 1.0;

// Refuse fields that contradict each other, each legal by itself: those of a model, and those of
// the attention of a layer, whose keys `path` names in errors. Throw ModelError.
void check_config(const ModelConfig& config, const std::string& file);
void check_attention(const AttentionConfig& attention, const LayerDims& dims,
                     const std::string& file, const std::string& path);

}  // namespace lintel
