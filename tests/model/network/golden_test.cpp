// SPDX-License-Identifier: Apache-2.0
// The vectors of tests/golden/README.md: what the official implementation computes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "model/formats/safetensors.h"
#include "model/transformer.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel {
namespace {

constexpr double kOutputTolerance = 1e-4;
constexpr double kZooTolerance = 5e-5;  // float32 is within 1e-5 of float64 on all of them
constexpr double kBitsTolerance = 1e-3;
constexpr double kBf16BitsPerDim = 0.01;
constexpr double kInt8BitsPerDim = 0.03;

// A directory of vectors, how it is run, and which of its tensors this is to reproduce.
struct GoldenCase {
  std::string name;
  std::string attention;      // --attention; empty: as config.json says
  std::string tensor_suffix;  // of outputs and log_likelihood_bits
  double tolerance = kOutputTolerance;
};
std::ostream& operator<<(std::ostream& out, const GoldenCase& which) {
  return out << which.name << which.tensor_suffix << " " << which.attention;
}

struct Golden {
  explicit Golden(const GoldenCase& which, WeightType type = WeightType::kF32)
      : Golden(which.name, which, type) {}
  Golden(const std::string& name, const GoldenCase& which, WeightType type)
      : model(Transformer::load(directory(name), options(which, type))),
        file(directory(name) / "golden.safetensors"),
        tokens(file.read_i32("tokens")),
        outputs(file.read_f32("outputs" + which.tensor_suffix)),
        bits(file.read_f32("log_likelihood_bits" + which.tensor_suffix)),
        batch(file.tensor("tokens").shape[0]),
        length(file.tensor("tokens").shape[1]),
        width(model->head().num_outputs()) {}

  static std::filesystem::path directory(const std::string& name) {
    return std::filesystem::path(LINTEL_TEST_DATA) / "golden" / name;
  }
  static Transformer::Options options(const GoldenCase& which, WeightType type) {
    Transformer::Options options{.weight_type = type};
    if (!which.attention.empty()) options.attention = parse_attention_spec(which.attention);
    return options;
  }
  std::int32_t token(std::size_t b, std::size_t t) const { return tokens[b * length + t]; }
  std::span<const float> expected(std::size_t b, std::size_t t) const {
    return {outputs.data() + (b * length + t) * width, width};
  }

  std::unique_ptr<Transformer> model;
  SafetensorsFile file;
  std::vector<std::int32_t> tokens;  // [B, L]
  std::vector<float> outputs;        // [B, L, O]
  std::vector<float> bits;           // [B, L-1]
  std::size_t batch;
  std::size_t length;
  std::size_t width;
};

// Every output [B, L, O] when each sequence is fed in slices of `slice` tokens, the sequences
// together in one step or one after the other.
std::vector<float> run(const Golden& golden, std::size_t slice, bool together) {
  std::vector<float> all(golden.outputs.size());
  Workspace workspace = golden.model->new_workspace(slice * golden.batch);
  std::vector<SequenceState> sequences;
  for (std::size_t b = 0; b < golden.batch; ++b) sequences.push_back(golden.model->new_sequence());
  const auto feed = [&](std::size_t first, std::size_t last, std::size_t t) {
    const std::size_t count = std::min(slice, golden.length - t);
    std::vector<BatchRow> rows;
    for (std::size_t b = first; b < last; ++b) {
      for (std::size_t i = 0; i < count; ++i) {
        rows.push_back({golden.token(b, t + i), &sequences[b], true});
      }
    }
    const MatrixView<const float> outputs = golden.model->step(rows, workspace);
    REQUIRE(outputs.rows() == rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t where = (first + r / count) * golden.length + t + r % count;
      std::copy(outputs.row(r).begin(), outputs.row(r).end(), all.begin() + where * golden.width);
    }
  };
  for (std::size_t b = 0; b < golden.batch; b += together ? golden.batch : 1) {
    for (std::size_t t = 0; t < golden.length; t += slice) {
      feed(b, together ? golden.batch : b + 1, t);
    }
  }
  return all;
}

// lsh: a session has the streaming semantics, recompute mode the prefix semantics.
const std::vector<GoldenCase> kOfficial = {
    {"linear-small", "", ""},
    {"linear-gelu-nofinalnorm-small", "", ""},
    {"softmax-small", "", ""},
    {"lsh1-small", "", "_streaming"},
    {"lsh4-small", "", "_streaming"},
    {"lsh1-small", "lsh:recompute=true", ""},
    {"lsh4-small", "lsh:recompute=true", ""},
};

// The official cases, and every folder of golden/zoo.
std::vector<GoldenCase> all_cases() {
  std::vector<GoldenCase> cases = kOfficial;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Golden::directory("zoo"))) {
    if (entry.is_directory()) names.push_back("zoo/" + entry.path().filename().string());
  }
  std::ranges::sort(names);
  for (const std::string& name : names) cases.push_back({name, "", "", kZooTolerance});
  return cases;
}

