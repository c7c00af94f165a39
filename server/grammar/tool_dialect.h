// SPDX-License-Identifier: Apache-2.0
// The dialects in which models write calls of tools.
#pragma once

#include <string_view>

namespace lintel::grammar {

enum class ToolDialect {
  kHermes,    // <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>
  kXml,       // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
  kPythonic,  // <|tool_call_start|>[NAME(KEY=LITERAL, ...)]<|tool_call_end|>
};

// Characters that names of functions and parameters have in no dialect but kXml.
inline constexpr std::string_view kNotInNames = "<>\"'=(){}[],\n\r\t ";

}  // namespace lintel::grammar
