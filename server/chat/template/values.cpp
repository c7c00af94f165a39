// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
namespace {

// Bytes that a comparison of two small values costs like.
constexpr std::uint64_t kComparisonBytes = 4;

std::uint32_t count_characters(std::string_view bytes) {
  std::size_t continuing = 0;
  for (const char byte : bytes) {
    continuing += (static_cast<unsigned char>(byte) & 0xC0) == 0x80 ? 1 : 0;
  }
  return static_cast<std::uint32_t>(bytes.size() - continuing);
}

void check_depth(int depth) {
  if (depth > kMaxValueDepth) fail_bound("value depth", kMaxValueDepth);
}

int order_of(long double a, long double b) { return a < b ? -1 : (a > b ? 1 : 0); }

bool is_any_number(const Value& value) { return value.is_numeric() || value.is(Kind::kBigInteger); }

long double wide_number(Arena& arena, const Value& value) {
  if (value.is(Kind::kNumber)) return value.number;
  if (value.is(Kind::kBigInteger)) {
    arena.charge_bytes(value.text->size);
    return std::strtold(std::string(value.text->view()).c_str(), nullptr);
  }
  return static_cast<long double>(value.as_integer());
}

// The integer that a number is equal to; nothing where there is none within 64 bits.
std::optional<std::int64_t> whole_number(const Value& value) {
  if (value.is_integral()) return value.as_integer();
  constexpr double kBound = 9223372036854775808.0;
  if (!value.is(Kind::kNumber) || value.number != std::floor(value.number)) return std::nullopt;
  if (value.number < -kBound || value.number >= kBound) return std::nullopt;
  return static_cast<std::int64_t>(value.number);
}

bool are_equal_lists(Arena& arena, const List& a, const List& b, int depth) {
  if (a.size != b.size) return false;
  for (std::size_t i = 0; i < a.size; ++i) {
    if (!are_equal(arena, a.items[i], b.items[i], depth)) return false;
  }
  return true;
}

bool are_equal_mappings(Arena& arena, const Mapping& a, const Mapping& b, int depth) {
  if (a.size != b.size) return false;
  for (std::size_t i = 0; i < a.size; ++i) {
    const Value* const other = find_key(arena, b, a.pairs[i].key);
    if (other == nullptr || !are_equal(arena, a.pairs[i].value, *other, depth)) return false;
  }
  return true;
}

// The mapping's size: it has no such key.
std::size_t place_of_key(Arena& arena, const Mapping& mapping, std::string_view key) {
  std::size_t i = 0;
  while (i < mapping.size &&
         !(mapping.pairs[i].key.is(Kind::kText) && mapping.pairs[i].key.text->view() == key)) {
    ++i;
  }
  arena.charge_bytes((i + 1) * kComparisonBytes + key.size());
  return i;
}

std::size_t place_of_key(Arena& arena, const Mapping& mapping, const Value& key) {
  if (key.is(Kind::kText)) return place_of_key(arena, mapping, key.text->view());
  std::size_t i = 0;
  while (i < mapping.size && !are_equal(arena, mapping.pairs[i].key, key)) ++i;
  return i;
}

}  // namespace

void fail(const std::string& what) { throw EvaluationError(what); }

void fail_bound(const char* bound, std::uint64_t limit) {
  throw EvaluationError(std::string(bound) + ": at most " + std::to_string(limit) + " are allowed",
                        bound);
}

