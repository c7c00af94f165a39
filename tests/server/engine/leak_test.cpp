// SPDX-License-Identifier: Apache-2.0
// Memory: sessions release all that they take, and nothing of one shows in the next.
#include "tests/server/support/adapters_fixture.h"
#include "tests/server/support/harness.h"
#include "tests/server/support/memory_in_use.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

GenerationRequest use(std::uint64_t seed) {
  GenerationRequest request;
  request.prompt = {static_cast<std::int32_t>(seed % 251), 17, 42};
  request.max_new_tokens = 4;
  request.seed = seed;
  request.stop.strings = {"held back"};
  return request;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("10,000 sessions opened, used and closed leave memory where it was") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  static std::uint64_t number = 0;
  if (!is_drawn(number++, 3)) return;
  Core core(tiny_model(TinyModel::kBytes, attention));
  const auto use_sessions = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::string id = core.new_session();
      core.generate(use(static_cast<std::uint64_t>(i)), id);
      REQUIRE(core.store.remove(id).error == SessionError::kNone);
    }
  };
  use_sessions(500);  // objects that are allocated once
  const std::size_t before = memory_in_use();
  use_sessions(10000);
  const std::size_t after = memory_in_use();
  // Less than a byte a session: a few blocks of the allocator's and the test's own.
  INFO("before " << before << " bytes, after " << after);
  REQUIRE(after < before + 8192);
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("sessions with an adapter leave memory where it was, and share its weights") {
  const auto model = tiny_model(TinyModel::kBytes);
  const SharedAdapter adapter = served("a", random_adapter(model->config(), 1, /*rank=*/64));
  Core core(model);
  const auto use_sessions = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const std::string id = core.new_session(0, adapter);
      core.generate(use(static_cast<std::uint64_t>(i)), id);
      REQUIRE(core.store.remove(id).error == SessionError::kNone);
    }
  };
  use_sessions(500);
  const std::size_t before = memory_in_use();
  use_sessions(5000);
  const std::size_t after = memory_in_use();
  INFO("before " << before << " bytes, after " << after);
  CHECK(after < before + 8192);
  CHECK(core.store.bytes_in_use() == 0);
  CHECK(adapter.use_count() == 1);

  // Many open ones take as much as without an adapter.
  const auto open = [&](const SharedAdapter& with) {
    std::vector<std::string> ids;
    const std::size_t from = memory_in_use();
    for (std::uint64_t i = 0; i < 200; ++i) {
      ids.push_back(core.new_session(0, with));
      core.generate(use(i), ids.back());
    }
    const std::size_t taken = memory_in_use() - from;
    CHECK(core.store.bytes_in_use() >= taken - 200 * 64);  // the test's own list
    for (const std::string& id : ids) core.store.remove(id);
    return taken;
  };
  open(nullptr);
  CHECK(open(adapter) <= open(nullptr) + 200 * 64);
}

TEST_CASE("10,000 open sessions take hardly more than their states") {
  // As many layers as the paper's model has, whose state is 271,360 bytes.
  const auto model = changed_model(TinyModel::kBytes,
                                   [](ModelConfig& config) {
                                     config.n_layers = 8;
                                     config.attention.resize(8, config.attention[0]);
                                   },
                                   {});
  constexpr std::size_t kSessions = 10000;
  constexpr std::size_t kPaperStateBytes = 271360;
  Core core(model);
  core.generate(use(0), core.new_session());  // objects that are allocated once
  const std::size_t before = memory_in_use();
  for (std::size_t i = 0; i < kSessions; ++i) core.generate(use(i), core.new_session());
  const std::size_t after = memory_in_use();
  REQUIRE(core.store.num_sessions() == kSessions + 1);
  const std::size_t state_bytes = model->state_bytes(0);
  const std::size_t beside = (after - before) / kSessions - state_bytes;
  INFO("beside a state of " << state_bytes << " bytes: " << beside << " bytes a session");
  CHECK(after - before > kSessions * state_bytes);
  CHECK(beside <= kPaperStateBytes * 5 / 100);
  CHECK(beside <= 4096);
}
#endif

TEST_CASE("a state never shows in the next", "[threat-7]") {
  // The same memory is used again and again: every call must be as in a new process.
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  Core core(tiny_model(TinyModel::kBytes, attention));
  GenerationRequest probe = use(1);
  probe.log2_probs = true;
  probe.sampling.frequency_penalty = 0.5f;
  const auto expected = core.generate(probe)->recorded[0];
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string id = core.new_session();
    core.generate(use(i), id);
    core.store.remove(id);
    const std::string next = core.new_session();
    REQUIRE(core.generate(probe, next)->recorded[0] == expected);
    core.store.remove(next);
  }
}

TEST_CASE("a state with an adapter never shows in the next, and no adapter in another's",
          "[threat-78]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const SharedAdapter adapters[] = {nullptr, served("a", random_adapter(model->config(), 1)),
                                    served("b", random_adapter(model->config(), 2))};
  Core core(model);
  GenerationRequest probe = use(1);
  probe.log2_probs = true;
  std::vector<std::vector<RecordedToken>> expected;
  for (const SharedAdapter& adapter : adapters) {
    Core fresh(model);
    expected.push_back(fresh.generate(probe, fresh.new_session(0, adapter))->recorded[0]);
  }
  CHECK(expected[0] != expected[1]);
  CHECK(expected[1] != expected[2]);
  for (std::size_t i = 0; i < 90; ++i) {
    const std::string id = core.new_session(0, adapters[(i / 3) % 3]);
    core.generate(use(i), id);
    core.store.remove(id);
    const std::string next = core.new_session(0, adapters[i % 3]);
    REQUIRE(core.generate(probe, next)->recorded[0] == expected[i % 3]);
    core.store.remove(next);
  }
}

TEST_CASE("a new sequence holds nothing of one that ended") {
  Core core(tiny_model(TinyModel::kBytes));
  for (int i = 0; i < 50; ++i) {
    core.generate(use(3));
    const auto leased = core.store.lease_one_shot("tiny", core.model, 0, 1);
    auto lease = core.store.lease_one_shot("tiny", core.model, 0, 1).lease;
    SequenceState& sequence = lease.sequence();
    REQUIRE(!sequence.pending);
    REQUIRE(sequence.position() == 0);
    REQUIRE(sequence.generated_tail.empty());
    REQUIRE(sequence.counts == TokenCounts(sequence.counts.vocab_size()));
  }
}

}  // namespace
}  // namespace lintel::testing
