// SPDX-License-Identifier: Apache-2.0
// Stored sessions of a model with a KV cache, and servers that hold it in another type.
#include <filesystem>
#include <memory>

#include "model/transformer.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

GivenModels qwen(KvType type) {
  const auto path = std::filesystem::path(LINTEL_TEST_DATA) / "golden/families/qwen3_5";
  return {{"tokens", Transformer::load(path, {.kv_type = type})}};
}

TEST_CASE("a stored session continues after a restart, with the bits of its KV type", "[durable]") {
  const TemporaryDirectory files;
  ServerOptions options = test_options();
  options.durable.store = files.path() / "store";
  const SteadyClock clock;
  auto server = std::make_unique<TestServer>(options, clock, qwen(KvType::kInt8));
  const auto restart = [&](KvType type) {
    server.reset();
    server = std::make_unique<TestServer>(options, clock, qwen(type));
  };
  const v1::Session session = created(*server, v1::DURABILITY_CALL);
  const v1::Session twin = created(*server, v1::DURABILITY_CALL);
  const Sample first = go_on(*server, session.id(), 40, {1, 2, 3});
  CHECK(go_on(*server, twin.id(), 40, {1, 2, 3}).tokens == first.tokens);
  const Sample second = go_on(*server, twin.id(), 20, {4}, /*seed=*/9);

  restart(KvType::kInt8);
  const Sample continued = go_on(*server, session.id(), 20, {4}, /*seed=*/9);
  CHECK(continued.tokens == second.tokens);
  CHECK(continued.log2_probs == second.log2_probs);
  CHECK_FALSE(continued.finish.numerics_changed());
  v1::ForkSessionResponse forked;
  REQUIRE(fork_session(*server, twin.id(), 43, 1, &forked).ok());
  CHECK(go_on(*server, forked.sessions(0).id(), 20, {4}, /*seed=*/9).tokens == second.tokens);
}

TEST_CASE("a stored session of another KV type continues and says so, and is refused if strict",
          "[durable]") {
  const TemporaryDirectory files;
  ServerOptions options = test_options();
  options.durable.store = files.path() / "store";
  const SteadyClock clock;
  auto server = std::make_unique<TestServer>(options, clock, qwen(KvType::kF32));
  const auto restart = [&](KvType type, bool is_strict = false) {
    server.reset();
    options.durable.takes_other_numerics = !is_strict;
    server = std::make_unique<TestServer>(options, clock, qwen(type));
  };
  const v1::Session session = created(*server, v1::DURABILITY_CALL);
  go_on(*server, session.id(), 40, {1, 2, 3});
  v1::GenerateRequest request;
  request.set_session_id(session.id());
  request.set_max_new_tokens(1);
  std::int64_t position = 43;
  for (const KvType type : {KvType::kBf16, KvType::kInt8, KvType::kF32}) {
    CAPTURE(to_string(type));
    restart(type, /*is_strict=*/true);
    const grpc::Status refused = generate(*server, request).status;
    CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(reason_of(refused) == "NUMERICS_CHANGED");

    restart(type);
    CHECK(go_on(*server, session.id(), 20, {4}).finish.numerics_changed());
    CHECK(get_session(*server, session.id()).numerics_changed_at() == position);
    CHECK_FALSE(go_on(*server, session.id(), 20, {4}).finish.numerics_changed());
    position += 42;
  }
}

}  // namespace
}  // namespace lintel::testing
