// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/interpreter.h"

#include <algorithm>
#include <string>

#include "server/chat/template/python_text.h"

namespace lintel::jinja {

// Expressions and blocks within each other, through macros, too. Each takes some hundred bytes of
// the caller's stack.
constexpr int kMaxEvaluationDepth = 1'000;
constexpr std::int64_t kMaxRange = 100'000;

// Names that a statement gives a value. The root has none: its names are Interpreter::globals_.
struct Scope {
  struct Variable {
    NameId name;
    Value value;
  };
  Scope* parent = nullptr;
  Variable* variables = nullptr;
  std::uint32_t size = 0;
  std::uint32_t capacity = 0;
};

struct Macro {
  const MacroSyntax* syntax;
  Scope* scope;  // that encloses the definition
};

// A loop that runs. With a filter items are looked for when they are needed, as a body may change
// what the filter sees.
struct Loop {
  Interpreter* interpreter = nullptr;
  const Statement* statement = nullptr;
  Scope* outer = nullptr;
  List source;
  std::size_t next = 0;  // of `source`
  bool filtered = false;
  std::size_t index0 = 0;
  Value current;
  Value previous;
  Value after;  // already found
  bool has_after = false;
};

class EvaluationDepth {
 public:
  explicit EvaluationDepth(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > kMaxEvaluationDepth) {
      --interpreter_.depth_;
      fail_bound("depth", kMaxEvaluationDepth);
    }
  }
  ~EvaluationDepth() { --interpreter_.depth_; }
  EvaluationDepth(const EvaluationDepth&) = delete;
  EvaluationDepth& operator=(const EvaluationDepth&) = delete;

 private:
  Interpreter& interpreter_;
};

Value macro_name(const Macro& macro) {
  return macro.syntax->name == nullptr ? Value::none() : Value::of(macro.syntax->name);
}

Value loop_attribute(Loop& loop, LoopAttribute attribute) {
  const auto count = [](std::size_t number) {
    return Value::of(static_cast<std::int64_t>(number));
  };
  const auto peek = [&] {
    if (!loop.has_after) loop.has_after = loop.interpreter->next_item(loop, &loop.after);
    return loop.has_after;
  };
  const auto rest = [&] {  // after the current item
    if (loop.filtered) {
      std::vector<Value> items;
      Value item;
      if (loop.has_after) items.push_back(loop.after);
      while (loop.interpreter->next_item(loop, &item)) {
        loop.interpreter->arena_.charge_memory(sizeof(Value));
        items.push_back(item);
      }
      loop.source = *loop.interpreter->arena_.list_of(items).list;
      loop.next = 0;
      loop.filtered = false;
      loop.has_after = false;
    }
    return loop.source.size - loop.next + (loop.has_after ? 1 : 0);
  };
  switch (attribute) {
    case LoopAttribute::kIndex:
      return count(loop.index0 + 1);
    case LoopAttribute::kIndex0:
      return count(loop.index0);
    case LoopAttribute::kRevindex:
      return count(rest() + 1);
    case LoopAttribute::kRevindex0:
      return count(rest());
    case LoopAttribute::kFirst:
      return Value::of(loop.index0 == 0);
    case LoopAttribute::kLast:
      return Value::of(!peek());
    case LoopAttribute::kLength:
      return count(loop.index0 + 1 + rest());
    case LoopAttribute::kPrevItem:
      return loop.index0 == 0 ? Value::undefined() : loop.previous;
    case LoopAttribute::kNextItem:
      return peek() ? loop.after : Value::undefined();
    case LoopAttribute::kDepth:
      return count(1);
    case LoopAttribute::kDepth0:
      return count(0);
  }
  return Value::undefined();
}

Interpreter::Interpreter(const Syntax& syntax, Arena& arena, const LocalTime& now)
    : syntax_(syntax),
      arena_(arena),
      now_(now),
      globals_(syntax.names.size(), Value::missing()),
      root_(arena.make(Scope{})) {
  set_variable("range", Value::of(Function::kRange));
  set_variable("dict", Value::of(Function::kDict));
  set_variable("namespace", Value::of(Function::kNamespace));
  set_variable("raise_exception", Value::of(Function::kRaiseException));
  set_variable("strftime_now", Value::of(Function::kStrftimeNow));
}

