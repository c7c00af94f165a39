// SPDX-License-Identifier: Apache-2.0
#include "model/ops/dense.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "model/core/kernels.h"
#include "model/core/step_thread_pool.h"
#include "model/ops/block_product.h"
#include "model/ops/dense_kernels.h"
#include "model/ops/dense_onednn.h"
#include "model/ops/library_product.h"

namespace lintel {
namespace {

// ONEDNN_MAX_CPU_ISA makes oneDNN behave as on a lesser machine: our own kernels follow it.
void follow_instruction_set_of_onednn() {
  [[maybe_unused]] static const bool once = [] {
    limit_instruction_set(onednn_instruction_set());
    return true;
  }();
}

// From how many rows on a library multiplies; kNever: not at all.
constexpr std::size_t kNever = SIZE_MAX;
std::size_t rows_for_library(const ProductLibrary& library, WeightType type, KernelChoice kernels) {
  if (kernels == KernelChoice::kOneDnn) return 1;
  return kernels == KernelChoice::kAuto ? library.worthwhile_rows(type) : kNever;
}

}  // namespace

namespace {

Product product_of(const PackedWeights& weights, const DenseInput& x, MatrixView<float> y) {
  return {.weights = &weights,
          .x = x.cells_of(weights.type),
          .x_stride = x.stride_of(weights.type),
          .x_scales = x.scales(),
          .x_zero = x.zero(),
          .rows = y.rows(),
          .y = y.data(),
          .y_stride = y.stride()};
}

// Rows of a matrix of blocks: blocks, or f32, whose groups of columns are as wide as panels.
struct StoredPart {
  static_assert(BlockMatrix::kPanel == kGroupWidth);

  std::size_t first = 0;  // output
  std::size_t count = 0;
  std::optional<BlockMatrix> blocks;
  std::optional<PackedWeights> floats;

  std::size_t num_panels() const { return (count + kGroupWidth - 1) / kGroupWidth; }
  std::size_t bytes() const { return blocks.has_value() ? blocks->bytes() : floats->bytes(); }

  // Panels begin .. end - 1 of this part; y has the outputs of all parts, or the first of them.
  void multiply_panels(std::size_t begin, std::size_t end, const DenseInput& x, MatrixView<float> y,
                       std::span<const float> bias, bool add) const {
    const MatrixView<float> own = y.cols_from(first, std::min(count, y.cols() - first));
    if (blocks.has_value()) {
      return multiply(BlockProduct{.weights = &*blocks,
                                   .x = x.blocks(),
                                   .bias = bias.empty() ? nullptr : bias.data() + first,
                                   .y = own,
                                   .add = add,
                                   .first_panel = begin,
                                   .end_panel = end});
    }
    Product product = product_of(*floats, x, own);
    product.add = add;
    product.first_group = begin;
    product.end_group = end;
    multiply(product);
  }
};

}  // namespace

struct Dense::Impl {
  WeightType type = WeightType::kF32;
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::size_t number = 0;
  Fused fused = Fused::kNone;
  // Packed weights; a matrix of blocks has parts instead. Without cells where the library
  // multiplies all rows.
  std::optional<PackedWeights> weights;
  std::vector<StoredPart> parts;
  ReadWeightRows stream;                    // in place of weights that are kept
  std::vector<float> bias;                  // of parts or of a stream; empty: none
  std::unique_ptr<LibraryProduct> library;  // of the same weights; null where it does not pay
  std::size_t library_rows = kNever;        // from which on it multiplies
  std::string why_not;                      // the library that would pay does not run

