// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/request_json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lintel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uint8_t kBigIntegerSubtype = 1;
// Bytes that the allocator takes: for a list or an object, a text, and a name in an index.
constexpr std::int64_t kContainerBytes = 32;
constexpr std::int64_t kTextBytes = 48;
constexpr std::int64_t kIndexBytes = 96;
constexpr std::size_t kShortTextBytes = 15;  // lie within the string's own
// Names of smaller objects are compared one by one.
constexpr std::size_t kIndexedMembers = 16;

std::int64_t heap_bytes(const std::string& text) {
  return text.size() > kShortTextBytes ? static_cast<std::int64_t>(text.size()) + 16 : 0;
}

// The map's own functions compare all names.
using Members = ordered_json::object_t::Container;

class OrderedTreeBuilder final : public nlohmann::json_sax<json> {
 public:
  OrderedTreeBuilder(const JsonBounds& bounds, JsonFailure& failure)
      : bounds_(bounds), failure_(failure) {}
  ~OrderedTreeBuilder() override {
    if (bounds_.budget != nullptr && !finished_) bounds_.budget->charge(-charged_);
  }
  OrderedTreeBuilder(const OrderedTreeBuilder&) = delete;
  OrderedTreeBuilder& operator=(const OrderedTreeBuilder&) = delete;

  ordered_json take() {
    finished_ = true;
    return std::move(root_);
  }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return put(value);
    return charge(kTextBytes + heap_bytes(text)) && put(big_integer(text));
  }
  bool string(std::string& value) override {
    if (value.capacity() > value.size() + value.size() / 4) value.shrink_to_fit();
    return charge(kTextBytes + heap_bytes(value)) && put(std::move(value));
  }
  bool binary(json::binary_t&) override { return false; }  // not in JSON
  bool start_object(std::size_t) override { return open(ordered_json::object()); }
  bool start_array(std::size_t) override { return open(ordered_json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Level& level = levels_.back();
    Members& members = level.value->get_ref<ordered_json::object_t&>();
    const std::optional<std::size_t> found = find(level, members, name);
    if (!found) return false;
    level.member = *found;
    if (level.member < members.size()) {
      if (bounds_.takes_repeated_names) return true;
      failure_.kind = JsonFailure::Kind::kRepeatedName;
      failure_.what = "has a name twice";
      failure_.name = name;
      return false;
    }
    if (!charge(heap_bytes(name)) || !make_room(members)) return false;
    if (members.size() >= kIndexedMembers && !add_place(level, name, members.size())) return false;
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;  // read_json_events notes it
  }

 private:
  struct Level {
    ordered_json* value;
    std::size_t member = 0;  // of an object, whose value comes next
    std::unordered_map<std::string, std::size_t> places;
    std::int64_t index_bytes = 0;  // charged for `places`
  };

  bool add_place(Level& level, const std::string& name, std::size_t place) {
    const std::int64_t bytes = kIndexBytes + heap_bytes(name);
    if (!charge(bytes)) return false;
    level.index_bytes += bytes;
    level.places.emplace(name, place);
    return true;
  }

  // The number of members: there is none of the name. Nothing: there is no memory.
  std::optional<std::size_t> find(Level& level, const Members& members, const std::string& name) {
    if (members.size() <= kIndexedMembers) {
      std::size_t i = 0;
      while (i < members.size() && members[i].first != name) ++i;
      return i;
    }
    if (level.places.size() < kIndexedMembers) {
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (!add_place(level, members[i].first, i)) return std::nullopt;
      }
    }
    const auto found = level.places.find(name);
    return found == level.places.end() ? members.size() : found->second;
  }

  // Makes room for one more value. The old values and the new place are there for a moment.
  template <typename Value>
  bool make_room(std::vector<Value>& values) {
    if (values.size() < values.capacity()) return true;
    const std::size_t before = values.capacity(), larger = before + before / 2 + 1;
    if (!charge(static_cast<std::int64_t>(larger * sizeof(Value)))) return false;
    values.reserve(larger);
    release(static_cast<std::int64_t>(before * sizeof(Value)));
    return true;
  }

  void release(std::int64_t bytes) {
    charged_ -= bytes;
    if (bounds_.budget != nullptr) bounds_.budget->charge(-bytes);
  }
  bool charge(std::int64_t more) {
    if (more == 0) return true;
    if (charged_ + more > bounds_.max_bytes) {
      failure_.kind = JsonFailure::Kind::kTooLarge;
      failure_.what = "takes more than " + std::to_string(bounds_.max_bytes >> 20) +
                      " MiB of memory: it has too many values, names, objects or lists";
      return false;
    }
    if (bounds_.budget != nullptr && !bounds_.budget->charge(more)) {
      failure_.kind = JsonFailure::Kind::kNoSpace;
      failure_.what = "finds no room in the memory there is for requests";
      return false;
    }
    charged_ += more;
    return true;
  }

  // Null: there is no memory.
  ordered_json* place(ordered_json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& list = level.value->get_ref<ordered_json::array_t&>();
      if (!make_room(list)) return nullptr;
      list.push_back(std::move(value));
      return &list.back();
    }
    Members& members = level.value->get_ref<ordered_json::object_t&>();
    ordered_json& member = members[level.member].second;
    member = std::move(value);
    return &member;
  }
  bool put(ordered_json value) { return place(std::move(value)) != nullptr; }
  bool open(ordered_json value) {
    ordered_json* const placed = charge(kContainerBytes) ? place(std::move(value)) : nullptr;
    if (placed == nullptr) return false;
    levels_.push_back({.value = placed, .places = {}});
    return true;
  }
  bool close() {
    release(levels_.back().index_bytes);
    levels_.pop_back();
    return true;
  }

  const JsonBounds& bounds_;
  JsonFailure& failure_;
  ordered_json root_;
  std::vector<Level> levels_;
  std::int64_t charged_ = 0;
  bool finished_ = false;
};

