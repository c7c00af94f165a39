// SPDX-License-Identifier: Apache-2.0
#include "model/fastest_type.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/core/kernels.h"
#include "model/families/family.h"
#include "model/formats/weights.h"
#include "model/model_files.h"
#include "model/ops/block_matrix.h"
#include "model/ops/dense.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {
namespace {

constexpr std::size_t kSequences = 4;         // at a time
constexpr std::size_t kMostSequences = 16;    // fewer would say too little
constexpr std::int64_t kLongest = 192;        // tokens
constexpr std::int64_t kMostTerms = 500'000;  // of all sums: a large vocabulary has fewer tokens
constexpr std::int64_t kFewestTokens = 8;

std::int64_t tokens_to_draw(const ModelConfig& config, int vocab_size) {
  const std::int64_t affordable =
      kMostTerms / (static_cast<std::int64_t>(kSequences) * std::max(vocab_size, 1));
  const std::int64_t wanted = std::clamp(affordable, kFewestTokens, kLongest);
  return config.max_length > 0 ? std::min(config.max_length, wanted) : wanted;
}

// kSequences sequences that the model draws, from number `first` on; empty where one of its outputs
// is not finite.
std::vector<std::vector<std::int32_t>> draw_sequences(const Transformer& model, std::size_t first) {
  const ModelConfig& config = model.config();
  const Head& head = model.head();
  const std::int64_t length = tokens_to_draw(config, head.vocab_size());
  const auto vocab_size = static_cast<std::size_t>(head.vocab_size());
  std::vector<std::vector<std::int32_t>> tokens(kSequences);
  std::vector<SequenceState> sequences;
  // Texts begin with tokens of their own: they have no token that stands before all.
  const bool is_image = config.modality == ModalityKind::kImage;
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences.push_back(model.new_sequence());
    tokens[i].push_back(
        is_image ? config.image.start_token
                 : static_cast<std::int32_t>((first + i + 1) * vocab_size / (kMostSequences + 1)));
  }
  Workspace workspace = model.new_workspace(kSequences);
  SamplingScratch scratch;
  for (std::int64_t position = 0; position + 1 < length; ++position) {
    std::vector<BatchRow> rows;
    for (std::size_t i = 0; i < kSequences; ++i) {
      rows.push_back({tokens[i].back(), &sequences[i], /*wants_output=*/true});
    }
    const MatrixView<const float> outputs = model.step(rows, workspace);
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (!all_finite(outputs.row(i))) return {};
      const DrawSource draw{.seed = first + i, .position = position};
      tokens[i].push_back(head.sample(outputs.row(i), {}, {}, {}, draw, scratch));
    }
  }
  return tokens;
}

// Reads sequences in steps of many tokens: what streams its matrices reads them as often as it
// steps.
class SequenceReader {
 public:
  SequenceReader(const Transformer& model, std::size_t most_rows)
      : model_(model), workspace_(model.new_workspace(most_rows)) {}

  // The output after each of the sequence's next tokens; valid until the next call. ends: another
  // sequence begins then.
  MatrixView<const float> read(std::span<const std::int32_t> tokens, bool ends) {
    if (!sequence_) sequence_.emplace(model_.new_sequence());
    std::vector<BatchRow> rows;
    for (const std::int32_t token : tokens) {
      rows.push_back({token, &*sequence_, /*wants_output=*/true});
    }
    const MatrixView<const float> outputs = model_.step(rows, workspace_);
    if (ends) sequence_.reset();
    return outputs;
  }

 private:
  const Transformer& model_;
  Workspace workspace_;
  std::optional<SequenceState> sequence_;
};

// The sum of the Kullback-Leibler divergences, in bits, of what two models expect after each token.
class DivergenceSum {
 public:
  // most_tokens: of a call of add().
  DivergenceSum(const Transformer& exact, const Transformer& narrow, std::size_t most_tokens)
      : head_(exact.head()),
        exact_(exact, most_tokens),
        narrow_(narrow, most_tokens),
        p_(static_cast<std::size_t>(head_.vocab_size())),
        q_(p_.size()) {}

