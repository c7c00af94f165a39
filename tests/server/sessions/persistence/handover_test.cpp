// SPDX-License-Identifier: Apache-2.0
// A server that ends hands its running calls over: another one with the same storage continues
// them.
#include <optional>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// The tokens before the handover, then those of the repeat elsewhere.
std::vector<RecordedToken> joined(const RecordingSink& first, const RecordingSink& rest) {
  std::vector<RecordedToken> all = first.recorded[0];
  all.insert(all.end(), rest.recorded[0].begin(), rest.recorded[0].end());
  return all;
}

TEST_CASE("a call that is handed over at any token continues elsewhere, with the same tokens",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const int steps = GENERATE(0, 1, 2, 7, 20);
  Calls calls(level);
  const std::string id = calls.kept();
  const GenerationRequest request = tokens_call(5, 60, 3);
  const auto started = calls.process->call(request, id, named("a"));
  REQUIRE_FALSE(started.refusal);
  // A step with draft tokens yields up to 32 tokens: it must not be the last.
  for (int i = 0; i < steps && started.sink->recorded[0].size() < 20; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  calls.process->durable.hand_over();
  calls.process->run();
  REQUIRE(started.sink->finishes == 1);
  CHECK(started.sink->outcome == RequestOutcome::kMoved);
  CHECK_FALSE(started.sink->results[0]);              // it has not ended
  CHECK(calls.process->store.idle_stored().empty());  // so that nothing of it is stored again
  const auto shown = static_cast<std::int64_t>(started.sink->recorded[0].size());
  CHECK(calls.stored(id) >= (shown > 0 ? 5 + shown : 0));

  // The server that hands over is still there.
  DurableProcess other(calls.storage, calls.transformer, calls.clock, calls.options);
  // Another call may not overwrite what its client has seen.
  if (shown > 0 && level != Durability::kCall) {
    CHECK(other.call(tokens_call(1, 4, 9), id, named("b")).refusal.error ==
          SessionError::kCallInterrupted);
  }
  IdempotencyKey rest = named("a");
  if (shown > 0) rest.from_position = 5 + shown;
  const auto repeated = other.finish(request, id, rest);
  const auto twin = undisturbed(calls.transformer, {request});
  CHECK(joined(*started.sink, *repeated) == twin->recorded[0]);
  CHECK(repeated->result().digest == twin->result().digest);
}

TEST_CASE(
    "a call that arrives during the handover is handed over, and one without a name continues",
    "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept(), other = calls.kept();
  const GenerationRequest request = tokens_call(5, 30, 3);
  const auto nameless = calls.process->call(request, other, IdempotencyKey{.log2_probs = true});
  calls.process->durable.hand_over();
  const auto late = calls.process->call(request, id, named("a"));
  REQUIRE_FALSE(late.refusal);
  calls.process->run();
  CHECK(late.sink->outcome == RequestOutcome::kMoved);
  CHECK(nameless.sink->outcome == RequestOutcome::kDone);
  CHECK(nameless.sink->recorded == undisturbed(calls.transformer, {request})->recorded);
}

TEST_CASE("calls that run when the server ends are handed over, if they have a name", "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept(), other = calls.kept();
  const GenerationRequest request = tokens_call(5, 30, 3);
  const auto call = calls.process->call(request, id, named("a"));
  const auto nameless = calls.process->call(request, other, IdempotencyKey{.log2_probs = true});
  const bool unloaded = GENERATE(false, true);  // the model goes, and not the server
  calls.process->model->retired = unloaded;
  for (int i = 0; i < 4; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->model->scheduler->stop();
  calls.process->durable.write();
  CHECK(nameless.sink->outcome == RequestOutcome::kShutdown);
  CHECK(nameless.sink->results[0]);
  if (unloaded) {
    CHECK(call.sink->outcome == RequestOutcome::kShutdown);
  } else {
    CHECK(call.sink->outcome == RequestOutcome::kMoved);
    CHECK_FALSE(call.sink->results[0]);
  }
}

}  // namespace
}  // namespace lintel::testing