Interpreter::~Interpreter() = default;

void Interpreter::set_variable(std::string_view name, const Value& value) {
  const auto found = syntax_.names.find(name);
  if (found == syntax_.names.end() || syntax_.hidden.contains(found->second)) return;
  globals_[found->second] = value;
}

void Interpreter::run(TextBuilder& out) { run_block(syntax_.body, *root_, out); }

Interpreter::Flow Interpreter::run_block(const Block& block, Scope& scope, TextBuilder& out) {
  const EvaluationDepth depth(*this);
  for (const Statement* const statement : block) {
    const Flow flow = run_statement(*statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, Scope& scope,
                                             TextBuilder& out) {
  line_ = statement.line;
  arena_.charge_steps(1);
  switch (statement.kind) {
    case StatementKind::kData:
      out.add(*statement.data);
      return Flow::kNormal;
    case StatementKind::kOutput:
      add_str(out, arena_, evaluate(*statement.value, scope));
      return Flow::kNormal;
    case StatementKind::kIf:
      return run_if(statement, scope, out);
    case StatementKind::kFor:
      return run_for(statement, scope, out);
    case StatementKind::kSet:
      assign(statement.targets[0], evaluate(*statement.value, scope), scope);
      return Flow::kNormal;
    case StatementKind::kSetBlock:
      return run_set_block(statement, scope);
    case StatementKind::kMacro: {
      const Macro* const macro = arena_.make(Macro{statement.macro.get(), &scope});
      set_name(statement.targets[0].name, Value::of(Kind::kMacro, &Value::macro, macro), scope);
      return Flow::kNormal;
    }
    case StatementKind::kCall:
      run_call(statement, scope, out);
      return Flow::kNormal;
    case StatementKind::kFilter:
      return run_filter_block(statement, scope, out);
    case StatementKind::kWith:
      return run_with(statement, scope, out);
    case StatementKind::kGeneration: {
      Scope* const inner = arena_.make(Scope{.parent = &scope});
      return run_block(statement.body, *inner, out);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement, Scope& scope, TextBuilder& out) {
  for (const Branch& branch : statement.branches) {
    if (is_true(evaluate(*branch.condition, scope))) return run_block(branch.body, scope, out);
  }
  return run_block(statement.otherwise, scope, out);
}

bool Interpreter::next_item(Loop& loop, Value* item) {
  while (loop.next < loop.source.size) {
    arena_.charge_steps(1);
    *item = loop.source.items[loop.next++];
    if (!loop.filtered) return true;
    Scope* const scope = arena_.make(Scope{.parent = loop.outer});
    assign(loop.statement->targets[0], *item, *scope);
    if (is_true(evaluate(*loop.statement->filter, *scope))) return true;
  }
  return false;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement, Scope& scope, TextBuilder& out) {
  Loop* const loop = arena_.make(Loop{});
  loop->interpreter = this;
  loop->statement = &statement;
  loop->outer = &scope;
  loop->source = items_of(arena_, evaluate(*statement.value, scope));
  loop->filtered = statement.filter != nullptr;
  Scope* const inner = arena_.make(Scope{.parent = &scope});
  bool is_first = true, completed = false;
  Value item;
  while (true) {
    if (loop->has_after) {
      item = loop->after;
      loop->has_after = false;
    } else if (!next_item(*loop, &item)) {
      break;
    }
    if (!is_first) ++loop->index0;
    is_first = false;
    loop->previous = loop->current;
    loop->current = item;
    inner->size = 0;
    set_name(syntax_.known.loop, Value::of(Kind::kLoop, &Value::loop, loop), *inner);
    assign(statement.targets[0], item, *inner);
    const Flow flow = run_block(statement.body, *inner, out);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  // A loop whose every round was left by break or continue runs its else block: jinja2 does.
  if (completed) return Flow::kNormal;
  Scope* const otherwise = arena_.make(Scope{.parent = &scope});
  return run_block(statement.otherwise, *otherwise, out);
}

Interpreter::Flow Interpreter::run_set_block(const Statement& statement, Scope& scope) {
  TextBuilder builder(arena_);
  Scope* const inner = arena_.make(Scope{.parent = &scope});
  const Flow flow = run_block(statement.body, *inner, builder);
  if (flow != Flow::kNormal) return flow;
  const Value text = Value::of(builder.finish());
  assign(statement.targets[0], apply_filters(statement.steps, text, scope), scope);
  return flow;
}

Interpreter::Flow Interpreter::run_filter_block(const Statement& statement, Scope& scope,
                                                TextBuilder& out) {
  TextBuilder builder(arena_);
  Scope* const inner = arena_.make(Scope{.parent = &scope});
  const Flow flow = run_block(statement.body, *inner, builder);
  if (flow != Flow::kNormal) return flow;
  add_str(out, arena_, apply_filters(statement.steps, Value::of(builder.finish()), scope));
  return flow;
}

Interpreter::Flow Interpreter::run_with(const Statement& statement, Scope& scope,
                                        TextBuilder& out) {
  Scope* const inner = arena_.make(Scope{.parent = &scope});
  for (std::size_t i = 0; i < statement.targets.size(); ++i) {
    assign(statement.targets[i], evaluate(*statement.values[i], scope), *inner);
  }
  return run_block(statement.body, *inner, out);
}

void Interpreter::run_call(const Statement& statement, Scope& scope, TextBuilder& out) {
  const Expression& call = *statement.value;
  Value value = evaluate(*call.operands[0], scope);
  for (std::size_t i = 0; i + 1 < call.steps.size(); ++i) {
    value = apply_step(call.steps[i], value, scope);
  }
  const Macro* const body = arena_.make(Macro{statement.macro.get(), &scope});
  const Value caller = Value::of(Kind::kMacro, &Value::macro, body);
  add_str(out, arena_, call_step(call.steps.back(), value, scope, &caller));
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::kName:
      return set_name(target.name, value, scope);
    case Target::Kind::kAttribute: {
      const Value names = name_value(target.name, target.text, scope);
      if (!names.is(Kind::kNamespace)) {
        fail("'" + std::string(target.text->view()) + "' is " + name_of(names.kind) +
             ", attributes are only set of a namespace");
      }
      return set_key(arena_, names.names->pairs, Value::of(target.attribute), value);
    }
    case Target::Kind::kTuple: {
      const List items = items_of(arena_, value);
      if (items.size != target.items.size()) {
        fail("found " + std::to_string(items.size) + " items for " +
             std::to_string(target.items.size()) + " names");
      }
      for (std::size_t i = 0; i < items.size; ++i) assign(target.items[i], items.items[i], scope);
      return;
    }
  }
}

void Interpreter::set_name(NameId name, const Value& value, Scope& scope) {
  if (&scope == root_) {
    globals_[name] = value;
    return;
  }
  arena_.charge_bytes(scope.size);
  for (std::uint32_t i = 0; i < scope.size; ++i) {
    if (scope.variables[i].name == name) {
      scope.variables[i].value = value;
      return;
    }
  }
  if (scope.size == scope.capacity) {
    const std::uint32_t capacity = scope.capacity == 0 ? 4 : 2 * scope.capacity;
    auto* const variables = arena_.make_array<Scope::Variable>(capacity);
    std::copy_n(scope.variables, scope.size, variables);
    scope.variables = variables;
    scope.capacity = capacity;
  }
  scope.variables[scope.size++] = {name, value};
}

Value Interpreter::name_value(NameId name, const Text* text, const Scope& scope) {
  for (const Scope* at = &scope; at != root_; at = at->parent) {
    arena_.charge_bytes(at->size + 1);
    for (std::uint32_t i = 0; i < at->size; ++i) {
      if (at->variables[i].name == name) return at->variables[i].value;
    }
  }
  const Value& value = globals_[name];
  return value.is(Kind::kMissing) ? Value::undefined(text) : value;
}

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  const EvaluationDepth depth(*this);
  arena_.charge_steps(1);
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return name_value(expression.name, expression.text, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kMapping:
    case ExpressionKind::kConcatenate:
      return evaluate_items(expression, scope);
    case ExpressionKind::kPostfix:
      return evaluate_postfix(expression, scope);
    case ExpressionKind::kNot:
      return Value::of(!is_true(evaluate(*expression.operands[0], scope)));
    case ExpressionKind::kNegative:
      return negative_of(evaluate(*expression.operands[0], scope));
    case ExpressionKind::kPositive:
      return positive_of(evaluate(*expression.operands[0], scope));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      const bool ends_at = expression.kind == ExpressionKind::kOr;
      Value value;
      for (const Expression* const operand : expression.operands) {
        value = evaluate(*operand, scope);
        if (is_true(value) == ends_at) break;
      }
      return value;
    }
    case ExpressionKind::kArithmetic:
      return evaluate_chain(expression, scope);
    case ExpressionKind::kCompare:
      return evaluate_compare(expression, scope);
    case ExpressionKind::kCondition:
      return evaluate_condition(expression, scope);
  }
  return Value::undefined();
}

Value Interpreter::evaluate_condition(const Expression& expression, Scope& scope) {
  if (is_true(evaluate(*expression.operands[0], scope))) {
    return evaluate(*expression.operands[1], scope);
  }
  if (expression.operands.size() < 3) return Value::undefined();
  return evaluate(*expression.operands[2], scope);
}

Value Interpreter::evaluate_chain(const Expression& expression, Scope& scope) {
  Value value = evaluate(*expression.operands[0], scope);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    const Value other = evaluate(*expression.operands[i + 1], scope);
    line_ = expression.line;
    value = arithmetic(arena_, expression.operators[i], value, other);
  }
  return value;
}

Value Interpreter::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.operands[0], scope);
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    const Value right = evaluate(*expression.operands[i + 1], scope);
    line_ = expression.line;
    if (!compare_by(arena_, expression.operators[i], left, right)) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Value Interpreter::evaluate_items(const Expression& expression, Scope& scope) {
  const std::vector<const Expression*>& operands = expression.operands;
  if (expression.kind == ExpressionKind::kConcatenate) {
    TextBuilder builder(arena_);
    for (const Expression* const operand : operands) {
      add_str(builder, arena_, evaluate(*operand, scope));
    }
    return Value::of(builder.finish());
  }
  if (expression.kind == ExpressionKind::kMapping) {
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < operands.size(); i += 2) {
      const Value key = evaluate(*operands[i], scope);
      check_hashable(arena_, key);
      set_key(arena_, pairs, key, evaluate(*operands[i + 1], scope));
    }
    return arena_.mapping_of(pairs);
  }
  Value* const items = arena_.make_array<Value>(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) items[i] = evaluate(*operands[i], scope);
  return Value::of(arena_.make(List{items, operands.size()}),
                   expression.kind == ExpressionKind::kList ? Kind::kList : Kind::kTuple);
}

