// SPDX-License-Identifier: Apache-2.0
// Methods of texts, mappings, lists and loops.
#include <algorithm>
#include <iterator>
#include <string>

#include "server/chat/template/calls.h"
#include "server/chat/template/interpreter.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {

enum class Method : std::uint8_t {
  // Methods of texts.
  kCapitalize,
  kCount,  // of lists, too
  kEndsWith,
  kFind,
  kFormat,
  kIsAlnum,
  kIsAlpha,
  kIsDigit,
  kIsSpace,
  kJoin,
  kLower,
  kLstrip,
  kRemovePrefix,
  kRemoveSuffix,
  kReplace,
  kRfind,
  kRsplit,
  kRstrip,
  kSplit,
  kSplitLines,
  kStartsWith,
  kStrip,
  kTitle,
  kUpper,
  // Methods of mappings.
  kGet,
  kItems,
  kKeys,
  kValues,
  // Methods of lists.
  kIndex,
  // Methods that Python has and templates do not get.
  kCopy,
  kChanging,
  // Attributes of loops.
  kCycle,
  kLoopIndex,
  kLoopIndex0,
  kLoopRevindex,
  kLoopRevindex0,
  kLoopFirst,
  kLoopLast,
  kLoopLength,
  kLoopPrevItem,
  kLoopNextItem,
  kLoopDepth,
  kLoopDepth0,
  // Attributes of macros.
  kName,
};

