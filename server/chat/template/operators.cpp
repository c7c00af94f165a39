// SPDX-License-Identifier: Apache-2.0
// Operators, attributes, items and slices.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/chat/template/calls.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
namespace {

constexpr const char* kSymbols[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

[[noreturn]] void fail_operands(Operator op, const Value& a, const Value& b) {
  const auto named = [](const Value& value) {
    if (!value.is(Kind::kUndefined) || value.text == nullptr)
      return std::string(name_of(value.kind));
    return "'" + std::string(value.text->view().substr(0, 64)) + "', which is undefined";
  };
  fail(std::string("operator ") + kSymbols[static_cast<int>(op)] + " does not take " + named(a) +
       " and " + named(b));
}

[[noreturn]] void fail_overflow(Operator op) {
  fail(std::string("operator ") + kSymbols[static_cast<int>(op)] +
       ": the result is an integer beyond 64 bits");
}

Value checked(Operator op, bool overflow, std::int64_t result) {
  if (overflow) fail_overflow(op);
  return Value::of(result);
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("operator **: 0 has no negative power");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  bool overflow = false, base_overflow = false;
  while (exponent > 0) {
    if ((exponent & 1) != 0) {
      overflow = overflow || base_overflow || __builtin_mul_overflow(result, base, &result);
    }
    exponent >>= 1;
    if (exponent > 0) base_overflow = base_overflow || __builtin_mul_overflow(base, base, &base);
    if (overflow) break;
  }
  return checked(Operator::kPower, overflow, result);
}

Value integer_arithmetic(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      return checked(op, overflow, result);
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      return checked(op, overflow, result);
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      return checked(op, overflow, result);
    case Operator::kPower:
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0)
    fail(std::string("operator ") + kSymbols[static_cast<int>(op)] + ": division by zero");
  if (op == Operator::kDivide) {
    return Value::of(
        static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (b == -1) {
    if (op == Operator::kModulo) return Value::of(std::int64_t{0});
    overflow = __builtin_sub_overflow(std::int64_t{0}, a, &result);
    return checked(op, overflow, result);
  }
  const std::int64_t quotient = floor_quotient(a, b);
  return Value::of(op == Operator::kFloorDivide ? quotient : a - quotient * b);
}

// Python's remainder, which has the sign of `b`.
double floor_modulo(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  if ((remainder < 0) != (b < 0)) remainder += b;
  return remainder;
}

double floor_division(double a, double b) {
  const double remainder = floor_modulo(a, b);
  const double quotient = (a - remainder) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value number_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::of(a + b);
    case Operator::kSubtract:
      return Value::of(a - b);
    case Operator::kMultiply:
      return Value::of(a * b);
    case Operator::kPower: {
      if (a == 0 && b < 0) fail("operator **: 0 has no negative power");
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        fail("operator **: the result is not a real number");
      }
      const double result = std::pow(a, b);
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        fail("operator **: the result is too large");
      }
      return Value::of(result);
    }
    default:
      break;
  }
  if (b == 0)
    fail(std::string("operator ") + kSymbols[static_cast<int>(op)] + ": division by zero");
  if (op == Operator::kDivide) return Value::of(a / b);
  if (op == Operator::kModulo) return Value::of(floor_modulo(a, b));
  return Value::of(floor_division(a, b));
}

Value concatenated_lists(Arena& arena, const Value& a, const Value& b) {
  const std::size_t size = a.list->size + b.list->size;
  arena.charge_steps(size);
  Value* const items = arena.make_array<Value>(size);
  std::copy_n(a.list->items, a.list->size, items);
  std::copy_n(b.list->items, b.list->size, items + a.list->size);
  return Value::of(arena.make(List{items, size}), a.kind);
}

Value repeated_list(Arena& arena, const Value& list, std::int64_t times) {
  const std::size_t part = list.list->size;
  const std::uint64_t copies = times > 0 && part > 0 ? static_cast<std::uint64_t>(times) : 0;
  if (copies > arena.limits().memory_bytes / sizeof(Value)) {
    fail_bound("memory_bytes", arena.limits().memory_bytes);
  }
  if (part > 0 && copies > arena.limits().memory_bytes / sizeof(Value) / part) {
    fail_bound("memory_bytes", arena.limits().memory_bytes);
  }
  arena.charge_steps(copies * part);
  Value* const items = arena.make_array<Value>(copies * part);
  for (std::uint64_t i = 0; i < copies; ++i) {
    std::copy_n(list.list->items, part, items + i * part);
  }
  return Value::of(arena.make(List{items, copies * part}), list.kind);
}

// The place that an index names; -1: none.
std::int64_t place_of_index(std::int64_t index, std::size_t size) {
  const auto signed_size = static_cast<std::int64_t>(size);
  if (index < 0) index += signed_size;
  return index >= 0 && index < signed_size ? index : -1;
}