bool has_binary(const ordered_json& value) {
  if (!value.is_structured()) return value.is_binary();
  for (const ordered_json& part : value) {
    if (has_binary(part)) return true;
  }
  return false;
}

std::string dumped(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

void append_text(const ordered_json& value, std::string& text) {
  if (value.is_binary()) {
    text.append(value.get_binary().begin(), value.get_binary().end());
    return;
  }
  if (!value.is_structured()) {
    text += dumped(value);
    return;
  }
  text += value.is_object() ? '{' : '[';
  bool is_first = true;
  for (const auto& member : value.items()) {
    if (!std::exchange(is_first, false)) text += ',';
    if (value.is_object()) {
      text += dumped(member.key());
      text += ':';
    }
    append_text(member.value(), text);
  }
  text += value.is_object() ? '}' : ']';
}

}  // namespace

std::optional<ordered_json> read_request_json(std::string_view text, const JsonBounds& bounds,
                                              JsonFailure& failure) {
  OrderedTreeBuilder builder(bounds, failure);
  if (!read_json_events(text, bounds, builder, failure)) return std::nullopt;
  return builder.take();
}

std::size_t tree_memory(const ordered_json& tree) {
  std::int64_t bytes = 0;
  if (tree.is_string()) bytes = kTextBytes + heap_bytes(tree.get_ref<const std::string&>());
  if (tree.is_binary()) {
    bytes = kTextBytes + static_cast<std::int64_t>(tree.get_binary().capacity()) + 16;
  }
  std::size_t inner = 0;
  if (tree.is_array()) {
    const auto& list = tree.get_ref<const ordered_json::array_t&>();
    bytes = kContainerBytes + static_cast<std::int64_t>(list.capacity() * sizeof(list[0]));
    for (const ordered_json& value : list) inner += tree_memory(value);
  } else if (tree.is_object()) {
    const Members& members = tree.get_ref<const ordered_json::object_t&>();
    bytes = kContainerBytes + static_cast<std::int64_t>(members.capacity() * sizeof(members[0]));
    for (const auto& [name, value] : members) {
      bytes += heap_bytes(name);
      inner += tree_memory(value);
    }
  }
  return static_cast<std::size_t>(bytes) + inner;
}

std::string json_text(const ordered_json& value) {
  if (!has_binary(value)) return dumped(value);
  std::string text;
  append_text(value, text);
  return text;
}

ordered_json big_integer(std::string_view digits) {
  return ordered_json::binary({digits.begin(), digits.end()}, kBigIntegerSubtype);
}

std::optional<std::string> big_integer_digits(const ordered_json& value) {
  if (!value.is_binary()) return std::nullopt;
  const auto& bytes = value.get_binary();
  if (!bytes.has_subtype() || bytes.subtype() != kBigIntegerSubtype) return std::nullopt;
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace lintel
