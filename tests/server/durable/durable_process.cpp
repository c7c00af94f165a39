#include "tests/server/durable/durable_process.h"

#include <catch2/catch.hpp>
#include <utility>

namespace lintel::testing {

std::shared_ptr<ServedModel> served_model(std::shared_ptr<const Transformer> transformer,
                                          const Clock& clock, const std::string& name,
                                          Scheduler::Options options) {
  auto model = std::make_shared<ServedModel>();
  model->name = name;
  model->transformer = std::move(transformer);
  model->scheduler = std::make_unique<Scheduler>(model->transformer, options, clock);
  model->numerics = {.hex = "0123", .text = "of this machine"};
  return model;
}

DurableProcess::DurableProcess(SessionVault& vault, std::shared_ptr<const Transformer> of,
                               const Clock& clock, DurableSessions::Options options,
                               SessionStore::Options store_options)
    : transformer(std::move(of)),
      store(store_options, clock),
      model(served_model(transformer, clock)),
      durable(vault, store, models, clock, options) {
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
  Replay replay = leased.lease.replay();
  request.replay = std::move(replay.values);
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

void DurableProcess::run() {
  while (model->scheduler->run_one_step()) {
  }
}

}  // namespace lintel::testing
