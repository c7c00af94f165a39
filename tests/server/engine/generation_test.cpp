// SPDX-License-Identifier: Apache-2.0
// What one request produces: tokens, log-probabilities, ends and counts.
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

GenerationRequest text_request(const std::string& prompt, std::int64_t max_new_tokens,
                               std::uint64_t seed = 1) {
  GenerationRequest request;
  for (const char c : prompt) request.prompt.push_back(static_cast<unsigned char>(c));
  request.max_new_tokens = max_new_tokens;
  request.seed = seed;
  return request;
}

GenerationRequest image_request(std::uint64_t seed = 1) {
  GenerationRequest request;
  request.max_new_tokens = 100;
  request.seed = seed;
  return request;
}

std::vector<RecordedToken> twin(const Transformer& model, const GenerationRequest& request,
                                int sample = 0) {
  SequenceState sequence = model.new_sequence();
  return generate_naively(model, request, sample, sequence).tokens;
}

TEST_CASE("a request returns the tokens of stepping by hand") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("linear", 40);
  request.log2_probs = true;
  request.top_log2_probs = 3;
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->outcome == RequestOutcome::kDone);
  const SampleResult& result = sink->result();
  REQUIRE(result.reason == FinishReason::kLength);
  REQUIRE(result.prompt_tokens == 6);
  REQUIRE(result.generated_tokens == 40);
  REQUIRE(result.given_tokens == 0);
  REQUIRE(result.reused_tokens == 0);
  REQUIRE(result.position == 46);
  REQUIRE(result.seed == 1);
}

TEST_CASE("an empty image prompt begins with the start token, which is read and not produced") {
  Core core(tiny_model(TinyModel::kImage));
  const auto sink = core.generate(image_request());
  REQUIRE(sink->recorded[0] == twin(*core.model, image_request()));
  REQUIRE(sink->recorded[0].front().position == 1);
  REQUIRE(sink->result().reason == FinishReason::kEndOfSequence);
  REQUIRE(sink->result().prompt_tokens == 1);
  REQUIRE(sink->result().generated_tokens == 29);
  REQUIRE(sink->result().position == 30);
}

TEST_CASE("the end of the sequence wins over the length reached with it") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = image_request();
  request.max_new_tokens = 29;
  REQUIRE(core.generate(request)->result().reason == FinishReason::kEndOfSequence);
  request.max_new_tokens = 28;
  REQUIRE(core.generate(request)->result().reason == FinishReason::kLength);
}

TEST_CASE("a full position table ends the sequence") {
  Core core(tiny_model(TinyModel::kBytes));
  const auto sink = core.generate(text_request("abc", 1000));
  REQUIRE(sink->result().reason == FinishReason::kEndOfSequence);
  REQUIRE(sink->result().position == 257);
  REQUIRE(sink->result().generated_tokens == 254);
}

TEST_CASE("a prompt that fills the sequence is read, and nothing more") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = image_request();
  request.prompt.assign(30, 7);
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0].empty());
  REQUIRE(sink->result().reason == FinishReason::kEndOfSequence);
  REQUIRE(sink->result().prompt_tokens == 30);
}

TEST_CASE("echo gives every prompt token, with a log-probability for all but the first") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("attention", 5);
  request.echo_prompt = true;
  request.log2_probs = true;
  request.top_log2_probs = 2;
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->recorded[0].size() == 14);
  REQUIRE(!sink->recorded[0][0].log2_prob);
  REQUIRE(sink->recorded[0][0].top.empty());
  REQUIRE(sink->recorded[0][1].log2_prob);
  REQUIRE(sink->recorded[0][1].top.size() == 2);
  REQUIRE(sink->recorded[0][8].source == TokenSource::kPrompt);
  REQUIRE(sink->recorded[0][9].source == TokenSource::kSampled);
}