double cpu_seconds_of_thread() {
  std::timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Arena::Arena(const TemplateLimits& limits, JsonBudget* budget)
    : limits_(limits), budget_(budget), begin_(cpu_seconds_of_thread()) {}

Arena::~Arena() {
  blocks_.clear();
  if (budget_ != nullptr) budget_->charge(-static_cast<std::int64_t>(budgeted_));
}

void Arena::check() {
  constexpr std::uint64_t kWorkBetweenChecks = std::uint64_t{1} << 20;
  const std::uint64_t most = limits_.steps * kBytesPerStep;
  if (work_ > most) fail_bound("steps", limits_.steps);
  if (cpu_seconds_of_thread() - begin_ > limits_.cpu_seconds) {
    fail_bound("cpu_seconds", static_cast<std::uint64_t>(limits_.cpu_seconds));
  }
  if (budget_ != nullptr && budget_->cancelled()) throw RenderCancelled();
  next_check_ = std::min(most + 1, work_ + kWorkBetweenChecks);
}

void Arena::charge_budget() {
  if (budget_ == nullptr) return;
  constexpr std::size_t kStepBytes = std::size_t{64} << 10;  // as blocks, which may be half empty
  const std::size_t more = memory_ - budgeted_ + kStepBytes;
  if (!budget_->charge(static_cast<std::int64_t>(more))) throw RenderCancelled();
  budgeted_ += more;
}

void* Arena::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = alignof(std::max_align_t);
  constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
  if (bytes > limits_.memory_bytes) fail_bound("memory_bytes", limits_.memory_bytes);
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  charge_memory(bytes);
  if (bytes > kBlockBytes / 4) {
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return blocks_.back().get();
  }
  if (bytes > left_) {
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kBlockBytes));
    next_ = blocks_.back().get();
    left_ = kBlockBytes;
  }
  std::byte* const place = next_;
  next_ += bytes;
  left_ -= bytes;
  return place;
}

Namespace* Arena::make_namespace() {
  charge_memory(sizeof(Namespace) + 64);
  namespaces_.push_back(std::make_unique<Namespace>());
  return namespaces_.back().get();
}

const Text* Arena::text_of(std::string_view bytes, TextOrigin origin) {
  check_text_size(bytes.size());
  charge_bytes(bytes.size());
  Text text;
  text.data = bytes.data();
  text.size = static_cast<std::uint32_t>(bytes.size());
  text.characters = count_characters(bytes);
  text.origin = origin;
  return make(text);
}

const Text* Arena::copy_text(std::string_view bytes, TextOrigin origin) {
  check_text_size(bytes.size());
  char* const copy = make_bytes(bytes.size());
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  return text_of({copy, bytes.size()}, origin);
}

Value Arena::list_of(const std::vector<Value>& items, Kind kind) {
  charge_steps(items.size());
  Value* const copy = make_array<Value>(items.size());
  std::ranges::copy(items, copy);
  return Value::of(make(List{copy, items.size()}), kind);
}

Value Arena::tuple_of(const Value& first, const Value& second) {
  Value* const items = make_array<Value>(2);
  items[0] = first;
  items[1] = second;
  return Value::of(make(List{items, 2}), Kind::kTuple);
}

Value Arena::iterator_of(const std::vector<Value>& items) {
  const Value list = list_of(items);
  return Value::of(Kind::kIterator, &Value::iterator, make(Iterator{*list.list, 0}));
}

Value Arena::mapping_of(const std::vector<Pair>& pairs) {
  charge_steps(pairs.size());
  Pair* const copy = make_array<Pair>(pairs.size());
  std::ranges::copy(pairs, copy);
  return Value::of(make(Mapping{copy, pairs.size()}));
}

TextBuilder::TextBuilder(Arena& arena)
    : TextBuilder(arena, arena.limits().text_bytes, "text_bytes") {}

TextBuilder::TextBuilder(Arena& arena, std::size_t limit, const char* bound)
    : arena_(arena), limit_(limit), bound_(bound) {}

void TextBuilder::add(std::string_view bytes, TextOrigin origin) {
  if (bytes.empty()) return;
  if (bytes.size() > limit_ - bytes_.size()) fail_bound(bound_, limit_);
  arena_.charge_bytes(bytes.size());
  arena_.charge_memory(bytes.size());
  bytes_.append(bytes);
  const auto end = static_cast<std::uint32_t>(bytes_.size());
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = end;
  } else {
    arena_.charge_bytes(sizeof(OriginRun));
    runs_.push_back({end, origin});
  }
}

void TextBuilder::add_part(const Text& text, std::size_t begin, std::size_t end) {
  for_each_run(text, begin, end, [&](std::size_t from, std::size_t to, TextOrigin origin) {
    add(text.view().substr(from, to - from), origin);
  });
}

void TextBuilder::add_character(char32_t code, TextOrigin origin) {
  std::string bytes;
  append_utf8(bytes, code);
  add(bytes, origin);
}