namespace {

enum Owner : std::uint8_t {
  kText = 1,
  kMappings = 2,
  kLists = 4,
  kTuples = 8,
  kLoops = 16,
  kMacros = 32,
};

struct MethodEntry {
  std::string_view name;
  std::uint8_t owners;
  Method method;
};

// Sorted by name; "index" and "count" have several owners.
constexpr MethodEntry kMethods[] = {
    {"append", kLists, Method::kChanging},
    {"capitalize", kText, Method::kCapitalize},
    {"clear", kLists | kMappings, Method::kChanging},
    {"copy", kLists | kMappings, Method::kCopy},
    {"count", kText | kLists | kTuples, Method::kCount},
    {"cycle", kLoops, Method::kCycle},
    {"depth", kLoops, Method::kLoopDepth},
    {"depth0", kLoops, Method::kLoopDepth0},
    {"endswith", kText, Method::kEndsWith},
    {"extend", kLists, Method::kChanging},
    {"find", kText, Method::kFind},
    {"first", kLoops, Method::kLoopFirst},
    {"format", kText, Method::kFormat},
    {"fromkeys", kMappings, Method::kCopy},
    {"get", kMappings, Method::kGet},
    {"index", kLists | kTuples | kLoops, Method::kIndex},
    {"index0", kLoops, Method::kLoopIndex0},
    {"insert", kLists, Method::kChanging},
    {"isalnum", kText, Method::kIsAlnum},
    {"isalpha", kText, Method::kIsAlpha},
    {"isdigit", kText, Method::kIsDigit},
    {"isspace", kText, Method::kIsSpace},
    {"items", kMappings, Method::kItems},
    {"join", kText, Method::kJoin},
    {"keys", kMappings, Method::kKeys},
    {"last", kLoops, Method::kLoopLast},
    {"length", kLoops, Method::kLoopLength},
    {"lower", kText, Method::kLower},
    {"lstrip", kText, Method::kLstrip},
    {"name", kMacros, Method::kName},
    {"nextitem", kLoops, Method::kLoopNextItem},
    {"pop", kLists | kMappings, Method::kChanging},
    {"popitem", kMappings, Method::kChanging},
    {"previtem", kLoops, Method::kLoopPrevItem},
    {"remove", kLists, Method::kChanging},
    {"removeprefix", kText, Method::kRemovePrefix},
    {"removesuffix", kText, Method::kRemoveSuffix},
    {"replace", kText, Method::kReplace},
    {"reverse", kLists, Method::kChanging},
    {"revindex", kLoops, Method::kLoopRevindex},
    {"revindex0", kLoops, Method::kLoopRevindex0},
    {"rfind", kText, Method::kRfind},
    {"rsplit", kText, Method::kRsplit},
    {"rstrip", kText, Method::kRstrip},
    {"setdefault", kMappings, Method::kChanging},
    {"sort", kLists, Method::kChanging},
    {"split", kText, Method::kSplit},
    {"splitlines", kText, Method::kSplitLines},
    {"startswith", kText, Method::kStartsWith},
    {"strip", kText, Method::kStrip},
    {"title", kText, Method::kTitle},
    {"update", kMappings, Method::kChanging},
    {"upper", kText, Method::kUpper},
    {"values", kMappings, Method::kValues},
};
static_assert(std::ranges::is_sorted(kMethods, {}, &MethodEntry::name));

std::uint8_t owner_of(const Value& value) {
  switch (value.kind) {
    case Kind::kText:
      return kText;
    case Kind::kMapping:
      return kMappings;
    case Kind::kList:
      return kLists;
    case Kind::kTuple:
    case Kind::kRange:
      return kTuples;
    case Kind::kLoop:
      return kLoops;
    case Kind::kMacro:
      return kMacros;
    default:
      return 0;
  }
}

Value view_of(Arena& arena, const Value& mapping, ViewKind kind) {
  return Value::of(Kind::kView, &Value::view,
                   static_cast<const View*>(arena.make(View{kind, mapping.mapping})));
}

// Bytes [begin, end) of the characters that a method's start and stop name. False: no text lies
// there.
bool find_range(Arena& arena, const Text& text, const Value& start, const Value& stop,
                std::size_t* begin, std::size_t* end) {
  const std::int64_t length = text.characters;
  const auto place = [&](const Value& value, std::int64_t by_default) {
    if (value.is(Kind::kMissing) || value.is(Kind::kNone)) return by_default;
    const std::int64_t index = integer_argument(value, "start and end");
    return index < 0 ? std::max<std::int64_t>(index + length, 0) : index;
  };
  const std::int64_t first = place(start, 0);
  const std::int64_t last = std::min(place(stop, length), length);
  if (first > last) return false;
  *begin = byte_of_character(arena, text, static_cast<std::size_t>(first));
  *end = byte_of_character(arena, text, static_cast<std::size_t>(last));
  return true;
}

Value find_method(Arena& arena, const Text& text, const Arguments& arguments, bool last) {
  const auto [wanted, start, stop] =
      bind(last ? "rfind" : "find", arguments, {"sub", "start", "end"}, 1);
  const std::string_view sub = text_argument(wanted, "sub").view();
  std::size_t begin = 0, end = 0;
  if (!find_range(arena, text, start, stop, &begin, &end)) return Value::of(std::int64_t{-1});
  const std::string_view part = text.view().substr(begin, end - begin);
  const std::size_t place = last ? find_last_bytes(arena, part, sub) : find_bytes(arena, part, sub);
  if (place == std::string_view::npos) return Value::of(std::int64_t{-1});
  return Value::of(std::int64_t{part_of(arena, text, 0, begin + place)->characters});
}

Value count_in_text(Arena& arena, const Text& text, const Arguments& arguments) {
  const auto [wanted, start, stop] = bind("count", arguments, {"sub", "start", "end"}, 1);
  const Text& sub = text_argument(wanted, "sub");
  std::size_t begin = 0, end = 0;
  if (!find_range(arena, text, start, stop, &begin, &end)) return Value::of(std::int64_t{0});
  const Text* const part = part_of(arena, text, begin, end);
  if (sub.size == 0) return Value::of(std::int64_t{part->characters} + 1);
  std::int64_t count = 0;
  std::size_t at = 0;
  while ((at = find_bytes(arena, part->view(), sub.view(), at)) != std::string_view::npos) {
    ++count;
    at += sub.size;
  }
  return Value::of(count);
}

Value has_affix(Arena& arena, const Text& text, const Arguments& arguments, bool at_end) {
  const auto [affix, start, stop] =
      bind(at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"}, 1);
  std::size_t begin = 0, end = 0;
  if (!find_range(arena, text, start, stop, &begin, &end)) return Value::of(false);
  const std::string_view part = text.view().substr(begin, end - begin);
  const auto fits = [&](const Value& value) {
    const std::string_view wanted = text_argument(value, at_end ? "endswith" : "startswith").view();
    arena.charge_bytes(std::min(wanted.size(), part.size()));
    return at_end ? part.ends_with(wanted) : part.starts_with(wanted);
  };
  if (!affix.is(Kind::kTuple)) return Value::of(fits(affix));
  for (std::size_t i = 0; i < affix.list->size; ++i) {
    arena.charge_steps(1);
    if (fits(affix.list->items[i])) return Value::of(true);
  }
  return Value::of(false);
}

const Text* optional_text(const Value& value, const char* what) {
  if (value.is(Kind::kMissing) || value.is(Kind::kNone)) return nullptr;
  return &text_argument(value, what);
}

Value strip_method(Arena& arena, const Text& text, const Arguments& arguments, Side side) {
  const auto [characters] = bind("strip", arguments, {"chars"});
  return Value::of(strip(arena, text, optional_text(characters, "chars"), side));
}

Value split_method(Arena& arena, const Text& text, const Arguments& arguments, bool from_right) {
  const auto [separator, most] =
      bind(from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const std::int64_t splits = integer_argument(most, "maxsplit", -1);
  const Text* const sep = optional_text(separator, "sep");
  return arena.list_of(from_right ? split_right(arena, text, sep, splits)
                                  : split(arena, text, sep, splits));
}

Value remove_affix(Arena& arena, const Text& text, const Arguments& arguments, bool at_end) {
  const auto [affix] = bind(at_end ? "removesuffix" : "removeprefix", arguments, {"affix"}, 1);
  const std::string_view cut = text_argument(affix, "affix").view();
  arena.charge_bytes(cut.size());
  if (at_end) {
    if (!text.view().ends_with(cut)) return Value::of(&text);
    return Value::of(part_of(arena, text, 0, text.size - cut.size()));
  }
  if (!text.view().starts_with(cut)) return Value::of(&text);
  return Value::of(part_of(arena, text, cut.size(), text.size));
}

Value replace_method(Arena& arena, const Text& text, const Arguments& arguments) {
  const auto [from, to, count] = bind("replace", arguments, {"old", "new", "count"}, 2);
  const Text* replacement = &text_argument(to, "new");
  if (text.markup && !replacement->markup) replacement = escape_html(arena, *replacement);
  return Value::of(replace(arena, text, text_argument(from, "old"), *replacement,
                           integer_argument(count, "count", -1)));
}

Value call_text_method(Arena& arena, Method method, const Text& text, const Arguments& arguments) {
  const auto changed = [&](const char* name, const Text* (*change)(Arena&, const Text&)) {
    bind_none(name, arguments);
    return Value::of(change(arena, text));
  };
  const auto all = [&](const char* name, bool (*fits)(char32_t)) {
    bind_none(name, arguments);
    return Value::of(is_all(arena, text, fits));
  };
  switch (method) {
    case Method::kCapitalize:
      return changed("capitalize", capitalize);
    case Method::kLower:
      return changed("lower", to_lower);
    case Method::kUpper:
      return changed("upper", to_upper);
    case Method::kTitle:
      return changed("title", to_title);
    case Method::kIsAlnum:
      return all("isalnum", is_alphanumeric);
    case Method::kIsAlpha:
      return all("isalpha", is_alphabetic);
    case Method::kIsDigit:
      return all("isdigit", is_decimal_or_digit);
    case Method::kIsSpace:
      return all("isspace", is_space);
    case Method::kCount:
      return count_in_text(arena, text, arguments);
    case Method::kEndsWith:
      return has_affix(arena, text, arguments, true);
    case Method::kStartsWith:
      return has_affix(arena, text, arguments, false);
    case Method::kFind:
      return find_method(arena, text, arguments, false);
    case Method::kRfind:
      return find_method(arena, text, arguments, true);
    case Method::kFormat:
      return format_braces(arena, text, arguments);
    case Method::kJoin: {
      const auto [items] = bind("join", arguments, {"iterable"}, 1);
      return Value::of(join(arena, text, items_of(arena, items), false));
    }
    case Method::kStrip:
      return strip_method(arena, text, arguments, Side::kBoth);
    case Method::kLstrip:
      return strip_method(arena, text, arguments, Side::kLeft);
    case Method::kRstrip:
      return strip_method(arena, text, arguments, Side::kRight);
    case Method::kSplit:
      return split_method(arena, text, arguments, false);
    case Method::kRsplit:
      return split_method(arena, text, arguments, true);
    case Method::kSplitLines: {
      const auto [keeps] = bind("splitlines", arguments, {"keepends"});
      return arena.list_of(split_lines(arena, text, flag_argument(keeps, false)));
    }
    case Method::kRemovePrefix:
      return remove_affix(arena, text, arguments, false);
    case Method::kRemoveSuffix:
      return remove_affix(arena, text, arguments, true);
    default:
      return replace_method(arena, text, arguments);
  }
}

Value call_mapping_method(Arena& arena, Method method, const Value& mapping,
                          const Arguments& arguments) {
  if (method == Method::kGet) {
    if (arguments.num_keywords > 0) fail("get takes no arguments with names");
    const auto [key, otherwise] = bind("get", arguments, {"key", "default"}, 1);
    check_hashable(arena, key);
    if (const Value* const found = find_key(arena, *mapping.mapping, key)) return *found;
    return otherwise.is(Kind::kMissing) ? Value::none() : otherwise;
  }
  bind_none("a view of a mapping", arguments);
  if (method == Method::kItems) return view_of(arena, mapping, ViewKind::kItems);
  return view_of(arena, mapping, method == Method::kKeys ? ViewKind::kKeys : ViewKind::kValues);
}

Value call_list_method(Arena& arena, Method method, const Value& list, const Arguments& arguments) {
  const auto [item, start, stop] = bind("index", arguments, {"value", "start", "stop"}, 1);
  const List items = items_of(arena, list);
  if (method == Method::kCount) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < items.size; ++i) count += are_equal(arena, items.items[i], item);
    return Value::of(count);
  }
  const auto size = static_cast<std::int64_t>(items.size);
  const auto place = [&](const Value& value, std::int64_t by_default) {
    const std::int64_t index = integer_argument(value, "start and stop", by_default);
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  for (std::int64_t i = place(start, 0); i < place(stop, size); ++i) {
    if (are_equal(arena, items.items[i], item)) return Value::of(i);
  }
  fail("index: the list does not have the item");
}

}  // namespace

int method_of(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kMethods, name, {}, &MethodEntry::name);
  if (found == std::end(kMethods) || found->name != name) return -1;
  return static_cast<int>(found - std::begin(kMethods));
}

