// AttentionConfig: the attention of one layer, as config.json has it.
#pragma once

#include <string>

namespace lintel {

enum class RoundCombination { kMean, kLogSumExp };

// Attention of one layer. Every backend reads the fields it documents in the format page.
struct AttentionConfig {
  std::string type;    // a name in the table of attention/attention.cpp
  double eps = 1e-6;   // linear
  double scale = 0.0;  // softmax, lsh; 0 stands for 1/sqrt(d_head)
  int rounds = 1;      // lsh from here on
  int bits = 0;        // hash planes a round; 2 * bits buckets
  int chunk_size = 0;
  bool mask_self = true;
  RoundCombination combine = RoundCombination::kMean;

  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace lintel
