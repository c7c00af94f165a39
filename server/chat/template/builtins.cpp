// SPDX-License-Identifier: Apache-2.0
// Builtin filters, `value | name`, and tests, `value is name`.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "server/chat/template/calls.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
namespace {

// Depth of map in map, and so on.
constexpr int kMaxFilterDepth = 16;

using Filter = Value (*)(Arena& arena, const Value& value, const Arguments& arguments, int depth);

bool is_given(const Value& value) { return !value.is(Kind::kMissing) && !value.is(Kind::kNone); }

// The text that `value | lower` and the like read.
const Text& soft_text(Arena& arena, const Value& value) { return *str_of(arena, value); }

// Orders texts without case unless asked otherwise.
Value case_folded(Arena& arena, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kText)) return value;
  return Value::of(to_lower(arena, *value.text));
}

// The attribute of each item that sort, min, max and unique go by.
Value key_of(Arena& arena, const Value& item, const Value& attribute, bool case_sensitive) {
  if (!is_given(attribute)) return case_folded(arena, item, case_sensitive);
  return case_folded(arena, attribute_path(arena, item, attribute), case_sensitive);
}

Value filter_abs(Arena&, const Value& value, const Arguments& arguments, int) {
  bind_none("abs", arguments);
  if (value.is(Kind::kNumber)) return Value::of(std::fabs(value.number));
  const std::int64_t number = integer_argument(value, "abs");
  return number < 0 ? negative_of(Value::of(number)) : Value::of(number);
}

Value filter_batch(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [count, fill] = bind("batch", arguments, {"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_argument(count, "linecount");
  const List items = items_of(arena, value);
  std::vector<Value> batches, batch;
  for (std::size_t i = 0; i < items.size; ++i) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(arena.list_of(batch));
      batch.clear();
    }
    batch.push_back(items.items[i]);
  }
  if (!batch.empty()) {
    if (is_given(fill) && size > 0) {
      arena.charge_steps(static_cast<std::uint64_t>(size));
      arena.charge_memory(std::min<std::uint64_t>(static_cast<std::uint64_t>(size), 1u << 30) *
                          sizeof(Value));
      while (static_cast<std::int64_t>(batch.size()) < size) batch.push_back(fill);
    }
    batches.push_back(arena.list_of(batch));
  }
  return arena.iterator_of(batches);
}

Value filter_slice(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [count, fill] = bind("slice", arguments, {"slices", "fill_with"}, 1);
  const std::int64_t slices = integer_argument(count, "slices");
  if (slices == 0) fail("slice: slices is 0");
  const List items = items_of(arena, value);
  std::vector<Value> parts;
  if (slices > 0) arena.charge_steps(static_cast<std::uint64_t>(slices));
  const auto size = static_cast<std::int64_t>(items.size);
  const std::int64_t each = slices > 0 ? size / slices : 0, longer = slices > 0 ? size % slices : 0;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::int64_t end = begin + each + (i < longer ? 1 : 0);
    std::vector<Value> part(items.items + begin, items.items + end);
    if (is_given(fill) && i >= longer) part.push_back(fill);
    parts.push_back(arena.list_of(part));
    begin = end;
  }
  return arena.iterator_of(parts);
}

template <const Text* (*change)(Arena&, const Text&)>
Value filter_text(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("this filter", arguments);
  return Value::of(change(arena, soft_text(arena, value)));
}

Value filter_length(Arena&, const Value& value, const Arguments& arguments, int) {
  bind_none("length", arguments);
  return Value::of(static_cast<std::int64_t>(length_of(value)));
}

Value filter_default(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [otherwise, boolean] = bind("default", arguments, {"default_value", "boolean"});
  if (value.is(Kind::kUndefined) || (flag_argument(boolean, false) && !is_true(value))) {
    return otherwise.is(Kind::kMissing) ? Value::of(arena.text_of({})) : otherwise;
  }
  return value;
}