TEST_CASE("outputs and bits are those of the official implementation", "[rows]") {
  const GoldenCase which = GENERATE(from_range(all_cases()));
  CAPTURE(which);
  const Golden golden(which);
  const std::vector<float> outputs = run(golden, /*slice=*/1, /*together=*/false);

  double largest = 0.0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    largest = std::max(largest, std::abs(double{outputs[i]} - golden.outputs[i]));
  }
  double largest_bits = 0.0;
  std::vector<double> all_tokens(golden.model->head().vocab_size());
  for (std::size_t b = 0; b < golden.batch; ++b) {
    for (std::size_t t = 0; t + 1 < golden.length; ++t) {
      const std::span<const float> output(outputs.data() + (b * golden.length + t) * golden.width,
                                          golden.width);
      const std::int32_t next = golden.token(b, t + 1);
      const double log2_prob = golden.model->head().log2_prob(output, next);
      const double expected = golden.bits[b * (golden.length - 1) + t];
      largest_bits = std::max(largest_bits, std::abs(-log2_prob - expected));
      if (t % 50 == 0) {
        golden.model->head().log2_probs(output, all_tokens);
        CHECK(all_tokens[next] == log2_prob);
      }
    }
  }
  std::cout << which << ": largest difference of an output " << largest << ", of bits "
            << largest_bits << " (" << dense_kernels_description(WeightType::kF32) << ")\n";
  CHECK(largest <= which.tolerance);
  CHECK(largest_bits <= kBitsTolerance);
}

TEST_CASE("slices and batches reproduce the bits of single steps", "[rows][long_rows][slow]") {
  const GoldenCase which = GENERATE(from_range(all_cases()));
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const Golden golden(which, type);
  static std::uint64_t number = 0;  // of a comparison
  const std::vector<float> single = run(golden, 1, false);
  const std::vector<std::size_t> slices = testing::kSanitized
                                              ? std::vector<std::size_t>{7, 300}
                                              : std::vector<std::size_t>{1, 2, 7, 64, 300};
  for (const bool together : {false, true}) {
    for (const std::size_t slice : slices) {
      CAPTURE(which, to_string(type), slice, together);
      if (!testing::is_drawn(number++, 2)) continue;
      const std::vector<float> sliced = run(golden, slice, together);
      CHECK(std::memcmp(sliced.data(), single.data(), single.size() * sizeof(float)) == 0);
    }
  }
}

// Mean of -log2 p over the known tokens.
double bits_per_dim(const Golden& golden, std::span<const float> outputs) {
  double sum = 0.0;
  for (std::size_t b = 0; b < golden.batch; ++b) {
    for (std::size_t t = 0; t + 1 < golden.length; ++t) {
      const std::size_t row = b * golden.length + t;
      sum -= golden.model->head().log2_prob(outputs.subspan(row * golden.width, golden.width),
                                            golden.token(b, t + 1));
    }
  }
  return sum / static_cast<double>(golden.batch * (golden.length - 1));
}

TEST_CASE("narrow weights lose little likelihood, even with untrained weights", "[rows]") {
  const GoldenCase which = GENERATE(from_range(all_cases()));
  const double f32 = [&] {
    const Golden golden(which);
    return bits_per_dim(golden, run(golden, /*slice=*/64, /*together=*/true));
  }();
  for (const auto& [type, tolerance] : {std::pair(WeightType::kBf16, kBf16BitsPerDim),
                                        std::pair(WeightType::kInt8, kInt8BitsPerDim)}) {
    const Golden golden(which, type);
    const double bits = bits_per_dim(golden, run(golden, /*slice=*/64, /*together=*/true));
    std::cout << which << ": bits/dim " << f32 << " in f32, " << bits << " in " << to_string(type)
              << "\n";
    CHECK(std::abs(bits - f32) <= tolerance);
  }
}

}  // namespace
}  // namespace lintel
