// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <new>
#include <stop_token>
#include <vector>

#include "model/core/step_thread_pool.h"
#include "server/models/model_loader.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// The model's own step, but for the outputs that `spoils` says: their first value is the next
// float.
StepFunction spoiled(
    const Transformer& model,
    const std::function<bool(std::span<const BatchRow>, std::size_t row)>& spoils) {
  return [&model, spoils, outputs = std::vector<float>()](std::span<const BatchRow> rows,
                                                          Workspace& workspace) mutable {
    const MatrixView<const float> out = model.step(rows, workspace);
    outputs.clear();
    for (std::size_t r = 0; r < out.rows(); ++r) {
      outputs.insert(outputs.end(), out.row(r).begin(), out.row(r).end());
      float& value = outputs[r * out.cols()];
      if (spoils(rows, r)) value = std::nextafter(value, INFINITY);
    }
    return MatrixView<const float>(outputs.data(), out.rows(), out.cols(), out.cols());
  };
}

TEST_CASE("every kind of model passes the self-check") {
  for (const TinyModel kind : {TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens}) {
    const auto model = tiny_model(kind);
    for (const int rows : {1, 2, 5, 64, 200}) CHECK(rows_are_independent(*model, rows));
    StepThreadPool team;
    const StepHelpers helpers(team, 2);
    CHECK(rows_are_independent(*model, 200, &team));
  }
}

TEST_CASE("one bit in one row that depends on the batch fails the self-check") {
  const auto model = tiny_model(TinyModel::kTokens);
  const auto passes = [&](const auto& spoils) {
    return rows_are_independent(*model, 64, spoiled(*model, spoils));
  };
  CHECK(passes([](std::span<const BatchRow>, std::size_t) { return false; }));
  CHECK(passes([](std::span<const BatchRow>, std::size_t) { return true; }));  // always the same
  for (const std::size_t size : {2, 16, 31, 64}) {
    INFO(size);
    CHECK_FALSE(passes([size](std::span<const BatchRow> rows, std::size_t row) {
      return rows.size() == size && row + 1 == size;
    }));
  }
  // A prompt that is read as rows of one step.
  CHECK_FALSE(passes([](std::span<const BatchRow> rows, std::size_t) {
    return rows.size() > 1 && rows[0].sequence == rows[1].sequence;
  }));
}

// Libraries that choose their blocks by the number of rows behave so.
TEST_CASE("other bits from some number of rows on fail the self-check") {
  const auto model = tiny_model(TinyModel::kTokens);
  for (const std::size_t from : {2, 17, 48, 65, 100, 128}) {
    INFO(from);
    const auto other_blocks = [from](std::span<const BatchRow> rows, std::size_t) {
      return rows.size() >= from;
    };
    CHECK_FALSE(rows_are_independent(*model, 128, spoiled(*model, other_blocks)));
    CHECK(rows_are_independent(*model, static_cast<int>(from) - 1, spoiled(*model, other_blocks)));
  }
}

TEST_CASE("the self-check warns of other bits and of its own failure, unless it was stopped") {
  const auto model = tiny_model(TinyModel::kTokens);
  const auto found = [&](const StepFunction& step, const std::stop_token& stop = {}) {
    return warnings_of_check(
        "tiny", [&] { return rows_are_independent(*model, 16, step, nullptr, stop); }, stop);
  };
  const auto never = spoiled(*model, [](std::span<const BatchRow>, std::size_t) { return false; });
  CHECK(found(never).empty());
  const auto in_batches =
      spoiled(*model, [](std::span<const BatchRow> rows, std::size_t) { return rows.size() > 1; });
  REQUIRE(found(in_batches).size() == 1);
  CHECK_THAT(found(in_batches)[0], Catch::Contains("depend on what shares its batch"));
  int steps = 0;
  std::stop_source stop;
  const StepFunction fails = [&](std::span<const BatchRow>, Workspace&) -> MatrixView<const float> {
    ++steps;
    throw std::bad_alloc();
  };
  REQUIRE(found(fails).size() == 1);
  CHECK_THAT(found(fails)[0], Catch::Contains("is unknown: "));
  steps = 0;
  stop.request_stop();
  CHECK(found(fails, stop.get_token()).empty());
  CHECK(steps == 0);
}

}  // namespace
}  // namespace lintel::testing