// A stable order; is_less may throw.
template <typename Item, typename Key>
void sort_by(Arena& arena, std::vector<Item>& items, bool reverse, Key key) {
  std::vector<std::pair<Value, std::size_t>> keys;
  for (std::size_t i = 0; i < items.size(); ++i) {
    arena.charge_memory(sizeof(keys[0]) + sizeof(Item));
    keys.emplace_back(key(items[i]), i);
  }
  std::ranges::stable_sort(keys, [&](const auto& a, const auto& b) {
    arena.charge_steps(1);
    return reverse ? is_less(arena, b.first, a.first) : is_less(arena, a.first, b.first);
  });
  std::vector<Item> sorted;
  for (const auto& [unused, place] : keys) sorted.push_back(items[place]);
  items = std::move(sorted);
}

Value filter_dictsort(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [sensitive, by, reverse] =
      bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!value.is(Kind::kMapping)) fail("dictsort takes a mapping");
  const std::string_view what = is_given(by) ? text_argument(by, "by").view() : "key";
  if (what != "key" && what != "value") fail("dictsort: by is 'key' or 'value'");
  std::vector<Pair> pairs(value.mapping->pairs, value.mapping->pairs + value.mapping->size);
  const bool case_sensitive = flag_argument(sensitive, false);
  sort_by(arena, pairs, flag_argument(reverse, false), [&](const Pair& pair) {
    return case_folded(arena, what == "key" ? pair.key : pair.value, case_sensitive);
  });
  std::vector<Value> items;
  for (const Pair& pair : pairs) items.push_back(arena.tuple_of(pair.key, pair.value));
  return arena.list_of(items);
}

Value filter_escape(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("escape", arguments);
  const Text& text = soft_text(arena, value);
  return Value::of(text.markup ? &text : escape_html(arena, text));
}

Value filter_safe(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("safe", arguments);
  Text text = soft_text(arena, value);
  text.markup = true;
  return Value::of(static_cast<const Text*>(arena.make(text)));
}

Value filter_first(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("first", arguments);
  if (value.is(Kind::kIterator)) {
    Iterator& iterator = *value.iterator;
    if (iterator.next >= iterator.items.size) return Value::undefined();
    return iterator.items.items[iterator.next++];
  }
  if (value.is(Kind::kText) || value.is(Kind::kRange) || value.is_sequence()) {
    return item_of(arena, value, Value::of(std::int64_t{0}));
  }
  const List items = items_of(arena, value);
  return items.size == 0 ? Value::undefined() : items.items[0];
}

Value filter_last(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("last", arguments);
  if (value.is(Kind::kIterator)) fail("last does not take an iterator");
  if (value.is(Kind::kText) || value.is(Kind::kRange) || value.is_sequence()) {
    return item_of(arena, value, Value::of(std::int64_t{-1}));
  }
  const List items = items_of(arena, value);
  return items.size == 0 ? Value::undefined() : items.items[items.size - 1];
}

// Digits with sign, white space around and underscores between, as int() and float() take them.
std::string number_characters(std::string_view text) {
  const std::size_t begin = skip_spaces(text, 0);
  const std::size_t end = std::max(begin, skip_spaces_back(text, text.size()));
  std::string digits;
  for (std::size_t i = begin; i < end; ++i) {
    const bool between = text[i] == '_' && i > begin && i + 1 < end &&
                         std::isalnum(static_cast<unsigned char>(text[i - 1])) &&
                         std::isalnum(static_cast<unsigned char>(text[i + 1]));
    if (!between) digits += text[i];
  }
  return digits;
}

bool parse_integer(std::string_view text, std::int64_t base, std::int64_t* number) {
  std::string digits = number_characters(text);
  bool negative = false;
  std::size_t at = 0;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    at = 1;
  }
  if (digits.size() > at + 1 && digits[at] == '0') {
    const char kind = static_cast<char>(digits[at + 1] | 0x20);
    const std::int64_t named = kind == 'x' ? 16 : (kind == 'o' ? 8 : (kind == 'b' ? 2 : 0));
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      at += 2;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) fail("int: base is from 2 to 36");
  std::uint64_t value = 0;
  const char* const begin = digits.data() + at;
  const auto result =
      std::from_chars(begin, digits.data() + digits.size(), value, static_cast<int>(base));
  if (begin == digits.data() + digits.size() || result.ptr != digits.data() + digits.size())
    return false;
  if (result.ec == std::errc::result_out_of_range || value > std::uint64_t{1} << 63 ||
      (!negative && value == std::uint64_t{1} << 63)) {
    fail("int: the number is beyond 64 bits");
  }
  if (result.ec != std::errc()) return false;
  *number = negative ? static_cast<std::int64_t>(~value + 1) : static_cast<std::int64_t>(value);
  return true;
}

