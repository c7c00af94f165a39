// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/json_value.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "model/core/json_reader.h"
#include "server/grammar/decimal.h"
#include "server/grammar/grammar.h"

namespace lintel::grammar {
namespace {

using Json = nlohmann::json;

// Builds the tree. Open containers are elements of their parents, which do not grow meanwhile.
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(JsonValue& root) : root_(root) {}

  bool null() override {
    place();
    return true;
  }
  bool boolean(bool value) override {
    JsonValue& at = place();
    at.type = JsonValue::Type::kBoolean;
    at.boolean = value;
    return true;
  }
  bool number_integer(std::int64_t value) override { return add_integer(value); }
  bool number_unsigned(std::uint64_t value) override { return add_integer(value); }
  bool number_float(double, const std::string& text) override {
    constexpr std::size_t kMostDigits = 38;
    JsonValue& at = place();
    at.type = JsonValue::Type::kNumber;
    at.text = text;
    const std::optional<Decimal> value = Decimal::parse(text);
    if (!value || !value->is_integer() || value->whole().size() > kMostDigits) return true;
    Integer integer = 0;
    for (const char digit : value->whole()) integer = integer * 10 + (digit - '0');
    at.integer = value->is_negative() ? -integer : integer;
    return true;
  }
  bool string(std::string& value) override {
    JsonValue& at = place();
    at.type = JsonValue::Type::kString;
    at.text = std::move(value);
    return true;
  }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonValue::Type::kObject); }
  bool key(std::string& name) override {
    open_.back()->names.push_back(std::move(name));
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(JsonValue::Type::kArray); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  JsonValue& place() {
    if (open_.empty()) return root_;
    return open_.back()->values.emplace_back();
  }
  template <typename T>
  bool add_integer(T value) {
    JsonValue& at = place();
    at.type = JsonValue::Type::kNumber;
    at.text = std::to_string(value);
    at.integer = value;
    return true;
  }
  bool open(JsonValue::Type type) {
    JsonValue& at = place();
    at.type = type;
    open_.push_back(&at);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonValue& root_;
  std::vector<JsonValue*> open_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  for (std::size_t i = names.size(); i-- > 0;) {
    if (names[i] == name) return &values[i];
  }
  return nullptr;
}

JsonValue parse_json(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "",
                       "has " + std::to_string(text.size()) + " bytes, at most " +
                           std::to_string(kMaxSchemaBytes) + " are served");
  }
  JsonValue root;
  TreeBuilder builder(root);
  JsonFailure failure;
  if (!read_json_events(text, JsonBounds{}, builder, failure)) {
    const bool too_deep = failure.kind == JsonFailure::Kind::kTooDeep;
    throw GrammarError(too_deep ? GrammarError::Kind::kTooLarge : GrammarError::Kind::kInvalid, "",
                       too_deep ? failure.what : "is not JSON: " + failure.what);
  }
  return root;
}

bool same_value(const JsonValue& one, const JsonValue& other) {
  if (one.type != other.type || one.boolean != other.boolean ||
      one.values.size() != other.values.size()) {
    return false;
  }
  if (one.integer && other.integer) return *one.integer == *other.integer;
  if (one.is(JsonValue::Type::kNumber) && one.text != other.text) {
    const std::optional<Decimal> number = Decimal::parse(one.text);
    return number && number == Decimal::parse(other.text);
  }
  if (one.text != other.text) return false;
  for (std::size_t i = 0; i < one.names.size(); ++i) {
    // The last of equal names counts.
    const JsonValue* const value = other.find(one.names[i]);
    if (value == nullptr || !same_value(*one.find(one.names[i]), *value)) return false;
  }
  if (!one.names.empty()) return true;
  for (std::size_t i = 0; i < one.values.size(); ++i) {
    if (!same_value(one.values[i], other.values[i])) return false;
  }
  return true;
}

}  // namespace lintel::grammar