Value Interpreter::evaluate_postfix(const Expression& expression, Scope& scope) {
  Value value = evaluate(*expression.operands[0], scope);
  for (const PostfixStep& step : expression.steps) value = apply_step(step, value, scope);
  return value;
}

Value Interpreter::apply_step(const PostfixStep& step, const Value& value, Scope& scope) {
  arena_.charge_steps(1);
  switch (step.kind) {
    case StepKind::kAttribute:
      line_ = step.line;
      return attribute_of(arena_, value, *step.name, step.id);
    case StepKind::kItem: {
      const Value key = evaluate(*step.parts[0], scope);
      line_ = step.line;
      return item_of(arena_, value, key);
    }
    case StepKind::kSlice: {
      Value parts[3];
      for (int i = 0; i < 3; ++i) {
        parts[i] = step.parts[i] == nullptr ? Value::missing() : evaluate(*step.parts[i], scope);
      }
      line_ = step.line;
      return slice_of(arena_, value, parts[0], parts[1], parts[2]);
    }
    case StepKind::kCall:
      return call_step(step, value, scope, nullptr);
    case StepKind::kFilter: {
      const Arguments arguments = evaluate_arguments(step.arguments, scope, nullptr);
      line_ = step.line;
      if (step.id < 0)
        fail("filter '" + std::string(step.name->view().substr(0, 64)) + "' is unknown");
      return apply_filter(arena_, step.id, value, arguments);
    }
    case StepKind::kTest: {
      const Arguments arguments = evaluate_arguments(step.arguments, scope, nullptr);
      line_ = step.line;
      if (step.id < 0)
        fail("test '" + std::string(step.name->view().substr(0, 64)) + "' is unknown");
      return Value::of(apply_test(arena_, step.id, value, arguments) != step.negated);
    }
  }
  return Value::undefined();
}