  Product product(const DenseInput& x, MatrixView<float> y) const {
    assert(x.type() == type && x.cols() == in_features && y.cols() == out_features);
    return product_of(*weights, x, y);
  }
  bool is_multiplied_here(std::size_t rows) const {
    return library == nullptr || rows < library_rows;
  }
  void apply(const Product& product, StepThreadPool* team) const {
    if (!is_multiplied_here(product.rows)) return library->multiply(product);
    multiply_first(product, weights->num_groups(), team);
  }
  // Multiplies the first groups of columns.
  static void multiply_first(const Product& product, std::size_t num_groups, StepThreadPool* team) {
    split_among(team, num_groups, [&](std::size_t begin, std::size_t end, bool is_leader) {
      multiply_groups(product, begin, end, is_leader);
    });
  }
  static void multiply_groups(Product product, std::size_t begin, std::size_t end, bool is_leader) {
    product.first_group = begin;
    product.end_group = end;
    if (!is_leader) product.prefetch = nullptr;  // which is one thread's, for its own cache
    multiply(product);
  }

  // Some rows of the weights at a time.
  void apply_stream(const DenseInput& x, MatrixView<float> y, bool relu, bool add) const {
    constexpr std::size_t kFloatsAtOnce = std::size_t{1} << 18;
    const std::size_t groups = std::max<std::size_t>(kFloatsAtOnce / in_features / kGroupWidth, 1);
    for (std::size_t first = 0; first < out_features; first += groups * kGroupWidth) {
      const std::size_t count = std::min(groups * kGroupWidth, out_features - first);
      const PackedWeights some(
          WeightType::kF32,
          [&](std::size_t row, MatrixView<float> rows) { stream(first + row, rows); },
          std::span(bias).subspan(first, count), in_features, count);
      Product product = product_of(some, x, y.cols_from(first, count));
      product.relu = relu;
      product.add = add;
      multiply(product);
    }
  }

  // Sets the bias of a matrix of parts.
  void set_bias(std::span<const float> values) {
    assert(values.size() == out_features);
    if (std::ranges::any_of(values, [](float value) { return value != 0.0f; })) {
      bias.assign(values.begin(), values.end());
    }
  }

  // y: all outputs, or the first of them, in whole panels.
  void apply_parts(const DenseInput& x, MatrixView<float> y, bool add, StepThreadPool* team) const {
    std::size_t panels = 0;
    for (const StoredPart& part : parts) {
      if (part.first >= y.cols()) break;
      const std::size_t count = std::min(part.count, y.cols() - part.first);
      panels += (count + kGroupWidth - 1) / kGroupWidth;
    }
    split_among(team, panels, [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
      multiply_panels(begin, end, x, y, add);
    });
  }
  void multiply_panels(std::size_t begin, std::size_t end, const DenseInput& x, MatrixView<float> y,
                       bool add) const {
    assert(x.type() == type && x.cols() == in_features);
    std::size_t first = 0;  // panel of the part
    for (const StoredPart& part : parts) {
      const std::size_t own_begin = std::max(begin, first) - first;
      const std::size_t own_end = std::min(end, first + part.num_panels());
      if (own_end > first + own_begin)
        part.multiply_panels(own_begin, own_end - first, x, y, bias, add);
      first += part.num_panels();
    }
  }

