// SPDX-License-Identifier: Apache-2.0
#include "model/ops/kv_type.h"

namespace lintel {

const char* to_string(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kBf16:
      return "bf16";
    case KvType::kInt8:
      return "int8";
  }
  return "unknown";
}

KvType kv_type_for(WeightType weights) {
  return weights == WeightType::kF32 ? KvType::kF32 : KvType::kBf16;
}

}  // namespace lintel
