// SPDX-License-Identifier: Apache-2.0
// Memory and leases of a prepared request, and of one that is refused.
#include "server/api/prepare_generation.h"

#include "tests/server/support/service_parts.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct Preparing {
  std::string new_session() {
    return parts.store.create("tokens", parts.model()->transformer, 0).info.id;
  }

  grpc::Status prepare(const std::string& session_id, PreparedGeneration& prepared,
                       std::int32_t first_id = 1) {
    v1::GenerateRequest wire = request_for("tokens", {first_id, 2}, 20);
    wire.set_session_id(session_id);
    return testing::prepare(parts.context(), std::move(wire), prepared);
  }

  const ManualClock clock;
  ServiceParts parts{clock, {.session_memory_bytes = 1u << 26}, Speculation::kOn};
};

TEST_CASE("memory of a call in addition to its sequence is counted, with a session or without") {
  Preparing f;
  const std::size_t state = SessionManager::admitted_bytes(
      *f.parts.registry.find("tokens")->transformer, /*num_tokens=*/0);
  std::size_t beside = 0;
  {
    PreparedGeneration one_shot;
    REQUIRE(f.prepare("", one_shot).ok());
    beside = f.parts.store.bytes_in_use() - state;
    CHECK(beside > 0);
  }
  const std::string id = f.new_session();
  const std::size_t session = f.parts.store.bytes_in_use();
  REQUIRE(session ==
          SessionManager::session_bytes(*f.parts.registry.find("tokens")->transformer, {}));
  {
    PreparedGeneration on_session;
    REQUIRE(f.prepare(id, on_session).ok());
    CHECK(f.parts.store.bytes_in_use() - session == beside);
  }
  CHECK(f.parts.store.bytes_in_use() == session);
}

TEST_CASE(
    "each sample holds the tokens that penalties in a window count, and their memory is counted") {
  Preparing f;
  const auto bytes_of = [&](std::uint32_t window, std::uint32_t samples) {
    v1::GenerateRequest wire = request_for("tokens", {1, 2}, 20);
    wire.mutable_sampling()->set_penalty_window(window);
    wire.set_num_samples(samples);
    PreparedGeneration prepared;
    REQUIRE(prepare(f.parts.context(), std::move(wire), prepared).ok());
    return f.parts.store.bytes_in_use();
  };
  const std::size_t tokens = 1000 * sizeof(std::int32_t);
  const std::size_t counts = 50 * sizeof(std::uint32_t);  // a vocabulary of 50
  CHECK(bytes_of(1000, 1) == bytes_of(0, 1) + tokens + counts);
  CHECK(bytes_of(1000, 3) == bytes_of(0, 3) + 3 * (tokens + counts));
}

TEST_CASE("penalties in a window are refused if a session no longer has the tokens they count") {
  Preparing f;
  const SharedModel model = f.parts.registry.find("tokens");
  // The session keeps at least one token, in whole chunks: those before 1024 are gone.
  const std::string id = f.parts.store
                             .create(model->name, model->transformer,
                                     {.max_tokens = 10'000, .history_tokens = 1}, {}, nullptr)
                             .info.id;
  constexpr std::int64_t kTokens = 3000;
  std::int64_t base = 0;
  {
    const auto leased = f.parts.store.lease(id);
    for (int i = 0; i < kTokens; ++i) {
      leased.lease.history()->append(i % 50, TokenSource::kPrompt);
    }
    base = leased.lease.history()->base();
    REQUIRE(base > 0);
  }
  const auto status_with = [&](std::int64_t window) {
    v1::GenerateRequest wire = request_for("tokens", {1}, 20);
    wire.set_session_id(id);
    wire.mutable_sampling()->set_penalty_window(static_cast<std::uint32_t>(window));
    PreparedGeneration prepared;
    return prepare(f.parts.context(), std::move(wire), prepared);
  };
  CHECK(status_with(0).ok());
  CHECK(status_with(kTokens - base).ok());
  const grpc::Status refused = status_with(kTokens - base + 1);
  CHECK(violated_fields(refused) == std::vector<std::string>{"sampling.penalty_window"});
  CHECK_THAT(refused.error_message(),
             Catch::Contains("before position " + std::to_string(base) + " are no longer known"));
}

TEST_CASE("a session continues with the model version that it began with") {
  Preparing f;
  const std::string id = f.new_session();
  f.parts.serve(2);
  PreparedGeneration prepared;
  REQUIRE(f.prepare(id, prepared).ok());
  CHECK(prepared.model->version == 1);
  PreparedGeneration one_shot;
  REQUIRE(f.prepare("", one_shot).ok());
  CHECK(one_shot.model->version == 2);
}

TEST_CASE("a session of a model that is being unloaded is gone, and can be closed") {
  Preparing f;
  const std::string id = f.new_session();
  const std::vector<SharedModel> retired = f.parts.registry.retire("tokens", std::nullopt);
  REQUIRE(retired.size() == 1);
  PreparedGeneration prepared;
  const grpc::Status refused = f.prepare(id, prepared);
  CHECK(refused.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK_THAT(refused.error_message(), Catch::Contains("model was unloaded"));
  CHECK(prepared.model == nullptr);
  CHECK(f.parts.store.close_sessions(*retired[0]->transformer) == 1);
  CHECK(f.parts.store.num_sessions() == 0);
}

TEST_CASE("a request that is refused leaves its session free") {
  Preparing f;
  const std::string id = f.new_session();
  PreparedGeneration prepared;
  CHECK(f.prepare(id, prepared, /*first_id=*/-1).error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(prepared.model != nullptr);  // the call is about it all the same
  CHECK_FALSE(f.parts.store.get(id)->busy);
  REQUIRE(f.prepare(id, prepared).ok());
  CHECK(f.parts.store.get(id)->busy);
}

}  // namespace
}  // namespace lintel::testing
