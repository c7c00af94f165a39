// SPDX-License-Identifier: Apache-2.0
// Generate with particles, over gRPC: what comes, what is refused, what it takes.
#include <algorithm>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Tokens at every third position are known.
v1::GenerateRequest particles_request(unsigned particles, const std::string& model = "bytes") {
  v1::GenerateRequest request = request_for(model, {1, 2}, 40);
  for (std::int64_t position = 4; position < 42; position += 3) {
    v1::GivenSpan& given = *request.add_given();
    given.set_position(position);
    given.mutable_values()->mutable_tokens()->add_ids(static_cast<std::int32_t>(position % 50));
  }
  if (particles > 0) request.set_particles(particles);
  request.set_log2_probs(true);
  return request;
}

TEST_CASE("one particle: the tokens of a request without particles") {
  TestServer server({"bytes"});
  const Sample without = generate(server, particles_request(0)).only();
  const Sample one = generate(server, particles_request(1)).only();
  CHECK(one.tokens == without.tokens);
  CHECK(one.log2_probs == without.log2_probs);
  CHECK_FALSE(one.finish.has_log2_evidence());
}

TEST_CASE("samples of particles are whole, keep given tokens and have the evidence") {
  TestServer server({"bytes"});
  v1::GenerateRequest request = particles_request(16);
  request.set_num_samples(3);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  REQUIRE(out.samples.size() == 3);
  for (const auto& [index, sample] : out.samples) {
    REQUIRE(sample.tokens.size() == 40);
    CHECK(sample.first_position == 2);
    CHECK(sample.contiguous);
    CHECK(sample.finishes == 1);
    CHECK_FALSE(sample.token_after_finish);
    CHECK(sample.log2_probs.size() == 40);
    for (std::size_t i = 0; i < 40; ++i) {
      const bool is_known = i % 3 == 2;
      CHECK((sample.sources[i] == v1::VALUE_SOURCE_GIVEN) == is_known);
      if (is_known) CHECK(sample.tokens[i] == static_cast<int>(i + 2) % 50);
    }
    CHECK(sample.finish.has_log2_evidence());
    CHECK(sample.finish.log2_evidence() < 0);
    CHECK(sample.finish.seed() == 7);
    CHECK(sample.finish.generated_tokens() == 40);
    CHECK(sample.finish.given_tokens() == 13);
    CHECK(sample.finish.drafted_tokens() == 0);
  }
  const Generated again = generate(server, request);
  CHECK(again.samples.at(2).tokens == out.samples.at(2).tokens);
  CHECK(again.samples.at(2).finish.log2_evidence() == out.samples.at(2).finish.log2_evidence());
}

TEST_CASE("fields that cannot be combined with particles are refused by name") {
  TestServer server({"bytes"});
  std::string field;
  v1::GenerateRequest request = particles_request(8);
  SECTION("more than the rows of a step") {
    field = "particles";
    request.set_particles(
        static_cast<std::uint32_t>(server.scheduler("bytes").options().max_batch_rows + 1));
  }
  SECTION("fewer than samples") {
    field = "num_samples";
    request.set_num_samples(9);
  }
  SECTION("a session") {
    field = "session_id";
    request.set_session_id(create_session(server, "bytes").id());
  }
  SECTION("stop tokens") {
    field = "stop.token_ids";
    request.mutable_stop()->add_token_ids(3);
  }
  SECTION("stop strings") {
    field = "stop.strings";
    request.mutable_stop()->add_strings("x");
  }
  SECTION("a window") {
    field = "window";
    request.set_window(16);
  }
  SECTION("the most likely tokens") {
    field = "top_log2_probs";
    request.set_top_log2_probs(2);
  }
  const grpc::Status status = generate(server, request).status;
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(violated_fields(status) == std::vector<std::string>{field});
}

TEST_CASE("memory for all particles is admitted, or none is taken") {
  const std::size_t state =
      SessionManager::admitted_bytes(*tiny_models({"bytes"}).at("bytes"), /*num_tokens=*/0);
  ServerOptions options = test_options();
  options.sessions.session_memory_bytes = 20 * state;
  TestServer server({"bytes"}, options);
  const Generated refused = generate(server, particles_request(16));
  INFO(refused.status.error_message());
  CHECK(refused.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(server.server().store().bytes_in_use() == 0);
  const Generated fits = generate(server, particles_request(8));
  INFO(fits.status.error_message());
  CHECK(fits.status.ok());
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == 0; }));
}

TEST_CASE("particles whose client is gone free their rows and memory") {
  ServerOptions options = test_options();
  options.sessions.session_memory_bytes = std::size_t{4} << 30;
  TestServer server({"tokens"}, options);
  grpc::ClientContext context;
  v1::GenerateRequest request = particles_request(8, "tokens");
  request.set_max_new_tokens(1'000'000);
  const auto reader = server.generation->Generate(&context, request);
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().running == 1; }));
  CHECK(server.server().store().bytes_in_use() > 8 * 1'000'000 * 8);
  context.TryCancel();
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(eventually([&] { return server.scheduler("tokens").idle(); }));
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == 0; }));
}

TEST_CASE("a slow reader of particles gets all, at the end") {
  ServerOptions options = test_options();
  options.streaming.outbox_tokens = 4;
  TestServer server({"bytes"}, options);
  const Sample expected = generate(server, particles_request(8)).only();
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, particles_request(8));
  REQUIRE(eventually([&] { return server.scheduler("bytes").idle(); }));
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  CHECK(reader->Finish().ok());
  CHECK(out.only().tokens == expected.tokens);
}

}  // namespace
}  // namespace lintel::testing