Value Interpreter::apply_filters(const std::vector<PostfixStep>& steps, Value value, Scope& scope) {
  for (const PostfixStep& step : steps) value = apply_step(step, value, scope);
  return value;
}

Arguments Interpreter::evaluate_arguments(const std::vector<Argument>& arguments, Scope& scope,
                                          const Value* caller) {
  Arguments evaluated;
  const std::size_t keywords =
      static_cast<std::size_t>(std::ranges::count_if(
          arguments, [](const Argument& argument) { return argument.keyword != nullptr; })) +
      (caller != nullptr ? 1 : 0);
  if (arguments.size() + keywords == 0) return evaluated;
  Value* const values = arena_.make_array<Value>(arguments.size());
  Keyword* const named = keywords > 0 ? arena_.make_array<Keyword>(keywords) : nullptr;
  for (const Argument& argument : arguments) {
    const Value value = evaluate(*argument.value, scope);
    if (argument.keyword != nullptr) {
      named[evaluated.num_keywords++] = {argument.keyword, value};
    } else {
      values[evaluated.size++] = value;
    }
  }
  if (caller != nullptr) named[evaluated.num_keywords++] = {arena_.text_of("caller"), *caller};
  evaluated.values = values;
  evaluated.keywords = named;
  return evaluated;
}

