// SPDX-License-Identifier: Apache-2.0
// Custom tools: tools that are called with a free text. A model is shown each as a function of one
// text, `input`.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lintel {

// {"name", "description", "parameters"} of a tool {"type": "custom", "name", "description",
// "format"}. The description ends with the grammar of the format, if it has one; a regular
// expression is also the text's `pattern`, and the function is strict: whole_pattern() throws
// GrammarError. REQUIRES: each member has its type.
nlohmann::ordered_json function_of_custom_tool(const nlohmann::ordered_json& tool);

// The arguments of that function in a call with `input`, as JSON.
std::string custom_tool_arguments(const std::string& input);

// The text of such a call, out of the function's arguments as they come. Arguments that do not
// begin with `input` are the text themselves. The text does not depend on how they are cut into
// pieces. Used by one thread.
class CustomInput {
 public:
  // Returns what the piece, in whole characters, adds to the text: UTF-8, where half a surrogate
  // pair is U+FFFD.
  std::string push(std::string_view arguments);
  // True if the arguments are complete. text: all that push() has returned.
  bool is_whole(std::string_view text) const;

 private:
  enum class At { kStart, kText, kRest, kOther };

  // Reads a character before the text. False: the arguments begin with something else.
  bool read_start(char c);
  void read_text(char c, std::string& text);
  // REQUIRES: escape_ is whole.
  void read_escape(std::string& text);
  void read_rest(char c);
  void drop_half_pair(std::string& text);

  At at_ = At::kStart;
  std::string begun_;        // before the text
  std::size_t matched_ = 0;  // characters before the text
  std::string escape_;       // an incomplete one, with its backslash
  unsigned high_ = 0;        // half of a surrogate pair; 0: none
  // After the text:
  int depth_ = 1;
  bool in_string_ = false, is_escaped_ = false;
};

}  // namespace lintel