bool parse_number(std::string_view text, double* number) {
  const std::string digits = number_characters(text);
  const std::size_t at = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
  std::string lower;
  for (const char c : digits.substr(at)) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const bool is_word = lower == "inf" || lower == "infinity" || lower == "nan";
  const bool is_plain =
      !lower.empty() && lower.find_first_not_of("0123456789.e+-") == std::string::npos;
  if (!is_word && !is_plain) return false;
  char* end = nullptr;
  *number = std::strtod(digits.c_str(), &end);
  return end == digits.c_str() + digits.size();
}

bool truncate(double number, std::int64_t* integer) {
  if (!std::isfinite(number)) return false;
  if (std::fabs(number) >= 9223372036854775808.0) fail("int: the number is beyond 64 bits");
  *integer = static_cast<std::int64_t>(number);
  return true;
}

Value filter_int(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [otherwise, base] = bind("int", arguments, {"default", "base"});
  if (value.is(Kind::kUndefined)) fail("int does not take what is undefined");
  if (value.is(Kind::kBigInteger)) return value;
  if (value.is_integral()) return Value::of(value.as_integer());
  std::int64_t integer = 0;
  double number = 0;
  if (value.is(Kind::kNumber)) {
    if (truncate(value.number, &integer)) return Value::of(integer);
  } else if (value.is(Kind::kText)) {
    arena.charge_bytes(value.text->size);
    if (parse_integer(value.text->view(), integer_argument(base, "base", 10), &integer)) {
      return Value::of(integer);
    }
    if (parse_number(value.text->view(), &number) && truncate(number, &integer)) {
      return Value::of(integer);
    }
  }
  return otherwise.is(Kind::kMissing) ? Value::of(std::int64_t{0}) : otherwise;
}

Value filter_float(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [otherwise] = bind("float", arguments, {"default"});
  if (value.is(Kind::kUndefined)) fail("float does not take what is undefined");
  if (value.is_numeric()) return Value::of(value.as_number());
  double number = 0;
  if (value.is(Kind::kBigInteger)) {
    arena.charge_bytes(value.text->size);
    return Value::of(std::strtod(std::string(value.text->view()).c_str(), nullptr));
  }
  if (value.is(Kind::kText)) {
    arena.charge_bytes(value.text->size);
    if (parse_number(value.text->view(), &number)) return Value::of(number);
  }
  return otherwise.is(Kind::kMissing) ? Value::of(0.0) : otherwise;
}

Value filter_format(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const Text& text = soft_text(arena, value);
  if (arguments.size > 0 && arguments.num_keywords > 0) {
    fail("format takes arguments with names or without, not both");
  }
  if (arguments.num_keywords == 0) {
    return format_percent(
        arena, text, Value::of(arena.make(List{arguments.values, arguments.size}), Kind::kTuple));
  }
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < arguments.num_keywords; ++i) {
    pairs.push_back({Value::of(arguments.keywords[i].name), arguments.keywords[i].value});
  }
  return format_percent(arena, text, arena.mapping_of(pairs));
}

Value filter_indent(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [width, first, blank] = bind("indent", arguments, {"width", "first", "blank"});
  if (!value.is(Kind::kText)) fail(std::string("indent takes a text, not ") + name_of(value.kind));
  const Text* indention = nullptr;
  if (width.is(Kind::kText)) {
    indention = width.text;
  } else {
    TextBuilder blanks(arena);
    const std::int64_t size = integer_argument(width, "width", 4);
    blanks.add_repeated(' ', static_cast<std::uint64_t>(std::max<std::int64_t>(size, 0)));
    indention = blanks.finish();
  }
  // jinja2 looks at the text with a line end added, so that a last empty line is one.
  const Text* const text = concatenate(arena, *value.text, *arena.text_of("\n"));
  const std::vector<Value> lines = split_lines(arena, *text, false);
  TextBuilder builder(arena);
  if (flag_argument(first, false)) builder.add(*indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text;
    if (i > 0) {
      builder.add("\n");
      if (line.size > 0 || flag_argument(blank, false)) builder.add(*indention);
    }
    builder.add(line);
  }
  return Value::of(builder.finish(value.text->markup));
}

