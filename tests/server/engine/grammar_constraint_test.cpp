// SPDX-License-Identifier: Apache-2.0
// Tokens drawn under a grammar: valid texts, the same with draft tokens, in any batch.
#include "server/engine/grammar_constraint.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/grammar/gbnf.h"
#include "server/grammar/schema.h"
#include "server/grammar/token_matcher.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

constexpr std::int32_t kEnd = 0;  // of World's vocabulary
constexpr std::string_view kBlankBytes = " \t\r\n";

constexpr std::string_view kSchema = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 5},
    "count": {"type": "integer", "minimum": 0, "maximum": 999},
    "tags": {"type": "array", "items": {"enum": ["ab", "there"]}, "maxItems": 3}
  },
  "required": ["name", "tags"],
  "additionalProperties": false
})";

std::shared_ptr<const grammar::Vocabulary> text_vocabulary() {
  static const auto vocabulary = grammar::make_vocabulary(
      *text_model()->tokenizer(), static_cast<std::size_t>(text_model()->head().vocab_size()));
  return vocabulary;
}

GrammarConstraint json_constraint() {
  static const auto compiled = grammar::compile_schema(kSchema);
  return {.grammar = compiled, .vocabulary = text_vocabulary()};
}

GenerationRequest constrained(std::uint64_t seed,
                              GrammarConstraint constraint = json_constraint()) {
  GenerationRequest request;
  request.prompt = {3, 1, static_cast<std::int32_t>(4 + seed % 5)};
  request.max_new_tokens = 2000;
  request.seed = seed;
  request.stop.tokens = {kEnd};
  request.log2_probs = true;
  request.top_log2_probs = 2;
  request.constraint = std::move(constraint);
  return request;
}

// Reasoning ends with a text of which tokens have parts, and more than that.
GenerationRequest reasoning(std::uint64_t seed) {
  GrammarConstraint constraint = json_constraint();
  constraint.after_reasoning = true;
  constraint.reasoning_end = "the";
  GenerationRequest request = constrained(seed, std::move(constraint));
  for (const std::int32_t token : {'t' + 1, 'h' + 1, 'e' + 1}) {
    request.sampling.logit_bias.emplace_back(token, 4.0f);
  }
  // " the", "the", "there", "thereby", "ere".
  for (const std::int32_t token : {262, 263, 264, 265, 267}) {
    request.sampling.logit_bias.emplace_back(token, seed % 3 == 0 ? 4.0f : 1.0f);
  }
  return request;
}

std::string text_of(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += text_model()->tokenizer()->bytes_of(token);
  return text;
}

bool is_white(std::string_view text) {
  return text.find_first_not_of(kBlankBytes) == std::string_view::npos;
}

// True if the schema describes `text`.
bool is_valid(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("name") || !json.contains("tags")) return false;
  for (const auto& [key, value] : json.items()) {
    if (key == "name" && value.is_string()) continue;
    if (key == "count" && value.is_number_integer() && value >= 0 && value <= 999) continue;
    if (key == "tags" && value.is_array() && value.size() <= 3) continue;
    return false;
  }
  return true;
}