TEST_CASE("no new tokens: the prompt is scored up to its last token, which stays pending") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("score me", 0);
  request.echo_prompt = true;
  request.log2_probs = true;
  const std::string id = core.new_session();
  const auto sink = core.generate(request, id);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->recorded[0].size() == 8);
  REQUIRE(sink->result().reason == FinishReason::kLength);
  REQUIRE(sink->result().generated_tokens == 0);
  REQUIRE(core.scheduler.stats().rows == 7);
  REQUIRE(core.session_tokens(id) == 8);
}

TEST_CASE("one prompt token and no new tokens need no step of the model") {
  Core core(tiny_model(TinyModel::kBytes));
  const auto sink = core.generate(text_request("x", 0));
  REQUIRE(sink->result().prompt_tokens == 1);
  REQUIRE(core.scheduler.stats().rows == 0);
}

TEST_CASE("nothing to begin with is refused and the sink stays silent") {
  Core core(tiny_model(TinyModel::kBytes));
  auto sink = std::make_shared<RecordingSink>();
  REQUIRE_THROWS_AS(core.submit(text_request("", 3), "", sink), std::invalid_argument);
  REQUIRE(sink->finishes == 0);
  REQUIRE(core.scheduler.idle());
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("given tokens are fed, streamed, marked and counted, at any mask") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = image_request();
  request.log2_probs = true;
  request.top_log2_probs = 1;
  SECTION("a run, then singles") {
    for (const int position : {5, 6, 7, 8, 9, 15, 17, 19, 29}) {
      request.given.push_back({position, 10 * position % 256});
    }
  }
  SECTION("everything up to the middle") {
    for (int position = 0; position < 15; ++position) request.given.push_back({position, 100});
  }
  SECTION("the whole image") {
    for (int position = 0; position < 30; ++position) request.given.push_back({position, position});
  }
  SECTION("the first token alone") { request.given.push_back({0, 200}); }
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  const bool starts_given = request.given.front().position == 0;
  const SampleResult& result = sink->result();
  REQUIRE(result.reason == FinishReason::kEndOfSequence);
  REQUIRE(result.given_tokens == static_cast<std::int64_t>(request.given.size()));
  REQUIRE(result.generated_tokens == (starts_given ? 30 : 29));
  REQUIRE(result.prompt_tokens == (starts_given ? 0 : 1));
  REQUIRE(sink->recorded[0].front().position == (starts_given ? 0 : 1));
  REQUIRE(sink->recorded[0].front().log2_prob.has_value() == !starts_given);
}

TEST_CASE("a run of given tokens takes one step, not one each") {
  Core core(tiny_model(TinyModel::kImage), {.workers = 0, .speculation = Speculation::kOff});
  GenerationRequest request = image_request();
  for (int position = 0; position < 15; ++position) request.given.push_back({position, 100});
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0].size() == 30);
  REQUIRE(core.scheduler.stats().steps == 15);  // the first reads 15 rows and samples token 15
  REQUIRE(core.scheduler.stats().rows == 29);
}

TEST_CASE("given tokens never stop a sequence") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("ab", 20);
  for (int position = 4; position < 9; ++position) request.given.push_back({position, 'q'});
  request.stop.tokens = {'q'};
  request.stop.strings = {"q", "qq"};
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->result().given_tokens == 5);
}

TEST_CASE("max_new_tokens may end inside a run of given tokens") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = image_request();
  for (int position = 3; position < 20; ++position) request.given.push_back({position, 9});
  request.max_new_tokens = 6;
  const std::string id = core.new_session();
  const auto sink = core.generate(request, id);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->recorded[0].size() == 6);
  REQUIRE(sink->result().reason == FinishReason::kLength);
  REQUIRE(core.session_tokens(id) == 7);
}