  // The number of groups that apply() splits; 0: it does not split.
  std::size_t num_groups(std::size_t rows) const {
    if (stream != nullptr) return 0;
    if (weights.has_value()) return is_multiplied_here(rows) ? weights->num_groups() : 0;
    std::size_t panels = 0;
    for (const StoredPart& part : parts) panels += part.num_panels();
    return panels;
  }
};

namespace {

// True if a matrix of this type is kept in 4 bits.
bool has_4_bits(WeightType type, std::size_t in_features) {
  return type == WeightType::kInt4 && in_features % BlockMatrix::kSpan == 0;
}

// Returns the type. Before weights are read.
WeightType checked_type(std::size_t in_features, const Dense::Options& options) {
  follow_instruction_set_of_onednn();
  if (options.weight_type == WeightType::kInt8 && in_features > Dense::kMostInt8Inputs) {
    throw std::invalid_argument("weight type int8 takes at most " +
                                std::to_string(Dense::kMostInt8Inputs) +
                                " inputs in a layer, here are " + std::to_string(in_features));
  }
  return options.weight_type;
}

}  // namespace

Dense::Dense(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
             std::size_t out_features, const Options& options)
    : Dense(PackedWeights(checked_type(in_features, options), weight, bias, in_features,
                          out_features),
            options) {}

Dense::Dense(const ReadWeightRows& read, std::span<const float> bias, std::size_t in_features,
             std::size_t out_features, const Options& options)
    : impl_(std::make_unique<Impl>()) {
  const WeightType type = checked_type(in_features, options);
  if (input_type_of(type) == WeightType::kInt8Groups) {
    impl_->type = WeightType::kInt8Groups;
    impl_->in_features = in_features;
    impl_->out_features = out_features;
    impl_->fused = options.fused;
    impl_->number = options.number;
    StoredPart part{.count = out_features};
    part.blocks.emplace(has_4_bits(type, in_features)
                            ? BlockMatrix::quantized_to_4_bits(in_features, out_features, read)
                            : BlockMatrix::quantized_to_8_bits(in_features, out_features, read));
    impl_->parts.push_back(std::move(part));
    impl_->set_bias(bias);
    return;
  }
  if (!options.streams) {
    *this = Dense(PackedWeights(type, read, bias, in_features, out_features), options);
    return;
  }
  assert(type == WeightType::kF32 && bias.size() == out_features);
  impl_->in_features = in_features;
  impl_->out_features = out_features;
  impl_->fused = options.fused;
  impl_->number = options.number;
  impl_->stream = read;
  impl_->bias.assign(bias.begin(), bias.end());
}

Dense::Dense(PackedWeights weights, const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->type = weights.type;
  impl_->in_features = weights.in_features;
  impl_->out_features = weights.out_features;
  impl_->fused = options.fused;
  impl_->number = options.number;
  impl_->weights = std::move(weights);
  const ProductLibrary& library = options.library != nullptr ? *options.library : onednn_library();
  impl_->library_rows = rows_for_library(library, options.weight_type, options.kernels);
  if (impl_->library_rows == kNever) return;
  std::string why_not;
  impl_->library = LibraryProduct::make(library, *impl_->weights, why_not);
  if (impl_->library == nullptr) {
    impl_->why_not = "not " + library.name() + ": " + why_not;
  } else if (impl_->library_rows <= 1) {
    impl_->weights->drop_cells();
  }
}

Dense::Dense(std::span<const StoredRows> parts, std::span<const float> bias,
             std::size_t in_features, const Options& options)
    : impl_(std::make_unique<Impl>()) {
  follow_instruction_set_of_onednn();
  impl_->type = WeightType::kBlocks;
  impl_->in_features = in_features;
  impl_->fused = options.fused;
  impl_->number = options.number;
  for (const StoredRows& rows : parts) {
    StoredPart part{.first = impl_->out_features, .count = rows.count};
    if (rows.read_blocks != nullptr) {
      part.blocks.emplace(rows.type, in_features, rows.count, rows.read_blocks);
    } else {
      part.floats.emplace(WeightType::kF32, rows.read_floats, bias.subspan(part.first, part.count),
                          in_features, rows.count);
    }
    impl_->out_features += rows.count;
    impl_->parts.push_back(std::move(part));
  }
  impl_->set_bias(bias);
}

Dense::~Dense() = default;
Dense::Dense(Dense&&) noexcept = default;
Dense& Dense::operator=(Dense&&) noexcept = default;

void Dense::apply(const DenseInput& x, MatrixView<float> y, Output output, PrefetchList* prefetch,
                  StepThreadPool* team) const {
  assert(output != Output::kAdd || impl_->fused == Fused::kNone);
  if (impl_->stream != nullptr) {
    const bool relu = impl_->fused == Fused::kRelu && output == Output::kStore;
    impl_->apply_stream(x, y, relu, output == Output::kAdd);
    if (impl_->fused == Fused::kGelu && output == Output::kStore) fuse(y);
    return;
  }
  if (!impl_->weights.has_value()) {
    assert(y.cols() == impl_->out_features);
    impl_->apply_parts(x, y, output == Output::kAdd, team);
    if (output == Output::kStore) fuse(y);
    return;
  }
  Product product = impl_->product(x, y);
  product.relu = impl_->fused == Fused::kRelu && output == Output::kStore;
  product.add = output == Output::kAdd;
  product.prefetch = prefetch;
  impl_->apply(product, team);
  if (impl_->fused == Fused::kGelu && output == Output::kStore) fuse(y);
}

void Dense::apply_all(std::span<const Multiplication> products, PrefetchList* prefetch,
                      StepThreadPool* team) {
  std::size_t all = 0;
  for (const Multiplication& one : products) {
    assert(one.dense->impl_->fused == Fused::kNone);
    const std::size_t groups = one.dense->impl_->num_groups(one.y.rows());
    if (groups == 0) one.dense->apply(*one.x, one.y, Output::kStore, prefetch, team);
    all += groups;
  }
  split_among(team, all, [&](std::size_t begin, std::size_t end, bool is_leader) {
    std::size_t first = 0;  // group of the product
    for (const Multiplication& one : products) {
      const Impl& impl = *one.dense->impl_;
      const std::size_t groups = impl.num_groups(one.y.rows());
      const std::size_t own_begin = std::max(begin, first) - first;
      const std::size_t own_end = std::min(end, first + groups) - std::min(end, first);
      first += groups;
      if (own_end <= own_begin) continue;
      if (!impl.weights.has_value()) {
        impl.multiply_panels(own_begin, own_end, *one.x, one.y, /*add=*/false);
        continue;
      }
      Product product = impl.product(*one.x, one.y);
      product.prefetch = prefetch;
      Impl::multiply_groups(product, own_begin, own_end, is_leader);
    }
  });
}

void Dense::apply_first(const DenseInput& x, MatrixView<float> y, StepThreadPool* team) const {
  assert(has_rows() && impl_->stream == nullptr && impl_->fused == Fused::kNone);
  assert(y.cols() == impl_->out_features || y.cols() % kGroupWidth == 0);
  if (!impl_->weights.has_value()) return impl_->apply_parts(x, y, /*add=*/false, team);
  const std::size_t groups = (y.cols() + kGroupWidth - 1) / kGroupWidth;
  Impl::multiply_first(product_of(*impl_->weights, x, y), groups, team);
}

bool Dense::apply_into(const DenseInput& x, std::size_t rows, DenseInput& y,
                       StepThreadPool* team) const {
  const MatrixView<float> values = y.values().rows_from(0, rows);
  const bool at_once = impl_->fused == Fused::kRelu && impl_->is_multiplied_here(rows) &&
                       writes_bf16(x.type()) && y.type() == WeightType::kBf16;
  if (!at_once) {
    apply(x, values, Output::kStore, nullptr, team);
    return false;
  }
  Product product = impl_->product(x, values);
  product.relu = true;
  product.y_bf16 = y.bf16();
  product.y_bf16_stride = 2 * y.stride();
  impl_->apply(product, team);
  return true;
}

void Dense::fuse(MatrixView<float> y) const {
  for (std::size_t r = 0; r < y.rows(); ++r) {
    if (impl_->fused == Fused::kRelu) relu(y.row(r));
    if (impl_->fused == Fused::kGelu) gelu(y.row(r));
  }
}

bool Dense::has_rows() const {
  return !impl_->weights.has_value() || impl_->weights->cells != nullptr;
}

void Dense::row(std::size_t n, std::span<float> out) const {
  assert(has_rows() && n < impl_->out_features && out.size() == impl_->in_features);
  if (impl_->stream != nullptr) return impl_->stream(n, {out.data(), 1, out.size(), out.size()});
  if (impl_->weights.has_value()) return impl_->weights->row(n, out);
  for (const StoredPart& part : impl_->parts) {
    if (n < part.first || n >= part.first + part.count) continue;
    part.blocks.has_value() ? part.blocks->dequantize_row(n - part.first, out)
                            : part.floats->row(n - part.first, out);
  }
}

std::size_t Dense::number() const { return impl_->number; }
WeightType Dense::weight_type() const { return impl_->type; }
std::size_t Dense::in_features() const { return impl_->in_features; }
std::size_t Dense::out_features() const { return impl_->out_features; }
std::size_t Dense::weight_bytes() const {
  std::size_t bytes = impl_->bias.size() * sizeof(float);
  for (const StoredPart& part : impl_->parts) bytes += part.bytes();
  if (!impl_->weights.has_value()) return bytes;
  return impl_->weights->bytes() + (impl_->library != nullptr ? impl_->library->bytes() : 0);
}

std::string Dense::kernels() const {
  const std::string own = multiply_description(impl_->type);
  if (impl_->stream != nullptr) return own + ", weights read for every product";
  if (!impl_->weights.has_value()) return block_product_description();
  if (impl_->library == nullptr) {
    return impl_->why_not.empty() ? own : own + ", " + impl_->why_not;
  }
  const std::string theirs = impl_->library->description();
  if (impl_->library_rows <= 1) return theirs;
  return theirs + ", below " + std::to_string(impl_->library_rows) + " rows " + own;
}

std::size_t Dense::most_weight_bytes(std::size_t in_features, std::size_t out_features,
                                     WeightType type) {
  follow_instruction_set_of_onednn();
  if (input_type_of(type) == WeightType::kInt8Groups) {
    const std::size_t bias_bytes = out_features * sizeof(float);
    return bias_bytes + (has_4_bits(type, in_features)
                             ? BlockMatrix::bytes_of(DType::kQ4_0, in_features, out_features)
                             : BlockMatrix::bytes_of_8_bits(in_features, out_features));
  }
  const std::size_t own = PackedWeights::bytes_of(type, in_features, out_features);
  const std::size_t from = rows_for_library(onednn_library(), type, chosen_kernels());
  if (from == kNever) return own;
  // oneDNN's blocks, what it keeps for each output of int8, and our vectors of each output.
  const auto up_to = [](std::size_t n, std::size_t block) {
    return (n + block - 1) / block * block;
  };
  const std::size_t theirs = up_to(out_features, kGroupWidth) *
                             (num_cells(type, up_to(in_features, 64)) + 1 + 3) *
                             sizeof(std::uint32_t);
  return from <= 1 ? std::max(own, theirs) : own + theirs;
}

bool is_faster_than_f32(WeightType type) {
  assert(type != WeightType::kBlocks);
  follow_instruction_set_of_onednn();
  if (type == WeightType::kF32) return false;
  if (input_type_of(type) == WeightType::kInt8Groups) return has_byte_products();
  if (has_special_tiles(type)) return true;
  if (rows_for_library(onednn_library(), type, chosen_kernels()) != kNever) return true;
  // bf16 is widened to f32 then; int8 has four inputs in two instructions, or in one.
  return type == WeightType::kInt8 && kernel_target() == "AVX2";
}

std::string dense_kernels_description(WeightType type) {
  follow_instruction_set_of_onednn();
  const std::size_t from = rows_for_library(onednn_library(), type, chosen_kernels());
  if (from == kNever) return multiply_description(type);
  constexpr std::size_t kSize = 256;
  const std::vector<float> weight(kSize * kSize, 1.0f);
  return Dense(weight, std::vector<float>(kSize), kSize, kSize, {.weight_type = type}).kernels();
}

std::string dense_kernels_description() {
  std::string all;
  for (const WeightType type : kWeightTypes) {
    if (!all.empty()) all += ", ";
    all += std::string(to_string(type)) + " " + dense_kernels_description(type);
  }
  return all;
}

}  // namespace lintel
