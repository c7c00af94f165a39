// SPDX-License-Identifier: Apache-2.0
// Values of a render, and the arena that they live in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/template/template.h"

namespace lintel::jinja {

// A render fails; the interpreter knows the line.
class EvaluationError : public std::runtime_error {
 public:
  explicit EvaluationError(const std::string& what, std::string bound = {})
      : std::runtime_error(what), bound_(std::move(bound)) {}
  const std::string& bound() const { return bound_; }  // empty: none was reached

 private:
  std::string bound_;
};
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_bound(const char* bound, std::uint64_t limit);

// Lists and mappings within each other, where a function follows them by recursion.
inline constexpr int kMaxValueDepth = 200;

struct OriginRun {
  std::uint32_t end;  // bytes
  TextOrigin origin;
};

// Immutable. Bytes belong to the arena, to the template or to the input.
struct Text {
  const char* data = nullptr;
  std::uint32_t size = 0;        // bytes
  std::uint32_t characters = 0;  // code points
  TextOrigin origin = TextOrigin::kTemplate;
  bool markup = false;              // what `safe` and `escape` return
  std::uint32_t num_runs = 0;       // 0: all bytes are of `origin`
  const OriginRun* runs = nullptr;  // to the end of the text

  std::string_view view() const { return {data, size}; }
  bool is_ascii() const { return size == characters; }
};

enum class Kind : std::uint8_t {
  kMissing,  // of an argument that is not given; no template sees it
  kUndefined,
  kNone,
  kBool,
  kInteger,
  kBigInteger,  // beyond 64 bits, as digits
  kNumber,      // double
  kText,
  kList,
  kTuple,
  kMapping,
  kRange,
  kView,      // keys(), values(), items()
  kIterator,  // passed once, as Python's generators
  kNamespace,
  kMacro,
  kMethod,
  kFunction,
  kLoop,
};

enum class Function : std::uint8_t {
  kRaiseException,
  kStrftimeNow,
  kNamespace,
  kRange,
  kDict,
};

struct List;
struct Mapping;
struct Range;
struct View;
struct Iterator;
struct Namespace;
struct Macro;
struct BoundMethod;
struct Loop;

struct Value {
  Kind kind = Kind::kUndefined;
  union {
    bool boolean;
    std::int64_t integer;
    double number;
    const Text* text;  // of kUndefined: its name, or null
    const List* list;  // of kTuple, too
    const Mapping* mapping;
    const Range* range;
    const View* view;
    Iterator* iterator;
    Namespace* names;
    const Macro* macro;
    const BoundMethod* method;
    Function function;
    Loop* loop;
  };

  Value() : text(nullptr) {}
  static Value none() { return of_kind(Kind::kNone); }
  static Value missing() { return of_kind(Kind::kMissing); }
  static Value undefined(const Text* name = nullptr) {
    Value value;
    value.text = name;
    return value;
  }
  static Value of(bool boolean) {
    Value value = of_kind(Kind::kBool);
    value.boolean = boolean;
    return value;
  }
  static Value of(std::int64_t integer) {
    Value value = of_kind(Kind::kInteger);
    value.integer = integer;
    return value;
  }
  static Value of(double number) {
    Value value = of_kind(Kind::kNumber);
    value.number = number;
    return value;
  }
  static Value of(const Text* text) {
    Value value = of_kind(Kind::kText);
    value.text = text;
    return value;
  }
  static Value of(const List* list, Kind kind = Kind::kList) {
    Value value = of_kind(kind);
    value.list = list;
    return value;
  }
  static Value of(const Mapping* mapping) {
    Value value = of_kind(Kind::kMapping);
    value.mapping = mapping;
    return value;
  }
  static Value of(Function function) {
    Value value = of_kind(Kind::kFunction);
    value.function = function;
    return value;
  }
  template <typename T>
  static Value of(Kind kind, T Value::*member, T pointer) {
    Value value = of_kind(kind);
    value.*member = pointer;
    return value;
  }