TEST_CASE("sample i of a request is the request of seed + i, bit for bit") {
  const auto kind = GENERATE(TinyModel::kImage, TinyModel::kBytes);
  Core core(tiny_model(kind));
  GenerationRequest request =
      kind == TinyModel::kBytes ? text_request("the house", 30) : image_request();
  request.seed = ~std::uint64_t{0} - 1;  // wraps around
  request.log2_probs = true;
  request.echo_prompt = true;
  request.given = {{12, 40}, {13, 41}, {20, 42}};
  request.num_samples = 5;
  const auto together = core.generate(request);
  for (int i = 0; i < 5; ++i) {
    GenerationRequest alone = request;
    alone.num_samples = 1;
    alone.seed = request.seed + static_cast<std::uint64_t>(i);
    const auto sink = core.generate(alone);
    REQUIRE(together->recorded[static_cast<std::size_t>(i)] == sink->recorded[0]);
    REQUIRE(together->result(i).seed == alone.seed);
    REQUIRE(together->result(i).generated_tokens == sink->result().generated_tokens);
  }
  REQUIRE(together->recorded[0] != together->recorded[1]);
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("the prompt of several samples is read once") {
  Core core(tiny_model(TinyModel::kBytes), {.workers = 0, .speculation = Speculation::kOff});
  GenerationRequest request = text_request(std::string(50, 'p'), 4);
  request.num_samples = 8;
  core.generate(request);
  REQUIRE(core.scheduler.stats().rows == 49 + 8 * 4);
  REQUIRE(core.scheduler.stats().prompt_tokens == 50);
  REQUIRE(core.scheduler.stats().generated_tokens == 32);
}

TEST_CASE("several samples that begin with a given token each get it") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = image_request();
  request.num_samples = 3;
  request.given = {{0, 77}, {1, 78}};
  const auto sink = core.generate(request);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(sink->recorded[static_cast<std::size_t>(i)] == twin(*core.model, request, i));
    REQUIRE(sink->result(i).given_tokens == 2);
  }
}

TEST_CASE("penalties count the whole sequence, prompt included") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("aaaabbbb", 60);
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.presence_penalty = 0.5f;
  request.sampling.frequency_penalty = 0.7f;
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  GenerationRequest without = text_request("aaaabbbb", 60);
  REQUIRE(core.generate(without)->tokens() != sink->tokens());
}

TEST_CASE("a stop token ends its sample, in the output only when asked for") {
  Core core(tiny_model(TinyModel::kBytes));
  const auto free_run = core.generate(text_request("stop", 40))->tokens();
  GenerationRequest request = text_request("stop", 40);
  request.stop.tokens = {free_run[20]};
  const auto at = std::find(free_run.begin(), free_run.end(), free_run[20]) - free_run.begin();
  request.stop.include_in_output = GENERATE(false, true);
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == twin(*core.model, request));
  REQUIRE(sink->result().reason == FinishReason::kStopToken);
  REQUIRE(sink->result().generated_tokens == at + 1);
  REQUIRE(static_cast<std::ptrdiff_t>(sink->tokens().size()) ==
          at + (request.stop.include_in_output ? 1 : 0));
}

TEST_CASE("a stop string is cut off, or kept when asked for") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::string free_run = core.generate(text_request("stop", 40))->text();
  GenerationRequest request = text_request("stop", 40);
  const std::string stop = free_run.substr(20, 4);
  const std::size_t at = free_run.find(stop);
  request.stop.strings = {"never to be seen", stop, stop.substr(1)};
  request.stop.include_in_output = GENERATE(false, true);
  const auto sink = core.generate(request);
  REQUIRE(sink->result().reason == FinishReason::kStopString);
  REQUIRE(sink->result().stop_string == stop);  // the longest of those that end here
  REQUIRE(sink->text() == free_run.substr(0, at + (request.stop.include_in_output ? 4 : 0)));
  REQUIRE(sink->result().generated_tokens == static_cast<std::int64_t>(at) + 4);
}