const Text* character_of(Arena& arena, const Text& text, std::size_t place) {
  const std::size_t begin = byte_of_character(arena, text, place);
  std::size_t end = begin + 1;
  while (end < text.size && (static_cast<unsigned char>(text.data[end]) & 0xC0) == 0x80) ++end;
  return part_of(arena, text, begin, end);
}

Value item_at(Arena& arena, const Value& value, std::int64_t index) {
  const std::int64_t place = place_of_index(index, length_of(value));
  if (place < 0) return Value::undefined();
  if (value.is(Kind::kText)) {
    return Value::of(character_of(arena, *value.text, static_cast<std::size_t>(place)));
  }
  if (value.is(Kind::kRange)) return Value::of(value.range->at(place));
  return value.list->items[place];
}

bool is_omitted(const Value& value) { return value.is(Kind::kNone) || value.is(Kind::kMissing); }

std::int64_t slice_part(const Value& value) {
  if (!value.is_integral()) {
    fail(std::string("a slice takes integers, not ") + name_of(value.kind));
  }
  return value.as_integer();
}

// Python's slice.indices: where a slice begins, and how many it takes.
struct Slice {
  std::int64_t start;
  std::int64_t step;
  std::int64_t size;
};
Slice slice_indices(const Value& start, const Value& stop, const Value& step, std::int64_t length) {
  Slice slice{0, 1, 0};
  if (!is_omitted(step)) slice.step = slice_part(step);
  if (slice.step == 0) fail("a slice has step 0");
  const bool back = slice.step < 0;
  const auto clamp = [&](std::int64_t index) {
    if (index < 0) {
      index = index < -length ? (back ? -1 : 0) : index + length;
    } else if (index >= length) {
      index = back ? length - 1 : length;
    }
    return index;
  };
  slice.start = is_omitted(start) ? (back ? length - 1 : 0) : clamp(slice_part(start));
  const std::int64_t end = is_omitted(stop) ? (back ? -1 : length) : clamp(slice_part(stop));
  // Steps beyond the length pass one item.
  slice.step = std::clamp(slice.step, -length - 1, length + 1);
  if (back ? end < slice.start : slice.start < end) {
    slice.size =
        back ? (slice.start - end - 1) / -slice.step + 1 : (end - slice.start - 1) / slice.step + 1;
  }
  return slice;
}

std::int64_t range_part(__int128 number) {
  const auto part = static_cast<std::int64_t>(number);
  if (part != number) fail("a slice of a range goes beyond 64 bits");
  return part;
}

Value slice_of_text(Arena& arena, const Text& text, const Slice& slice) {
  const auto start = static_cast<std::size_t>(slice.start);
  if (slice.size == 0) return Value::of(part_of(arena, text, 0, 0));
  if (slice.step == 1) {
    const std::size_t begin = byte_of_character(arena, text, start);
    const std::size_t end =
        byte_of_character(arena, text, start + static_cast<std::size_t>(slice.size));
    return Value::of(part_of(arena, text, begin, end));
  }
  TextBuilder builder(arena);
  const List characters = items_of(arena, Value::of(&text));
  for (std::int64_t i = 0; i < slice.size; ++i) {
    builder.add(*characters.items[slice.start + i * slice.step].text);
  }
  return Value::of(builder.finish(text.markup));
}

[[noreturn]] void fail_undefined(const Value& value, std::string_view wanted) {
  const std::string name =
      value.text == nullptr ? "a value" : "'" + std::string(value.text->view().substr(0, 64)) + "'";
  fail(name + " is undefined and has no '" + std::string(wanted.substr(0, 64)) + "'");
}

}  // namespace

Value arithmetic(Arena& arena, Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return integer_arithmetic(op, a.as_integer(), b.as_integer());
  }
  if (a.is_numeric() && b.is_numeric()) return number_arithmetic(op, a.as_number(), b.as_number());
  if (op == Operator::kAdd) {
    if (a.is(Kind::kText) && b.is(Kind::kText)) {
      return Value::of(concatenate(arena, *a.text, *b.text));
    }
    if (a.kind == b.kind && a.is_sequence()) return concatenated_lists(arena, a, b);
  }
  if (op == Operator::kMultiply) {
    const Value& sequence = a.is_integral() ? b : a;
    const Value& times = a.is_integral() ? a : b;
    if (times.is_integral() && sequence.is(Kind::kText)) {
      return Value::of(repeat(arena, *sequence.text, times.as_integer()));
    }
    if (times.is_integral() && sequence.is_sequence()) {
      return repeated_list(arena, sequence, times.as_integer());
    }
  }
  if (op == Operator::kModulo && a.is(Kind::kText) && !b.is(Kind::kUndefined)) {
    return format_percent(arena, *a.text, b);
  }
  fail_operands(op, a, b);
}