  // The next tokens of a sequence, which ends with them or not. Returns whether all outputs are
  // finite.
  bool add(std::span<const std::int32_t> tokens, bool ends) {
    const MatrixView<const float> wanted = exact_.read(tokens, ends);
    const MatrixView<const float> found = narrow_.read(tokens, ends);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (!all_finite(wanted.row(t)) || !all_finite(found.row(t))) return false;
      head_.log2_probs(wanted.row(t), p_);
      head_.log2_probs(found.row(t), q_);
      for (std::size_t token = 0; token < p_.size(); ++token) {
        if (p_[token] > -100.0) bits_ += std::exp2(p_[token]) * (p_[token] - q_[token]);
      }
    }
    return true;
  }
  double bits() const { return bits_; }

 private:
  const Head& head_;
  SequenceReader exact_;
  SequenceReader narrow_;
  std::vector<double> p_;  // [V] log2
  std::vector<double> q_;
  double bits_ = 0.0;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

double kl_divergence_bits(const Transformer& exact, const Transformer& narrow,
                          double most_bits_lost) {
  constexpr double kFar = 4.0;  // from the limit: more sequences would decide the same
  const auto length =
      static_cast<std::size_t>(tokens_to_draw(exact.config(), exact.head().vocab_size()));
  DivergenceSum sum(exact, narrow, length);
  double mean = 0.0;
  for (std::size_t first = 0; first < kMostSequences; first += kSequences) {
    const std::vector<std::vector<std::int32_t>> sequences = draw_sequences(narrow, first);
    if (sequences.empty()) return kNaN;
    for (const std::vector<std::int32_t>& tokens : sequences) {
      if (!sum.add(tokens, /*ends=*/true)) return kNaN;
    }
    mean = sum.bits() / static_cast<double>(length * (first + kSequences));
    if (mean < most_bits_lost / kFar || mean > most_bits_lost * kFar) break;
  }
  return mean;
}

double kl_divergence_bits(const Transformer& exact, const Transformer& narrow,
                          std::span<const std::int32_t> tokens) {
  constexpr std::size_t kRows = 64;  // at a time: a large vocabulary's outputs are megabytes each
  DivergenceSum sum(exact, narrow, std::min(kRows, tokens.size()));
  for (std::size_t at = 0; at < tokens.size(); at += kRows) {
    const std::size_t count = std::min(kRows, tokens.size() - at);
    if (!sum.add(tokens.subspan(at, count), at + count == tokens.size())) return kNaN;
  }
  return sum.bits() / static_cast<double>(tokens.size());
}