Value Interpreter::call_step(const PostfixStep& step, const Value& callee, Scope& scope,
                             const Value* caller) {
  const Arguments arguments = evaluate_arguments(step.arguments, scope, caller);
  line_ = step.line;
  return call(callee, arguments);
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind) {
    case Kind::kMacro:
      return call_macro(*callee.macro, arguments);
    case Kind::kMethod:
      return call_method(arena_, *callee.method, arguments);
    case Kind::kFunction:
      return call_function(callee.function, arguments);
    case Kind::kUndefined:
      if (callee.text != nullptr) {
        fail("'" + std::string(callee.text->view().substr(0, 64)) + "' is undefined");
      }
      [[fallthrough]];
    default:
      fail(std::string(name_of(callee.kind)) + " cannot be called");
  }
}

Value Interpreter::call_macro(const Macro& macro, const Arguments& arguments) {
  const MacroSyntax& syntax = *macro.syntax;
  const std::string name = syntax.name == nullptr ? "caller" : std::string(syntax.name->view());
  if (macro_depth_ >= arena_.limits().macro_depth) {
    fail_bound("macro_depth", static_cast<std::uint64_t>(arena_.limits().macro_depth));
  }
  Scope* const scope = arena_.make(Scope{.parent = macro.scope});
  const std::size_t count = syntax.parameters.size();
  std::vector<bool> taken(arguments.num_keywords);
  const auto take_keyword = [&](std::string_view wanted) -> const Value* {
    for (std::size_t i = 0; i < arguments.num_keywords; ++i) {
      if (!taken[i] && arguments.keywords[i].name->view() == wanted) {
        taken[i] = true;
        return &arguments.keywords[i].value;
      }
    }
    return nullptr;
  };
  arena_.charge_steps(count * (1 + arguments.num_keywords));
  ++macro_depth_;
  const std::size_t line = line_;
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = syntax.parameters[i];
    Value value = Value::undefined(parameter.text);
    if (i < arguments.size) {
      value = arguments.values[i];
    } else if (const Value* const given = take_keyword(parameter.text->view())) {
      value = *given;
    } else if (parameter.value != nullptr) {
      value = evaluate(*parameter.value, *scope);
    }
    set_name(parameter.name, value, *scope);
  }
  line_ = line;
  if (syntax.uses_caller && !syntax.has_caller_parameter) {
    const Value* const caller = take_keyword("caller");
    set_name(syntax_.known.caller, caller != nullptr ? *caller : Value::undefined(), *scope);
  }
  std::vector<Pair> rest;
  for (std::size_t i = 0; i < arguments.num_keywords; ++i) {
    if (taken[i]) continue;
    if (!syntax.uses_kwargs) {
      fail("macro '" + name + "' has no argument '" +
           std::string(arguments.keywords[i].name->view().substr(0, 64)) + "'");
    }
    set_key(arena_, rest, Value::of(arguments.keywords[i].name), arguments.keywords[i].value);
  }
  if (syntax.uses_kwargs) set_name(syntax_.known.kwargs, arena_.mapping_of(rest), *scope);
  if (syntax.uses_varargs) {
    const std::size_t first = std::min(count, arguments.size);
    const List* const more = arena_.make(List{arguments.values + first, arguments.size - first});
    set_name(syntax_.known.varargs, Value::of(more, Kind::kTuple), *scope);
  } else if (arguments.size > count) {
    fail("macro '" + name + "' takes at most " + std::to_string(count) + " arguments, not " +
         std::to_string(arguments.size));
  }
  TextBuilder builder(arena_);
  run_block(syntax.body, *scope, builder);
  --macro_depth_;
  line_ = line;
  return Value::of(builder.finish());
}

