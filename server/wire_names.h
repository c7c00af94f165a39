// The names enums of the model have on the wire, the same as in config.json.
#pragma once

#include "model/config.h"

namespace lintel {

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

}  // namespace lintel
