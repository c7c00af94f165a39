// SPDX-License-Identifier: Apache-2.0
// What a Generate stream carries.
#include <algorithm>

#include "server/api/lintel_v1/generation_service.h"
#include "server/api/token_stream.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::vector<std::int32_t> slice(const std::vector<std::int32_t>& tokens, std::size_t first,
                                std::size_t count) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(first),
          tokens.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

TEST_CASE("a stream carries every token in order and ends with one final frame") {
  TestServer server({"tokens"});
  const Generated out = generate(server, request_for("tokens", {1, 2, 3}, 20));
  REQUIRE(out.status.ok());
  REQUIRE(out.samples.size() == 1);
  const Sample& sample = out.only();
  CHECK(sample.tokens.size() == 20);
  CHECK(sample.first_position == 3);
  CHECK(sample.contiguous);
  CHECK(sample.finishes == 1);
  CHECK_FALSE(sample.token_after_finish);
  CHECK(out.messages.back().finished_size() == 1);
  CHECK(sample.log2_probs.empty());
  CHECK(sample.finish.reason() == v1::FINISH_REASON_LENGTH);
  CHECK(sample.finish.prompt_tokens() == 3);
  CHECK(sample.finish.reused_tokens() == 0);
  CHECK(sample.finish.generated_tokens() == 20);
  CHECK(sample.finish.given_tokens() == 0);
  CHECK(sample.finish.seed() == 7);
  CHECK(sample.finish.position() == 23);
  CHECK(sample.finish.timings().has_per_token());
  CHECK(std::all_of(sample.sources.begin(), sample.sources.end(),
                    [](auto source) { return source == v1::VALUE_SOURCE_SAMPLED; }));
}

TEST_CASE("the same request twice gives the same tokens, another seed others") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {1, 2, 3}, 30);
  request.set_log2_probs(true);
  const Generated first = generate(server, request);
  const Generated second = generate(server, request);
  CHECK(first.only().tokens == second.only().tokens);
  CHECK(first.only().log2_probs == second.only().log2_probs);
  CHECK(first.only().log2_probs.size() == 30);
  request.mutable_sampling()->set_seed(8);
  CHECK(generate(server, request).only().tokens != first.only().tokens);
}

TEST_CASE("without a seed the server draws one and the reported seed repeats the tokens") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {4}, 20);
  request.mutable_sampling()->clear_seed();
  const Generated drawn = generate(server, request);
  const Generated other = generate(server, request);
  REQUIRE(drawn.status.ok());
  CHECK(drawn.only().finish.seed() != other.only().finish.seed());
  request.mutable_sampling()->set_seed(drawn.only().finish.seed());
  CHECK(generate(server, request).only().tokens == drawn.only().tokens);
}

TEST_CASE("several samples are those of single requests with the seeds that follow") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {5, 6}, 25);
  request.mutable_sampling()->set_seed(~std::uint64_t{0});  // the next one wraps round to 0
  request.set_num_samples(5);
  request.set_log2_probs(true);
  const Generated together = generate(server, request);
  REQUIRE(together.status.ok());
  REQUIRE(together.samples.size() == 5);
  request.clear_num_samples();
  for (const auto& [index, sample] : together.samples) {
    const std::uint64_t seed = ~std::uint64_t{0} + index;
    request.mutable_sampling()->set_seed(seed);
    const Generated alone = generate(server, request);
    CHECK(sample.tokens == alone.only().tokens);
    CHECK(sample.log2_probs == alone.only().log2_probs);
    CHECK(sample.finish.seed() == seed);
    CHECK(sample.finishes == 1);
    CHECK(sample.contiguous);
  }
}

TEST_CASE("an image is drawn from its start token to its last pixel") {
  TestServer server({"image"});
  v1::GenerateRequest request = request_for("image", {}, 0);
  request.clear_max_new_tokens();
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  CHECK(out.only().first_position == 1);
  CHECK(out.only().tokens.size() == 29);
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_END_OF_SEQUENCE);
  CHECK(out.only().finish.prompt_tokens() == 1);
  CHECK(out.only().finish.position() == 30);
}

