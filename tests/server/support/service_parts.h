// SPDX-License-Identifier: Apache-2.0
// The parts of a server without its port, for tests that need none.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "server/api/params/generate_params.h"
#include "server/api/prepare_generation.h"
#include "server/api/service_context.h"
#include "tests/server/support/service_fixture.h"

namespace lintel::testing {

// A registry with one model, "tokens", whose scheduler its test steps, and what services share.
struct ServiceParts {
  // `clock` outlives it.
  explicit ServiceParts(const Clock& of_test,
                        const SessionManager::Options& sessions = {.session_memory_bytes = 1u
                                                                                           << 26},
                        Speculation speculation = Speculation::kAuto)
      : clock(of_test), store(sessions, clock), speculation_(speculation) {
    serve(/*version=*/1);
  }
  ~ServiceParts() {
    for (const SharedModel& model : registry.all()) model->scheduler->stop();
  }

  // One more version of the model.
  SharedModel serve(std::int64_t version) {
    auto made = std::make_shared<ServedModel>();
    made->name = "tokens";
    made->version = version;
    made->transformer = tiny_models({"tokens"}).at("tokens");
    made->scheduler = std::make_unique<Scheduler>(
        made->transformer, Scheduler::Options{.workers = 0, .speculation = speculation_}, clock);
    registry.add(made);
    return made;
  }
  SharedModel model() const { return registry.find("tokens"); }  // the newest
  ServiceContext context(PersistentSessions* durable = nullptr) {
    return {registry, manager,           store,  states, prefixes, calls, gate,
            clock,    options.streaming, health, durable};
  }

  const Clock& clock;
  const ServerOptions options = test_options();
  SessionManager store;
  NamedStates states;
  PrefixCache prefixes{options.prefixes, store};
  ModelRegistry registry;
  ModelManager manager{options.models, registry, store, clock};
  ActiveCalls calls;
  ServerHealth health{calls, clock, options.durable.store_broken_timeout_ms};
  Quotas quotas{{}, clock};
  RequestCounters counters;
  const CallPolicy gate{.quotas = quotas, .counters = counters, .clock = clock};

 private:
  const Speculation speculation_;
};

// A request of Generate, up to where it would be submitted.
inline grpc::Status prepare(const ServiceContext& context, v1::GenerateRequest wire,
                            PreparedGeneration& prepared) {
  const api::GenerateParams params = api::read_params(std::move(wire));
  GenerationTarget target;
  grpc::Status found = find_target(context, /*caller=*/"", params, target);
  if (!found.ok()) return found;
  return prepare_generation(context, /*caller=*/"", params, params.prompt,
                            /*deadline=*/std::nullopt, std::move(target), prepared);
}

}  // namespace lintel::testing
