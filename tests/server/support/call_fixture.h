// SPDX-License-Identifier: Apache-2.0
// Calls without a transport: reactors as gRPC runs them, but for a writer that keeps nothing.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/prepare_generation.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {

// Counts what its reactor does.
class CountingWriter final : public RpcTransport {
 public:
  explicit CountingWriter(RpcReactor* reactor) : reactor_(reactor) { reactor->bind(*this); }
  void read(RequestMessage&) override {}
  void begin() override { reactor_->OnWriteDone(true); }
  void write(const google::protobuf::Message&) override { ++in_flight; }
  void finish(const google::protobuf::Message*, grpc::Status status) override {
    ++finishes;
    code = status.error_code();
  }

  int finishes = 0;
  int in_flight = 0;  // writes
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;

 private:
  RpcReactor* const reactor_;
};

// A call of a client without headers.
class PlainCall final : public RpcCall {
 public:
  std::string_view header(const char*) const override { return {}; }
  std::string peer() const override { return "ipv4:127.0.0.1:1"; }
  std::string certificate() const override { return {}; }
  std::optional<std::chrono::system_clock::time_point> deadline() const override { return {}; }
  bool is_cancelled() const override { return false; }
  void add_header(const std::string&, const std::string&) override {}
};

struct CallFixture {
  explicit CallFixture(const std::string& name) {
    served->name = name;
    served->transformer = tiny_models({name}).at(name);
    served->scheduler = std::make_unique<Scheduler>(
        served->transformer, Scheduler::Options{.workers = 0, .max_batch_rows = 8}, clock);
    model = served;
  }
  ~CallFixture() { served->scheduler->stop(); }

  // Makes the call as the method of a service does.
  template <typename Reactor>
  Reactor* entered(Method method) {
    auto reactor = std::make_unique<Reactor>(gate, calls, context, method);
    REQUIRE(reactor->enter().ok());
    return reactor.release();
  }
  PreparedGeneration prepared(std::int64_t max_new_tokens, int num_samples = 1) {
    PreparedGeneration made;
    made.model = model;
    made.checked.request.prompt = {1, 2};
    made.checked.request.max_new_tokens = max_new_tokens;
    made.checked.request.num_samples = num_samples;
    made.checked.request.log2_probs = true;
    made.lease = store.lease_one_shot("m", model->transformer, 0, num_samples).lease;
    return made;
  }
  // The model and memory are released, and no call is counted.
  void check_nothing_left() {
    CHECK(calls.count() == 0);
    CHECK(served->scheduler->idle());
    CHECK(store.bytes_in_use() == 0);
    CHECK(served.use_count() == 2);
  }

  ManualClock clock;
  std::shared_ptr<ServedModel> served = std::make_shared<ServedModel>();
  SharedModel model;
  SessionManager store{{.session_memory_bytes = 1u << 30}, clock};
  ActiveCalls calls;
  Quotas quotas{{.max_streams = 1}, clock};
  RequestCounters counters;
  CallPolicy gate{nullptr, false, {}, {Role::kGenerate, Role::kScore}, quotas, counters, clock};
  PlainCall context;
};

// Steps and writes until the call is over, or for as long as it could take.
inline void run(CallFixture& f, CountingWriter& writer, RpcReactor& reactor) {
  for (int i = 0; i < 200 && writer.finishes == 0; ++i) {
    f.served->scheduler->run_one_step();
    while (writer.in_flight > 0) {
      --writer.in_flight;
      reactor.OnWriteDone(true);
    }
  }
}

}  // namespace lintel::testing
