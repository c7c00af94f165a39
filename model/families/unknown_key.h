// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lintel {

// UnknownKey: a key of a checkpoint that its family neither reads nor knows to be without an
// effect, and that says something. The model is served as if it were not there.
struct UnknownKey {
  std::string name;   // with its path: "text_config.new_switch", "qwen35.new_switch"
  std::string found;  // its value, shortened
};

}  // namespace lintel
