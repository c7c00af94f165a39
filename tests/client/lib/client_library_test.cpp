// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

v1::GenerateRequest request_of(std::uint32_t new_tokens, std::uint64_t seed) {
  v1::GenerateRequest request;
  *request.mutable_prompt() = token_values(std::vector<std::int32_t>{0, 7});
  request.set_max_new_tokens(new_tokens);
  request.mutable_sampling()->set_seed(seed);
  request.set_log2_probs(true);
  return request;
}

template <typename Call>
CallError error_of(const Call& call) {
  try {
    call();
  } catch (const CallError& error) {
    return error;
  }
  throw std::logic_error("the call did not fail");
}

}  // namespace

TEST_CASE("generate collects the samples of a stream in order") {
  FakeServer server;
  v1::GenerateRequest request = request_of(5, 3);
  request.set_num_samples(2);
  request.set_echo_prompt(true);
  v1::GivenSpan& given = *request.add_given();
  given.set_position(4);
  *given.mutable_values() = token_values(std::vector<std::int32_t>{99});

  const std::vector<Sample> samples = server.client().generate(request);
  REQUIRE(samples.size() == 2);
  for (std::uint64_t s = 0; s < 2; ++s) {
    const Sample& sample = samples[s];
    CHECK(sample.first_position == 2);
    REQUIRE(sample.tokens.size() == 5);
    for (std::int64_t i = 0; i < 5; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(sample.tokens[at] == (i == 2 ? 99 : fake_token(3 + s, 2 + i)));
      CHECK(sample.log2_probs[at] == fake_log2_prob(3 + s, 2 + i));
      CHECK(sample.given[at] == (i == 2));
    }
    CHECK(sample.prompt == std::vector<std::int32_t>{0, 7});
    CHECK(sample.prompt_log2_probs ==
          std::vector<std::optional<float>>{std::nullopt, fake_log2_prob(3 + s, 1)});
    CHECK(sample.finish.seed() == 3 + s);
    CHECK(sample.finish.reason() == v1::FINISH_REASON_LENGTH);
  }
}

TEST_CASE("text comes in whole characters, of each sample by itself") {
  const auto chunk_of = [](std::uint32_t sample, const std::vector<std::string>& bytes) {
    v1::Chunk chunk;
    chunk.set_sample(sample);
    chunk.set_source(v1::VALUE_SOURCE_SAMPLED);
    for (const std::string& part : bytes) {
      chunk.add_tokens(1);
      chunk.add_token_bytes(part);
    }
    return chunk;
  };
  ChunkText text;
  CHECK(text.add(chunk_of(0, {"a", "\xe2"})) == "a");
  CHECK(text.add(chunk_of(0, {"\x82"})).empty());
  CHECK(text.add(chunk_of(0, {"\xac!", "\xf0\x9f"})) == "\xe2\x82\xac!");
  CHECK(text.finish() == "\xef\xbf\xbd");
  CHECK(text.finish().empty());

  SampleCollector collector;
  collector.add(chunk_of(0, {"a\xe2"}));
  collector.add(chunk_of(1, {"b", "\xe2"}));
  v1::Chunk prompt = chunk_of(0, {"prompt"});
  prompt.set_source(v1::VALUE_SOURCE_PROMPT);
  collector.add(prompt);
  collector.add(chunk_of(0, {"\x82\xac"}));
  v1::SampleFinish finish;
  for (const unsigned sample : {0u, 1u}) {
    finish.set_sample(sample);
    collector.finish(finish);
  }
  CHECK(collector.samples()[0].text == "a\xe2\x82\xac");
  CHECK(collector.samples()[1].text == "b\xef\xbf\xbd");
}

TEST_CASE("generate streams chunks to the callback as they come") {
  FakeServer server;
  std::vector<std::int64_t> positions;
  const auto finished = server.client().generate(request_of(3, 1), [&](const v1::Chunk& chunk) {
    positions.push_back(chunk.first_position());
  });
  CHECK(positions == std::vector<std::int64_t>{2, 3, 4});
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].generated_tokens() == 3);
}

TEST_CASE("every call carries a deadline") {
  FakeServer server;
  const auto before = std::chrono::system_clock::now();
  server.client(std::chrono::seconds(100)).generate(request_of(1, 1));
  const auto deadline = server.last_deadline();
  CHECK(deadline > before + std::chrono::seconds(90));
  CHECK(deadline < before + std::chrono::seconds(110));
  CHECK_THROWS_AS(Client({.address = "a:1", .deadline = std::chrono::milliseconds(0)}),
                  std::invalid_argument);
}

