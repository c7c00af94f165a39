#include "server/models/batch_rows.h"

#include <catch2/catch.hpp>

#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

TEST_CASE("narrow weights get as many rows as a quarter of the cache has states for") {
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), testing::tiny_config(testing::TinyModel::kTokens), 1);
  const auto load = [&](WeightType type) {
    return Transformer::load(directory.path(), {.weight_type = type});
  };
  const auto int8 = load(WeightType::kInt8);
  const std::size_t state = int8->state_bytes(64);
  CHECK(batch_rows_for(*int8, 2, 2 * 4 * 40 * state) == 40);
  CHECK(batch_rows_for(*int8, 1, 2 * 4 * 20 * state) == 40);
  CHECK(batch_rows_for(*int8, 2, 1) == kLeastBatchRows);
  CHECK(batch_rows_for(*int8, 2, std::size_t{1} << 40) == kMostBatchRows);
  CHECK(batch_rows_for(*load(WeightType::kF32), 2, 1) == kMostBatchRows);
}

}  // namespace
}  // namespace lintel
