#include "model/lora/adapter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "model/core/sha256.h"

namespace lintel {

std::size_t Adapter::bytes_of(const AdaptedModule& adapted) {
  const auto& [module, rank, scaling, a, b] = adapted;
  const std::size_t output = LowRankOutput::bytes_of(module.out, rank);
  if (module.is_embedding) return module.in * rank * sizeof(float) + output;
  return module.is_read ? LowRankInput::bytes_of(module.in, rank) + output : 0;
}

std::size_t Adapter::object_bytes(std::size_t num_modules, std::size_t num_layer_weights) {
  constexpr std::size_t kNameBytes = 128;  // a name, its string, and the allocator's share
  return sizeof(Adapter) + num_modules * (sizeof(Part) + kNameBytes) +
         num_layer_weights * sizeof(std::array<Product, kLayerProducts>);
}

Adapter::Product& Adapter::product(const AdaptableModule& module) {
  if (module.product == AdaptedProduct::kPredictor) return predictor_;
  return layers_[module.weights][static_cast<std::size_t>(module.product)];
}

Adapter::Adapter(const AdapterFiles& files)
    : bytes_(files.bytes()), layers_(files.num_layer_weights()) {
  for (const AdaptedModule& adapted : files.modules()) {
    modules_.push_back(adapted.module.name);
    max_rank_ = std::max(max_rank_, static_cast<int>(adapted.rank));
  }
}

// Each tensor is packed once it is read: of f32 there is never more than one beside them.
void Adapter::read_tensors(const AdapterFiles& files) {
  using Packed = std::function<void(std::span<const float>)>;
  std::multimap<std::uint64_t, std::pair<const TensorEntry*, Packed>> by_place;
  const auto place = [&](const TensorEntry* tensor, Packed packed) {
    by_place.insert({tensor->begin, {tensor, std::move(packed)}});
  };
  // The parts first: what packs a tensor keeps a pointer to its part.
  for (const AdaptedModule& adapted : files.modules()) {
    const AdaptableModule& module = adapted.module;
    if (module.is_embedding || !module.is_read) continue;
    product(module).push_back({.first_output = module.first_output,
                               .matrices = {.a = LowRankInput(module.in, adapted.rank),
                                            .b = LowRankOutput(module.out, adapted.rank),
                                            .scaling = static_cast<float>(adapted.scaling)}});
  }
  for (const AdaptedModule& adapted : files.modules()) {
    const AdaptableModule& module = adapted.module;
    if (module.is_embedding) {
      value_numbers_ = Matrix(module.in, adapted.rank);
      value_output_ = LowRankOutput(module.out, adapted.rank);
      value_scaling_ = static_cast<float>(adapted.scaling);
      place(adapted.a, [this](std::span<const float> a) {
        for (std::size_t i = 0; i < a.size(); ++i) {
          value_numbers_.row(i % value_numbers_.rows())[i / value_numbers_.rows()] = a[i];
        }
      });
      place(adapted.b, [this](std::span<const float> b) { value_output_.assign(b); });
    } else if (module.is_read) {
      Product& parts = product(module);
      Part* const part = &*std::ranges::find(parts, module.first_output, &Part::first_output);
      place(adapted.a, [part](std::span<const float> a) { part->matrices.a.assign(a); });
      place(adapted.b, [part](std::span<const float> b) { part->matrices.b.assign(b); });
    } else {  // read all the same: it may be refused, and the fingerprint is of all bytes
      place(adapted.a, [](std::span<const float>) {});
      place(adapted.b, [](std::span<const float>) {});
    }
  }
  const SafetensorsFile& file = files.tensors();
  Sha256 hash;
  hash.add_length(files.config_json().size());
  hash.add(files.config_json());
  hash.add_length(file.size());
  hash.add(file.read_header());
  for (const auto& [begin, tensor] : by_place) {
    std::vector<float> values(static_cast<std::size_t>(tensor.first->num_values()));
    file.read_f32(*tensor.first, values, [&](std::span<const char> bytes) { hash.add(bytes); });
    tensor.second(values);
  }
  file.check_unchanged();
  fingerprint_ = hash.hex();
}

std::shared_ptr<const Adapter> Adapter::load(const AdapterFiles& files) {
  const std::shared_ptr<Adapter> adapter(new Adapter(files));
  adapter->read_tensors(files);
  return adapter;
}

void Adapter::add(AdaptedProduct product, std::size_t weights, std::span<const std::uint32_t> rows,
                  MatrixView<const float> x, MatrixView<float> y) const {
  for (const Part& part : this->product(product, weights)) {
    part.matrices.add(rows, x, y.cols_from(part.first_output, part.matrices.b.out));
  }
}

void Adapter::list(AdaptedProduct product, std::size_t weights, PrefetchList& prefetch) const {
  for (const auto& [first_output, matrices] : this->product(product, weights)) {
    prefetch.add(matrices.a.values());
    prefetch.add(matrices.b.values());
  }
}

void Adapter::add_value(std::int32_t token, std::span<float> row) const {
  if (value_numbers_.rows() == 0) return;
  add_low_rank(value_output_, value_scaling_, value_numbers_.row(static_cast<std::size_t>(token)),
               row.first(value_output_.out));
}

}  // namespace lintel