  bool is(Kind other) const { return kind == other; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
  bool is_integral() const { return kind == Kind::kInteger || kind == Kind::kBool; }
  bool is_numeric() const { return is_integral() || kind == Kind::kNumber; }
  // REQUIRES: is_integral().
  std::int64_t as_integer() const {
    return kind == Kind::kBool ? static_cast<std::int64_t>(boolean) : integer;
  }
  // REQUIRES: is_numeric().
  double as_number() const {
    return kind == Kind::kNumber ? number : static_cast<double>(as_integer());
  }

 private:
  static Value of_kind(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
};

struct List {
  const Value* items = nullptr;
  std::size_t size = 0;
};
struct Pair {
  Value key;
  Value value;
};
struct Mapping {
  const Pair* pairs = nullptr;
  std::size_t size = 0;
};
struct Range {
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::int64_t size = 0;
  std::int64_t stop = 0;
  // REQUIRES: 0 <= index < size. The product alone may be beyond 64 bits.
  std::int64_t at(std::int64_t index) const {
    return static_cast<std::int64_t>(start + static_cast<__int128>(index) * step);
  }
};
enum class ViewKind : std::uint8_t { kKeys, kValues, kItems };
struct View {
  ViewKind kind;
  const Mapping* mapping;
};
struct Iterator {
  List items;
  std::size_t next = 0;
};
// The one kind of value that changes.
struct Namespace {
  std::vector<Pair> pairs;  // keys are texts
};
enum class Method : std::uint8_t;
struct BoundMethod {
  Value object;
  Method method;
  const Text* name;
};
// Seconds that the calling thread has run.
double cpu_seconds_of_thread();

// Memory of one render, freed at once, and its bounds. Used by one thread. Objects in it are not
// destroyed, but for namespaces.
class Arena {
 public:
  // `budget` (null: none) outlives the arena.
  explicit Arena(const TemplateLimits& limits, JsonBudget* budget = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const TemplateLimits& limits() const { return limits_; }

  // Throw EvaluationError beyond the bounds, and RenderCancelled. Functions that walk values, texts
  // or variables charge their work: only these look at time and cancellation.
  void charge_steps(std::uint64_t steps) {
    charge(std::min(steps, limits_.steps + 1) * kBytesPerStep);  // more would pass 64 bits
  }
  void charge_bytes(std::uint64_t bytes) { charge(bytes); }  // made or looked through
  void charge_memory(std::size_t bytes) {
    memory_ += bytes;
    if (memory_ > limits_.memory_bytes) fail_bound("memory_bytes", limits_.memory_bytes);
    if (memory_ > budgeted_) charge_budget();
  }
  void release_memory(std::size_t bytes) { memory_ -= bytes; }
  void check_text_size(std::size_t bytes) const {
    if (bytes > limits_.text_bytes) fail_bound("text_bytes", limits_.text_bytes);
  }

  template <typename T>
  T* make_array(std::size_t size) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (size > limits_.memory_bytes / sizeof(T)) fail_bound("memory_bytes", limits_.memory_bytes);
    T* const first = static_cast<T*>(allocate(size * sizeof(T)));
    for (std::size_t i = 0; i < size; ++i) new (first + i) T();
    return first;
  }
  template <typename T>
  T* make(T value) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocate(sizeof(T))) T(value);
  }
  char* make_bytes(std::size_t size) { return static_cast<char*>(allocate(size)); }
  Namespace* make_namespace();

  // A text of bytes that outlive the arena; counts its characters.
  const Text* text_of(std::string_view bytes, TextOrigin origin = TextOrigin::kTemplate);
  // A text with a copy of the bytes.
  const Text* copy_text(std::string_view bytes, TextOrigin origin = TextOrigin::kTemplate);
  Value list_of(const std::vector<Value>& items, Kind kind = Kind::kList);
  Value tuple_of(const Value& first, const Value& second);
  Value iterator_of(const std::vector<Value>& items);
  Value mapping_of(const std::vector<Pair>& pairs);