// Straight from the definition: the tokens that may come after the new tokens `before`.
std::vector<std::uint64_t> naive_mask(const GenerationRequest& request,
                                      const std::vector<std::int32_t>& before) {
  const GrammarConstraint& constraint = *request.constraint;
  const auto bytes = [](std::int32_t id) { return text_model()->tokenizer()->bytes_of(id); };
  const std::string& end = constraint.reasoning_end;
  std::string reasoning;
  std::size_t first = 0;  // after the reasoning
  bool has_ended = !constraint.after_reasoning;
  while (!has_ended && first < before.size()) {
    reasoning += bytes(before[first++]);
    has_ended = reasoning.find(end) != std::string::npos;
  }
  grammar::TokenMatcher matcher(constraint.grammar, constraint.vocabulary);
  bool has_begun = !constraint.after_reasoning;
  bool is_free = false;
  for (; first < before.size() && !is_free; ++first) {
    if (matcher.advance(before[first])) {
      has_begun = true;
    } else {
      is_free = has_begun;  // a given token has ended the constraint
    }
  }
  const auto may_follow = [&](std::int32_t token) {
    if (is_free) return true;
    if (!has_ended) {
      const std::string text = reasoning + std::string(bytes(token));
      const std::size_t at = text.find(end);
      return at == std::string::npos || is_white(std::string_view(text).substr(at + end.size()));
    }
    if (std::ranges::find(request.stop.tokens, token) != request.stop.tokens.end()) {
      return matcher.accepts();
    }
    if (!has_begun && !bytes(token).empty() && is_white(bytes(token))) return true;
    return grammar::TokenMatcher(matcher).advance(token);
  };
  std::vector<std::uint64_t> mask(constraint.vocabulary->mask_words());
  for (std::size_t id = 0; id < constraint.vocabulary->size(); ++id) {
    if (may_follow(static_cast<std::int32_t>(id))) mask[id / 64] |= std::uint64_t{1} << (id % 64);
  }
  return mask;
}

// One sample, one row a step, each token tried.
std::vector<std::int32_t> draw_naively(const GenerationRequest& request, int sample = 0) {
  const Transformer& model = *text_model();
  SequenceState sequence = model.new_sequence();
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  std::vector<std::int32_t> drawn;
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  std::int32_t last = request.prompt[0];
  for (std::int64_t position = 1;; ++position) {
    const BatchRow row{last, &sequence, /*wants_output=*/true};
    const std::span<const float> output = model.step(std::span(&row, 1), workspace).row(0);
    if (position < prompt) {
      last = request.prompt[static_cast<std::size_t>(position)];
      continue;
    }
    if (position - prompt == request.max_new_tokens) return drawn;
    const auto given = std::ranges::find(request.given, position, &GivenToken::position);
    if (given != request.given.end()) {
      last = given->token;
    } else {
      last = model.head().sample(output, request.sampling, {}, naive_mask(request, drawn),
                                 {request.seed + static_cast<std::uint64_t>(sample), position},
                                 scratch);
      if (last == kEnd) return drawn;
    }
    drawn.push_back(last);
  }
}

Scheduler::Options with_drafts(Speculation speculation) {
  return {.workers = 0, .speculation = speculation, .speculation_rows = 6};
}

// A request without a grammar.
GenerationRequest unconstrained(std::uint64_t seed, std::int64_t max_new_tokens = 100) {
  GenerationRequest request = constrained(seed);
  request.constraint.reset();
  request.stop.tokens.clear();
  request.max_new_tokens = max_new_tokens;
  return request;
}

TEST_CASE("schema: texts of any seed are valid and end by themselves") {
  Core core(text_model());
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const GenerationRequest request = constrained(seed);
    const auto sink = core.generate(request);
    const std::string text = text_of(sink->tokens());
    CAPTURE(seed, text);
    REQUIRE(sink->result().reason == FinishReason::kStopToken);
    REQUIRE(is_valid(text));
    REQUIRE(sink->tokens() == draw_naively(request));
    for (const RecordedToken& each : sink->recorded[0]) {  // the model's, before the mask
      REQUIRE(each.top.size() == 2);
      REQUIRE(*each.log2_prob <= each.top[0].second);
    }
  }
  CHECK(core.scheduler.stats().mask_waits == 0);
}

TEST_CASE("reasoning: the grammar begins after its end, however tokens spell it") {
  Core core(text_model());
  int with_space = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const GenerationRequest request = reasoning(seed);
    const auto sink = core.generate(request);
    const std::string text = text_of(sink->tokens());
    CAPTURE(seed, text);
    REQUIRE(sink->tokens() == draw_naively(request));
    REQUIRE(sink->result().reason == FinishReason::kStopToken);
    const std::size_t end = text.find("the");
    if (end == std::string::npos) continue;  // it ended amid its reasoning
    REQUIRE(is_valid(text.substr(end + 3)));
    if (is_white(text.substr(end + 3, 1))) ++with_space;
  }
  CHECK(with_space > 0);
}

