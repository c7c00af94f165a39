#include "model/config/names.h"

#include <algorithm>

namespace lintel {

std::string attention_names(const ModelConfig& config) {
  std::string names;
  bool differ = false;
  for (const AttentionConfig& layer : config.attention) {
    differ = differ || layer.type != config.attention.front().type;
    names += (names.empty() ? "" : ",") + layer.type;
  }
  return differ || config.attention.empty() ? names : config.attention.front().type;
}

}  // namespace lintel
