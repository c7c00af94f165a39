// SPDX-License-Identifier: Apache-2.0
// ToolDialect: how a model writes calls of tools.
#pragma once

#include <cstdint>

namespace lintel {

enum class ToolDialect : std::uint8_t {
  kNone,      // tags of calls are text
  kHermes,    // <tool_call>{"name": "f", "arguments": {}}</tool_call>
  kXml,       // <tool_call><function=f><parameter=k>...</parameter></function></tool_call>
  kPythonic,  // <|tool_call_start|>[f(k='v')]<|tool_call_end|>
};

}  // namespace lintel