Value Interpreter::call_function(Function function, const Arguments& arguments) {
  switch (function) {
    case Function::kRaiseException: {
      const auto [message] = bind("raise_exception", arguments, {"message"}, 1);
      throw TemplateRefusal(std::string(str_of(arena_, message)->view()));
    }
    case Function::kStrftimeNow: {
      const auto [format] = bind("strftime_now", arguments, {"format"}, 1);
      return Value::of(format_time(arena_, now_, text_argument(format, "format")));
    }
    case Function::kRange: {
      const auto [first, second, third] = bind("range", arguments, {"start", "stop", "step"}, 1);
      if (arguments.num_keywords > 0) fail("range takes no arguments with names");
      Range range;
      const bool has_start = !second.is(Kind::kMissing);
      range.start = has_start ? integer_argument(first, "range") : 0;
      range.stop = integer_argument(has_start ? second : first, "range");
      range.step = integer_argument(third, "range", 1);
      if (range.step == 0) fail("range: the step is 0");
      const bool back = range.step < 0;
      if (back ? range.stop < range.start : range.start < range.stop) {
        const __int128 distance = back ? static_cast<__int128>(range.start) - range.stop
                                       : static_cast<__int128>(range.stop) - range.start;
        const __int128 step = back ? -static_cast<__int128>(range.step) : range.step;
        const __int128 size = (distance - 1) / step + 1;
        if (size > kMaxRange) fail_bound("range", kMaxRange);
        range.size = static_cast<std::int64_t>(size);
      }
      return Value::of(Kind::kRange, &Value::range, static_cast<const Range*>(arena_.make(range)));
    }
    case Function::kNamespace:
    case Function::kDict:
      break;
  }
  const bool is_namespace = function == Function::kNamespace;
  if (arguments.size > 1) fail("namespace and dict take at most one argument without a name");
  std::vector<Pair> pairs;
  if (arguments.size == 1) {
    const Value& given = arguments.values[0];
    if (given.is(Kind::kMapping)) {
      pairs.assign(given.mapping->pairs, given.mapping->pairs + given.mapping->size);
      arena_.charge_steps(pairs.size());
      arena_.charge_memory(pairs.size() * sizeof(Pair));
    } else {
      const List items = items_of(arena_, given);
      for (std::size_t i = 0; i < items.size; ++i) {
        const List pair = items_of(arena_, items.items[i]);
        if (pair.size != 2) fail("dict takes pairs of keys and values");
        check_hashable(arena_, pair.items[0]);
        set_key(arena_, pairs, pair.items[0], pair.items[1]);
      }
    }
  }
  for (std::size_t i = 0; i < arguments.num_keywords; ++i) {
    set_key(arena_, pairs, Value::of(arguments.keywords[i].name), arguments.keywords[i].value);
  }
  if (!is_namespace) return arena_.mapping_of(pairs);
  for (const Pair& pair : pairs) {
    if (!pair.key.is(Kind::kText)) fail("names of a namespace are texts");
  }
  Namespace* const names = arena_.make_namespace();
  names->pairs = std::move(pairs);
  return Value::of(Kind::kNamespace, &Value::names, names);
}

}  // namespace lintel::jinja
