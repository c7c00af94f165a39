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

std::optional<KvType> kv_type_named(std::string_view name) {
  for (const KvType type : kKvTypes) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

}  // namespace lintel
