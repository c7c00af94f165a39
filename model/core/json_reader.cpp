// SPDX-License-Identifier: Apache-2.0
#include "model/core/json_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace lintel {
namespace {

using nlohmann::json;
using Kind = JsonFailure::Kind;

constexpr std::ptrdiff_t kPollBytes = 16 << 10;
// Charged to the budget at once: it is shared by threads.
constexpr std::int64_t kChargedBytes = 64 << 10;
// The lexer keeps the token at hand twice, and grows both copies by doubling.
constexpr std::int64_t kLexerCopies = 2;

// Sizes as the allocator hands them out.
constexpr std::int64_t kObjectBytes = 64;
constexpr std::int64_t kListBytes = 32;
constexpr std::int64_t kMemberBytes = 112;
constexpr std::int64_t kTextBytes = 48;
constexpr std::int64_t kShortTextBytes = 15;  // lie within the string's own
// A tree is taken apart through a list of its values.
constexpr std::int64_t kValueBytes = sizeof(json);

std::int64_t heap_bytes(const std::string& text) {
  const auto size = static_cast<std::int64_t>(text.size());
  return size > kShortTextBytes ? size + 16 : 0;
}

bool fail(JsonFailure& failure, Kind kind, std::string what) {
  if (failure.kind == Kind::kNone) {
    failure.kind = kind;
    failure.what = std::move(what);
  }
  return false;
}

// On one line, short, and printable: it quotes the text.
std::string error_text(const json::exception& error) {
  constexpr std::size_t kMostBytes = 200;
  std::string what = json_error_text(error);
  constexpr std::string_view kOverflow = "number overflow parsing ";
  if (what.starts_with(kOverflow)) {
    what.replace(0, kOverflow.size(), "a number is out of range: ");
  }
  if (what.size() > kMostBytes) what.replace(kMostBytes, std::string::npos, "...");
  std::ranges::replace_if(
      what, [](char c) { return c < ' ' || c > '~'; }, '?');
  return what;
}

bool too_deep(JsonFailure& failure, int max_depth) {
  return fail(failure, Kind::kTooDeep,
              "is nested more than " + std::to_string(max_depth) + " deep");
}

// Memory that is charged in the large.
class Charge {
 public:
  Charge(const JsonBounds& bounds, JsonFailure& failure) : bounds_(bounds), failure_(failure) {}

  bool add(std::int64_t bytes) {
    held_ += bytes;
    if (held_ > bounds_.max_bytes) {
      return fail(failure_, Kind::kTooLarge,
                  "takes more than " + std::to_string(bounds_.max_bytes >> 20) +
                      " MiB of memory: it has too many values, names, objects or lists");
    }
    return std::abs(held_ - charged_) < kChargedBytes || settle();
  }
  // Beside the tree, whose bound does not count it.
  bool add_apart(std::int64_t bytes) {
    if (bounds_.budget == nullptr || bounds_.budget->charge(bytes)) return true;
    return no_room();
  }
  bool settle() {
    const std::int64_t more = held_ - std::exchange(charged_, held_);
    return more == 0 || add_apart(more);
  }

 private:
  bool no_room() {
    return fail(failure_, Kind::kNoSpace, "finds no room in the memory there is for requests");
  }

  const JsonBounds& bounds_;
  JsonFailure& failure_;
  std::int64_t held_ = 0;
  std::int64_t charged_ = 0;
};

// The text, byte by byte; it ends where the reading is cancelled.
class PolledText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  PolledText(const char* at, const char* end, const JsonBudget* budget, bool* cancelled)
      : at_(at), end_(end), budget_(budget), cancelled_(cancelled) {
    set_next();
  }

  char operator*() const { return *at_; }
  PolledText& operator++() {
    if (++at_ == next_poll_) poll();
    return *this;
  }
  PolledText operator++(int) {
    PolledText before = *this;
    ++*this;
    return before;
  }
  bool operator==(const PolledText& other) const { return at_ == other.at_; }

 private:
  void poll() {
    if (budget_ != nullptr && budget_->cancelled()) {
      *cancelled_ = true;
      at_ = end_;
    }
    set_next();
  }
  void set_next() { next_poll_ = at_ + std::min(kPollBytes, end_ - at_); }

  const char* at_;
  const char* end_;
  const char* next_poll_ = nullptr;
  const JsonBudget* budget_;
  bool* cancelled_;
};

// Bounds the depth, and passes everything on.
class BoundedEvents final : public nlohmann::json_sax<json> {
 public:
  BoundedEvents(nlohmann::json_sax<json>& sink, int max_depth, const bool& cancelled,
                JsonFailure& failure)
      : sink_(sink), max_depth_(max_depth), cancelled_(cancelled), failure_(failure) {}

  bool null() override { return sink_.null(); }
  bool boolean(bool value) override { return sink_.boolean(value); }
  bool number_integer(std::int64_t value) override { return sink_.number_integer(value); }
  bool number_unsigned(std::uint64_t value) override { return sink_.number_unsigned(value); }
  bool number_float(double value, const std::string& text) override {
    return sink_.number_float(value, text);
  }
  bool string(std::string& value) override { return sink_.string(value); }
  bool binary(json::binary_t& value) override { return sink_.binary(value); }
  bool key(std::string& name) override { return sink_.key(name); }
  bool start_object(std::size_t size) override { return enter() && sink_.start_object(size); }
  bool start_array(std::size_t size) override { return enter() && sink_.start_array(size); }
  bool end_object() override {
    --depth_;
    return sink_.end_object();
  }
  bool end_array() override {
    --depth_;
    return sink_.end_array();
  }
  bool parse_error(std::size_t byte, const std::string&, const json::exception& error) override {
    failure_.byte = byte;
    if (cancelled_) return fail(failure_, Kind::kCancelled, "is not waited for any more");
    return fail(failure_, Kind::kNotJson, error_text(error));
  }

