// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/persistence/crash_test_process.h"

#include <algorithm>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {

std::shared_ptr<ServedModel> served_model(std::shared_ptr<const Transformer> transformer,
                                          const Clock& clock, const std::string& name,
                                          Scheduler::Options options) {
  auto model = std::make_shared<ServedModel>();
  model->name = name;
  model->transformer = std::move(transformer);
  model->scheduler = std::make_unique<Scheduler>(model->transformer, options, clock);
  model->set_numerics({.hex = "0123", .text = "of this machine"});
  return model;
}

DurableProcess::DurableProcess(SessionStorage& storage, std::shared_ptr<const Transformer> of,
                               const Clock& clock, PersistentSessions::Options options,
                               SessionManager::Options store_options)
    : transformer(std::move(of)),
      store(store_options, clock),
      model(served_model(transformer, clock)),
      durable(storage, store, models, clock, options) {
  models.add(model);
}

std::string DurableProcess::create(SessionOptions session, const Owner& owner) {
  const auto created = store.create(model->name, transformer, session, owner);
  REQUIRE_FALSE(created.refusal);
  return created.info.id;
}

std::shared_ptr<RecordingSink> DurableProcess::generate(GenerationRequest request,
                                                        const std::string& id, const Owner& owner) {
  auto leased = store.lease(id, owner);
  REQUIRE_FALSE(leased.refusal);
  Replay replay = leased.lease.replay(request.recent_wanted());
  request.replay = std::move(replay.tokens);
  request.replay_tail = std::move(replay.tail);
  request.window = leased.lease.window();
  request.recent = std::move(replay.recent);
  const auto sink = std::make_shared<RecordingSink>();
  REQUIRE(model->scheduler->submit(std::move(request), std::move(leased.lease), sink,
                                   RequestHandle()) == Scheduler::SubmitError::kNone);
  run();
  REQUIRE(sink->outcome == RequestOutcome::kDone);
  return sink;
}

DurableProcess::~DurableProcess() { model->scheduler->stop(); }

DurableProcess::Call DurableProcess::call(GenerationRequest request, const std::string& id,
                                          const IdempotencyKey& terms,
                                          std::shared_ptr<RecordingSink> sink, const Owner& owner) {
  Call call;
  call.sink = sink != nullptr ? std::move(sink) : std::make_shared<RecordingSink>();
  SessionManager::LeaseResult leased = durable.load_and_lease(id, owner);
  call.refusal = leased.refusal;
  if (call.refusal) return call;
  PersistentSessions::OpenedCall opened;
  call.refusal = durable.open_call(leased.lease, model, terms, opened);
  if (call.refusal) return call;
  if (opened.past) {
    leased.lease = SessionLease();
    call.past = opened.past;
    opened.past->tell(call.sink);
    return call;
  }
  Replay replay = leased.lease.replay(request.recent_wanted());
  request.replay = std::move(replay.tokens);
  request.replay_tail = std::move(replay.tail);
  request.window = leased.lease.window();
  request.recent = std::move(replay.recent);
  if (opened.seed) request.seed = *opened.seed;
  const bool starts_image = opened.start == 0 && request.prompt.empty() &&
                            (request.given.empty() || request.given[0].position > 0);
  const auto prompt = starts_image ? 1 : static_cast<std::ptrdiff_t>(request.prompt.size());
  const std::ptrdiff_t left =
      std::max<std::ptrdiff_t>(opened.start + prompt - leased.lease.num_tokens(), 0);
  if (static_cast<std::ptrdiff_t>(opened.tokens.size()) > left) {
    request.drawn.assign(opened.tokens.begin() + left, opened.tokens.end());
  }
  call.refusal = opened.call->begin(leased.lease, request, prompt);
  if (call.refusal) return call;
  REQUIRE(opened.call->submit(std::move(request), std::move(leased.lease), call.sink,
                              call.handle) == Scheduler::SubmitError::kNone);
  return call;
}

std::shared_ptr<RecordingSink> DurableProcess::finish(const GenerationRequest& request,
                                                      const std::string& id,
                                                      const IdempotencyKey& terms) {
  const Call started = call(request, id, terms);
  INFO("refused for " << static_cast<int>(started.refusal.error));
  REQUIRE_FALSE(started.refusal);
  run();
  // A storage on a disk answers when it has written.
  REQUIRE(eventually([&] {
    if (started.sink->finishes == 0) run();
    return started.sink->finishes > 0;
  }));
  REQUIRE(started.sink->out_of_order == 0);
  REQUIRE(started.sink->outcome == RequestOutcome::kDone);
  return started.sink;
}

void DurableProcess::run() {
  while (model->scheduler->run_one_step()) durable.write();
  durable.write();
}

}  // namespace lintel::testing
