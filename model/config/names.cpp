#include "model/config/names.h"

#include <algorithm>

namespace lintel {

std::string attention_names(const ModelConfig& config) {
  std::string names;
  bool differ = false;
  for (const AttentionConfig& layer : config.attention) {
    differ = differ || &layer.kind() != &config.attention.front().kind();
    names += (names.empty() ? "" : ",") + std::string(layer.type());
  }
  return differ || config.attention.empty() ? names : config.attention.front().type();
}

}  // namespace lintel