Value filter_items(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("items", arguments);
  if (value.is(Kind::kUndefined)) return arena.iterator_of({});
  if (!value.is(Kind::kMapping))
    fail(std::string("items takes a mapping, not ") + name_of(value.kind));
  std::vector<Value> items;
  for (std::size_t i = 0; i < value.mapping->size; ++i) {
    items.push_back(arena.tuple_of(value.mapping->pairs[i].key, value.mapping->pairs[i].value));
  }
  return arena.iterator_of(items);
}

Value filter_join(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [separator, attribute] = bind("join", arguments, {"d", "attribute"});
  List items = items_of(arena, value);
  if (is_given(attribute)) {
    Value* const picked = arena.make_array<Value>(items.size);
    for (std::size_t i = 0; i < items.size; ++i) {
      arena.charge_steps(1);
      picked[i] = attribute_path(arena, items.items[i], attribute);
    }
    items.items = picked;
  }
  const Text* const between =
      separator.is(Kind::kMissing) ? arena.text_of({}) : str_of(arena, separator);
  return Value::of(join(arena, *between, items, true));
}

Value filter_list(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("list", arguments);
  const List items = items_of(arena, value);
  return Value::of(arena.make(items));
}

// The rest of the arguments, after those that map and select take.
Arguments rest_of(const Arguments& arguments, std::size_t taken) {
  Arguments rest = arguments;
  rest.values += taken;
  rest.size -= taken;
  return rest;
}

// map and select take a false value as empty.
List items_if_true(Arena& arena, const Value& value) {
  return is_true(value) ? items_of(arena, value) : List{};
}

Value filter_map(Arena& arena, const Value& value, const Arguments& arguments, int depth) {
  const List items = items_if_true(arena, value);
  std::vector<Value> mapped;
  if (arguments.size == 0) {
    const auto [attribute, otherwise] = bind("map", arguments, {"attribute", "default"}, 1);
    for (std::size_t i = 0; i < items.size; ++i) {
      arena.charge_steps(1);
      arena.charge_memory(sizeof(Value));
      Value item = attribute_path(arena, items.items[i], attribute);
      if (item.is(Kind::kUndefined) && is_given(otherwise)) item = otherwise;
      mapped.push_back(item);
    }
    return arena.iterator_of(mapped);
  }
  const Text& name = text_argument(arguments.values[0], "map");
  const int id = filter_of(name.view());
  if (id < 0) fail("filter '" + std::string(name.view().substr(0, 64)) + "' is unknown");
  for (std::size_t i = 0; i < items.size; ++i) {
    arena.charge_steps(1);
    arena.charge_memory(sizeof(Value));
    mapped.push_back(apply_filter(arena, id, items.items[i], rest_of(arguments, 1), depth + 1));
  }
  return arena.iterator_of(mapped);
}

Value select_items(Arena& arena, const Value& value, const Arguments& arguments, bool wanted,
                   bool by_attribute) {
  const std::size_t taken = by_attribute ? 1 : 0;
  if (arguments.size < taken) fail("selectattr and rejectattr take the name of an attribute");
  const List items = items_if_true(arena, value);
  int id = -1;
  if (arguments.size > taken) {
    const Text& name = text_argument(arguments.values[taken], "the name of a test");
    id = test_of(name.view());
    if (id < 0) fail("test '" + std::string(name.view().substr(0, 64)) + "' is unknown");
  }
  std::vector<Value> selected;
  for (std::size_t i = 0; i < items.size; ++i) {
    arena.charge_steps(1);
    const Value item =
        by_attribute ? attribute_path(arena, items.items[i], arguments.values[0]) : items.items[i];
    const bool fits =
        id < 0 ? is_true(item) : apply_test(arena, id, item, rest_of(arguments, taken + 1));
    if (fits == wanted) {
      arena.charge_memory(sizeof(Value));
      selected.push_back(items.items[i]);
    }
  }
  return arena.iterator_of(selected);
}

