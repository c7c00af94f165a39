// SPDX-License-Identifier: Apache-2.0
// The frames of tool calls as a grammar: what a model writes so that its calls can be read.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/grammar/grammar.h"
#include "server/grammar/schema.h"
#include "server/grammar/tool_dialect.h"

namespace lintel::grammar {

struct ToolSpec {
  enum class Arguments {
    kAny,      // any JSON object, any keys
    kRelaxed,  // by the schema, without what is not served, and with closed objects
    kStrict,   // by the schema
  };
  std::string name;
  std::string parameters;  // a JSON Schema; empty: any arguments
  Arguments arguments = Arguments::kStrict;
  // kAny: names of parameters that the function declares, which are keys with any characters.
  std::vector<std::string> declared = {};
};

struct ToolGrammarOptions {
  enum class Mode {
    kAuto,      // any text; once a start tag is complete, a call
    kNone,      // any text without a start tag
    kRequired,  // calls alone
  };
  ToolDialect dialect = ToolDialect::kHermes;
  Mode mode = Mode::kAuto;
  bool parallel = true;  // several calls; false: the text ends with the first
  // kRequired: up to two line feeds may come first. Off for an alternative to texts that cannot
  // begin so.
  bool leading_lines = true;
  // kRequired: the model has to call, and lines within JSON begin with few blanks. Off for an
  // alternative to texts of another form, whose white space it would be, too.
  bool is_forced = true;
};

// Calls an answer may have.
inline constexpr std::uint32_t kMaxCalls = 128;

// The text behind the reasoning, up to its end. Arguments come in any order that the schema
// permits. In kXml values of type string are free up to their end, others are JSON; in kPythonic
// literals are JSON's or True, False and None. In kXml a <function= at the beginning of a line
// begins a call in kAuto, too, which then needs no </tool_call>. `relaxed`: paths begin with the
// name of the tool. Throws GrammarError, whose path begins so, too; without a tool in kRequired,
// too.
std::shared_ptr<const Grammar> compile_tools(std::span<const ToolSpec> tools,
                                             const ToolGrammarOptions& options,
                                             std::vector<RelaxedKeyword>* relaxed = nullptr);

// Adds the same to `grammar`.
NodeId add_tool_calls(Grammar& grammar, std::span<const ToolSpec> tools,
                      const ToolGrammarOptions& options,
                      std::vector<RelaxedKeyword>* relaxed = nullptr);

// Tags as a vocabulary may have them as single tokens, special ones too.
std::vector<std::string> tool_call_tags(ToolDialect dialect);
// Automata of texts without quotes, to be given to warm_masks().
std::vector<std::shared_ptr<const Dfa>> tool_call_automata(ToolDialect dialect);

}  // namespace lintel::grammar