void TextBuilder::add_repeated(char byte, std::uint64_t times, TextOrigin origin) {
  if (times > limit_ - bytes_.size()) fail_bound(bound_, limit_);
  add(std::string(times, byte), origin);
}

const Text* TextBuilder::finish(bool markup) {
  Text text = *arena_.copy_text(bytes_);
  text.markup = markup;
  if (runs_.size() == 1) {
    text.origin = runs_[0].origin;
  } else if (runs_.size() > 1) {
    OriginRun* const runs = arena_.make_array<OriginRun>(runs_.size());
    std::ranges::copy(runs_, runs);
    text.runs = runs;
    text.num_runs = static_cast<std::uint32_t>(runs_.size());
  }
  return arena_.make(text);
}

RenderedText TextBuilder::finish_render() {
  RenderedText rendered;
  std::size_t begin = 0;
  for (const OriginRun& run : runs_) {
    rendered.spans.push_back({begin, run.end, run.origin});
    begin = run.end;
  }
  arena_.release_memory(bytes_.size());
  rendered.text = std::move(bytes_);
  bytes_.clear();
  runs_.clear();
  return rendered;
}

TextOrigin origin_at(const Text& text, std::size_t byte) {
  TextOrigin found = text.origin;
  if (byte >= text.size) return found;
  for_each_run(text, byte, byte + 1,
               [&](std::size_t, std::size_t, TextOrigin origin) { found = origin; });
  return found;
}

const Text* part_of(Arena& arena, const Text& text, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == text.size) return &text;
  Text part;
  part.data = text.data + begin;
  part.size = static_cast<std::uint32_t>(end - begin);
  part.markup = text.markup;
  if (text.is_ascii()) {
    part.characters = part.size;
  } else {
    arena.charge_bytes(part.size);
    part.characters = count_characters(part.view());
  }
  std::size_t runs = 0;
  for_each_run(text, begin, end, [&](std::size_t, std::size_t, TextOrigin origin) {
    part.origin = origin;
    ++runs;
  });
  if (runs > 1) {
    OriginRun* const own = arena.make_array<OriginRun>(runs);
    std::size_t i = 0;
    for_each_run(text, begin, end, [&](std::size_t, std::size_t to, TextOrigin origin) {
      own[i++] = {static_cast<std::uint32_t>(to - begin), origin};
    });
    arena.charge_bytes(runs * sizeof(OriginRun));
    part.runs = own;
    part.num_runs = static_cast<std::uint32_t>(runs);
  }
  return arena.make(part);
}

std::size_t byte_of_character(Arena& arena, const Text& text, std::size_t character) {
  if (text.is_ascii()) return character;
  if (character >= text.characters) return text.size;
  std::size_t byte = 0;
  while (true) {
    if ((static_cast<unsigned char>(text.data[byte]) & 0xC0) != 0x80) {
      if (character == 0) break;
      --character;
    }
    ++byte;
  }
  arena.charge_bytes(byte);
  return byte;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
    case Kind::kBigInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number";
    case Kind::kText:
      return "a text";
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kMapping:
      return "a mapping";
    case Kind::kRange:
      return "a range";
    case Kind::kView:
      return "a view of a mapping";
    case Kind::kIterator:
      return "an iterator";
    case Kind::kNamespace:
      return "a namespace";
    case Kind::kMacro:
      return "a macro";
    case Kind::kMethod:
      return "a method";
    case Kind::kFunction:
      return "a function";
    case Kind::kLoop:
      return "a loop";
  }
  return "a value";
}

bool is_true(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInteger:
      return value.integer != 0;
    case Kind::kNumber:
      return value.number != 0;
    case Kind::kText:
      return value.text->size > 0;
    case Kind::kList:
    case Kind::kTuple:
      return value.list->size > 0;
    case Kind::kMapping:
      return value.mapping->size > 0;
    case Kind::kRange:
      return value.range->size > 0;
    case Kind::kView:
      return value.view->mapping->size > 0;
    default:
      return true;
  }
}