TEST_CASE("given tokens are streamed where they belong, marked and counted") {
  TestServer server({"image"});
  v1::GenerateRequest request = request_for("image", {}, 0);
  request.clear_max_new_tokens();
  request.set_log2_probs(true);
  v1::GivenSpan& late = *request.add_given();
  late.set_position(20);
  late.mutable_values()->set_pixels("abc");
  v1::GivenSpan& first = *request.add_given();
  first.set_position(0);
  first.mutable_values()->mutable_tokens()->add_ids(9);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  const Sample& sample = out.only();
  REQUIRE(sample.tokens.size() == 30);
  CHECK(sample.first_position == 0);
  CHECK(sample.contiguous);
  CHECK(sample.tokens[0] == 9);
  CHECK(slice(sample.tokens, 20, 3) == std::vector<std::int32_t>{'a', 'b', 'c'});
  for (std::size_t i = 0; i < 30; ++i) {
    const bool given = i == 0 || (i >= 20 && i < 23);
    CHECK(sample.sources[i] == (given ? v1::VALUE_SOURCE_GIVEN : v1::VALUE_SOURCE_SAMPLED));
  }
  CHECK(sample.log2_probs.size() == 29);  // all but the first of the sequence
  CHECK(sample.finish.given_tokens() == 4);
  CHECK(sample.finish.generated_tokens() == 30);
  // The first token has a chunk of its own without a log-probability.
  const v1::Chunk& opening = out.messages.front().chunks(0);
  CHECK(opening.tokens_size() == 1);
  CHECK(opening.log2_probs_size() == 0);
}

TEST_CASE("an echoed prompt comes first and has the log-probabilities of Score") {
  TestServer server({"bytes"});
  v1::GenerateRequest request;
  request.set_model("bytes");
  request.mutable_prompt()->set_text("hello");
  request.set_max_new_tokens(0);
  request.set_echo_prompt(true);
  request.set_log2_probs(true);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  CHECK(out.only().tokens == std::vector<std::int32_t>{'h', 'e', 'l', 'l', 'o'});
  CHECK(out.only().first_position == 0);
  CHECK(out.only().sources.front() == v1::VALUE_SOURCE_PROMPT);
  CHECK(out.only().finish.generated_tokens() == 0);

  v1::ScoreRequest scoring;
  scoring.set_model("bytes");
  scoring.add_sequences()->set_text("hello");
  const Scored scored = score(server, scoring);
  REQUIRE(scored.status.ok());
  const auto& probs = scored.responses.at(0).log2_probs();
  CHECK(out.only().log2_probs == std::vector<float>(probs.begin(), probs.end()));
}

TEST_CASE("the most likely tokens come with the chosen one, best first") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {1}, 10);
  request.mutable_sampling()->set_temperature(0);
  request.set_top_log2_probs(4);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  const Sample& sample = out.only();
  REQUIRE(sample.top.size() == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    const v1::TopValues& top = sample.top[i];
    REQUIRE(top.tokens_size() == 4);
    CHECK(top.tokens(0) == sample.tokens[i]);
    CHECK(top.log2_probs(0) == sample.log2_probs[i]);
    CHECK(std::is_sorted(top.log2_probs().begin(), top.log2_probs().end(), std::greater<>()));
  }
}

TEST_CASE("a stop token ends the sample and is left out unless asked for") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {1, 2, 3}, 40);
  const std::vector<std::int32_t> free = generate(server, request).only().tokens;
  const std::int32_t stop = free[10];
  const auto at =
      static_cast<std::size_t>(std::find(free.begin(), free.end(), stop) - free.begin());
  request.mutable_stop()->add_token_ids(stop);
  const Generated excluded = generate(server, request);
  CHECK(excluded.samples.at(0).tokens == slice(free, 0, at));
  CHECK(excluded.only().finish.reason() == v1::FINISH_REASON_STOP_TOKEN);
  request.mutable_stop()->set_include_in_output(true);
  CHECK(generate(server, request).only().tokens == slice(free, 0, at + 1));
}