namespace {

std::size_t product(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX : result;
}

void add(std::size_t& sum, std::size_t bytes) {
  if (__builtin_add_overflow(sum, bytes, &sum)) sum = SIZE_MAX;
}

std::size_t f32_bytes_of(std::span<const std::int64_t> shape) {
  std::size_t bytes = sizeof(float);
  for (const std::int64_t n : shape) bytes = product(bytes, static_cast<std::size_t>(n));
  return bytes;
}

// Bytes of a matrix held in f32 while it is packed, and of a file while it is read.
std::size_t bytes_of_rows_at_once(std::size_t cols, std::size_t rows) {
  return product(product(cols, sizeof(float)), kGroupWidth * packing_threads(cols, rows));
}
constexpr std::size_t kPieces = std::size_t{8} << 20;

// Small matrices of a family's layers feed exponentials and stay in f32.
constexpr std::uint64_t kMostExactElements = std::uint64_t{1} << 20;

// Matrices in a tensor of a family: one, those of all experts [N, rows, cols], or 0: it is a vector
// or a convolution [C, 1, K].
std::size_t num_matrices(const TensorInfo& tensor) {
  if (tensor.shape.size() == 2) return 1;
  if (tensor.shape.size() != 3 || tensor.shape[1] == 1) return 0;
  return static_cast<std::size_t>(tensor.shape[0]);
}

std::size_t most_weight_bytes(const TensorInfo& tensor, std::size_t cols, std::size_t rows,
                              WeightType type) {
  if (type != WeightType::kBlocks) return Dense::most_weight_bytes(cols, rows, type);
  if (is_quantized(tensor.type)) return BlockMatrix::bytes_of(tensor.type, cols, rows);
  return Dense::most_weight_bytes(cols, rows, WeightType::kF32);
}

// An upper bound from names and shapes alone: the embedding as it is stored, the head packed, and
// of each other matrix the packed form; while one is packed, some of its rows in f32.
ModelSize measure_family(const ModelFiles& files, const Transformer::Options& options) {
  const WeightType type = family_type_of(options.weight_type);
  ModelSize size;
  std::size_t embedding = 0;
  std::size_t head = 0;
  std::size_t vocabularies = 0;  // 1: embedding and head are tied
  std::size_t as_many_rows = 0;  // bytes of what has their shape, which other matrices may have
  for (const TensorInfo& tensor : files.checkpoint().tensors.tensors()) {
    const auto elements = static_cast<std::uint64_t>(tensor.num_elements());
    const std::size_t floats = product(elements, sizeof(float));
    const std::size_t matrices = num_matrices(tensor);
    const bool is_held = matrices == 0 || elements <= kMostExactElements;
    const auto width = static_cast<std::size_t>(tensor.shape.back());
    const std::size_t beside =
        is_held ? product(floats, 2)
                : bytes_of_rows_at_once(width, static_cast<std::size_t>(elements) / width);
    size.loading_bytes = std::max(size.loading_bytes, beside + kPieces);
    if (matrices == 0) {
      add(size.resident_bytes, floats);
      continue;
    }
    const auto rows = static_cast<std::size_t>(*(tensor.shape.end() - 2));
    const auto cols = static_cast<std::size_t>(tensor.shape.back());
    if (type == WeightType::kInt8 && cols > Dense::kMostInt8Inputs) {
      throw ModelError(tensor.name + ": has " + std::to_string(cols) +
                       " inputs, weight type int8 takes at most " +
                       std::to_string(Dense::kMostInt8Inputs));
    }
    // Small ones may be stored transposed.
    const std::size_t exact = std::max(Dense::most_weight_bytes(cols, rows, WeightType::kF32),
                                       Dense::most_weight_bytes(rows, cols, WeightType::kF32));
    const bool is_vocabulary = rows == static_cast<std::size_t>(files.config().vocab_size);
    const std::size_t packed =
        options.streams
            ? 0
            : most_weight_bytes(
                  tensor, cols, rows,
                  weight_type_of(type, is_vocabulary ? WeightRole::kHead : WeightRole::kMixer));
    if (tensor.shape.size() == 3) {
      add(size.resident_bytes, product(matrices, packed));
    } else if (is_vocabulary) {
      embedding = std::max<std::size_t>(embedding, tensor.num_bytes());
      head = std::max(head, packed);
      ++vocabularies;
      add(as_many_rows, std::max(exact, packed));
    } else {
      add(size.resident_bytes, elements > kMostExactElements ? packed : std::max(exact, packed));
    }
  }
  const bool is_one_copy = vocabularies == 1 && chosen_kernels() != KernelChoice::kOneDnn;
  if (!is_one_copy) add(size.resident_bytes, embedding);
  add(size.resident_bytes, head);
  if (vocabularies > 2) add(size.resident_bytes, as_many_rows);
  return size;
}

ModelSize measure_native(const ModelFiles& files, const Transformer::Options& options) {
  const ModelConfig& config = files.config();
  const WeightSource& tensors = files.weights();
  check_tensors(tensors, config);
  check_weight_type(config, options.weight_type);
  const ModelConfig running =
      options.attention.has_value() ? with_attention(config, *options.attention) : config;
  const bool is_seeded = options.attention.has_value() && options.attention->seed.has_value();
  ModelSize size;
  const auto weight_bytes = [&](std::size_t cols, std::size_t rows, WeightType type) {
    return options.streams ? 0 : Dense::most_weight_bytes(cols, rows, type);
  };
  std::size_t most_beside = 0;
  std::size_t most_drawn = 0;  // the last one that was drawn
  std::size_t all = 0;         // tensors in f32
  for (const TensorSpec& spec : list_tensors(running)) {
    const std::size_t floats = f32_bytes_of(spec.shape);
    add(all, floats);
    const TensorInfo* const found = tensors.find(spec.name);
    const bool is_drawn = !spec.optional && (found == nullptr || found->shape != spec.shape ||
                                             (is_seeded && spec.is_own));
    if (is_drawn) most_drawn = std::max(most_drawn, floats);
    const bool is_predictor = spec.name == "predictor.weight";
    if (spec.is_projection || is_predictor) {
      const auto rows = static_cast<std::size_t>(spec.shape[0]);
      const auto cols = static_cast<std::size_t>(spec.shape[1]);
      most_beside = std::max(most_beside, bytes_of_rows_at_once(cols, rows));
      add(size.resident_bytes,
          weight_bytes(cols, rows, is_predictor ? WeightType::kF32 : options.weight_type));
      continue;
    }
    // A table that the file leaves out is computed while loading, or, where it is large, at every
    // call.
    if (found == nullptr && spec.optional && floats > kMaxComputedTableBytes) continue;
    add(size.resident_bytes, floats);
  }
  for (int i = 0; i < running.num_layer_weights(); ++i) {
    const AttentionConfig& attention =
        running.attention[static_cast<std::size_t>(running.first_layer_with(i))];
    std::size_t own = 0;  // which the layer copies
    for (const OwnTensor& tensor : own_tensors(attention, running.dims())) {
      add(own, f32_bytes_of(tensor.shape));
    }
    most_beside = std::max(most_beside, own);
    const auto table_floats = attention.kind().table_floats;
    if (table_floats == nullptr) continue;
    add(size.resident_bytes, product(table_floats(attention, running.dims()), sizeof(float)));
  }
  size.loading_bytes = std::min(kPieces, all);
  add(size.loading_bytes, most_beside);
  add(size.loading_bytes, most_drawn);
  return size;
}

}  // namespace

