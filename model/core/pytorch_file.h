// SPDX-License-Identifier: Apache-2.0
// Files of weights in PyTorch's own format, which are not read.
#pragma once

#include <string_view>

namespace lintel {

inline bool is_pytorch_file(std::string_view name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin");
}

// Follows an error that names such a file.
inline constexpr const char* kPytorchHint =
    "PyTorch's files, which can hold programs, are not read: training/README.md converts them";

}  // namespace lintel