template <bool wanted, bool by_attribute>
Value filter_select(Arena& arena, const Value& value, const Arguments& arguments, int) {
  return select_items(arena, value, arguments, wanted, by_attribute);
}

template <bool largest>
Value filter_extreme(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [sensitive, attribute] =
      bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = flag_argument(sensitive, false);
  const List items = items_of(arena, value);
  if (items.size == 0) return Value::undefined();
  Value best = items.items[0];
  Value best_key = key_of(arena, best, attribute, case_sensitive);
  for (std::size_t i = 1; i < items.size; ++i) {
    arena.charge_steps(1);
    const Value key = key_of(arena, items.items[i], attribute, case_sensitive);
    if (largest ? is_less(arena, best_key, key) : is_less(arena, key, best_key)) {
      best = items.items[i];
      best_key = key;
    }
  }
  return best;
}

Value filter_replace(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [from, to, count] = bind("replace", arguments, {"old", "new", "count"}, 2);
  const Text* text = &soft_text(arena, value);
  if (text->markup) {
    Text plain = *text;
    plain.markup = false;
    text = arena.make(plain);
  }
  return Value::of(replace(arena, *text, soft_text(arena, from), soft_text(arena, to),
                           is_given(count) ? integer_argument(count, "count") : -1));
}

Value filter_reverse(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("reverse", arguments);
  if (value.is(Kind::kText)) {
    return slice_of(arena, value, Value::missing(), Value::missing(), Value::of(std::int64_t{-1}));
  }
  const bool is_iterator = value.is(Kind::kIterator);
  const List items = items_of(arena, value);
  std::vector<Value> reversed(items.items, items.items + items.size);
  std::ranges::reverse(reversed);
  return is_iterator ? arena.list_of(reversed) : arena.iterator_of(reversed);
}

// Python's round(): exact, half to even.
double round_number(double number, std::int64_t precision) {
  if (!std::isfinite(number)) return number;
  if (precision > 323) return number;
  if (precision < -308) return std::copysign(0.0, number);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(number / unit) * unit;
  }
  std::string digits(static_cast<std::size_t>(precision) + 330, '\0');
  const int size =
      std::snprintf(digits.data(), digits.size(), "%.*f", static_cast<int>(precision), number);
  digits.resize(static_cast<std::size_t>(size));
  return std::strtod(digits.c_str(), nullptr);
}

Value filter_round(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [digits, how] = bind("round", arguments, {"precision", "method"});
  const std::int64_t precision = integer_argument(digits, "precision", 0);
  const std::string_view method = is_given(how) ? text_argument(how, "method").view() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    fail("round: method is 'common', 'ceil' or 'floor'");
  }
  if (!value.is_numeric()) fail(std::string("round takes a number, not ") + name_of(value.kind));
  if (method != "common") {
    const double unit = std::pow(10.0, static_cast<double>(precision));
    const double scaled = value.as_number() * unit;
    return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
  }
  if (value.is(Kind::kNumber)) {
    arena.charge_bytes(1024);  // up to as many digits
    return Value::of(round_number(value.number, precision));
  }
  if (precision >= 0) return Value::of(value.as_integer());
  if (precision < -18) return Value::of(std::int64_t{0});
  __int128 unit = 1;  // what is rounded may lie beyond 64 bits
  for (std::int64_t i = 0; i < -precision; ++i) unit *= 10;
  const __int128 number = value.as_integer();
  const __int128 down = number / unit * unit - (number % unit < 0 ? unit : 0);
  const __int128 rest = number - down;
  const bool up = rest > unit - rest || (rest == unit - rest && down / unit % 2 != 0);
  const __int128 rounded = up ? down + unit : down;
  if (rounded != static_cast<std::int64_t>(rounded)) fail("round: the result is beyond 64 bits");
  return Value::of(static_cast<std::int64_t>(rounded));
}