ModelSize measure_model(const ModelFiles& files, const Transformer::Options& options) {
  check_has_blocks(files, options.weight_type);
  return files.family() != nullptr ? measure_family(files, options)
                                   : measure_native(files, options);
}

namespace {

std::string digits(double bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", bits);
  return text;
}

// Nothing: the model cannot be had in this type.
std::optional<ModelSize> measured(const ModelFiles& files, const Transformer::Options& options) {
  try {
    return measure_model(files, options);
  } catch (const ModelError&) {
    return std::nullopt;
  }
}

std::int64_t num_weights(const ModelFiles& files) {
  std::int64_t weights = 0;
  if (files.family() != nullptr) {
    for (const TensorInfo& tensor : files.checkpoint().tensors.tensors()) {
      if (num_matrices(tensor) > 0) weights += tensor.num_elements();
    }
    return weights;
  }
  for (const TensorSpec& spec : list_tensors(files.config())) {
    if (!spec.is_projection) continue;
    std::int64_t elements = 1;
    for (const std::int64_t size : spec.shape) elements *= size;
    weights += elements;
  }
  return weights;
}

// The beginning of `text` as the model's tokens, on which types are compared. Empty: there is no
// text, or the model reads none.
std::vector<std::int32_t> text_tokens(const ModelFiles& files, const std::string& text) {
  if (text.empty()) return {};
  std::vector<std::string> notes;
  const std::shared_ptr<const Tokenizer> tokenizer = files.load_tokenizer(notes);
  if (tokenizer == nullptr) return {};
  std::vector<std::int32_t> tokens = tokenizer->encode(text);
  const auto longest = static_cast<std::size_t>(files.config().max_length);  // 0: unbounded
  const std::size_t most = longest > 0 ? std::min(longest, kMostTextTokens) : kMostTextTokens;
  if (tokens.size() > most) tokens.resize(most);
  if (tokens.size() < std::min(kFewestTextTokens, most)) {
    throw ModelError("the text to compare weight types on: found " + std::to_string(tokens.size()) +
                     " tokens, expected at least " + std::to_string(kFewestTextTokens));
  }
  const std::int32_t vocabulary = files.config().vocab_size;
  if (std::ranges::any_of(tokens, [&](std::int32_t token) { return token >= vocabulary; })) {
    return {};  // a tokenizer with more tokens than the model has rows
  }
  return tokens;
}

// Types to compare. A model in 4 bits loses too much to be compared without a text.
std::vector<WeightType> candidates_for(const ModelFiles& files, bool has_text) {
  std::vector<WeightType> types;
  if (has_text && files.family() != nullptr) {
    for (const WeightType type : {WeightType::kInt4All, WeightType::kInt4, WeightType::kInt4Ffn}) {
      if (is_faster_than_f32(type)) types.push_back(type);
    }
  }
  std::ranges::copy(faster_types(), std::back_inserter(types));
  return types;
}

bool is_large(const ModelFiles& files) { return num_weights(files) > kMostComparedWeights; }

bool is_worth_comparing(const ModelFiles& files, const Transformer::Options& options) {
  if (options.attention && options.attention->recompute) return false;
  return num_weights(files) >= kFewestWeights;
}

// While load_as_planned() compares: one of the candidates beside what streams, or the model in the
// type that is served where none of them loses little enough, alone.
ModelSize size_of_comparing(const ModelFiles& files, const LoadPlan& plan) {
  Transformer::Options options = plan.options;
  ModelSize size = measure_model(files, options);
  options.weight_type = WeightType::kF32;
  options.streams = true;
  const std::size_t streamed = measure_model(files, options).peak_bytes();
  options.streams = false;
  std::size_t peak = size.peak_bytes();
  for (const WeightType type : plan.candidates) {
    options.weight_type = type;
    const auto narrow = measured(files, options);
    if (!narrow) continue;
    std::size_t comparing = narrow->resident_bytes;
    add(comparing, streamed);
    peak = std::max({peak, comparing, narrow->peak_bytes()});
  }
  size.loading_bytes = peak - size.resident_bytes;
  return size;
}

}  // namespace