 private:
  bool enter() { return ++depth_ <= max_depth_ || too_deep(failure_, max_depth_); }

  nlohmann::json_sax<json>& sink_;
  const int max_depth_;
  const bool& cancelled_;
  JsonFailure& failure_;
  int depth_ = 0;
};

class TreeBuilder final : public nlohmann::json_sax<json> {
 public:
  TreeBuilder(const JsonBounds& bounds, JsonFailure& failure)
      : bounds_(bounds), failure_(failure), charge_(bounds, failure) {}

  bool end() { return charge_.settle(); }
  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override {
    return charge_.add(kTextBytes + heap_bytes(value)) && put(std::as_const(value));
  }
  bool binary(json::binary_t&) override { return false; }  // not in JSON
  bool start_object(std::size_t) override {
    return charge_.add(kObjectBytes) && open(json::object());
  }
  bool start_array(std::size_t) override { return charge_.add(kListBytes) && open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [member, is_new] = object.try_emplace(name);
    member_ = &member->second;
    if (is_new) return charge_.add(kMemberBytes + heap_bytes(name));
    failure_.name = name;
    return bounds_.takes_repeated_names ||
           fail(failure_, Kind::kRepeatedName, "has a name twice in an object");
  }

  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  // The place of the next value; null: there is no room.
  json* place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return member_;
    auto& list = open_.back()->get_ref<json::array_t&>();
    if (list.size() == list.capacity() && !grow(list)) return nullptr;
    list.emplace_back();
    return &list.back();
  }
  // Both the old values and the new place are there for a moment.
  bool grow(json::array_t& list) {
    const std::size_t before = list.capacity();
    const std::size_t larger = std::max<std::size_t>(4, before + before / 2);
    if (!charge_.add(static_cast<std::int64_t>(larger) * kValueBytes)) return false;
    list.reserve(larger);
    return charge_.add(-static_cast<std::int64_t>(before) * kValueBytes);
  }
  template <typename Value>
  bool put(const Value& value) {
    if (!charge_.add(kValueBytes)) return false;
    json* const to = place();
    if (to == nullptr) return false;
    *to = value;
    return true;
  }
  bool open(json empty) {
    json* const to = place();
    if (to == nullptr) return false;
    *to = std::move(empty);
    open_.push_back(to);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonBounds& bounds_;
  JsonFailure& failure_;
  Charge charge_;
  json root_;
  std::vector<json*> open_;  // outermost first; none moves while it is open
  json* member_ = nullptr;   // of the innermost object: the value of its last name
};

}  // namespace

bool read_json_events(std::string_view text, const JsonBounds& bounds,
                      nlohmann::json_sax<json>& sink, JsonFailure& failure) {
  failure = {};
  Charge lexer(bounds, failure);
  const auto copies = kLexerCopies * static_cast<std::int64_t>(text.size());
  if (!lexer.add_apart(copies)) return false;
  bool cancelled = false;
  BoundedEvents events(sink, bounds.max_depth, cancelled, failure);
  const char* const end = text.data() + text.size();
  const bool read = json::sax_parse(PolledText(text.data(), end, bounds.budget, &cancelled),
                                    PolledText(end, end, bounds.budget, &cancelled), &events);
  lexer.add_apart(-copies);
  return read;
}

std::optional<json> read_json_tree(std::string_view text, const JsonBounds& bounds,
                                   JsonFailure& failure) {
  TreeBuilder builder(bounds, failure);
  if (!read_json_events(text, bounds, builder, failure) || !builder.end()) return std::nullopt;
  return builder.take();
}

bool check_json_shape(std::string_view text, const JsonBounds& bounds, const JsonCosts& costs,
                      JsonFailure& failure) {
  failure = {};
  Charge charge(bounds, failure);
  int depth = 0;
  char quote = '\0';  // the end of the open text
  std::size_t next_poll = kPollBytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i >= next_poll) {
      next_poll = i + kPollBytes;
      failure.byte = i;
      if (bounds.budget != nullptr && bounds.budget->cancelled()) {
        return fail(failure, Kind::kCancelled, "is not waited for any more");
      }
    }
    const char c = text[i];
    if (quote != '\0') {
      if (c == '\\') {
        ++i;
      } else if (c == quote) {
        quote = '\0';
      }
      continue;
    }
    bool has_room = true;
    switch (c) {
      case '"':
      case '\'':
        quote = c;
        break;
      case '{':
      case '[':
        if (++depth > bounds.max_depth) return too_deep(failure, bounds.max_depth);
        has_room = charge.add(costs.each_container);
        break;
      case '}':
      case ']':
        --depth;
        break;
      case ',':
        has_room = charge.add(costs.each_value);
        break;
      default:
        break;
    }
    if (!has_room) return false;
  }
  return charge.settle();
}

std::string json_error_text(const std::exception& error) {
  const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at ..."
  if (!what.starts_with("[json.exception.")) return what;
  return what.substr(std::min(what.find("] ") + 2, what.size()));
}

}  // namespace lintel