Value filter_sort(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [reverse, sensitive, attribute] =
      bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const List list = items_of(arena, value);
  std::vector<Value> items(list.items, list.items + list.size);
  const bool case_sensitive = flag_argument(sensitive, false);
  std::vector<Value> names = {attribute};
  if (attribute.is(Kind::kText)) names = split(arena, *attribute.text, arena.text_of(","), -1);
  // Keys are lists, whose equal items need no order.
  sort_by(arena, items, flag_argument(reverse, false), [&](const Value& item) {
    std::vector<Value> keys;
    for (const Value& name : names) keys.push_back(key_of(arena, item, name, case_sensitive));
    return arena.list_of(keys);
  });
  return arena.list_of(items);
}

Value filter_string(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("string", arguments);
  return Value::of(str_of(arena, value));
}

Value filter_sum(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [attribute, start] = bind("sum", arguments, {"attribute", "start"});
  Value sum = start.is(Kind::kMissing) ? Value::of(std::int64_t{0}) : start;
  if (sum.is(Kind::kText)) fail("sum does not add texts");
  const List items = items_of(arena, value);
  for (std::size_t i = 0; i < items.size; ++i) {
    arena.charge_steps(1);
    const Value item =
        is_given(attribute) ? attribute_path(arena, items.items[i], attribute) : items.items[i];
    sum = arithmetic(arena, Operator::kAdd, sum, item);
  }
  return sum;
}

Value filter_tojson(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [ascii, indent, separators, sort_keys] =
      bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag_argument(ascii, false);
  style.sort_keys = flag_argument(sort_keys, false);
  if (indent.is(Kind::kText)) {
    style.indent = indent.text;
  } else if (is_given(indent)) {
    TextBuilder blanks(arena);
    const std::int64_t width = integer_argument(indent, "indent");
    blanks.add_repeated(' ', static_cast<std::uint64_t>(std::max<std::int64_t>(width, 0)));
    style.indent = blanks.finish();
  }
  if (is_given(separators)) {
    const List pair = items_of(arena, separators);
    if (pair.size != 2) fail("tojson: separators are two texts");
    style.between = &text_argument(pair.items[0], "separators");
    style.after_key = &text_argument(pair.items[1], "separators");
  } else {
    style.between = arena.text_of(style.indent != nullptr ? "," : ", ");
    style.after_key = arena.text_of(": ");
  }
  return Value::of(json_of(arena, value, style));
}

Value filter_trim(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [characters] = bind("trim", arguments, {"chars"});
  return Value::of(strip(arena, soft_text(arena, value),
                         is_given(characters) ? &text_argument(characters, "chars") : nullptr,
                         Side::kBoth));
}

Value filter_unique(Arena& arena, const Value& value, const Arguments& arguments, int) {
  const auto [sensitive, attribute] = bind("unique", arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = flag_argument(sensitive, false);
  const List items = items_of(arena, value);
  std::vector<Value> unique;
  std::vector<Pair> seen;
  for (std::size_t i = 0; i < items.size; ++i) {
    const Value key = key_of(arena, items.items[i], attribute, case_sensitive);
    check_hashable(arena, key);
    const std::size_t before = seen.size();
    set_key(arena, seen, key, Value::none());
    if (seen.size() > before) unique.push_back(items.items[i]);
  }
  return arena.iterator_of(unique);
}

Value filter_wordcount(Arena& arena, const Value& value, const Arguments& arguments, int) {
  bind_none("wordcount", arguments);
  return Value::of(static_cast<std::int64_t>(count_words(arena, soft_text(arena, value))));
}

struct FilterEntry {
  std::string_view name;
  Filter apply;
};
constexpr FilterEntry kFilters[] = {
    {"abs", filter_abs},
    {"batch", filter_batch},
    {"capitalize", filter_text<capitalize>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_text<to_lower>},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_text<title_of_words>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_text<to_upper>},
    {"wordcount", filter_wordcount},
};
static_assert(std::ranges::is_sorted(kFilters, {}, &FilterEntry::name));

}  // namespace

int filter_of(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kFilters, name, {}, &FilterEntry::name);
  if (found == std::end(kFilters) || found->name != name) return -1;
  return static_cast<int>(found - std::begin(kFilters));
}

Value apply_filter(Arena& arena, int id, const Value& value, const Arguments& arguments,
                   int depth) {
  if (depth > kMaxFilterDepth) fail_bound("depth of filters", kMaxFilterDepth);
  return kFilters[id].apply(arena, value, arguments, depth);
}

// Tests.

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
