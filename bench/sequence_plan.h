// What is one sequence of a model: images end of themselves, texts do not.
#pragma once

#include <cstdint>
#include <optional>

#include "lintel/v1/model.pb.h"
#include "model/config/config.h"

namespace lintel::bench {

// Values of a sequence that has no end of its own.
constexpr std::int64_t kEndlessValues = 1024;

struct SequencePlan {
  std::optional<std::int32_t> first_value;  // to give; none: the model's start token is the first
  std::int64_t values = 0;                  // to generate after the first
  bool ends_itself = true;  // after so many, because the model has no more positions
};

SequencePlan sequence_plan(const ModelConfig& config);
// Of a remote server, as its API reports it.
SequencePlan sequence_plan(const v1::Model& model);

}  // namespace lintel::bench
