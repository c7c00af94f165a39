// SPDX-License-Identifier: Apache-2.0
// stories260K, a language model that others trained: what narrow KV caches lose of it. Its files
// lie beside the repository; without them there is nothing to test.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <span>
#include <vector>

#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel {
namespace {

using Story = std::vector<std::int32_t>;

const std::filesystem::path kStories =
    std::filesystem::path(LINTEL_TEST_DATA) / "../../shared/data/stories260k";

bool has_stories() {
  const bool is_there = std::filesystem::exists(kStories / "fla" / "config.json");
  if (!is_there) WARN("skipped: there is no " << kStories);
  return is_there;
}

std::unique_ptr<Transformer> storyteller(KvType type) {
  return Transformer::load(kStories / "fla", {.weight_type = WeightType::kF32, .kv_type = type});
}

// The outputs of all tokens, read in slices of so many: [tokens * V].
std::vector<float> outputs_in_slices(const Transformer& model, const Story& story,
                                     std::size_t slice) {
  Workspace workspace = model.new_workspace(slice);
  SequenceState sequence = model.new_sequence();
  std::vector<float> all;
  for (std::size_t t = 0; t < story.size(); t += slice) {
    std::vector<BatchRow> rows;
    for (std::size_t i = t; i < std::min(t + slice, story.size()); ++i) {
      rows.push_back({story[i], &sequence, true});
    }
    const MatrixView<const float> outputs = model.step(rows, workspace);
    for (std::size_t r = 0; r < outputs.rows(); ++r) {
      all.insert(all.end(), outputs.row(r).begin(), outputs.row(r).end());
    }
  }
  return all;
}

TEST_CASE("stories260K: each token of a story has its bits of float64, and each KV type its own",
          "[rows]") {
  if (!has_stories()) return;
  std::ifstream file(kStories / "score.json");
  const nlohmann::json score = nlohmann::json::parse(file);
  const auto story = score["tokens"].get<Story>();
  const auto expected = score["bits"].get<std::vector<double>>();
  REQUIRE(expected.size() + 1 == story.size());
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(to_string(type));
  const auto model = storyteller(type);
  CHECK(model->kv_type() == type);
  const std::vector<float> outputs = outputs_in_slices(*model, story, 1);
  const auto width = static_cast<std::size_t>(model->head().num_outputs());
  double largest = 0.0, sum = 0.0;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const std::span<const float> output = std::span(outputs).subspan(t * width, width);
    const double bits = -model->head().log2_prob(output, story[t + 1]);
    largest = std::max(largest, std::abs(bits - expected[t]));
    sum += bits - expected[t];
  }
  const double nats = sum * std::numbers::ln2 / static_cast<double>(expected.size());
  CAPTURE(largest, nats);
  if (type == KvType::kF32) CHECK(largest <= 1e-3);
  CHECK(std::abs(nats) <= (type == KvType::kF32 ? 1e-4 : type == KvType::kBf16 ? 0.005 : 0.02));
  // Reading it again gives the same, in slices of any length.
  for (const std::size_t slice : {7, 64, 451}) {
    CAPTURE(slice);
    const std::vector<float> again = outputs_in_slices(*model, story, slice);
    CHECK(std::memcmp(again.data(), outputs.data(), outputs.size() * sizeof(float)) == 0);
  }
}

constexpr std::size_t kStoryCount = 64;
constexpr std::size_t kStoryTokens = 256;

// Steps all stories side by side; next(s, t, output) is called with what follows token t of story
// s.
template <typename Next>
void read_stories(const Transformer& model, const std::vector<Story>& stories, const Next& next) {
  Workspace workspace = model.new_workspace(kStoryCount);
  std::vector<SequenceState> sequences;
  for (std::size_t s = 0; s < kStoryCount; ++s) sequences.push_back(model.new_sequence());
  for (std::size_t t = 0; t + 1 < kStoryTokens; ++t) {
    std::vector<BatchRow> rows;
    for (std::size_t s = 0; s < kStoryCount; ++s)
      rows.push_back({stories[s][t], &sequences[s], true});
    const MatrixView<const float> outputs = model.step(rows, workspace);
    for (std::size_t s = 0; s < kStoryCount; ++s) next(s, t, outputs.row(s));
  }
}

// Stories of the model: each token is drawn from its distribution.
std::vector<Story> told_by(const Transformer& model) {
  constexpr std::int32_t kBegin = 1;
  std::vector<Story> stories(kStoryCount, Story{kBegin});
  std::vector<double> log2_probs(static_cast<std::size_t>(model.head().vocab_size()));
  std::mt19937 random(1);
  read_stories(model, stories, [&](std::size_t s, std::size_t, std::span<const float> output) {
    model.head().log2_probs(output, log2_probs);
    double left = static_cast<double>(random()) * 0x1p-32;
    std::size_t token = 0;
    while (token + 1 < log2_probs.size() && (left -= std::exp2(log2_probs[token])) >= 0) ++token;
    stories[s].push_back(static_cast<std::int32_t>(token));
  });
  return stories;
}

double nats_per_token(const Transformer& model, const std::vector<Story>& stories) {
  double bits = 0.0;
  read_stories(model, stories, [&](std::size_t s, std::size_t t, std::span<const float> output) {
    bits -= model.head().log2_prob(output, stories[s][t + 1]);
  });
  return bits * std::numbers::ln2 / static_cast<double>(kStoryCount * (kStoryTokens - 1));
}

// Measured over more stories: 1.3182 nats a token in f32, 1.3185 in bf16, 1.3215 in int8.
TEST_CASE("KV caches in bf16 and int8 lose little of what f32 predicts of stories260K") {
  if (testing::kSanitized || !has_stories()) return;
  const auto exact = storyteller(KvType::kF32);
  const std::vector<Story> stories = told_by(*exact);
  const double f32 = nats_per_token(*exact, stories);
  const double bf16 = nats_per_token(*storyteller(KvType::kBf16), stories);
  const double int8 = nats_per_token(*storyteller(KvType::kInt8), stories);
  CAPTURE(f32, bf16, int8);
  CHECK(std::abs(f32 - 1.3182) <= 0.1);  // other stories
  CHECK(std::abs(bf16 - f32) <= 0.0015);
  CHECK(std::abs(int8 - f32) <= 0.008);
  CHECK(int8 != bf16);
}

}  // namespace
}  // namespace lintel
