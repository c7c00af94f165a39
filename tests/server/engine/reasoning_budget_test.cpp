// SPDX-License-Identifier: Apache-2.0
// Reasoning that the server ends: after so many tokens, the same with draft tokens and grammars.
#include "server/engine/reasoning_budget.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar/schema.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

constexpr std::int32_t kEndOfText = 0;  // of World's vocabulary
constexpr std::string_view kEnd = "\n</think>\n\n";

// A token for each byte.
std::vector<std::int32_t> byte_tokens(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte) + 1);
  return tokens;
}

std::string text_of(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += text_model()->tokenizer()->bytes_of(token);
  return text;
}

ReasoningBudget budget_of(std::int64_t tokens, const std::string& before = "<think>") {
  return {.tokens = tokens, .end = byte_tokens(kEnd), .before = before, .calls = {}};
}

// The part of `text`, a byte a token, that was written where the end is forced; "-": it is not.
std::string cut_of(const ReasoningBudget& budget, const std::string& text) {
  ReasoningBudgetState state(budget, *text_model()->tokenizer());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (state.forced()) return text.substr(0, i);
    state.advance(byte_tokens(text.substr(i, 1)).front());
  }
  return state.forced() ? text : "-";
}

TEST_CASE("reasoning budget: tokens of the reasoning count, however it begins and ends") {
  CHECK(cut_of(budget_of(3), "abcdef") == "abc");
  CHECK(cut_of(budget_of(0), "abc").empty());
  CHECK(cut_of(budget_of(3, "<think"), ">abcdef") == ">abc");
  CHECK(cut_of(budget_of(3, ""), " \n<think>abcdef") == " \n<think>abc");
  CHECK(cut_of(budget_of(0, ""), "<think>") == "<think>");
  // No reasoning, or one that ends in time.
  CHECK(cut_of(budget_of(3, ""), "abcdef") == "-");
  CHECK(cut_of(budget_of(3, ""), "<thing>abcdef") == "-");
  CHECK(cut_of(budget_of(3, ""), "a<think>abcdef") == "-");
  CHECK(cut_of(budget_of(20), "abc</think>" + std::string(40, 'a')) == "-");
  CHECK(cut_of(budget_of(20), "abc</thinking>" + std::string(40, 'a')).size() == 20);
  // A call is no reasoning, a tag that is spoken of is.
  ReasoningBudget with_calls = budget_of(30);
  with_calls.calls = grammar::ToolDialect::kXml;
  CHECK(cut_of(with_calls, "abc <tool_call>\n<function=" + std::string(40, 'a')) == "-");
  CHECK(cut_of(with_calls, "<function=" + std::string(40, 'a')) == "-");
  CHECK(cut_of(with_calls, "abc\n<tool_call>" + std::string(40, 'a')).size() == 30);
  CHECK(cut_of(with_calls, "\n\n\n\n\n\n\n\n\n<function=" + std::string(40, 'a')) == "-");
  CHECK(cut_of(with_calls, "abcdefghi <function=" + std::string(40, 'a')).size() == 30);
  with_calls.calls = grammar::ToolDialect::kHermes;
  CHECK(cut_of(with_calls, "abc <tool_call>{" + std::string(40, 'a')) == "-");
}

TEST_CASE("reasoning budget: the end comes token by token, a given token in its place ends it") {
  const ReasoningBudget budget = budget_of(1);
  ReasoningBudgetState state(budget, *text_model()->tokenizer());
  CHECK_FALSE(state.forced());
  state.advance('a' + 1);
  for (const std::int32_t token : budget.end) {
    REQUIRE(state.forced() == token);
    state.advance(token);
  }
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(state.forced());
    state.advance('a' + 1);
  }
  ReasoningBudgetState other(budget, *text_model()->tokenizer());
  other.advance('a' + 1);
  REQUIRE(other.forced());
  other.advance('b' + 1);
  CHECK_FALSE(other.forced());
}

GenerationRequest thinking(std::uint64_t seed, std::int64_t tokens) {
  GenerationRequest request;
  request.prompt = {3, 1, static_cast<std::int32_t>(4 + seed % 5)};
  request.max_new_tokens = 80;
  request.seed = seed;
  request.log2_probs = true;
  request.reasoning = budget_of(tokens);
  return request;
}

// Followed by an object of one member.
GenerationRequest answering(std::uint64_t seed, std::int64_t tokens) {
  static const auto compiled = grammar::compile_schema(
      R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["a"], "additionalProperties": false})");
  static const auto vocabulary = grammar::make_vocabulary(
      *text_model()->tokenizer(), static_cast<std::size_t>(text_model()->head().vocab_size()));
  GenerationRequest request = thinking(seed, tokens);
  request.max_new_tokens = 400;
  request.stop.tokens = {kEndOfText};
  request.sampling.logit_bias = {{kEndOfText, -100.0f}};  // it does not end in its reasoning
  request.constraint =
      GrammarConstraint{.grammar = compiled, .vocabulary = vocabulary, .after_reasoning = true};
  return request;
}

