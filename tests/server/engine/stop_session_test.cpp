// SPDX-License-Identifier: Apache-2.0
// Stop strings as long as they may be, over the calls of a session.
#include <algorithm>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A model that never tires, of bytes.
std::shared_ptr<const Transformer> endless_bytes() {
  static const auto model = changed_model(TinyModel::kBytes,
                                          [](ModelConfig& config) {
                                            config.max_length = 0;
                                            config.embedding = EmbeddingKind::kValue;
                                            config.position_encoding = PositionEncoding::kNone;
                                          },
                                          {});
  return model;
}

TEST_CASE("a stop string of any length is found however it falls into the calls of a session") {
  const std::size_t length =
      GENERATE(std::size_t{2}, std::size_t{39}, std::size_t{41}, std::size_t{100},
               kMaxStopStringBytes - 1, kMaxStopStringBytes);
  const std::size_t calls = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{5});
  CAPTURE(length, calls);
  constexpr std::size_t kBefore = 60;  // bytes before the match
  Core core(endless_bytes());
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.seed = 5;
  request.max_new_tokens = kBefore + kMaxStopStringBytes;
  const std::string free_run = core.generate(request)->text();
  const std::string stop = free_run.substr(kBefore, length);
  const std::size_t begin = free_run.find(stop);  // a short one may come sooner
  const std::size_t end = begin + length;

  const std::string id = core.new_session();
  request.stop.strings = {stop};
  // The last call may only read the last byte of the match.
  std::vector<std::size_t> cuts;
  for (std::size_t call = 1; call < calls; ++call)
    cuts.push_back(end - 1 - (calls - 1 - call) * end / calls);
  std::size_t done = 0;
  for (const std::size_t cut : cuts) {
    request.max_new_tokens = static_cast<std::int64_t>(cut - done);
    const auto sink = core.generate(request, id);
    REQUIRE(sink->result().reason == FinishReason::kLength);
    request.prompt.clear();
    done = cut;
  }
  request.max_new_tokens = 1000;
  const auto last = core.generate(request, id);
  CHECK(last->result().reason == FinishReason::kStopString);
  CHECK(last->result().stop_string == stop);
  CHECK(last->result().generated_tokens == static_cast<std::int64_t>(end - done));
}

}  // namespace
}  // namespace lintel::testing
