// What a configuration's values are called: in config.json, on the wire and in the metrics.
#pragma once

#include <string>

#include "model/config/config.h"

namespace lintel {

// Names of the kinds of attention, "linear", or one for each layer, with commas, when they differ.
std::string attention_names(const ModelConfig& config);

constexpr const char* to_string(Residual residual) {
  switch (residual) {
    case Residual::kSum:
      return "sum";
    case Residual::kReversibleMean:
      return "reversible_mean";
    case Residual::kReversibleConcat:
      return "reversible_concat";
  }
  return "";
}

constexpr const char* to_string(HeadKind kind) {
  return kind == HeadKind::kCategorical ? "categorical" : "mixture_of_logistics";
}

constexpr const char* to_string(ModalityKind kind) {
  switch (kind) {
    case ModalityKind::kImage:
      return "image";
    case ModalityKind::kBytes:
      return "bytes";
    case ModalityKind::kTokens:
      return "tokens";
  }
  return "";
}

constexpr const char* to_string(EmbeddingKind kind) {
  switch (kind) {
    case EmbeddingKind::kValueConcatPosition:
      return "value_concat_position";
    case EmbeddingKind::kValueAddPosition:
      return "value_add_position";
    case EmbeddingKind::kValue:
      return "value";
  }
  return "";
}

constexpr const char* to_string(PositionEncoding encoding) {
  switch (encoding) {
    case PositionEncoding::kSinusoidal:
      return "sinusoidal";
    case PositionEncoding::kLearned:
      return "learned";
    case PositionEncoding::kNone:
      return "none";
  }
  return "";
}

}  // namespace lintel
