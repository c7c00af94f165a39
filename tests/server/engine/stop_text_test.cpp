// SPDX-License-Identifier: Apache-2.0
// Stop strings of models whose tokens have several bytes: they begin and end inside of tokens.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

// Draws tokens of several bytes, and some without any.
GenerationRequest long_tokens(std::int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.seed = 5;
  request.max_new_tokens = max_new_tokens;
  for (std::int32_t token = 257; token < 292; ++token) {
    request.sampling.logit_bias.emplace_back(token, 100.0f);
  }
  return request;
}

// The text that a client shows of a sample.
std::string shown(const RecordingSink& sink) {
  std::string text;
  for (const RecordedToken& each : sink.recorded[0]) {
    text += text_of_token(*text_model()->tokenizer(), each.token, each.cut_bytes);
  }
  return text;
}

// The text of a call without stops, and where each of its tokens ends in it.
struct FreeRun {
  explicit FreeRun(std::int64_t tokens) {
    Core core(text_model());
    for (const std::int32_t token : core.generate(long_tokens(tokens))->tokens()) {
      text += text_model()->tokenizer()->bytes_of(token);
      ends.push_back(text.size());
    }
  }
  // The token that the byte before `end` is of.
  std::int64_t tokens_up_to(std::size_t end) const {
    return std::ranges::lower_bound(ends, end) - ends.begin() + 1;
  }
  std::string text;
  std::vector<std::size_t> ends;
};

TEST_CASE("a stop string ends the text wherever in a token it begins and ends") {
  const FreeRun free(40);
  REQUIRE(free.text.size() > 100);
  const std::size_t length = GENERATE(1, 2, 5, 30);
  const bool is_included = GENERATE(false, true);
  Core core(text_model());
  int inside = 0;  // of a token that both stays and goes
  for (std::size_t begin = 0; begin < 60; ++begin) {
    const std::string stop = free.text.substr(begin, length);
    const std::size_t first = free.text.find(stop);
    CAPTURE(begin, first);
    GenerationRequest request = long_tokens(40);
    request.stop.strings = {stop};
    request.stop.include_in_output = is_included;
    const auto sink = core.generate(request);
    CHECK(sink->result().reason == FinishReason::kStopString);
    CHECK(sink->result().stop_string == stop);
    CHECK(shown(*sink) == free.text.substr(0, first + (is_included ? length : 0)));
    CHECK(sink->result().generated_tokens == free.tokens_up_to(first + length));
    const auto& last = sink->recorded[0];
    CHECK(sink->result().cut_bytes == (last.empty() ? 0 : last.back().cut_bytes));
    if (!last.empty() && last.back().cut_bytes > 0) ++inside;
  }
  CHECK(inside > 10);
}

TEST_CASE("tokens that may begin a stop string wait, and all come out when it is none") {
  const FreeRun free(40);
  Core core(text_model());
  const std::size_t begin = free.ends[9] - 1;
  GenerationRequest request = long_tokens(40);
  request.stop.strings = {free.text.substr(begin, free.ends[20] - begin) + "\x01"};
  const auto sink = core.generate(request);
  CHECK(sink->result().reason == FinishReason::kLength);
  CHECK(shown(*sink) == free.text);
  CHECK(sink->tokens().size() == 40);
}

TEST_CASE("a stop string inside of tokens is found over the calls of a session") {
  const FreeRun free(40);
  const int cut = GENERATE(range(1, 20));
  CAPTURE(cut);
  const std::size_t begin = free.ends[8] - 1, end = free.ends[19] - 1;
  const std::string stop = free.text.substr(begin, end - begin);
  REQUIRE(free.text.find(stop) == begin);
  Core core(text_model());
  const std::string id = core.new_session();
  const auto first = core.generate(long_tokens(cut), id);
  const std::string sent = shown(*first);
  GenerationRequest next = long_tokens(40);
  next.prompt.clear();
  next.stop.strings = {stop};
  const auto sink = core.generate(next, id);
  CHECK(sink->result().reason == FinishReason::kStopString);
  // Text that the first call sent stays sent.
  CHECK(sent + shown(*sink) == free.text.substr(0, std::max(begin, sent.size())));
  CHECK(core.session_tokens(id) == 3 + free.tokens_up_to(end));
  // The next match begins with the token after it.
  next.stop.strings = {free.text.substr(end, 1)};
  next.max_new_tokens = 1;
  const std::string after = free.text.substr(free.ends[19], free.ends[20] - free.ends[19]);
  const bool has_it = after.find(next.stop.strings[0]) != std::string::npos;
  CHECK(core.generate(next, id)->result().reason ==
        (has_it ? FinishReason::kStopString : FinishReason::kLength));
}

TEST_CASE("a prompt between two calls breaks a match inside of tokens") {
  Core core(text_model());
  GenerationRequest request = long_tokens(1);
  request.sampling.logit_bias = {{264, 10'000.0f}};  // "there", for ever
  request.stop.strings = {"ereth"};
  const std::string id = core.new_session();
  REQUIRE(core.generate(request, id)->result().reason == FinishReason::kLength);
  REQUIRE(core.generate(request, id)->result().reason == FinishReason::kLength);
  request.prompt.clear();
  const auto sink = core.generate(request, id);
  REQUIRE(sink->result().reason == FinishReason::kStopString);
  CHECK(shown(*sink).empty());
}

TEST_CASE("a stop string inside of tokens may end among accepted drafts") {
  GenerationRequest request = long_tokens(30);
  request.sampling.logit_bias = {{264, 10'000.0f}};
  request.stop.strings = {"rethe"};
  Scheduler::Options options = without_threads();
  options.speculation = Speculation::kOn;
  Core core(text_model(), options);
  const auto sink = core.generate(request);
  CHECK(sink->result().reason == FinishReason::kStopString);
  CHECK(shown(*sink) == "the");
  CHECK(sink->result().generated_tokens == 2);
}

}  // namespace
}  // namespace lintel::testing
