// SPDX-License-Identifier: Apache-2.0
// What sessions are admitted for is what they take.
#include <map>
#include <tuple>

#include "model/config/attention_spec.h"
#include "tests/server/support/harness.h"
#include "tests/server/support/memory_in_use.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Error = SessionError;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("sessions take no more memory than they were admitted for, and not much less") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const auto kind = GENERATE(TinyModel::kBytes, TinyModel::kImage, TinyModel::kTokens);
  const int layers = GENERATE(2, 12);
  const std::int64_t num_tokens = GENERATE(1, 2, 30);
  CAPTURE(attention, static_cast<int>(kind), layers, num_tokens);
  static std::uint64_t number = 0;
  if (runs_few_cases() || !is_drawn(number++, 3)) return;
  constexpr std::size_t kSessions = 300;
  static std::map<std::tuple<std::string, TinyModel, int>, std::shared_ptr<const Transformer>>
      loaded;
  auto& model = loaded[{attention, kind, layers}];
  if (model == nullptr) {
    model = changed_model(kind,
                          [&](ModelConfig& config) {
                            config.n_layers = layers;
                            config.attention.assign(static_cast<std::size_t>(layers),
                                                    sample_attention(attention));
                          },
                          {});
  }
  Core core(model);
  const auto use = [&] {
    const auto created = core.store.create("a-model-of-some-name", model, num_tokens, "an-owner");
    REQUIRE(created.refusal.error == Error::kNone);
    auto leased = core.store.lease(created.info.id, "an-owner");
    REQUIRE(leased.refusal.error == Error::kNone);
    GenerationRequest request;
    request.max_new_tokens = num_tokens;
    if (kind != TinyModel::kImage) request.given = {{0, 1}};
    core.scheduler.submit(request, std::move(leased.lease), std::make_shared<RecordingSink>());
    core.run();
    REQUIRE(core.store.get(created.info.id, "an-owner")->num_tokens == num_tokens);
  };
  for (int i = 0; i < 20; ++i) use();  // objects that are allocated once
  const std::size_t admitted_before = core.store.bytes_in_use();
  const std::size_t before = memory_in_use();
  for (std::size_t i = 0; i < kSessions; ++i) use();
  const std::size_t taken = (memory_in_use() - before) / kSessions;
  const std::size_t admitted = (core.store.bytes_in_use() - admitted_before) / kSessions;
  INFO("taken " << taken << " bytes, admitted " << admitted);
  CHECK(taken <= admitted);
  CHECK(admitted <= taken + 1536 + 256 * static_cast<std::size_t>(layers));
}
#endif

TEST_CASE("a session without any state is not free") {
  // A mixture head keeps no counts, and softmax attention of one token no keys.
  const auto model =
      changed_model(TinyModel::kImage,
                    [](ModelConfig& config) {
                      config.attention.assign(config.attention.size(), attention_of("softmax"));
                    },
                    {});
  ManualClock clock;
  SessionManager store({.session_memory_bytes = 1 << 20}, clock);
  std::size_t sessions = 0;
  while (store.create("tiny", model, 1).refusal.error == Error::kNone) ++sessions;
  CHECK(sessions > 100);
  CHECK(sessions < (1u << 20) / 1024);
}

}  // namespace
}  // namespace lintel::testing
