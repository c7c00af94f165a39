// SPDX-License-Identifier: Apache-2.0
// TensorReader: takes the tensors of a checkpoint by name and notices what is left.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/tensor.h"
#include "model/formats/weight_source.h"
#include "model/layers/mixers/decoder.h"
#include "model/lora/adapter.h"
#include "model/ops/dense.h"

namespace lintel {

// All throw ModelError naming the file, the tensor and both shapes, for what is missing, mis-shaped
// or not finite. Names are those of the source.
class TensorReader {
 public:
  explicit TensorReader(const WeightSource& source) : source_(source) {}

  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  // Throws where there is none. Marks it as taken.
  const TensorInfo& take(const std::string& name);

  // Vectors are compared by their number of values: [E], [1, 1, E].
  Matrix vector(const std::string& name, std::size_t size);
  Matrix matrix(const std::string& name, std::size_t rows, std::size_t cols);
  TokenEmbedding embedding(const std::string& name, std::size_t rows, std::size_t width);
  // Matrices with the same inputs, one below the other.
  struct Part {
    std::string name;
    std::size_t rows = 0;
    std::string bias = {};    // empty: none
    bool transposed = false;  // the file has [cols, rows]
    // Shape of the stored tensor, [.., cols], of which only the rows from `first` on are read.
    // Empty: all rows are read.
    std::vector<std::int64_t> whole = {};
    std::size_t first = 0;
    // True: an adapter may adapt it, where the tensor is the weight of a module: NAME.weight.
    bool is_adaptable = true;
  };
  // A matrix of these parts. Weight type blocks keeps quantised parts as they are stored, others
  // are f32. Types with int4 have the form that `role` has. With Options::streams the source
  // outlives the result.
  Dense dense(const std::vector<Part>& parts, std::size_t cols, const Dense::Options& options,
              WeightRole role = WeightRole::kMixer);
  // The embedding and the head of a decoder. They are one copy, of the weight type, where they are
  // tied and no library has the head alone.
  struct Vocabulary {
    std::string embedding;
    std::string head;
    bool is_tied = false;  // the head may be missing, else it equals the embedding
    std::size_t rows = 0;
  };
  void read_vocabulary(const Vocabulary& names, const Dense::Options& options, Decoder& decoder);

  // Refuses two that are not the same, bit for bit. Marks `name` as taken.
  void check_equal(const std::string& name, const std::string& other);

  // Tensors that the model does not read.
  struct Ignored {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
  };
  Ignored ignore(const std::function<bool(std::string_view name)>& is_ignored);
  // Refuses tensors that were neither taken nor ignored.
  void finish() const;

  std::int64_t num_parameters() const { return num_parameters_; }  // of all that were taken

 private:
  void check_shape(const TensorInfo& tensor, std::span<const std::int64_t> expected) const;
  void check_shape(const TensorInfo& tensor, std::size_t rows, std::size_t cols) const;
  void note_modules(const std::vector<Part>& parts, std::size_t cols, std::size_t product);
  [[noreturn]] void fail_non_finite(const std::string& name, std::size_t index) const;
  [[noreturn]] void fail_shape(const TensorInfo& tensor,
                               std::span<const std::int64_t> expected) const;
  // Whole blocks as they are stored, from value `first` on.
  void read_blocks(const TensorInfo& tensor, std::span<std::byte> blocks, std::size_t first) const;

  const WeightSource& source_;
  std::set<std::string, std::less<>> taken_;
  std::int64_t num_parameters_ = 0;
  std::size_t num_products_ = 0;
  std::vector<AdaptableModule> modules_;  // of the products so far
};

}  // namespace lintel