std::vector<WeightType> faster_types() {
  std::vector<WeightType> types;
  for (const WeightType type : {WeightType::kInt8, WeightType::kBf16}) {
    if (is_faster_than_f32(type)) types.push_back(type);
  }
  return types;
}

LoadPlan plan_to_load(const ModelFiles& files, std::optional<WeightType> weight_type,
                      const std::optional<AttentionSpec>& attention, std::optional<KvType> kv_type,
                      const TypeChoice& choice) {
  LoadPlan plan{.options = {.attention = attention, .kv_type = kv_type},
                .most_bits_lost = choice.most_bits_lost};
  if (!weight_type && has_quantized_tensors(files)) {
    weight_type = WeightType::kBlocks;
    plan.reason = "as the file stores its quantised tensors";
  }
  if (!weight_type && is_worth_comparing(files, plan.options)) {
    plan.text = text_tokens(files, choice.text);
    if (!plan.text.empty() || !is_large(files)) {
      plan.candidates = candidates_for(files, !plan.text.empty());
    } else if (!choice.text.empty()) {
      plan.reason = "types are not compared: the model has no tokenizer for the text";
    }
  }
  const std::vector<WeightType> faster = faster_types();
  if (!plan.candidates.empty()) {
    // A large model in f32 would take twice the memory of its files.
    weight_type = is_large(files) ? WeightType::kBf16 : WeightType::kF32;
    std::erase(plan.candidates, *weight_type);
  } else if (!weight_type && is_large(files) && !faster.empty()) {
    weight_type = faster.front();
  }
  plan.options.weight_type = weight_type.value_or(WeightType::kF32);
  plan.size =
      plan.candidates.empty() ? measure_model(files, plan.options) : size_of_comparing(files, plan);
  return plan;
}

LoadedModel load_as_planned(const ModelFiles& files, const LoadPlan& plan) {
  if (plan.candidates.empty()) {
    return {Transformer::load(files, plan.options), plan.reason};
  }
  Transformer::Options options = plan.options;
  Transformer::Options streamed = plan.options;
  streamed.weight_type = WeightType::kF32;
  streamed.streams = true;
  const std::string most = digits(plan.most_bits_lost);
  std::string refused;
  for (const WeightType type : plan.candidates) {
    options.weight_type = type;
    if (!measured(files, options)) continue;
    std::unique_ptr<const Transformer> narrow = Transformer::load(files, options);
    const auto exact = Transformer::load(files, streamed);
    const double lost = plan.text.empty() ? kl_divergence_bits(*exact, *narrow, plan.most_bits_lost)
                                          : kl_divergence_bits(*exact, *narrow, plan.text);
    const std::string loss = digits(lost) + " bits a token against f32";
    if (lost <= plan.most_bits_lost) {  // not of NaN
      const std::string on =
          plan.text.empty() ? "" : " on " + std::to_string(plan.text.size()) + " tokens of text";
      return {std::move(narrow),
              std::string(to_string(type)) + " loses " + loss + on + ", of at most " + most};
    }
    refused += (refused.empty() ? "" : ", ") + std::string(to_string(type)) + " would lose " +
               loss + ", more than " + most;
  }
  return {Transformer::load(files, plan.options),
          refused.empty() ? "nothing faster takes this model" : refused};
}

}  // namespace lintel
