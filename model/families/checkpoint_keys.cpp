// SPDX-License-Identifier: Apache-2.0
#include "model/families/checkpoint_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {

using nlohmann::json;

namespace {

bool says_nothing(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0.0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

std::string whole_number(std::int64_t low, std::int64_t high) {
  return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

CheckpointKeys::CheckpointKeys(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (object.is_object()) return;
  throw ModelError(file_ + ": found " + found_text(object) + " at \"" + path_ +
                   "\", expected an object");
}

void CheckpointKeys::fail(const std::string& key, const std::string& expected) const {
  const auto found = object_.find(key);
  throw ModelError(file_ + ": key " + quote(path_ + key) + ": found " +
                   (found == object_.end() ? "nothing" : found_text(*found)) + ", expected " +
                   expected);
}

const json* CheckpointKeys::find(const std::string& key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> CheckpointKeys::integer(const std::string& key, std::int64_t low,
                                                    std::int64_t high) {
  const json* const value = find(key);
  if (value == nullptr) return {};
  const double number = value->is_number() ? value->get<double>() : NAN;
  const bool is_whole = std::trunc(number) == number;  // 4.0 is written for 4
  const bool is_in_range =
      number >= static_cast<double>(low) && number <= static_cast<double>(high);
  if (!is_whole || !is_in_range) fail(key, whole_number(low, high));
  return static_cast<std::int64_t>(number);
}

std::int64_t CheckpointKeys::integer(const std::string& key, std::int64_t low, std::int64_t high,
                                     std::int64_t if_absent) {
  return integer(key, low, high).value_or(if_absent);
}

std::int64_t CheckpointKeys::required(const std::string& key, std::int64_t low, std::int64_t high) {
  const std::optional<std::int64_t> number = integer(key, low, high);
  if (!number) fail(key, whole_number(low, high));
  return *number;
}

double CheckpointKeys::positive(const std::string& key, double high, double if_absent) {
  const json* const value = find(key);
  if (value == nullptr) return if_absent;
  const double number = value->is_number() ? value->get<double>() : 0.0;
  if (!(static_cast<float>(number) > 0.0f) || !(number <= high)) {
    fail(key, "a number above 0, at most " + json(high).dump());
  }
  return number;
}

bool CheckpointKeys::boolean(const std::string& key, bool if_absent) {
  const json* const value = find(key);
  if (value == nullptr) return if_absent;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

void CheckpointKeys::only(const std::string& key, std::initializer_list<const char*> texts) {
  const json* const value = find(key);
  if (value == nullptr) return;
  std::string expected;
  for (const char* const text : texts) {
    if (value->is_string() && value->get_ref<const std::string&>() == text) return;
    expected += (expected.empty() ? "\"" : " or \"") + std::string(text) + "\"";
  }
  fail(key, expected);
}

void CheckpointKeys::only(const std::string& key, bool value) {
  if (boolean(key, value) != value) fail(key, value ? "true" : "false");
}

void CheckpointKeys::ignore(std::initializer_list<const char*> keys) {
  known_.insert(keys.begin(), keys.end());
}

void CheckpointKeys::ignore_prefix(const std::string& prefix) {
  for (const auto& [key, value] : object_.items()) {
    if (key.starts_with(prefix)) known_.insert(key);
  }
}

void CheckpointKeys::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key) || says_nothing(value)) continue;
    fail(key, "no such key: it is not known what it changes");
  }
}

}  // namespace lintel
