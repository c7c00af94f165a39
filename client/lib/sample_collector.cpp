#include "client/lib/client.h"

namespace lintel {

Sample& SampleCollector::sample(std::uint32_t index) {
  if (index >= samples_.size()) samples_.resize(index + 1);
  return samples_[index];
}

void SampleCollector::add(const v1::Chunk& chunk) {
  Sample& to = sample(chunk.sample());
  const auto log2_prob = [&chunk](int i) -> std::optional<float> {
    if (i < chunk.log2_probs_size()) return chunk.log2_probs(i);
    return std::nullopt;
  };
  if (chunk.source() == v1::VALUE_SOURCE_PROMPT) {
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      to.prompt.push_back(chunk.tokens(i));
      to.prompt_log2_probs.push_back(log2_prob(i));
    }
    return;
  }
  if (to.tokens.empty()) to.first_position = chunk.first_position();
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    to.tokens.push_back(chunk.tokens(i));
    to.log2_probs.push_back(log2_prob(i));
    to.given.push_back(chunk.source() == v1::VALUE_SOURCE_GIVEN);
    to.top.push_back(i < chunk.top_size() ? chunk.top(i) : v1::TopValues());
  }
}

void SampleCollector::finish(const v1::SampleFinish& finish) {
  sample(finish.sample()).finish = finish;
}

}  // namespace lintel