TEST_CASE("reasoning budget: a sample is what it was before its end, and continues after it") {
  Core core(text_model());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto budget = static_cast<std::int64_t>(seed * 3);
    GenerationRequest request = thinking(seed, budget);
    const std::vector<std::int32_t> tokens = core.generate(request)->tokens();
    REQUIRE(tokens.size() == 80);
    request.reasoning.reset();
    const std::vector<std::int32_t> free = core.generate(request)->tokens();
    CHECK(std::equal(tokens.begin(), tokens.begin() + budget, free.begin()));
    CHECK(text_of({tokens.begin() + budget,
                   tokens.begin() + budget + static_cast<std::int64_t>(kEnd.size())}) == kEnd);
    // Tokens after it are drawn as after the same text in a prompt: seed and position decide.
    const auto begin = static_cast<std::size_t>(budget) + kEnd.size();
    request.prompt.insert(request.prompt.end(), tokens.begin(),
                          tokens.begin() + static_cast<std::int64_t>(begin));
    request.max_new_tokens = static_cast<std::int64_t>(tokens.size() - begin);
    CHECK(
        core.generate(request)->tokens() ==
        std::vector<std::int32_t>(tokens.begin() + static_cast<std::int64_t>(begin), tokens.end()));
  }
}

TEST_CASE("reasoning budget: a grammar takes the end, and the answer follows it") {
  Core core(text_model());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto sink = core.generate(answering(seed, 5 + static_cast<std::int64_t>(seed)));
    const std::string text = text_of(sink->tokens());
    CAPTURE(seed, text);
    REQUIRE(sink->result().reason == FinishReason::kStopToken);
    const std::size_t end = text.find(kEnd);
    REQUIRE(end != std::string::npos);
    CHECK(nlohmann::json::parse(text.substr(end + kEnd.size()))["a"].is_number_integer());
  }
}

TEST_CASE("reasoning budget: draft tokens, batches and workers change no token", "[promise]") {
  std::vector<GenerationRequest> requests;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const auto budget = static_cast<std::int64_t>(seed * 2);
    requests.push_back(seed % 2 == 0 ? thinking(seed, budget) : answering(seed, budget));
    if (seed % 3 == 1) requests.back().num_samples = 3;
    // Drafts are right now and then, and have tokens of the end.
    for (const char byte : {' ', '\n', '<', '/'}) {
      requests.back().sampling.logit_bias.emplace_back(byte + 1, 3.0f);
    }
  }
  std::vector<std::vector<std::vector<RecordedToken>>> alone;
  for (const GenerationRequest& request : requests) {
    Core core(text_model(), {.workers = 0, .speculation = Speculation::kOff});
    alone.push_back(core.generate(request)->recorded);
  }
  for (const int workers : {0, 2}) {
    Scheduler::Options options{.workers = workers, .speculation = Speculation::kOn};
    options.speculation_rows = options.max_batch_rows;
    Core core(text_model(), options);
    std::vector<Core::Call> calls;
    for (const GenerationRequest& request : requests) {
      calls.push_back(core.submit(request));
      if (workers == 0) core.scheduler.run_one_step();
    }
    if (workers == 0) core.run();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      CAPTURE(i, workers);
      calls[i].sink->wait_until_finished();
      REQUIRE(calls[i].sink->outcome == RequestOutcome::kDone);
      REQUIRE(calls[i].sink->recorded == alone[i]);
    }
    CHECK(core.scheduler.stats().accepted_tokens > 20);
  }
}

TEST_CASE("reasoning budget: a call that is run again continues amid the end as it was") {
  Core core(text_model());
  const auto whole = core.generate(thinking(4, 6));
  const std::vector<std::int32_t> tokens = whole->tokens();
  for (std::ptrdiff_t drawn = 1; drawn < 30; ++drawn) {
    GenerationRequest again = thinking(4, 6);
    again.drawn.assign(tokens.begin(), tokens.begin() + drawn);
    REQUIRE(core.generate(again)->recorded == whole->recorded);
  }
}

TEST_CASE("reasoning budget that the request cannot have: submit throws") {
  Core core(text_model());
  GenerationRequest request = thinking(0, 3);
  request.reasoning->end.clear();
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  request = thinking(0, 3);
  request.reasoning->end = {text_model()->config().vocab_size};
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  request = thinking(0, 3);
  request.particles = 2;
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
}

}  // namespace
}  // namespace lintel::testing