TEST_CASE("grammar: draft tokens, batches and workers change no token", "[promise]") {
  std::vector<GenerationRequest> requests;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    GenerationRequest request = seed % 3 == 0   ? reasoning(seed)
                                : seed % 3 == 1 ? constrained(seed)
                                                : unconstrained(seed);
    if (seed % 4 == 1) request.num_samples = 3;
    request.sampling.logit_bias.emplace_back(' ' + 1, 5.0f);  // drafts are right now and then
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<std::vector<RecordedToken>>> alone;
  for (const GenerationRequest& request : requests) {
    Core core(text_model(), with_drafts(Speculation::kOff));
    alone.push_back(core.generate(request)->recorded);
    for (int sample = 0; sample < request.num_samples && request.constraint; ++sample) {
      std::vector<std::int32_t> tokens;
      for (const auto& each : alone.back()[static_cast<std::size_t>(sample)]) {
        tokens.push_back(each.token);
      }
      REQUIRE(tokens == draw_naively(request, sample));
    }
  }
  const auto require_same = [&](const Scheduler::Options& options) {
    CAPTURE(static_cast<int>(options.speculation), options.workers, options.mask_budget);
    Core core(text_model(), options);
    std::vector<Core::Call> calls;
    for (const GenerationRequest& request : requests) {
      calls.push_back(core.submit(request));
      if (options.workers == 0) core.scheduler.run_one_step();
    }
    if (options.workers == 0) core.run();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      CAPTURE(i);
      calls[i].sink->wait_until_finished();
      REQUIRE(calls[i].sink->outcome == RequestOutcome::kDone);
      REQUIRE(calls[i].sink->recorded == alone[i]);
    }
    return core.scheduler.stats();
  };
  require_same(with_drafts(Speculation::kOff));
  require_same(with_drafts(Speculation::kAuto));
  Scheduler::Options options = with_drafts(Speculation::kOn);
  options.speculation_rows = options.max_batch_rows;
  CHECK(require_same(options).accepted_tokens > 100);
  options.prefill_rows_per_step = 1;
  options.mask_budget = 40;
  CHECK(require_same(options).mask_waits > 100);
  options.workers = 2;
  require_same(options);
}

TEST_CASE("mask over its budget: its row waits, and no other") {
  Core plain(text_model(), with_drafts(Speculation::kOff));
  const auto expected = plain.generate(constrained(3))->recorded;
  const auto expected_other = plain.generate(unconstrained(4))->recorded;
  Scheduler::Options options = with_drafts(Speculation::kOff);
  options.mask_budget = 1;
  Core core(text_model(), options);
  const auto slow = core.submit(constrained(3));
  const auto other = core.submit(unconstrained(4));
  core.scheduler.run_one_step();
  for (std::size_t i = 2; i <= 100; ++i) {
    core.scheduler.run_one_step();
    REQUIRE(other.sink->recorded[0].size() == i);
  }
  CHECK(slow.sink->recorded[0].size() < 50);
  // The row samples a token or waits in each step after the prompt's.
  CHECK(core.scheduler.stats().mask_waits == 99 - slow.sink->recorded[0].size());
  core.run();
  CHECK(slow.sink->recorded == expected);
  CHECK(other.sink->recorded == expected_other);
}

TEST_CASE("masks over the budget of a step: requests take turns") {
  Scheduler::Options options = with_drafts(Speculation::kOff);
  options.mask_budget = 1;
  Core core(text_model(), options);
  std::vector<Core::Call> calls;
  for (std::uint64_t seed = 0; seed < 12; ++seed) calls.push_back(core.submit(constrained(seed)));
  // The first requests would use up each step's time, were they always first.
  for (int step = 0; step < 3000; ++step) core.scheduler.run_one_step();
  for (const Core::Call& call : calls) CHECK(!call.sink->recorded[0].empty());
  core.run();
  for (const Core::Call& call : calls) CHECK(is_valid(text_of(call.sink->tokens())));
}

