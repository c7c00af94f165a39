// SPDX-License-Identifier: Apache-2.0
// Tests: `value is name`.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "server/chat/template/calls.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
namespace {

enum class Test : std::uint8_t {
  kBoolean,
  kCallable,
  kDefined,
  kDivisibleBy,
  kEqual,
  kEven,
  kFalse,
  kFloat,
  kGreaterEqual,
  kGreater,
  kIn,
  kInteger,
  kIterable,
  kLessEqual,
  kLower,
  kLess,
  kMapping,
  kNotEqual,
  kNone,
  kNumber,
  kOdd,
  kSameAs,
  kSequence,
  kString,
  kTrue,
  kUndefined,
  kUpper,
};

struct TestEntry {
  std::string_view name;
  Test test;
};
constexpr TestEntry kTests[] = {
    {"boolean", Test::kBoolean},
    {"callable", Test::kCallable},
    {"defined", Test::kDefined},
    {"divisibleby", Test::kDivisibleBy},
    {"eq", Test::kEqual},
    {"equalto", Test::kEqual},
    {"==", Test::kEqual},
    {"even", Test::kEven},
    {"false", Test::kFalse},
    {"float", Test::kFloat},
    {"ge", Test::kGreaterEqual},
    {">=", Test::kGreaterEqual},
    {"gt", Test::kGreater},
    {"greaterthan", Test::kGreater},
    {">", Test::kGreater},
    {"in", Test::kIn},
    {"integer", Test::kInteger},
    {"iterable", Test::kIterable},
    {"le", Test::kLessEqual},
    {"<=", Test::kLessEqual},
    {"lower", Test::kLower},
    {"lt", Test::kLess},
    {"lessthan", Test::kLess},
    {"<", Test::kLess},
    {"mapping", Test::kMapping},
    {"ne", Test::kNotEqual},
    {"!=", Test::kNotEqual},
    {"none", Test::kNone},
    {"number", Test::kNumber},
    {"odd", Test::kOdd},
    {"sameas", Test::kSameAs},
    {"sequence", Test::kSequence},
    {"string", Test::kString},
    {"true", Test::kTrue},
    {"undefined", Test::kUndefined},
    {"upper", Test::kUpper},
};

// Kinds whose objects Python makes once for a value, as far as templates can see.
bool are_same(Arena& arena, const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
      return false;
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return a.boolean == b.boolean;
    case Kind::kInteger:
    case Kind::kText:
    case Kind::kFunction:
      return are_equal(arena, a, b);
    default:
      return a.list == b.list;
  }
}

Value remainder_of(Arena& arena, const Value& value, const Value& divisor) {
  if (value.is(Kind::kText)) fail("a text is not divided");
  return arithmetic(arena, Operator::kModulo, value, divisor);
}

bool has_items(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kMapping:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

bool is_sequence_kind(const Value& value) {
  return has_items(value) && !value.is(Kind::kView) && !value.is(Kind::kIterator) &&
         !value.is(Kind::kLoop);
}

bool is_callable(const Value& value) {
  return value.is(Kind::kUndefined) || value.is(Kind::kMacro) || value.is(Kind::kMethod) ||
         value.is(Kind::kFunction) || value.is(Kind::kLoop);
}

}  // namespace

int test_of(std::string_view name) {
  const auto* const found = std::ranges::find(kTests, name, &TestEntry::name);
  return found == std::end(kTests) ? -1 : static_cast<int>(found - std::begin(kTests));
}

bool apply_test(Arena& arena, int id, const Value& value, const Arguments& arguments) {
  const TestEntry& entry = kTests[id];
  const std::string name(entry.name);
  const auto other = [&] { return bind(name.c_str(), arguments, {"other"}, 1)[0]; };
  const auto compared = [&](Operator op) { return compare_by(arena, op, value, other()); };
  switch (entry.test) {
    case Test::kDivisibleBy:
      return are_equal(arena, remainder_of(arena, value, other()), Value::of(std::int64_t{0}));
    case Test::kEqual:
      return compared(Operator::kEqual);
    case Test::kNotEqual:
      return compared(Operator::kNotEqual);
    case Test::kGreaterEqual:
      return compared(Operator::kGreaterEqual);
    case Test::kGreater:
      return compared(Operator::kGreater);
    case Test::kLessEqual:
      return compared(Operator::kLessEqual);
    case Test::kLess:
      return compared(Operator::kLess);
    case Test::kIn:
      return compared(Operator::kIn);
    case Test::kSameAs:
      return are_same(arena, value, other());
    default:
      break;
  }
  bind_none(name.c_str(), arguments);
  switch (entry.test) {
    case Test::kBoolean:
      return value.is(Kind::kBool);
    case Test::kCallable:
      return is_callable(value);
    case Test::kDefined:
      return !value.is(Kind::kUndefined);
    case Test::kUndefined:
      return value.is(Kind::kUndefined);
    case Test::kEven:
    case Test::kOdd: {
      const Value remainder = remainder_of(arena, value, Value::of(std::int64_t{2}));
      const std::int64_t wanted = entry.test == Test::kOdd ? 1 : 0;
      return are_equal(arena, remainder, Value::of(wanted));
    }
    case Test::kFalse:
      return value.is(Kind::kBool) && !value.boolean;
    case Test::kTrue:
      return value.is(Kind::kBool) && value.boolean;
    case Test::kFloat:
      return value.is(Kind::kNumber);
    case Test::kInteger:
      return value.is(Kind::kInteger) || value.is(Kind::kBigInteger);
    case Test::kNumber:
      return value.is_numeric() || value.is(Kind::kBigInteger);
    case Test::kIterable:
      return has_items(value);
    case Test::kSequence:
      return is_sequence_kind(value);
    case Test::kMapping:
      return value.is(Kind::kMapping);
    case Test::kNone:
      return value.is(Kind::kNone);
    case Test::kString:
      return value.is(Kind::kText);
    case Test::kLower:
      return is_lower_text(arena, *str_of(arena, value));
    default:
      return is_upper_text(arena, *str_of(arena, value));
  }
}

}  // namespace lintel::jinja
