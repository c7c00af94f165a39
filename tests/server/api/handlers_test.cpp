// SPDX-License-Identifier: Apache-2.0
// Handlers without a transport: memory that fails anywhere, and memory that they are charged with.
#include "server/api/handlers.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "server/api/lintel_v1/answer_grammars.h"
#include "server/api/lintel_v1/generation_service.h"
#include "server/api/lintel_v1/model_service.h"
#include "server/api/lintel_v1/session_service.h"
#include "tests/server/support/call_fixture.h"
#include "tests/server/support/service_parts.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

// Services whose callers may do everything.
struct HandlerFixture {
  explicit HandlerFixture(std::size_t request_memory = 1 << 20)
      : memory({.bytes = request_memory}, [] {}) {
    gate.memory = &memory;
  }

  static const RpcMethod& method(const RpcService& service, const std::string& name) {
    return *std::ranges::find_if(
        service.methods(), [&](const RpcMethod& each) { return each.name.ends_with("/" + name); });
  }
  // Runs a call to its end; an allocation of its handler fails after `successes`. Nothing: there
  // was no memory to begin it.
  template <typename Request>
  std::optional<grpc::StatusCode> run(const RpcMethod& called, Request wire,
                                      std::optional<std::size_t> successes, bool& has_failed) {
    PlainCall call;
    const RequestMessage request = RequestMessage::of(std::move(wire));
    const auto response = called.new_response();
    const SharedModel model = parts.model();
    RpcReactor* reactor = nullptr;
    {
      std::optional<FailingAllocation> failing;
      if (successes) failing.emplace(*successes);
      try {
        reactor = called.run(call, request, response.get());
      } catch (const std::bad_alloc&) {
      }
      has_failed = failing && failing->has_failed();
    }
    if (reactor == nullptr) return std::nullopt;
    CountingWriter writer(reactor);
    for (int i = 0; i < 200 && writer.finishes == 0; ++i) {
      model->scheduler->run_one_step();
      while (writer.in_flight > 0) {
        --writer.in_flight;
        reactor->OnWriteDone(true);
      }
    }
    REQUIRE(writer.finishes == 1);
    reactor->OnDone();
    return writer.code;
  }
  // The call is answered once for each allocation that fails, and leaves nothing.
  template <typename Request>
  void check_failures(const RpcMethod& called, const Request& wire, std::size_t least) {
    bool has_failed = false;
    run(called, wire, {}, has_failed);  // protobuf makes its descriptors
    std::size_t failures = 0;
    for (;; ++failures) {
      CAPTURE(failures);
      const auto code = run(called, wire, failures, has_failed);
      CHECK(memory.stats().bytes == 0);
      CHECK(parts.calls.count() == 0);
      CHECK(parts.calls.wait_until_none(std::chrono::nanoseconds(0), /*also_held=*/true));
      if (!has_failed) {
        CHECK(code == grpc::StatusCode::OK);
        break;
      }
      if (code != grpc::StatusCode::OK) {
        CHECK(code.value_or(grpc::StatusCode::RESOURCE_EXHAUSTED) ==
              grpc::StatusCode::RESOURCE_EXHAUSTED);
      }
    }
    CHECK(failures >= least);
  }

  ManualClock clock;
  ServiceParts parts{clock};
  RequestMemory memory;
  CallPolicy gate{.anonymous = {Role::kGenerate, Role::kScore},
                  .quotas = parts.quotas,
                  .counters = parts.counters,
                  .clock = clock,
                  .max_message_bytes = 1 << 20};
  const ServiceContext context{parts.registry,          parts.manager, parts.store, parts.states,
                               parts.prefixes,          parts.calls,   gate,        clock,
                               parts.options.streaming, parts.health};
  AnswerGrammars grammars;
  const GenerationService generation{context, grammars};
  const ModelService models{context};
  const SessionService sessions{context};
};

TEST_CASE("any failed allocation: a handler of a stream ends its call once and holds nothing") {
  HandlerFixture f;
  f.check_failures(f.method(f.generation, "Generate"), request_for("tokens", {1, 2}, 5), 20);
  CHECK(f.parts.store.bytes_in_use() == 0);
  CHECK(f.parts.model()->scheduler->idle());
}

TEST_CASE("any failed allocation: a handler of a unary call ends it once and holds nothing") {
  HandlerFixture f;
  SECTION("that may wait for a model") {
    v1::GetModelRequest request;
    request.set_name("tokens");
    f.check_failures(f.method(f.models, "Get"), request, 10);
  }
  SECTION("that may wait for the session store") {
    f.check_failures(f.method(f.sessions, "List"), v1::ListSessionsRequest(), 5);
  }
  SECTION("that never waits") {
    f.check_failures(f.method(f.models, "List"), v1::ListModelsRequest(), 5);
  }
}

TEST_CASE("a stream allocates nothing for its tokens, each of which is a message") {
  HandlerFixture f;
  // Allocations on this thread, which runs the handler, the steps and the writes.
  const auto count = [&](std::uint32_t tokens) {
    v1::GenerateRequest request = request_for("tokens", {1, 2}, tokens);
    request.set_max_tokens_per_message(1);
    bool ignored = false;
    const AllocationCount allocations;
    CHECK(f.run(f.method(f.generation, "Generate"), request, {}, ignored) == grpc::StatusCode::OK);
    return static_cast<std::int64_t>(allocations.so_far());
  };
  count(48);  // objects that are made once
  const std::int64_t few = count(16), many = count(48);
  CHECK(many == few);  // but for what begins the stream, its coroutine for example
}

TEST_CASE("a handler that waits is charged with its coroutine, one that does not is not") {
  HandlerFixture f(/*request_memory=*/256);
  bool ignored = false;
  v1::GetModelRequest request;
  request.set_name("tokens");
  CHECK(f.run(f.method(f.models, "Get"), request, {}, ignored) ==
        grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(f.memory.stats().bytes == 0);
  CHECK(f.run(f.method(f.models, "List"), v1::ListModelsRequest(), {}, ignored) ==
        grpc::StatusCode::OK);
}

}  // namespace
}  // namespace lintel::testing