Value bound_method(Arena& arena, const Value& value, int method, const Text& name) {
  if (method < 0) return Value::undefined(&name);
  const MethodEntry& entry = kMethods[method];
  const std::uint8_t owner = owner_of(value);
  if ((entry.owners & owner) == 0 || entry.method == Method::kChanging) {
    return Value::undefined(&name);
  }
  if (owner == kLoops && entry.method != Method::kCycle) {
    switch (entry.method) {
      case Method::kIndex:
        return loop_attribute(*value.loop, LoopAttribute::kIndex);
      case Method::kLoopIndex0:
        return loop_attribute(*value.loop, LoopAttribute::kIndex0);
      case Method::kLoopRevindex:
        return loop_attribute(*value.loop, LoopAttribute::kRevindex);
      case Method::kLoopRevindex0:
        return loop_attribute(*value.loop, LoopAttribute::kRevindex0);
      case Method::kLoopFirst:
        return loop_attribute(*value.loop, LoopAttribute::kFirst);
      case Method::kLoopLast:
        return loop_attribute(*value.loop, LoopAttribute::kLast);
      case Method::kLoopLength:
        return loop_attribute(*value.loop, LoopAttribute::kLength);
      case Method::kLoopPrevItem:
        return loop_attribute(*value.loop, LoopAttribute::kPrevItem);
      case Method::kLoopNextItem:
        return loop_attribute(*value.loop, LoopAttribute::kNextItem);
      case Method::kLoopDepth:
        return loop_attribute(*value.loop, LoopAttribute::kDepth);
      default:
        return loop_attribute(*value.loop, LoopAttribute::kDepth0);
    }
  }
  if (owner == kMacros) return macro_name(*value.macro);
  return Value::of(
      Kind::kMethod, &Value::method,
      static_cast<const BoundMethod*>(arena.make(BoundMethod{value, entry.method, &name})));
}

