#include "model/config/json_fields.h"

#include <optional>
#include <vector>

#include "model/core/error_text.h"
#include "model/core/json_reader.h"
#include "model/core/model_error.h"

namespace lintel {

using nlohmann::json;

json parse_strictly(std::string_view text, const std::string& file) {
  const JsonBounds bounds{
      .max_depth = 8, .max_bytes = std::int64_t{16} << 20, .takes_repeated_names = false};
  JsonFailure failure;
  std::optional<json> tree = read_json_tree(text, bounds, failure);
  if (tree) return *std::move(tree);
  switch (failure.kind) {
    case JsonFailure::Kind::kTooDeep:
      throw ModelError(file + ": found JSON nested " + std::to_string(bounds.max_depth + 1) +
                       " deep, expected at most " + std::to_string(bounds.max_depth));
    case JsonFailure::Kind::kRepeatedName:
      throw ModelError(file + ": key " + quote(failure.name) + " is there twice, expected once");
    case JsonFailure::Kind::kNotJson:
      throw ModelError(file + ": not JSON: " + one_line(shorten(failure.what, 300)));
    default:
      throw ModelError(file + ": found JSON that " + failure.what);
  }
}

std::string found_text(const json& value) {
  return shorten(value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
}

Fields::Fields(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (!object.is_object()) {
    const std::string name = path_.empty() ? "" : path_.substr(0, path_.size() - 1);
    throw ModelError(file_ + ": " + (name.empty() ? "" : "key \"" + name + "\": ") + "found " +
                     found_text(object) + ", expected an object");
  }
}

void Fields::fail(const std::string& key, const std::string& found,
                  const std::string& expected) const {
  throw ModelError(file_ + ": key \"" + path_ + key + "\": found " + found + ", expected " +
                   expected);
}

bool Fields::has(const std::string& key) {
  known_.insert(key);
  return object_.contains(key);
}

const json& Fields::value(const std::string& key, const std::string& expected) {
  if (!has(key)) fail(key, "nothing", expected);
  return object_.at(key);
}

namespace {

bool is_integer_within(const json& v, std::int64_t low, std::int64_t high) {
  const bool fits = v.is_number_unsigned() ? v.get<std::uint64_t>() <= std::uint64_t(INT64_MAX)
                                           : v.is_number_integer();
  return fits && v.get<std::int64_t>() >= low && v.get<std::int64_t>() <= high;
}

std::string whole_number(std::int64_t low, std::int64_t high) {
  return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
}

// Not one that is 0 as f32 and nowhere else.
bool is_positive_float(double number, double high) {
  return number >= std::numeric_limits<float>::min() && number <= high;
}

}  // namespace

std::int64_t Fields::integer(const std::string& key, std::int64_t low, std::int64_t high,
                             const char* or_else) {
  const std::string expected = whole_number(low, high) + or_else;
  const json& v = value(key, expected);
  if (!is_integer_within(v, low, high)) fail(key, found_text(v), expected);
  return v.get<std::int64_t>();
}

std::vector<std::int64_t> Fields::integers(const std::string& key, std::int64_t low,
                                           std::int64_t high, std::string expected) {
  if (expected.empty()) expected = whole_number(low, high) + ", or a list of n_heads of them";
  const json& list = value(key, expected);
  const auto all_fit = [&] {
    for (const json& v : list) {
      if (!is_integer_within(v, low, high)) return false;
    }
    return list.is_array() && !list.empty();
  };
  if (!all_fit()) fail(key, found_text(list), expected);
  return list.get<std::vector<std::int64_t>>();
}

double Fields::positive(const std::string& key, double high, const char* or_null) {
  const std::string expected = "a number above 0 and at most " + json(high).dump() + or_null;
  const json& v = value(key, expected);
  if (!v.is_number() || !is_positive_float(v.get<double>(), high)) {
    fail(key, found_text(v), expected);
  }
  return v.get<double>();
}

double Fields::not_negative(const std::string& key, double high, const char* or_null) {
  const std::string expected = "a number from 0 to " + json(high).dump() + or_null;
  const json& v = value(key, expected);
  const bool fits =
      v.is_number() && (v.get<double>() == 0.0 || is_positive_float(v.get<double>(), high));
  if (!fits) fail(key, found_text(v), expected);
  return v.get<double>();
}

bool Fields::boolean(const std::string& key) {
  const json& v = value(key, "true or false");
  if (!v.is_boolean()) fail(key, found_text(v), "true or false");
  return v.get<bool>();
}

std::size_t Fields::choice(const std::string& key, std::span<const char* const> names) {
  std::string expected;
  for (const char* const name : names) {
    expected += (expected.empty() ? "\"" : " or \"") + std::string(name) + "\"";
  }
  const json& v = value(key, expected);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (v.is_string() && v.get_ref<const std::string&>() == names[i]) return i;
  }
  fail(key, found_text(v), expected);
}

void Fields::finish(const std::string& of) const {
  for (const auto& [key, unused] : object_.items()) {
    if (known_.contains(key)) continue;
    std::string expected;
    for (const std::string& name : known_) expected += (expected.empty() ? "" : ", ") + name;
    throw ModelError(file_ + ": unknown key " + quote(path_ + key) + of + ", expected one of " +
                     expected);
  }
}

}  // namespace lintel