TEST_CASE("given tokens: the grammar takes them, or ends for their sample") {
  const auto first = static_cast<std::int64_t>(constrained(1).prompt.size());
  const auto give = [&](GenerationRequest& request, std::int64_t at, std::string_view text) {
    for (const char byte : text) {
      request.given.push_back({first + at++, static_cast<unsigned char>(byte) + 1});
    }
  };
  for (const auto speculation : {Speculation::kOff, Speculation::kOn}) {
    Core core(text_model(), with_drafts(speculation));
    GenerationRequest started = constrained(1);
    give(started, 0, "{\"name\":\"");
    const auto sink = core.generate(started);
    const std::string text = text_of(sink->tokens());
    CHECK(text.starts_with("{\"name\":\""));
    CHECK(is_valid(text));
    CHECK(sink->tokens() == draw_naively(started));

    // The end of a reasoning that took too long; white space may follow.
    GenerationRequest thinking = reasoning(2);
    thinking.constraint->reasoning_end = "</think>";
    give(thinking, 20, "\n</think>\n\n");
    const auto thought = core.generate(thinking);
    CHECK(thought->tokens() == draw_naively(thinking));
    const std::string all = text_of(thought->tokens());
    REQUIRE(all.find("</think>") != std::string::npos);
    CHECK(is_valid(all.substr(all.find("</think>") + 8)));

    GenerationRequest refused = constrained(3);
    give(refused, 4, "\x01");  // a control character comes nowhere
    refused.max_new_tokens = 200;
    const auto freed = core.generate(refused);
    CHECK(freed->tokens() == draw_naively(refused));
    CHECK(!is_valid(text_of(freed->tokens())));
    CHECK(freed->outcome == RequestOutcome::kDone);
  }
}

TEST_CASE("tokens drawn before: the call continues as it was") {
  const bool thinks = GENERATE(false, true);
  const GenerationRequest request = thinks ? reasoning(6) : constrained(6);
  Core core(text_model());
  const auto whole = core.generate(request);
  const std::vector<std::int32_t> tokens = whole->tokens();
  for (std::size_t drawn = 1; drawn <= tokens.size(); drawn += 3) {
    CAPTURE(drawn);
    GenerationRequest again = request;
    again.drawn.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(drawn));
    const auto sink = core.generate(again);
    REQUIRE(sink->recorded == whole->recorded);
    REQUIRE(sink->result().reason == FinishReason::kStopToken);
  }
}

TEST_CASE("session: each call has a grammar of its own") {
  Core core(text_model());
  const std::string id = core.new_session();
  CHECK(is_valid(text_of(core.generate(constrained(1), id)->tokens())));
  core.generate(unconstrained(2, 10), id);
  GenerationRequest next = constrained(3);
  next.prompt.clear();
  const auto sink = core.generate(next, id);
  CHECK(is_valid(text_of(sink->tokens())));
  CHECK(sink->result().reason == FinishReason::kStopToken);
}

TEST_CASE("window: a state that is reset amid a text under a grammar changes no mask") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = seed % 2 == 0 ? constrained(seed) : reasoning(seed);
    request.window = 16;
    Core core(text_model(), with_drafts(Speculation::kOff));
    const auto expected = core.generate(request);
    const std::string text = text_of(expected->tokens());
    CAPTURE(seed, text);
    CHECK((seed % 2 == 1 || is_valid(text)));
    CHECK(expected->result().restarts > 0);
    Scheduler::Options options = with_drafts(Speculation::kOn);
    options.mask_budget = 30;
    Core drafting(text_model(), options);
    CHECK(drafting.generate(request)->recorded == expected->recorded);
  }
}

TEST_CASE("length: a text under a grammar is cut") {
  Core core(text_model());
  const std::vector<std::int32_t> whole = core.generate(constrained(5))->tokens();
  GenerationRequest request = constrained(5);
  request.max_new_tokens = static_cast<std::int64_t>(whole.size()) - 1;
  const auto sink = core.generate(request);
  CHECK(sink->result().reason == FinishReason::kLength);
  CHECK(sink->tokens() == std::vector<std::int32_t>(whole.begin(), whole.end() - 1));
  // The limit has room for the text and not for its end token.
  request.max_new_tokens = static_cast<std::int64_t>(whole.size());
  CHECK(core.generate(request)->result().reason == FinishReason::kLength);
}

