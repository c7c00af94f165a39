// SPDX-License-Identifier: Apache-2.0
#include "model/layers/attention/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>
#include <utility>

#include "model/core/random.h"

namespace lintel {
namespace {

constexpr const AttentionKind* kKinds[] = {
#define LINTEL_KIND(name) &kind_##name,
#include LINTEL_KINDS
#undef LINTEL_KIND
};

}  // namespace

AttentionConfig::AttentionConfig(const AttentionKind& kind, std::vector<KeyValue> values)
    : kind_(&kind), values_(std::move(values)) {
  assert(values_.size() == kind.keys.size());
}

const char* AttentionConfig::type() const { return kind_->type; }

const KeyValue& AttentionConfig::value(std::string_view key) const {
  const auto found =
      std::ranges::find_if(kind_->keys, [&](const ConfigKey& k) { return k.name == key; });
  assert(found != kind_->keys.end());
  return values_[static_cast<std::size_t>(found - kind_->keys.begin())];
}

bool AttentionConfig::is_null(std::string_view key) const {
  return std::holds_alternative<std::monostate>(value(key));
}

std::size_t AttentionConfig::integer(std::string_view key, std::size_t if_null) const {
  const std::int64_t* const number = std::get_if<std::int64_t>(&value(key));
  return number != nullptr ? static_cast<std::size_t>(*number) : if_null;
}

std::vector<std::int64_t> AttentionConfig::integers(std::string_view key) const {
  if (const auto* const list = std::get_if<std::vector<std::int64_t>>(&value(key))) return *list;
  return {std::get<std::int64_t>(value(key))};
}

double AttentionConfig::number(std::string_view key, double if_null) const {
  const double* const number = std::get_if<double>(&value(key));
  return number != nullptr ? *number : if_null;
}

bool AttentionConfig::boolean(std::string_view key) const { return std::get<bool>(value(key)); }

const std::string& AttentionConfig::choice(std::string_view key) const {
  return std::get<std::string>(value(key));
}

std::vector<Projection> query_key_value(const AttentionConfig& /*config*/, const LayerDims& dims) {
  return {{"query_projection", dims.width()},
          {"key_projection", dims.width()},
          {"value_projection", dims.width()}};
}

std::span<const AttentionKind* const> attention_kinds() { return kKinds; }

std::vector<std::string> attention_types() {
  std::vector<std::string> types;
  for (const AttentionKind* kind : kKinds) types.emplace_back(kind->type);
  return types;
}

const AttentionKind& attention_kind(std::string_view type) {
  std::string known;
  for (const AttentionKind* kind : kKinds) {
    if (type == kind->type) return *kind;
    known += (known.empty() ? "" : ", ") + std::string(kind->type);
  }
  throw ModelError("attention.type is \"" + std::string(type) + "\"; this build has: " + known);
}

int out_width(const AttentionConfig& config, const LayerDims& dims) {
  const auto declared = config.kind().out_width;
  return declared == nullptr ? dims.width() : declared(config, dims);
}

std::vector<OwnTensor> own_tensors(const AttentionConfig& config, const LayerDims& dims) {
  const auto declared = config.kind().tensors;
  return declared == nullptr ? std::vector<OwnTensor>() : declared(config, dims);
}

void draw_tensor(std::span<float> values, const OwnTensor& tensor, std::uint64_t seed, int layer,
                 std::size_t number) {
  const std::uint64_t own_seed = seed + number * 0x9E3779B97F4A7C15u;
  if (tensor.draw == nullptr) return draw_normal(values, tensor, own_seed, layer);
  tensor.draw(values, tensor, own_seed, layer);
}

void draw_normal(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer) {
  const std::size_t per_part = values.size() / static_cast<std::size_t>(of.shape.front());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto part = static_cast<std::int64_t>(i / per_part);
    const DrawSource draws{.seed = seed, .position = std::int64_t{layer} << 32 | part};
    // Box and Muller 1958.
    const auto index = static_cast<std::uint32_t>(2 * (i % per_part));
    const double radius = std::sqrt(-2.0 * std::log(draws.uniform(index)));
    const double angle = 2.0 * std::numbers::pi * draws.uniform(index + 1);
    values[i] = static_cast<float>(radius * std::cos(angle));
  }
}

void draw_fan_in(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer) {
  draw_normal(values, of, seed, layer);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(of.shape.back()));
  for (float& value : values) value = static_cast<float>(value * deviation);
}

const Matrix& AttentionParams::tensor(std::string_view name) const {
  const std::vector<OwnTensor> all = own_tensors(config, dims);
  const auto found = std::ranges::find(all, name, &OwnTensor::name);
  assert(found != all.end() && own.size() == all.size());
  return own[static_cast<std::size_t>(found - all.begin())];
}

std::unique_ptr<AttentionBackend> make_attention(const AttentionParams& params) {
  return params.config.kind().make(params);
}

void AttentionBackend::full_pass(AttentionInputs inputs, MatrixView<float> out,
                                 AttentionScratch& scratch) const {
  const AlignedArray<float> block = make_aligned<float>(block_floats());
  const std::unique_ptr<LayerState> state = new_state({block.get(), block_floats()});
  const std::vector<LayerState*> states(out.rows(), state.get());
  step(states, inputs, out, scratch);
  zero_memory(std::span(block.get(), block_floats()));
}

}  // namespace lintel
