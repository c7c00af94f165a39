// SPDX-License-Identifier: Apache-2.0
#include "model/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/ops/block_matrix.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

TEST_CASE("parallel work: every part is done once, by as many threads as may", "[threads]") {
  for (const std::size_t most_threads : {1, 2, 8}) {
    for (const std::size_t parts : {0, 1, 3, 1'000}) {
      CAPTURE(most_threads, parts);
      std::vector<std::atomic<int>> done(parts);
      std::atomic<std::size_t> calls{0};
      run_in_parallel(parts, most_threads, [&](WorkParts& left) {
        ++calls;
        while (const auto part = left.next()) ++done[*part];
      });
      CHECK(std::ranges::all_of(done, [](const auto& count) { return count == 1; }));
      CHECK(calls >= 1);
      CHECK(calls <= std::max<std::size_t>(1, std::min(most_threads, parts)));
    }
  }
}

TEST_CASE("parallel work: what a part throws ends the others and is thrown", "[threads]") {
  std::atomic<int> done{0};
  const auto work = [&](WorkParts& left) {
    while (const auto part = left.next()) {
      if (*part == 10) throw std::runtime_error("part 10");
      ++done;
    }
  };
  CHECK_THROWS_WITH(run_in_parallel(1'000'000'000, 4, work), "part 10");
  CHECK(done < 1'000'000'000);
}

TEST_CASE("parallel work: a matrix is packed as by one thread", "[threads]") {
  constexpr std::size_t kIn = 1'024, kOut = 4'000;  // four million weights
  const auto read = [](std::size_t first, MatrixView<float> rows) {
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      for (std::size_t i = 0; i < kIn; ++i) {
        rows.row(r)[i] = static_cast<float>((first + r) * 31 % 97 + i % 89) - 90.0f;
      }
    }
  };
  for (const int bits : {4, 8}) {
    const auto pack = [&](std::size_t out, const ReadWeightRows& rows) {
      return bits == 4 ? BlockMatrix::quantized_to_4_bits(kIn, out, rows)
                       : BlockMatrix::quantized_to_8_bits(kIn, out, rows);
    };
    const BlockMatrix whole = pack(kOut, read);
    std::vector<float> row(kIn), alone(kIn);
    for (const std::size_t first : {0, 640, 3'968}) {
      const BlockMatrix panel =
          pack(std::min<std::size_t>(64, kOut - first),
               [&](std::size_t at, MatrixView<float> rows) { read(first + at, rows); });
      for (std::size_t n = 0; n < panel.out_features(); ++n) {
        whole.dequantize_row(first + n, row);
        panel.dequantize_row(n, alone);
        REQUIRE(row == alone);
      }
    }
  }
}

}  // namespace
}  // namespace lintel
