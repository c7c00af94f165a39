// SPDX-License-Identifier: Apache-2.0
#include "model/families/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {
namespace {

std::string whole_number_text(std::int64_t low, std::int64_t high) {
  return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
}

std::string value_text(const GgufValue& value) {
  if (value.is_array()) return value.type_name() + " of " + std::to_string(value.size());
  if (const auto number = value.integer()) return std::to_string(*number);
  if (const auto number = value.number()) return std::to_string(*number);
  if (const auto truth = value.boolean()) return *truth ? "true" : "false";
  if (const auto text = value.text()) return quote(*text);
  return value.type_name();
}

}  // namespace

ArchitectureKeys::ArchitectureKeys(const GgufFile& file, const std::string& architecture)
    : file_(file), prefix_(architecture + ".") {}

void ArchitectureKeys::fail(const std::string& key, const std::string& expected) const {
  const GgufValue* const value = file_.find_key(prefix_ + key);
  throw ModelError(file_.name() + ": key " + quote(prefix_ + key) + ": found " +
                   (value == nullptr ? "nothing" : value_text(*value)) + ", expected " + expected);
}

const GgufValue* ArchitectureKeys::find(const std::string& key) {
  known_.insert(key);
  return file_.find_key(prefix_ + key);
}

std::optional<std::int64_t> ArchitectureKeys::integer(const std::string& key, std::int64_t low,
                                                      std::int64_t high) {
  const GgufValue* const value = find(key);
  if (value == nullptr) return {};
  const auto number = value->is_array() ? std::nullopt : value->integer();
  if (!number || *number < low || *number > high) fail(key, whole_number_text(low, high));
  return number;
}

std::int64_t ArchitectureKeys::required(const std::string& key, std::int64_t low,
                                        std::int64_t high) {
  const auto number = integer(key, low, high);
  if (!number) fail(key, whole_number_text(low, high));
  return *number;
}

std::int64_t ArchitectureKeys::largest(const std::string& key, std::int64_t low,
                                       std::int64_t high) {
  const GgufValue* const value = find(key);
  std::int64_t most = 0;
  for (std::size_t i = 0; value != nullptr && i < value->size(); ++i) {
    const auto number = value->integer(i);
    if (!number || *number < 0 || *number > high) fail(key, whole_number_text(low, high));
    most = std::max(most, *number);
  }
  if (most < low) fail(key, whole_number_text(low, high));
  return most;
}

double ArchitectureKeys::positive(const std::string& key, double high,
                                  std::optional<double> if_absent) {
  const GgufValue* const value = find(key);
  if (value == nullptr && if_absent) return *if_absent;
  const auto number = value == nullptr || value->is_array() ? std::nullopt : value->number();
  if (!number || !(static_cast<float>(*number) > 0.0f) || !(*number <= high)) {
    fail(key, "a number above 0, at most " + std::to_string(high));
  }
  return *number;
}

std::size_t vocabulary_of(ArchitectureKeys& keys, const GgufFile& file) {
  const TensorInfo* const embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > kMaxVocabSize) {
    throw ModelError(
        file.name() +
        ": tensor \"token_embd.weight\": expected one of [vocabulary, width], at most " +
        std::to_string(kMaxVocabSize) + " rows");
  }
  return static_cast<std::size_t>(
      keys.integer("vocab_size", 1, kMaxVocabSize).value_or(embedding->shape[0]));
}

void ArchitectureKeys::finish() const {
  for (const auto& [name, value] : file_.keys()) {
    if (!name.starts_with(prefix_) || value.is_blank()) continue;
    const std::string key = name.substr(prefix_.size());
    if (!known_.contains(key)) fail(key, "no such key: it is not known what it changes");
  }
}

}  // namespace lintel
