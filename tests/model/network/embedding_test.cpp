// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "model/layer.h"

namespace lintel {
namespace {

ModelConfig embedding_config(EmbeddingKind kind, PositionEncoding encoding) {
  ModelConfig config;
  config.vocab_size = 3;
  config.d_model = 4;
  config.max_length = 2;
  config.embedding = kind;
  config.position_encoding = encoding;
  return config;
}

TEST_CASE("embeddings of tokens and positions are concatenated, added, or one of them alone") {
  std::vector<float> out(4);
  const std::vector<float> positions = {10, 20, 30, 40, 50, 60, 70, 80};
  const std::vector<float> values = {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  Embedding(embedding_config(EmbeddingKind::kValueConcatPosition, PositionEncoding::kLearned),
            std::span(values).first(6), std::span(positions).first(4))
      .embed(2, 1, out);
  CHECK(out == std::vector<float>{1, 2, 30, 40});
  Embedding(embedding_config(EmbeddingKind::kValueAddPosition, PositionEncoding::kLearned), values,
            positions)
      .embed(2, 1, out);
  CHECK(out == std::vector<float>{55, 66, 77, 88});
  Embedding(embedding_config(EmbeddingKind::kValue, PositionEncoding::kNone), values, {})
      .embed(1, 100, out);
  CHECK(out == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("without a table any position has its sines, far beyond what a float can count") {
  ModelConfig config =
      embedding_config(EmbeddingKind::kValueConcatPosition, PositionEncoding::kSinusoidal);
  config.max_length = 0;
  config.d_model = 16;
  const std::vector<float> values(3 * 8, 0.0f);
  const Embedding embedding(config, values, {});
  std::vector<float> previous(16);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{783}, std::int64_t{1} << 24,
        (std::int64_t{1} << 24) + 1, (std::int64_t{1} << 24) + 2, std::int64_t{10'000'000'000}}) {
    std::vector<float> out(16);
    embedding.embed(1, position, out);
    for (int i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -(i / 2) * 2.0 / 8);
      const double expected = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      CAPTURE(position, i);
      CHECK(out[8 + i] == Approx(expected).margin(1e-5));
    }
    CHECK(out != previous);
    previous = out;
  }
}

}  // namespace
}  // namespace lintel
