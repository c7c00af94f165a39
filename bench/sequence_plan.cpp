#include "bench/sequence_plan.h"

#include <algorithm>

namespace lintel::bench {
namespace {

SequencePlan plan(bool has_start_token, std::int64_t vocab_size, std::int64_t max_length) {
  SequencePlan plan;
  // Of a model of bytes: the first character of a line.
  if (!has_start_token) plan.first_value = std::min<std::int64_t>('\n', vocab_size - 1);
  plan.ends_itself = max_length > 0;
  plan.values = plan.ends_itself ? max_length : kEndlessValues;
  return plan;
}

}  // namespace

SequencePlan sequence_plan(const ModelConfig& config) {
  return plan(config.modality == ModalityKind::kImage, config.vocab_size, config.max_length);
}

SequencePlan sequence_plan(const v1::Model& model) {
  return plan(model.image().has_start_token(), model.vocab_size(), model.max_length());
}

}  // namespace lintel::bench