bool are_equal(Arena& arena, const Value& a, const Value& b, int depth) {
  check_depth(depth);
  arena.charge_bytes(kComparisonBytes);
  if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
  if (is_any_number(a) && is_any_number(b)) {
    if (a.is(Kind::kBigInteger) && b.is(Kind::kBigInteger)) {
      arena.charge_bytes(std::min(a.text->size, b.text->size));
      return a.text->view() == b.text->view();
    }
    return wide_number(arena, a) == wide_number(arena, b);
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      if (a.text->size != b.text->size) return false;
      arena.charge_bytes(a.text->size);
      return a.text->view() == b.text->view();
    case Kind::kList:
    case Kind::kTuple:
      return are_equal_lists(arena, *a.list, *b.list, depth + 1);
    case Kind::kMapping:
      return are_equal_mappings(arena, *a.mapping, *b.mapping, depth + 1);
    case Kind::kRange:
      return a.range->size == b.range->size &&
             (a.range->size == 0 || (a.range->start == b.range->start &&
                                     (a.range->size == 1 || a.range->step == b.range->step)));
    case Kind::kFunction:
      return a.function == b.function;
    case Kind::kMethod:
      return a.method->method == b.method->method &&
             are_equal(arena, a.method->object, b.method->object, depth + 1);
    default:
      return a.list == b.list;  // the same object
  }
}

int compare(Arena& arena, const Value& a, const Value& b, bool* unordered, int depth) {
  check_depth(depth);
  arena.charge_bytes(kComparisonBytes);
  if (a.is_integral() && b.is_integral()) {
    return a.as_integer() < b.as_integer() ? -1 : (a.as_integer() > b.as_integer() ? 1 : 0);
  }
  if (is_any_number(a) && is_any_number(b)) {
    const long double left = wide_number(arena, a), right = wide_number(arena, b);
    if (std::isnan(left) || std::isnan(right)) *unordered = true;
    return order_of(left, right);
  }
  if (a.is(Kind::kText) && b.is(Kind::kText)) {
    arena.charge_bytes(std::min(a.text->size, b.text->size));
    return a.text->view().compare(b.text->view());
  }
  if (a.kind == b.kind && a.is_sequence()) {
    const std::size_t common = std::min(a.list->size, b.list->size);
    for (std::size_t i = 0; i < common; ++i) {
      const Value& left = a.list->items[i];
      const Value& right = b.list->items[i];
      if (!are_equal(arena, left, right, depth + 1)) {
        return compare(arena, left, right, unordered, depth + 1);
      }
    }
    return order_of(static_cast<long double>(a.list->size), static_cast<long double>(b.list->size));
  }
  fail(std::string(name_of(a.kind)) + " and " + name_of(b.kind) + " have no order");
}

bool is_less(Arena& arena, const Value& a, const Value& b) {
  bool unordered = false;
  return compare(arena, a, b, &unordered) < 0 && !unordered;
}

bool contains_item(Arena& arena, const Value& container, const Value& item) {
  switch (container.kind) {
    case Kind::kText:
      if (!item.is(Kind::kText)) fail(std::string("a text does not contain ") + name_of(item.kind));
      arena.charge_bytes(container.text->size + item.text->size);
      return item.text->size == 0 || memmem(container.text->data, container.text->size,
                                            item.text->data, item.text->size) != nullptr;
    case Kind::kMapping:
      check_hashable(arena, item);
      return find_key(arena, *container.mapping, item) != nullptr;
    case Kind::kRange: {
      const std::optional<std::int64_t> number = whole_number(item);
      const Range& range = *container.range;
      if (!number || range.size == 0) return false;
      const __int128 offset = static_cast<__int128>(*number) - range.start;
      return offset % range.step == 0 && offset / range.step >= 0 &&
             offset / range.step < range.size;
    }
    default: {
      const bool uses_up = container.is(Kind::kIterator);
      const std::size_t first = uses_up ? container.iterator->next : 0;
      const List items = items_of(arena, container);
      for (std::size_t i = 0; i < items.size; ++i) {
        if (are_equal(arena, items.items[i], item)) {
          if (uses_up) container.iterator->next = first + i + 1;
          return true;
        }
      }
      return false;
    }
  }
}