TEST_CASE("a stop string ends the sample, is reported, and never shows") {
  TestServer server({"bytes"});
  v1::GenerateRequest request;
  request.set_model("bytes");
  request.mutable_prompt()->set_text("x");
  request.set_max_new_tokens(40);
  request.mutable_sampling()->set_seed(3);
  const std::vector<std::int32_t> free = generate(server, request).only().tokens;
  const std::string stop = {static_cast<char>(free[12]), static_cast<char>(free[13])};
  request.mutable_stop()->add_strings(stop);
  request.set_max_tokens_per_message(1);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  const std::vector<std::int32_t> until(out.only().tokens);
  REQUIRE(until.size() <= 12);
  CHECK(until == slice(free, 0, until.size()));
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_STOP_STRING);
  CHECK(out.only().finish.stop_string() == stop);
}

TEST_CASE("one token per message when asked for") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {1}, 50);
  request.set_num_samples(3);
  request.set_max_tokens_per_message(1);
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  for (const v1::GenerateResponse& message : out.messages) {
    int tokens = 0;
    for (const v1::Chunk& chunk : message.chunks()) tokens += chunk.tokens_size();
    CHECK(tokens <= 1);
  }
  for (const auto& [index, sample] : out.samples) CHECK(sample.tokens.size() == 50);
}

TEST_CASE("tokens are gathered into few messages while the interval lasts") {
  ServerOptions options = test_options();
  options.streaming.chunk_interval_ms = std::chrono::hours(1);
  TestServer server({"tokens"}, options);
  const Generated out = generate(server, request_for("tokens", {1}, 500));
  REQUIRE(out.status.ok());
  CHECK(out.only().tokens.size() == 500);
  // The first token at once; the others when all are there.
  CHECK(out.messages.size() == 2);
  CHECK(out.messages.front().chunks(0).tokens_size() == 1);
  CHECK(out.messages.back().chunks_size() == 1);
}

TEST_CASE("where many streams run their messages are rarer") {
  const std::chrono::milliseconds interval(10);
  for (const int streams : {1, 4, 7}) CHECK(chunk_interval(interval, streams, 2) == interval);
  CHECK(chunk_interval(interval, 8, 2) == 2 * interval);
  CHECK(chunk_interval(interval, 32, 2) == 8 * interval);
  CHECK(chunk_interval(interval, 100'000, 2) == 16 * interval);
  CHECK(chunk_interval(std::chrono::milliseconds(0), 64, 2).count() == 0);
  // The more cores step the model, the more messages they have time for.
  CHECK(chunk_interval(interval, 64, 1) == 16 * interval);
  CHECK(chunk_interval(interval, 64, 16) == 2 * interval);
  CHECK(chunk_interval(interval, 64, 32) == interval);
  CHECK(chunk_interval(interval, 2, 0) == interval);  // a scheduler without threads
}

TEST_CASE("max_tokens_per_message bounds every message") {
  ServerOptions options = test_options();
  options.streaming.chunk_interval_ms = std::chrono::hours(1);
  TestServer server({"tokens"}, options);
  v1::GenerateRequest request = request_for("tokens", {1}, 100);
  request.set_max_tokens_per_message(7);
  const Generated out = generate(server, request);
  CHECK(out.only().tokens.size() == 100);
  for (const v1::GenerateResponse& message : out.messages) {
    for (const v1::Chunk& chunk : message.chunks()) CHECK(chunk.tokens_size() <= 7);
  }
}

TEST_CASE("the only model need not be named") {
  TestServer server({"tokens"});
  CHECK(generate(server, request_for("", {1}, 5)).only().tokens.size() == 5);
}

}  // namespace
}  // namespace lintel::testing