bool compare_by(Arena& arena, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return are_equal(arena, a, b);
    case Operator::kNotEqual:
      return !are_equal(arena, a, b);
    case Operator::kIn:
      return contains_item(arena, b, a);
    case Operator::kNotIn:
      return !contains_item(arena, b, a);
    default:
      break;
  }
  bool unordered = false;
  const int order = compare(arena, a, b, &unordered);
  if (unordered) return false;
  switch (op) {
    case Operator::kLess:
      return order < 0;
    case Operator::kLessEqual:
      return order <= 0;
    case Operator::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

Value negative_of(const Value& value) {
  if (value.is(Kind::kNumber)) return Value::of(-value.number);
  if (!value.is_integral()) fail(std::string("operator - does not take ") + name_of(value.kind));
  return integer_arithmetic(Operator::kSubtract, 0, value.as_integer());
}

Value positive_of(const Value& value) {
  if (value.is(Kind::kNumber)) return value;
  if (!value.is_integral()) fail(std::string("operator + does not take ") + name_of(value.kind));
  return Value::of(value.as_integer());
}

Value attribute_of(Arena& arena, const Value& value, const Text& name, int method) {
  switch (value.kind) {
    case Kind::kUndefined:
      fail_undefined(value, name.view());
    case Kind::kNamespace:
      for (const Pair& pair : value.names->pairs) {
        arena.charge_bytes(4);
        if (pair.key.text->view() == name.view()) return pair.value;
      }
      return Value::undefined(&name);
    case Kind::kMapping: {
      if (method >= 0) {
        const Value bound = bound_method(arena, value, method, name);
        if (!bound.is(Kind::kUndefined)) return bound;
        if (hides_key(value, method)) return Value::undefined(&name);
      }
      const Value* const found = find_key(arena, *value.mapping, name.view());
      return found != nullptr ? *found : Value::undefined(&name);
    }
    default:
      if (method < 0) return Value::undefined(&name);
      return bound_method(arena, value, method, name);
  }
}

Value item_of(Arena& arena, const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) {
    fail_undefined(value, key.is(Kind::kText) ? key.text->view() : "[...]");
  }
  const bool has_places = value.is(Kind::kText) || value.is_sequence() || value.is(Kind::kRange);
  if (has_places && key.is_integral()) return item_at(arena, value, key.as_integer());
  if (value.is(Kind::kMapping)) {
    const bool hashable = !key.is(Kind::kList) && !key.is(Kind::kMapping);
    const Value* const found = hashable ? find_key(arena, *value.mapping, key) : nullptr;
    if (found != nullptr) return *found;
  }
  if (!key.is(Kind::kText)) return Value::undefined();
  const int method = method_of(key.text->view());
  if (value.is(Kind::kMapping)) {
    return method >= 0 ? bound_method(arena, value, method, *key.text) : Value::undefined(key.text);
  }
  return attribute_of(arena, value, *key.text, method);
}

Value slice_of(Arena& arena, const Value& value, const Value& start, const Value& stop,
               const Value& step) {
  if (value.is(Kind::kUndefined)) fail_undefined(value, "[...]");
  if (!value.is(Kind::kText) && !value.is_sequence() && !value.is(Kind::kRange)) {
    fail(std::string(name_of(value.kind)) + " has no slices");
  }
  const auto length = static_cast<std::int64_t>(length_of(value));
  const Slice slice = slice_indices(start, stop, step, length);
  if (value.is(Kind::kText)) return slice_of_text(arena, *value.text, slice);
  if (value.is(Kind::kRange)) {
    // A range without items may begin beyond 64 bits, and one of a single item step so far.
    const Range& whole = *value.range;
    const __int128 begin = whole.start + static_cast<__int128>(slice.start) * whole.step;
    const __int128 range_step = static_cast<__int128>(whole.step) * slice.step;
    Range range;
    range.start = range_part(begin);
    range.step = range_part(range_step);
    range.size = slice.size;
    range.stop = range_part(begin + range_step * slice.size);
    return Value::of(Kind::kRange, &Value::range, static_cast<const Range*>(arena.make(range)));
  }
  arena.charge_steps(static_cast<std::size_t>(slice.size));
  Value* const items = arena.make_array<Value>(static_cast<std::size_t>(slice.size));
  for (std::int64_t i = 0; i < slice.size; ++i) {
    items[i] = value.list->items[slice.start + i * slice.step];
  }
  return Value::of(arena.make(List{items, static_cast<std::size_t>(slice.size)}), value.kind);
}

Value attribute_path(Arena& arena, Value value, const Value& path) {
  if (path.is_integral()) return item_of(arena, value, path);
  if (!path.is(Kind::kText)) {
    fail(std::string("an attribute is named by a text or an integer, not ") + name_of(path.kind));
  }
  const Text& names = *path.text;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(names.view().find('.', begin), std::size_t{names.size});
    const Text* const name = part_of(arena, names, begin, end);
    const std::string_view digits = name->view();
    std::int64_t index = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    const bool is_index = !digits.empty() && digits[0] != '-' && parsed.ec == std::errc() &&
                          parsed.ptr == digits.data() + digits.size();
    value = item_of(arena, value, is_index ? Value::of(index) : Value::of(name));
    if (end >= names.size) return value;
    begin = end + 1;
  }
}

}  // namespace lintel::jinja