 private:
  static constexpr std::uint64_t kBytesPerStep = 64;

  void charge(std::uint64_t work) {
    work_ += work;
    if (work_ >= next_check_) check();
  }
  void check();
  void charge_budget();
  void* allocate(std::size_t bytes);

  const TemplateLimits limits_;
  JsonBudget* const budget_;
  const double begin_;      // seconds of CPU
  std::uint64_t work_ = 0;  // in 64ths of a step
  std::uint64_t next_check_ = 0;
  std::size_t memory_ = 0;
  std::size_t budgeted_ = 0;  // bytes that the budget is charged with
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

// A text in the making, with the origins of its bytes.
class TextBuilder {
 public:
  // `limit`: of bytes; `bound`: its name.
  explicit TextBuilder(Arena& arena);
  TextBuilder(Arena& arena, std::size_t limit, const char* bound);
  ~TextBuilder() { arena_.release_memory(bytes_.size()); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void add(std::string_view bytes, TextOrigin origin = TextOrigin::kTemplate);
  void add(const Text& text) { add_part(text, 0, text.size); }
  // Bytes [begin, end) of a text.
  void add_part(const Text& text, std::size_t begin, std::size_t end);
  void add_character(char32_t code, TextOrigin origin);
  void add_repeated(char byte, std::uint64_t times, TextOrigin origin = TextOrigin::kTemplate);

  std::size_t size() const { return bytes_.size(); }
  const Text* finish(bool markup = false);
  RenderedText finish_render();

 private:
  Arena& arena_;
  std::size_t limit_;
  const char* bound_;
  std::string bytes_;
  std::vector<OriginRun> runs_;
};

// Calls visit(begin, end, origin) for the parts of a text's bytes [begin, end) that are of one
// origin.
template <typename Visit>
void for_each_run(const Text& text, std::size_t begin, std::size_t end, Visit visit) {
  if (begin >= end) return;
  if (text.num_runs == 0) return visit(begin, end, text.origin);
  std::size_t low = 0, high = text.num_runs;
  while (low < high) {  // the first run that ends after `begin`
    const std::size_t middle = (low + high) / 2;
    if (text.runs[middle].end > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  for (std::size_t i = low; begin < end; ++i) {
    const std::size_t until = std::min<std::size_t>(end, text.runs[i].end);
    visit(begin, until, text.runs[i].origin);
    begin = until;
  }
}
TextOrigin origin_at(const Text& text, std::size_t byte);

// Bytes [begin, end) of a text, without a copy.
const Text* part_of(Arena& arena, const Text& text, std::size_t begin, std::size_t end);
// The byte at which a character begins; the text's size for its number of characters.
std::size_t byte_of_character(Arena& arena, const Text& text, std::size_t character);

// The name of a kind in errors.
const char* name_of(Kind kind);

// Python's truth, equality and order. Order throws for kinds that have none.
bool is_true(const Value& value);
bool are_equal(Arena& arena, const Value& a, const Value& b, int depth = 0);
// Returns a negative number, 0 or a positive one. NaN: *unordered is set.
int compare(Arena& arena, const Value& a, const Value& b, bool* unordered, int depth = 0);
bool is_less(Arena& arena, const Value& a, const Value& b);
// `in`.
bool contains_item(Arena& arena, const Value& container, const Value& item);

// The value of a key; null: there is none.
const Value* find_key(Arena& arena, const Mapping& mapping, const Value& key);
const Value* find_key(Arena& arena, const Mapping& mapping, std::string_view key);
// Throws for a key that Python cannot hash.
void check_hashable(Arena& arena, const Value& key, int depth = 0);
// Adds a pair, or replaces the value of a key that is there.
void set_key(Arena& arena, std::vector<Pair>& pairs, const Value& key, const Value& value);

// The items that a loop passes: characters, keys, items. An iterator is used up. Throws for values
// that cannot be passed.
List items_of(Arena& arena, const Value& value);
// len(). Throws for values without.
std::size_t length_of(const Value& value);

}  // namespace lintel::jinja