TEST_CASE("one text alone: no draw and no bias changes it") {
  const std::vector<std::int32_t> stops = {7, 290};  // neither in the text, nor World's own
  GrammarConstraint constraint{.grammar = grammar::compile_gbnf("root ::= \"x y\""),
                               .vocabulary = text_vocabulary()};
  Core core(text_model());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = constrained(seed, constraint);
    request.stop.tokens = stops;
    request.stop.include_in_output = true;
    request.sampling.logit_bias = {{'a' + 1, 1000.0f}, {kEnd, 1000.0f}};
    const auto tokens = core.generate(request)->tokens();
    REQUIRE(tokens.size() == 4);
    CHECK(text_of({tokens.begin(), tokens.begin() + 3}) == "x y");
    CHECK(std::ranges::find(stops, tokens[3]) != stops.end());
  }
}

TEST_CASE("min_tokens: a text ends no earlier, unless it cannot continue") {
  GrammarConstraint constraint{.grammar = grammar::compile_gbnf("root ::= [a-c]{2,30}"),
                               .vocabulary = text_vocabulary()};
  Core core(text_model());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = constrained(seed, constraint);
    request.sampling.logit_bias = {{kEnd, 1000.0f}};
    CHECK(core.generate(request)->tokens().size() <= 2);  // a token may have two letters
    request.stop.min_tokens = 10;
    CHECK(core.generate(request)->tokens().size() == 10);
    request.stop.min_tokens = 100;
    const auto sink = core.generate(request);
    CHECK(sink->text().size() == sink->tokens().size());
    CHECK(text_of(sink->tokens()).size() == 30);
    CHECK(sink->result().reason == FinishReason::kStopToken);
  }
}

TEST_CASE("no token allowed: the request ends with kNoToken, and no other") {
  std::vector<std::string> bytes(300);
  bytes['x' + 1] = "x";
  GrammarConstraint constraint{.grammar = grammar::compile_gbnf("root ::= \"xxy\""),
                               .vocabulary = std::make_shared<const grammar::Vocabulary>(
                                   std::move(bytes), std::vector<std::int32_t>{kEnd})};
  Core core(text_model());
  const auto failing = core.submit(constrained(1, std::move(constraint)));
  const auto other = core.submit(constrained(2));
  core.run();
  CHECK(failing.sink->outcome == RequestOutcome::kNoToken);
  CHECK(failing.sink->outcome->needed_byte() == 'y');
  CHECK(failing.sink->recorded[0].size() == 2);
  CHECK(core.scheduler.stats().empty_masks == 1);
  CHECK(other.sink->outcome == RequestOutcome::kDone);
  CHECK(is_valid(text_of(other.sink->tokens())));
}

// CPU seconds of a request's 4 tokens beside `hard`, which are ended after it.
double seconds_of_neighbour(const std::vector<GenerationRequest>& hard) {
  Core core(text_model(), with_drafts(Speculation::kOff));
  std::vector<Core::Call> calls;
  for (const GenerationRequest& request : hard) calls.push_back(core.submit(request));
  for (int step = 0; step < 10; ++step) core.scheduler.run_one_step();
  const auto other = core.submit(unconstrained(4, 4));
  double spent = 0;
  while (!other.sink->outcome) {
    spent += cpu_seconds_of([&] { core.scheduler.run_one_step(); });
    REQUIRE(spent < (kSanitized ? 10 : 1));
  }
  Core alone(text_model(), with_drafts(Speculation::kOff));
  CHECK(other.sink->tokens() == alone.generate(unconstrained(4, 4))->tokens());
  for (const Core::Call& call : calls) {
    if (!call.sink->outcome) core.scheduler.cancel(call.handle);
  }
  spent += cpu_seconds_of([&] { core.scheduler.run_one_step(); });
  for (const Core::Call& call : calls) CHECK(call.sink->outcome);
  return spent;
}

