// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/layers/mixers/decoder.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

// [3, values.size() / 3]
TokenEmbedding embedding_of(std::vector<float> values) {
  TokenEmbedding embedding(DType::kF32, values.size() / 3, 3);
  std::memcpy(embedding.bytes().data(), values.data(), embedding.bytes().size());
  return embedding;
}

PositionEmbedding positions_of(std::vector<float> values) {
  Matrix table(2, values.size() / 2);
  std::ranges::copy(values, table.values().begin());
  return PositionEmbedding(std::move(table));
}

std::vector<float> embedded(TokenEmbedding embedding, PositionEmbedding positions,
                            std::int32_t token, std::int64_t position) {
  Decoder decoder;
  decoder.embedding = std::move(embedding);
  decoder.positions = std::move(positions);
  std::vector<float> out(4);
  decoder.embed(token, position, out);
  return out;
}

TEST_CASE("embeddings of tokens and positions are concatenated, added, or one of them alone") {
  const std::vector<float> values = {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(embedded(embedding_of({0, 0, 0, 0, 1, 2}), positions_of({10, 20, 30, 40}), 2, 1) ==
        std::vector<float>{1, 2, 30, 40});
  CHECK(embedded(embedding_of(values), positions_of({10, 20, 30, 40, 50, 60, 70, 80}), 2, 1) ==
        std::vector<float>{55, 66, 77, 88});
  CHECK(embedded(embedding_of(values), {}, 1, 100) == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("without a table any position has its sines, far beyond what a float can count") {
  const PositionEmbedding positions(8);
  std::vector<float> previous(8);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{783}, std::int64_t{1} << 24,
        (std::int64_t{1} << 24) + 1, (std::int64_t{1} << 24) + 2, std::int64_t{10'000'000'000}}) {
    std::vector<float> out(8);
    positions.row(position, out);
    for (int i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -(i / 2) * 2.0 / 8);
      const double expected = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      CAPTURE(position, i);
      CHECK(out[i] == Approx(expected).margin(1e-5));
    }
    CHECK(out != previous);
    previous = out;
  }
}

}  // namespace
}  // namespace lintel