const Value* find_key(Arena& arena, const Mapping& mapping, std::string_view key) {
  const std::size_t place = place_of_key(arena, mapping, key);
  return place < mapping.size ? &mapping.pairs[place].value : nullptr;
}

const Value* find_key(Arena& arena, const Mapping& mapping, const Value& key) {
  const std::size_t place = place_of_key(arena, mapping, key);
  return place < mapping.size ? &mapping.pairs[place].value : nullptr;
}

void check_hashable(Arena& arena, const Value& key, int depth) {
  check_depth(depth);
  arena.charge_bytes(kComparisonBytes);
  switch (key.kind) {
    case Kind::kList:
    case Kind::kMapping:
    case Kind::kView:
    case Kind::kIterator:
      fail(std::string(name_of(key.kind)) + " cannot be a key");
    case Kind::kTuple:
      for (std::size_t i = 0; i < key.list->size; ++i) {
        check_hashable(arena, key.list->items[i], depth + 1);
      }
      return;
    default:
      return;
  }
}

void set_key(Arena& arena, std::vector<Pair>& pairs, const Value& key, const Value& value) {
  const std::size_t place = place_of_key(arena, {pairs.data(), pairs.size()}, key);
  if (place < pairs.size()) {
    pairs[place].value = value;
    return;
  }
  arena.charge_steps(1);
  arena.charge_memory(sizeof(Pair));
  pairs.push_back({key, value});
}

List items_of(Arena& arena, const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return {};
    case Kind::kList:
    case Kind::kTuple:
      return *value.list;
    case Kind::kIterator: {
      Iterator& iterator = *value.iterator;
      const List rest{iterator.items.items + iterator.next, iterator.items.size - iterator.next};
      iterator.next = iterator.items.size;
      return rest;
    }
    case Kind::kMapping:
    case Kind::kView: {
      const bool is_view = value.is(Kind::kView);
      const Mapping& mapping = is_view ? *value.view->mapping : *value.mapping;
      const ViewKind kind = is_view ? value.view->kind : ViewKind::kKeys;
      arena.charge_steps(mapping.size);
      Value* const items = arena.make_array<Value>(mapping.size);
      for (std::size_t i = 0; i < mapping.size; ++i) {
        const Pair& pair = mapping.pairs[i];
        items[i] = kind == ViewKind::kKeys     ? pair.key
                   : kind == ViewKind::kValues ? pair.value
                                               : arena.tuple_of(pair.key, pair.value);
      }
      return {items, mapping.size};
    }
    case Kind::kRange: {
      const auto size = static_cast<std::size_t>(value.range->size);
      arena.charge_steps(size);
      Value* const items = arena.make_array<Value>(size);
      for (std::size_t i = 0; i < size; ++i) {
        items[i] = Value::of(value.range->at(static_cast<std::int64_t>(i)));
      }
      return {items, size};
    }
    case Kind::kText: {
      const Text& text = *value.text;
      arena.charge_steps(text.characters);
      Value* const items = arena.make_array<Value>(text.characters);
      std::size_t byte = 0;
      for (std::size_t i = 0; i < text.characters; ++i) {
        const std::size_t begin = byte;
        do {
          ++byte;
        } while (byte < text.size && (static_cast<unsigned char>(text.data[byte]) & 0xC0) == 0x80);
        Text* const one = arena.make(Text{});
        one->data = text.data + begin;
        one->size = static_cast<std::uint32_t>(byte - begin);
        one->characters = 1;
        one->origin = origin_at(text, begin);
        items[i] = Value::of(one);
      }
      return {items, text.characters};
    }
    default:
      fail(std::string(name_of(value.kind)) + " has no items");
  }
}

std::size_t length_of(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      return value.text->characters;
    case Kind::kList:
    case Kind::kTuple:
      return value.list->size;
    case Kind::kMapping:
      return value.mapping->size;
    case Kind::kRange:
      return static_cast<std::size_t>(value.range->size);
    case Kind::kView:
      return value.view->mapping->size;
    default:
      fail(std::string(name_of(value.kind)) + " has no length");
  }
}

}  // namespace lintel::jinja
