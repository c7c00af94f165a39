// SPDX-License-Identifier: Apache-2.0
// The tree of a template. Chains of operators and of filters are one node, so that no tree is
// deeper than TemplateLimits::nesting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/chat/template/values.h"

namespace lintel::jinja {

// A name of a template as a number.
using NameId = std::uint32_t;

struct Expression;
struct Statement;
using Block = std::vector<const Statement*>;

struct Argument {
  const Text* keyword = nullptr;  // null: positional
  const Expression* value = nullptr;
};

enum class StepKind : std::uint8_t { kAttribute, kItem, kSlice, kCall, kFilter, kTest };

// A step after an operand: `.name`, `[i]`, `[a:b:c]`, `(...)`, `| name(...)`, `is name(...)`.
struct PostfixStep {
  StepKind kind;
  std::uint32_t line = 0;
  const Text* name = nullptr;  // of an attribute, filter or test
  int id = -1;           // of the filter or test; of the method that the name may be; -1: unknown
  bool negated = false;  // is not
  std::vector<Argument> arguments;
  const Expression* parts[3] = {};  // of an item the first; of a slice null where omitted
};

enum class ExpressionKind : std::uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kMapping,  // operands: key, value, key, value
  kPostfix,  // operands: one; steps
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kConcatenate,
  kArithmetic,  // operators between operands, from the left
  kCompare,     // the same, a chain
  kCondition,   // operands: condition, then, else; the last may be missing
};

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression {
  ExpressionKind kind;
  std::uint32_t line = 0;
  NameId name = 0;             // of kName
  const Text* text = nullptr;  // of kName
  Value constant;
  std::vector<const Expression*> operands;
  std::vector<Operator> operators;
  std::vector<PostfixStep> steps;
};

struct Target {
  enum class Kind : std::uint8_t { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  NameId name = 0;
  const Text* text = nullptr;       // of the name
  const Text* attribute = nullptr;  // of a namespace
  std::vector<Target> items;
};

struct Parameter {
  NameId name = 0;
  const Text* text = nullptr;
  const Expression* value = nullptr;  // by default; null: undefined
};

struct MacroSyntax {
  const Text* name = nullptr;  // null: of a call block
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false;
  bool has_caller_parameter = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StatementKind : std::uint8_t {
  kData,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCall,
  kFilter,
  kWith,
  kGeneration,
  kBreak,
  kContinue,
};

struct Branch {
  const Expression* condition = nullptr;
  Block body;
};

struct Statement {
  StatementKind kind;
  std::uint32_t line = 0;
  const Text* data = nullptr;
  const Expression* value = nullptr;   // output, iterated, set, called
  const Expression* filter = nullptr;  // `for ... if`
  std::vector<Target> targets;         // of with: one for each of `values`
  std::vector<const Expression*> values;
  std::vector<PostfixStep> steps;  // filters of a block
  std::vector<Branch> branches;    // of if
  Block body;
  Block otherwise;  // else
  std::unique_ptr<MacroSyntax> macro;
};

// Names that have a meaning of their own.
struct KnownNames {
  NameId loop = 0, caller = 0, varargs = 0, kwargs = 0;
};

// Owns all nodes and their texts. Refers to the source.
struct Syntax {
  std::vector<std::unique_ptr<Expression>> expressions;
  std::vector<std::unique_ptr<Statement>> statements;
  std::deque<Text> texts;
  std::deque<std::string> strings;  // that the source does not have as they are
  std::unordered_map<std::string_view, NameId> names;
  std::unordered_set<NameId> hidden;  // whose variables no block sees
  KnownNames known;
  Block body;
};

// `source` as with_unix_lines returns it, which outlives the tree. Throws TemplateError of kind
// kSyntax or kBound.
Syntax parse_template(std::string_view source, const TemplateLimits& limits);

// The id of a name; -1: unknown. (builtins.cpp, methods.cpp)
int filter_of(std::string_view name);
int test_of(std::string_view name);
int method_of(std::string_view name);

}  // namespace lintel::jinja