bool hides_key(const Value& value, int method) {
  const MethodEntry& entry = kMethods[method];
  return (entry.owners & owner_of(value)) != 0 && entry.method == Method::kChanging;
}

Value call_method(Arena& arena, const BoundMethod& method, const Arguments& arguments) {
  if (method.method == Method::kCopy) {
    fail("method '" + std::string(method.name->view()) + "' is not supported");
  }
  switch (method.object.kind) {
    case Kind::kText:
      return call_text_method(arena, method.method, *method.object.text, arguments);
    case Kind::kMapping:
      return call_mapping_method(arena, method.method, method.object, arguments);
    case Kind::kLoop:
      if (arguments.num_keywords > 0) fail("cycle takes no arguments with names");
      if (arguments.size == 0) fail("cycle takes at least one argument");
      return arguments
          .values[static_cast<std::size_t>(
                      loop_attribute(*method.object.loop, LoopAttribute::kIndex0).integer) %
                  arguments.size];
    default:
      return call_list_method(arena, method.method, method.object, arguments);
  }
}

void bind_arguments(const char* callee, const Arguments& arguments, const char* const* names,
                    std::size_t size, std::size_t required, Value* bound) {
  if (arguments.size > size) {
    fail(std::string(callee) + " takes at most " + std::to_string(size) + " arguments, not " +
         std::to_string(arguments.size));
  }
  std::copy_n(arguments.values, arguments.size, bound);
  std::fill(bound + arguments.size, bound + size, Value::missing());
  for (std::size_t i = 0; i < arguments.num_keywords; ++i) {
    const std::string_view name = arguments.keywords[i].name->view();
    const auto* const place =
        std::find_if(names, names + size, [&](const char* other) { return name == other; });
    if (place == names + size) {
      fail(std::string(callee) + " has no argument '" + std::string(name.substr(0, 64)) + "'");
    }
    Value& value = bound[place - names];
    if (!value.is(Kind::kMissing)) {
      fail(std::string(callee) + ": argument '" + std::string(name) + "' is given twice");
    }
    value = arguments.keywords[i].value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i].is(Kind::kMissing)) {
      fail(std::string(callee) + ": argument '" + names[i] + "' is missing");
    }
  }
}

std::int64_t integer_argument(const Value& value, const char* what) {
  if (!value.is_integral()) {
    fail(std::string(what) + " is " + name_of(value.kind) + ", expected an integer");
  }
  return value.as_integer();
}

std::int64_t integer_argument(const Value& value, const char* what, std::int64_t by_default) {
  return value.is(Kind::kMissing) ? by_default : integer_argument(value, what);
}

const Text& text_argument(const Value& value, const char* what) {
  if (!value.is(Kind::kText)) {
    fail(std::string(what) + " is " + name_of(value.kind) + ", expected a text");
  }
  return *value.text;
}

bool flag_argument(const Value& value, bool by_default) {
  return value.is(Kind::kMissing) ? by_default : is_true(value);
}

}  // namespace lintel::jinja
