// SPDX-License-Identifier: Apache-2.0
#include "model/families/tensor_reader.h"

#include <algorithm>
#include <array>
#include <memory>

#include "model/core/errors.h"
#include "model/formats/safetensors.h"
#include "model/ops/block_formats.h"

namespace lintel {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;  // compared at once

// Without dimensions of one: [1, 1, E] is [E].
std::vector<std::int64_t> squeezed(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> dims;
  std::ranges::copy_if(shape, std::back_inserter(dims), [](std::int64_t d) { return d != 1; });
  return dims;
}

}  // namespace

const TensorInfo& TensorReader::take(const std::string& name) {
  const TensorInfo* const found = source_.find(name);
  if (found == nullptr) {
    throw ModelError(source_.name() + ": tensor " + quote(name) + ": missing");
  }
  if (taken_.insert(name).second) num_parameters_ += found->num_elements();
  return *found;
}

void TensorReader::fail_shape(const TensorInfo& tensor,
                              std::span<const std::int64_t> expected) const {
  throw ModelError(source_.name() + ": tensor " + quote(tensor.name) + ": found shape " +
                   shape_to_string(tensor.shape) + ", expected " + shape_to_string(expected));
}

void TensorReader::check_shape(const TensorInfo& tensor,
                               std::span<const std::int64_t> expected) const {
  if (squeezed(tensor.shape) != squeezed(expected)) fail_shape(tensor, expected);
}

void TensorReader::check_shape(const TensorInfo& tensor, std::size_t rows, std::size_t cols) const {
  check_shape(tensor, std::array{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)});
}

void TensorReader::read_blocks(const TensorInfo& tensor, std::span<std::byte> blocks,
                               std::size_t first) const {
  const std::size_t values = values_per_block(tensor.type);
  source_.read(tensor, first / values * bytes_per_block(tensor.type), blocks);
  if (const auto bad = first_non_finite(tensor.type, blocks)) {
    fail_non_finite(tensor.name, first + *bad * values);
  }
}

void TensorReader::fail_non_finite(const std::string& name, std::size_t index) const {
  throw ModelError(source_.name() + ": tensor " + quote(name) + ": found a value that is not " +
                   "finite at index " + std::to_string(index) + ", expected a finite number");
}

Matrix TensorReader::vector(const std::string& name, std::size_t size) {
  const TensorInfo& tensor = take(name);
  const std::int64_t expected[] = {static_cast<std::int64_t>(size)};
  if (tensor.num_elements() != expected[0]) fail_shape(tensor, expected);
  Matrix values(1, size);
  read_f32(source_, tensor, values.values());
  return values;
}

Matrix TensorReader::matrix(const std::string& name, std::size_t rows, std::size_t cols) {
  const TensorInfo& tensor = take(name);
  check_shape(tensor, rows, cols);
  Matrix values(rows, cols);
  read_f32(source_, tensor, values.values());
  return values;
}

// Notes the modules of a product.
void TensorReader::note_modules(const std::vector<Part>& parts, std::size_t cols,
                                std::size_t product) {
  std::size_t first_output = 0;
  for (const Part& part : parts) {
    const std::string_view name = part.name;
    constexpr std::string_view kWeight = ".weight";
    const bool is_module = name.ends_with(kWeight) && part.whole.empty() && !part.transposed;
    if (is_module && part.is_adaptable) {
      modules_.push_back({.name = std::string(name.substr(0, name.size() - kWeight.size())),
                          .in = cols,
                          .out = part.rows,
                          .product = product,
                          .first_output = first_output});
    }
    first_output += part.rows;
  }
}