TEST_CASE("min_tokens: no stop token is drawn, and no stop string ends a sample, before") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::string free_run = core.generate(text_request("stop", 40))->text();
  GenerationRequest request = text_request("stop", 40);
  request.stop.min_tokens = 20;
  SECTION("a string that is complete before does not count, one that is complete after does") {
    // The first ends with the 20th token.
    request.stop.strings = {free_run.substr(16, 4)};
    const auto before = core.generate(request);
    const std::size_t again = free_run.find(request.stop.strings[0], 17);
    CHECK(before->text() == free_run.substr(0, again));
    CHECK(before->result().reason ==
          (again == std::string::npos ? FinishReason::kLength : FinishReason::kStopString));
    // This one begins before, and ends with the 21st.
    request.stop.strings = {free_run.substr(17, 4)};
    const auto after = core.generate(request);
    CHECK(after->text() == free_run.substr(0, 17));
    CHECK(after->result().stop_string == request.stop.strings[0]);
  }
  SECTION("tokens") {
    for (std::int32_t token = 0; token < 256; token += 2) request.stop.tokens.push_back(token);
    request.stop.include_in_output = true;
    const auto sink = core.generate(request);
    const std::vector<std::int32_t> tokens = sink->tokens();
    REQUIRE(tokens.size() > 20);
    for (std::size_t i = 0; i < 20; ++i) CHECK(tokens[i] % 2 == 1);
    CHECK(sink->result().reason == FinishReason::kStopToken);
    CHECK(tokens.back() % 2 == 0);
    // If each token stops the sample, there is nothing else to draw.
    for (std::int32_t token = 1; token < 256; token += 2) request.stop.tokens.push_back(token);
    CHECK(core.generate(request)->tokens().size() == 1);
  }
}

TEST_CASE("text that may be a stop string is held back until decided, and never lost") {
  Core core(tiny_model(TinyModel::kBytes), {.workers = 0, .speculation = Speculation::kOff});
  const std::string free_run = core.generate(text_request("held", 12))->text();
  GenerationRequest request = text_request("held", 12);
  request.log2_probs = true;
  request.top_log2_probs = 2;
  request.stop.strings = {free_run.substr(4, 5) + "\x01\x02"};  // begins to match, then does not
  const auto held_twin = twin(*core.model, request);
  SECTION("decided by the next byte") {
    const auto call = core.submit(request);
    std::size_t longest_wait = 0;
    for (std::size_t step = 1; core.scheduler.run_one_step(); ++step) {
      if (!call.sink->finished()) {
        longest_wait = std::max(longest_wait, step - call.sink->recorded[0].size());
      }
    }
    REQUIRE(longest_wait == 5);
    REQUIRE(call.sink->recorded[0] == held_twin);
  }
  SECTION("flushed when another reason ends it") {
    request.max_new_tokens = 8;
    const auto sink = core.generate(request);
    REQUIRE(sink->recorded[0] == twin(*core.model, request));
    REQUIRE(sink->recorded[0].size() == 8);
  }
}

TEST_CASE("a given byte breaks the match of a stop string") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = text_request("gap", 12);
  request.given = {{6, '-'}};
  const std::string free_run = core.generate(request)->text();
  // Across the given byte, with and without it.
  request.stop.strings = {free_run.substr(2, 4), free_run.substr(1, 2) + free_run.substr(4, 2)};
  REQUIRE(core.generate(request)->text() == free_run);
  request.stop.strings = {free_run.substr(4, 3)};  // after it
  REQUIRE(core.generate(request)->result().reason == FinishReason::kStopString);
}

TEST_CASE("timings come from the clock") {
  using std::chrono::milliseconds;
  Core core(tiny_model(TinyModel::kBytes));
  const auto call = core.submit(text_request("t", 3));
  core.clock.advance(milliseconds(5));
  call.sink->when_token = [&](const TokenEvent&) { core.clock.advance(milliseconds(2)); };
  core.run();
  const SampleResult& result = call.sink->result();
  REQUIRE(result.queued == milliseconds(5));
  REQUIRE(result.prompt == milliseconds(0));
  REQUIRE(result.generation == milliseconds(4));  // of two of the three advances
}

}  // namespace
}  // namespace lintel::testing