TEST_CASE("the longest possible deadline has not passed") {
  FakeServer server;
  CHECK(server.client(std::chrono::milliseconds::max()).generate(request_of(1, 1)).size() == 1);
}

TEST_CASE("a deadline that passes ends the call on both sides") {
  FakeServer server;
  server.hang = true;
  const CallError error =
      error_of([&] { server.client(std::chrono::milliseconds(50)).generate(request_of(9, 1)); });
  CHECK(error.code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  server.wait_until_cancelled();
}

TEST_CASE("another thread cancels a call, and the server notices") {
  FakeServer server;
  server.hang = true;
  Cancellation cancellation;
  std::thread other([&] {
    server.wait_until_hanging();
    cancellation.cancel();
  });
  const CallError error =
      error_of([&] { server.client().generate(request_of(9, 1), &cancellation); });
  other.join();
  CHECK(error.code() == grpc::StatusCode::CANCELLED);
  server.wait_until_cancelled();
}

TEST_CASE("after cancel() later calls end at once") {
  FakeServer server;
  Cancellation cancellation;
  cancellation.cancel();
  CHECK(cancellation.wait_for(std::chrono::hours(1)));
  const CallError error = error_of([&] { server.client().get_model("", &cancellation); });
  CHECK(error.code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("an exception of the callback ends the call on the server and leaves generate") {
  FakeServer server;
  server.hang = true;
  CHECK_THROWS_WITH(
      server.client().generate(request_of(9, 1),
                               [](const v1::Chunk&) { throw std::runtime_error("enough"); }),
      "enough");
  server.wait_until_cancelled();
}

TEST_CASE("an error carries the field, the resource and the delay") {
  FakeServer server;
  server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "bad request",
                                   "sampling.top_p", "abc", std::chrono::milliseconds(250));
  const CallError error = error_of([&] { server.client().generate(request_of(1, 1)); });
  CHECK(error.code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(error.message() == "bad request");
  REQUIRE(error.violations().size() == 1);
  CHECK(error.violations()[0].field == "sampling.top_p");
  CHECK(error.violations()[0].description == "makes no sense");
  REQUIRE(error.resources().size() == 1);
  CHECK(error.resources()[0].name == "abc");
  CHECK(error.retry_delay() == std::chrono::milliseconds(250));
  CHECK(std::string(error.what()) ==
        "INVALID_ARGUMENT: bad request; sampling.top_p: makes no sense; session abc; try again in "
        "250 ms");
}

TEST_CASE("invalid details leave the error readable") {
  const CallError error(grpc::Status(grpc::StatusCode::ABORTED, "busy", "\xff\xff no protobuf"));
  CHECK(std::string(error.what()) == "ABORTED: busy");
  CHECK(error.violations().empty());
  CHECK_FALSE(error.retry_delay());
}

TEST_CASE("a stream that ends before its samples is an error") {
  FakeServer server;
  server.end_early = true;
  v1::GenerateRequest request = request_of(2, 1);
  request.set_num_samples(2);
  CHECK(error_of([&] { server.client().generate(request); }).code() == grpc::StatusCode::INTERNAL);
}

TEST_CASE("score answers every sequence in the order of the request") {
  FakeServer server;
  v1::ScoreRequest request;
  *request.add_sequences() = token_values(std::vector<std::int32_t>{0, 1, 2});
  *request.add_sequences() = token_values(std::vector<std::int32_t>{5, 6});
  std::vector<int> sizes;
  server.client().score(
      request, [&](const v1::ScoreResponse& score) { sizes.push_back(score.log2_probs_size()); });
  CHECK(sizes == std::vector<int>{2, 1});
  server.end_early = true;
  CHECK(error_of([&] { server.client().score(request, [](const auto&) {}); }).code() ==
        grpc::StatusCode::INTERNAL);
}

TEST_CASE("list_sessions follows the pages") {
  FakeServer server;
  const auto sessions = server.client().list_sessions();
  REQUIRE(sessions.size() == 4);
  CHECK(sessions[3].id() == "session-3");
}

TEST_CASE("an unreachable server is UNAVAILABLE") {
  const Client client({.address = "127.0.0.1:1"});
  CHECK(error_of([&] { client.get_model(); }).code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("health distinguishes serving, not serving and unknown") {
  FakeServer server;
  CHECK(server.client().serving());
  server.serving = false;
  CHECK_FALSE(server.client().serving("lintel.v1.GenerationService"));
  CHECK(error_of([&] { server.client().serving("unknown"); }).code() ==
        grpc::StatusCode::NOT_FOUND);
}

}  // namespace lintel::testing