Dense TensorReader::dense(const std::vector<Part>& parts, std::size_t cols,
                          const Dense::Options& given, WeightRole role) {
  Dense::Options options = given;
  options.weight_type = weight_type_of(given.weight_type, role);
  options.number = num_products_++;
  note_modules(parts, cols, options.number);
  // A part whose columns are the file's rows is held until it is packed.
  struct Rows {
    std::size_t first = 0;
    std::size_t count = 0;
    const TensorInfo* tensor = nullptr;
    std::size_t first_row = 0;  // of the tensor's rows
    Matrix columns;             // [cols, count]; empty: rows are read from the tensor
  };
  auto stacked = std::make_shared<std::vector<Rows>>();  // which reading may outlive this
  std::size_t rows = 0;
  for (const Part& part : parts) {
    Rows of{.first = rows,
            .count = part.rows,
            .tensor = &take(part.name),
            .first_row = part.first,
            .columns = {}};
    if (part.transposed) {
      of.columns = matrix(part.name, cols, part.rows);
    } else {
      part.whole.empty() ? check_shape(*of.tensor, part.rows, cols)
                         : check_shape(*of.tensor, part.whole);
    }
    stacked->push_back(std::move(of));
    rows += part.rows;
  }
  Matrix bias(1, rows);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bias.empty()) continue;
    const Matrix values = vector(parts[i].bias, parts[i].rows);
    std::ranges::copy(values.values(), bias.values().subspan((*stacked)[i].first).begin());
  }
  const auto read_rows = [stacked, cols, &source = source_](std::size_t first,
                                                            MatrixView<float> to) {
    const std::size_t end = first + to.rows();
    for (const Rows& part : *stacked) {
      const std::size_t begin = std::max(first, part.first);
      const std::size_t last = std::min(end, part.first + part.count);
      if (begin >= last) continue;
      const MatrixView<float> of_part = to.rows_from(begin - first, last - begin);
      const std::size_t row = begin - part.first;
      if (part.columns.rows() == 0) {
        read_f32(source, *part.tensor, {of_part.data(), of_part.rows() * cols},
                 (part.first_row + row) * cols);
        continue;
      }
      for (std::size_t r = 0; r < of_part.rows(); ++r) {
        for (std::size_t c = 0; c < cols; ++c) of_part.row(r)[c] = part.columns.row(c)[row + r];
      }
    }
  };
  if (options.weight_type != WeightType::kBlocks) {
    return Dense(read_rows, bias.values(), cols, rows, options);
  }
  std::vector<Dense::StoredRows> stored;
  for (const Rows& part : *stacked) {
    Dense::StoredRows of{.count = part.count, .type = part.tensor->type};
    if (is_quantized(of.type) && part.columns.rows() == 0) {
      of.read_blocks = [this, &part, cols](std::size_t first, std::size_t /*count*/,
                                           std::span<std::byte> blocks) {
        read_blocks(*part.tensor, blocks, (part.first_row + first) * cols);
      };
    } else {
      of.read_floats = [&read_rows, &part](std::size_t first, MatrixView<float> to) {
        read_rows(part.first + first, to);
      };
    }
    stored.push_back(std::move(of));
  }
  return Dense(stored, bias.values(), cols, options);
}

void TensorReader::read_vocabulary(const Vocabulary& names, const Dense::Options& options,
                                   Decoder& decoder) {
  if (names.is_tied && has(names.head)) check_equal(names.head, names.embedding);
  const std::string& head = names.is_tied ? names.embedding : names.head;
  decoder.head = dense({{head, names.rows}}, decoder.width, options, WeightRole::kHead);
  // PEFT adapts the head of a tied pair alone under its own name.
  if (names.is_tied && !modules_.empty()) {
    modules_.back().name = names.head.substr(0, names.head.rfind(".weight"));
  }
  decoder.modules = modules_;
  if (names.is_tied && decoder.head->has_rows()) return;
  decoder.embedding = embedding(names.embedding, names.rows, decoder.width);
}

TokenEmbedding TensorReader::embedding(const std::string& name, std::size_t rows,
                                       std::size_t width) {
  const TensorInfo& tensor = take(name);
  check_shape(tensor, rows, width);
  TokenEmbedding embedding(tensor.type, width, rows);
  source_.read(tensor, 0, embedding.bytes());
  const auto bad = first_non_finite(tensor.type, embedding.bytes());
  if (bad.has_value()) fail_non_finite(name, *bad * values_per_block(tensor.type));
  return embedding;
}

void TensorReader::check_equal(const std::string& name, const std::string& other) {
  const TensorInfo* const a = source_.find(name);
  const TensorInfo* const b = source_.find(other);
  taken_.insert(name);
  bool is_equal = a->type == b->type && a->shape == b->shape;
  std::vector<std::byte> of_a(kPieceBytes), of_b(kPieceBytes);
  for (std::uint64_t done = 0; is_equal && done < a->num_bytes(); done += of_a.size()) {
    const std::size_t count = std::min<std::uint64_t>(kPieceBytes, a->num_bytes() - done);
    of_a.resize(count);
    of_b.resize(count);
    source_.read(*a, done, of_a);
    source_.read(*b, done, of_b);
    is_equal = of_a == of_b;
  }
  if (is_equal) return;
  throw ModelError(source_.name() + ": tensor " + quote(name) + ": differs from " + quote(other) +
                   ", expected the same or none, as the embeddings are tied");
}

TensorReader::Ignored TensorReader::ignore(
    const std::function<bool(std::string_view name)>& is_ignored) {
  Ignored ignored;
  for (const TensorInfo& tensor : source_.tensors()) {
    if (!is_ignored(tensor.name) || !taken_.insert(tensor.name).second) continue;
    ++ignored.count;
    ignored.bytes += tensor.num_bytes();
  }
  return ignored;
}

void TensorReader::finish() const {
  for (const TensorInfo& tensor : source_.tensors()) {
    if (taken_.contains(tensor.name)) continue;
    throw ModelError(source_.name() + ": tensor " + quote(tensor.name) + ": surplus, found shape " +
                     shape_to_string(tensor.shape) + ", expected no such tensor");
  }
}

}  // namespace lintel