TEST_CASE("ambiguous grammars: requests beside them get their tokens at once", "[threat-98]") {
  // Grammars of which each character has very many derivations.
  const auto hard = [](const char* gbnf, int count, int num_samples) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(
          constrained(static_cast<std::uint64_t>(i),
                      {.grammar = grammar::compile_gbnf(gbnf), .vocabulary = text_vocabulary()}));
      requests.back().num_samples = num_samples;
    }
    return requests;
  };
  for (const auto& requests : {hard("root ::= (. root root)* | \"bc\"", 1, 1),
                               hard("root ::= (. root root)* | \"bc\"", 2, 16),
                               hard("root ::= ( | . root root)* | ( | ){3,} | \"bc\"", 2, 16)}) {
    // Each step has four budgets for masks: 8 ms on a fast core that does nothing else.
    const double most = kSanitized ? 10 : 0.1;
    double least = most;
    for (int i = 0; i < 10 && least >= most; ++i) {
      least = std::min(i == 0 ? 100 : least, seconds_of_neighbour(requests));
    }
    CHECK(least < most);
  }
}

TEST_CASE("grammar that takes too much work: its request ends with kGrammarWork, and no other",
          "[threat-98]") {
  // One byte leads to 2^20 places.
  std::string gbnf = "root ::= \"x\" r0\n";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    gbnf += "r" + std::to_string(i) + " ::= " + next + " " + next + " | " + next + "\n";
  }
  gbnf += "r20 ::= \"a\" | \"(\" root \")\"";
  GrammarConstraint constraint{.grammar = grammar::compile_gbnf(gbnf),
                               .vocabulary = text_vocabulary()};
  Scheduler::Options options = with_drafts(Speculation::kOff);
  for (const std::size_t budget : {grammar::kMaskBudget, std::size_t{100}}) {
    options.mask_budget = budget;
    Core core(text_model(), options);
    const auto failing = core.submit(constrained(1, constraint));
    const auto other = core.submit(constrained(2));
    core.run();
    CHECK(failing.sink->outcome == RequestOutcome::kGrammarWork);
    CHECK(failing.sink->recorded[0].size() <= 1);
    CHECK(core.scheduler.stats().empty_masks == 0);
    CHECK(other.sink->outcome == RequestOutcome::kDone);
    CHECK(is_valid(text_of(other.sink->tokens())));
  }
}

TEST_CASE("request that cannot have a grammar: submit throws, and the lease returns") {
  struct Case {
    std::string_view message;
    std::function<void(GenerationRequest&)> change;
  };
  const std::vector<Case> cases = {
      {"stop token", [](auto& r) { r.stop.tokens.clear(); }},
      {"particles", [](auto& r) { r.particles = 4; }},
      {"grammar is missing", [](auto& r) { r.constraint->grammar.reset(); }},
      {"vocabulary is missing", [](auto& r) { r.constraint->vocabulary.reset(); }},
      {"not the model's",
       [](auto& r) {
         r.constraint->vocabulary = std::make_shared<const grammar::Vocabulary>(
             std::vector<std::string>(20), std::vector<std::int32_t>{0});
       }},
      {"reasoning_end is empty",
       [](auto& r) {
         r.constraint->after_reasoning = true;
         r.constraint->reasoning_end.clear();
       }},
  };
  Core core(text_model());
  const std::string id = core.new_session();
  for (const Case& each : cases) {
    CAPTURE(each.message);
    GenerationRequest request = constrained(1);
    each.change(request);
    CHECK_THROWS_WITH(core.submit(request, id), Catch::Contains(std::string(each.message)));
    CHECK(core.store.lease(id).refusal.error == SessionError::kNone);
  }
  Core image(tiny_model(TinyModel::kImage));
  CHECK_THROWS_AS(image.submit(constrained(1)), std::invalid_argument);
}

}  // namespace
}  // namespace lintel::testing
