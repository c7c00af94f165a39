// SPDX-License-Identifier: Apache-2.0
// Interpreter: one render of a tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/chat/template/calls.h"
#include "server/chat/template/syntax.h"
#include "server/chat/template/values.h"

namespace lintel::jinja {

enum class LoopAttribute : std::uint8_t {
  kIndex,
  kIndex0,
  kRevindex,
  kRevindex0,
  kFirst,
  kLast,
  kLength,
  kPrevItem,
  kNextItem,
  kDepth,
  kDepth0,
};
Value loop_attribute(Loop& loop, LoopAttribute attribute);
Value macro_name(const Macro& macro);

struct Scope;

// Lives as long as the render, on the caller's thread.
class Interpreter {
 public:
  Interpreter(const Syntax& syntax, Arena& arena, const LocalTime& now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Sets a variable before run(). A name that the template does not use has no effect.
  void set_variable(std::string_view name, const Value& value);
  // Throws EvaluationError and TemplateRefusal.
  void run(TextBuilder& out);
  // The line that is being evaluated, for errors.
  std::size_t line() const { return line_; }

 private:
  friend Value loop_attribute(Loop& loop, LoopAttribute attribute);
  friend class EvaluationDepth;
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  Flow run_block(const Block& block, Scope& scope, TextBuilder& out);
  Flow run_statement(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow run_if(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow run_for(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow run_set_block(const Statement& statement, Scope& scope);
  Flow run_filter_block(const Statement& statement, Scope& scope, TextBuilder& out);
  Flow run_with(const Statement& statement, Scope& scope, TextBuilder& out);
  void run_call(const Statement& statement, Scope& scope, TextBuilder& out);
  bool next_item(Loop& loop, Value* item);

  void assign(const Target& target, const Value& value, Scope& scope);
  void set_name(NameId name, const Value& value, Scope& scope);
  Value name_value(NameId name, const Text* text, const Scope& scope);

  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_condition(const Expression& expression, Scope& scope);
  Value evaluate_chain(const Expression& expression, Scope& scope);
  Value evaluate_compare(const Expression& expression, Scope& scope);
  Value evaluate_items(const Expression& expression, Scope& scope);
  Value evaluate_postfix(const Expression& expression, Scope& scope);
  Value apply_step(const PostfixStep& step, const Value& value, Scope& scope);
  Value apply_filters(const std::vector<PostfixStep>& steps, Value value, Scope& scope);
  Arguments evaluate_arguments(const std::vector<Argument>& arguments, Scope& scope,
                               const Value* caller);
  Value call_step(const PostfixStep& step, const Value& callee, Scope& scope, const Value* caller);
  Value call(const Value& callee, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value call_function(Function function, const Arguments& arguments);

  const Syntax& syntax_;
  Arena& arena_;
  const LocalTime& now_;
  std::vector<Value> globals_;  // by NameId; missing: not set
  Scope* root_ = nullptr;
  std::size_t line_ = 0;
  int depth_ = 0;
  int macro_depth_ = 0;
};

}  // namespace lintel::jinja
