// SPDX-License-Identifier: Apache-2.0
// Calls that begin in the reasoning, under a grammar.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/engine/grammar_constraint.h"
#include "server/grammar/token_matcher.h"
#include "server/grammar/tool_calls.h"
#include "server/grammar/vocabulary.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using grammar::ToolDialect;

// Each byte is a token, and these are.
const std::vector<std::string> kPieces = {"<tool_call>",
                                          "</tool_call>",
                                          "</think>",
                                          "</think>\n\n",
                                          "\n<function=get",
                                          "\n<function=other",
                                          "<function=get>\n",
                                          "plan: <tool_call>\n<function=other",
                                          "plan: <tool_call>\n<function=get>",
                                          "tion=other",
                                          "tion=get",
                                          "<func",
                                          "{\"",
                                          "{}",
                                          "\n{\"name\": \"get\"",
                                          "\n{\"name\": \"other\"",
                                          "\n\n\n",
                                          "</function>\n</tool_call>",
                                          "say",
                                          " <",
                                          "<|tool_call_start|>",
                                          "<|tool_call_start|>[other(",
                                          "|tool_call",
                                          "[get",
                                          "[other(",
                                          "get(",
                                          "t(n=",
                                          "er(n=",
                                          "(",
                                          "(s"};

class PieceTokenizer final : public Tokenizer {
 public:
  PieceTokenizer() : Tokenizer(parts()) {}
  std::vector<std::int32_t> encode(std::string_view, const EncodeOptions&) const override {
    return {};
  }
  std::int32_t id_of(std::string_view text) const {
    for (std::int32_t id = 0; id < vocab_size(); ++id) {
      if (bytes_of(id) == text) return id;
    }
    FAIL("no token " << text);
    return -1;
  }
  std::int32_t end() const { return vocab_size() - 1; }

 private:
  static Parts parts() {
    Parts made{.kind = "pieces", .texts = TokenTexts(256 + kPieces.size() + 1), .named = {}};
    for (int byte = 0; byte < 256; ++byte) {
      made.texts.set(byte, std::string(1, static_cast<char>(byte)));
    }
    for (std::size_t i = 0; i < kPieces.size(); ++i) {
      made.texts.set(static_cast<std::int32_t>(256 + i), kPieces[i]);
    }
    return made;
  }
};

struct World {
  World(ToolDialect dialect, grammar::ToolGrammarOptions::Mode mode)
      : calls(grammar::compile_tools(
            std::vector<grammar::ToolSpec>{
                {"get", R"({"type": "object", "properties": {"n": {"type": "integer"}},
                    "required": ["n"], "additionalProperties": false})"}},
            {dialect, mode, true})),
        vocabulary(
            grammar::make_vocabulary(tokenizer, static_cast<std::size_t>(tokenizer.vocab_size()))),
        rules(GrammarConstraint{.grammar = calls,
                                .vocabulary = vocabulary,
                                .after_reasoning = true,
                                .calls = GrammarConstraint::Calls{dialect, calls}},
              {tokenizer.end()}, &tokenizer) {}

  // The state after tokens of these texts, of which each may come.
  ConstraintState after(const std::vector<std::string>& texts) const {
    ConstraintState state(rules);
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(takes(state, text));
      state.advance(tokenizer.id_of(text));
    }
    return state;
  }
  bool takes(ConstraintState& state, std::string_view text) const {
    return takes(state, tokenizer.id_of(text));
  }
  static bool takes(ConstraintState& state, std::int32_t token) {
    std::size_t budget = 1'000'000'000;
    REQUIRE(state.prepare(&budget));
    grammar::MaskWords words;
    const auto mask = state.mask(words);
    if (mask.empty()) return true;
    return (mask[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
  }

  PieceTokenizer tokenizer;
  std::shared_ptr<const grammar::Grammar> calls;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  ConstraintRules rules;
};

using Mode = grammar::ToolGrammarOptions::Mode;

TEST_CASE(
    "call in reasoning: the grammar decides from its head on, and until then nothing is held") {
  const Mode mode = GENERATE(Mode::kAuto, Mode::kRequired);
  const World world(ToolDialect::kXml, mode);
  ConstraintState state = world.after({"say", "<tool_call>", "say", "\n"});
  CHECK(world.takes(state, "say"));
  state = world.after({"say", "<tool_call>"});
  CHECK(world.takes(state, "say"));  // the tag is spoken of
  CHECK(world.takes(state, "<tool_call>"));
  CHECK(world.takes(state, "</think>"));
  CHECK(world.takes(state, world.tokenizer.end()));
  CHECK(world.takes(state, "\n<function=get"));
  CHECK_FALSE(world.takes(state, "\n<function=other"));
  state = world.after({"say", "<tool_call>", "\n<function=get"});
  CHECK(world.takes(state, ">"));
  CHECK_FALSE(world.takes(state, "say"));
  CHECK_FALSE(world.takes(state, "</think>"));
  CHECK_FALSE(world.takes(state, world.tokenizer.end()));
  // The head in several tokens, and within one.
  state = world.after({"<tool_call>", "<func"});
  CHECK(world.takes(state, "tion=get"));
  CHECK_FALSE(world.takes(state, "tion=other"));
  state = world.after({"say"});
  CHECK(world.takes(state, "plan: <tool_call>\n<function=get>"));
  CHECK_FALSE(world.takes(state, "plan: <tool_call>\n<function=other"));
  // Without the tag, at the beginning of a line alone.
  CHECK_FALSE(world.takes(state, "\n<function=other"));
  state = world.after({"say", "\n"});
  CHECK(world.takes(state, "<function=get>\n"));
  state = world.after({"say", "\n", "<func", "tion=get", ">", "\n"});
  CHECK_FALSE(world.takes(state, "say"));
  // More white space than a call is written with.
  state = world.after({"<tool_call>", "\n\n\n"});
  CHECK(world.takes(state, "\n<function=get"));
  CHECK_FALSE(world.takes(state, "\n<function=other"));
  CHECK(world.takes(state, "say"));
  state = world.after({"<tool_call>", "\n\n\n", "\n<function=get"});
  CHECK(world.takes(state, ">"));
  CHECK_FALSE(world.takes(state, "say"));
  // The arguments are those of the schema.
  std::vector<std::string> texts = {"<tool_call>", "\n<function=get"};
  for (const char c : std::string_view(">\n<parameter=n>\n")) texts.push_back(std::string(1, c));
  state = world.after(texts);
  CHECK(world.takes(state, "7"));
  CHECK_FALSE(world.takes(state, "s"));
}

TEST_CASE("call in reasoning: after it the rest of the grammar holds") {
  std::vector<std::string> texts = {"say", "<tool_call>", "\n<function=get"};
  for (const char c : std::string_view(">\n<parameter=n>\n7\n</parameter>\n")) {
    texts.push_back(std::string(1, c));
  }
  texts.push_back("</function>\n</tool_call>");
  const World forced(ToolDialect::kXml, Mode::kRequired);
  ConstraintState state = forced.after(texts);
  CHECK(forced.takes(state, forced.tokenizer.end()));
  CHECK(forced.takes(state, "<tool_call>"));
  CHECK_FALSE(forced.takes(state, "say"));
  const World free(ToolDialect::kXml, Mode::kAuto);
  state = free.after(texts);
  CHECK(free.takes(state, free.tokenizer.end()));
  CHECK(free.takes(state, "say"));
  CHECK(free.takes(state, "</think>"));
}

TEST_CASE("call in reasoning: a given token that the grammar refuses ends the constraint") {
  const World world(ToolDialect::kXml, Mode::kRequired);
  ConstraintState state = world.after({"<tool_call>"});
  state.advance(world.tokenizer.id_of("\n<function=other"));
  for (const std::string& piece : kPieces) CHECK(world.takes(state, piece));
}

TEST_CASE("call in reasoning: the mask has the tokens of a naive twin") {
  const ToolDialect dialect =
      GENERATE(ToolDialect::kXml, ToolDialect::kHermes, ToolDialect::kPythonic);
  const Mode mode = GENERATE(Mode::kAuto, Mode::kRequired);
  const World world(dialect, mode);
  // Every text of up to three pieces that leaves the reasoning open.
  std::vector<std::vector<std::string>> all = {{}};
  for (std::size_t begin = 0, round = 0; round < 2; ++round) {
    const std::size_t end = all.size();
    for (; begin < end; ++begin) {
      for (const char* const piece : {"<tool_call>", "\n", "<", "<func", "say", "\n\n\n", " <",
                                      "<|tool_call_start|>", "|tool_call", "[get"}) {
        all.push_back(all[begin]);
        all.back().emplace_back(piece);
      }
    }
  }
  for (const std::vector<std::string>& texts : all) {
    ConstraintState state(world.rules);
    std::string text;
    for (const std::string& piece : texts) {
      state.advance(world.tokenizer.id_of(piece));
      text += piece;
    }
    for (std::int32_t token = 0; token < world.tokenizer.end(); ++token) {
      const std::string whole = text + std::string(world.tokenizer.bytes_of(token));
      grammar::CallFinder finder(dialect);
      std::optional<std::string> call;
      for (std::size_t i = 0; i < whole.size() && !call; ++i) {
        if (finder.step(whole[i])) call = finder.text() + whole.substr(i + 1);
      }
      if (call && call->find("</think>") != std::string::npos) continue;
      const bool expected = !call || grammar::Matcher(world.calls).advance(*call);
      if (World::takes(state, token) != expected) FAIL(text << ", then " << whole);
    }
  }
}

TEST_CASE("call in reasoning: the mask is made within the budget, in calls as in one",
          "[threat-98]") {
  const World world(ToolDialect::kPythonic, Mode::kRequired);
  constexpr std::size_t kPlenty = 1'000'000'000;
  // Makes the mask. Returns the work that it took.
  const auto work_of = [&](ConstraintState& state) {
    std::size_t budget = kPlenty;
    REQUIRE(state.prepare(&budget));
    return kPlenty - budget;
  };
  ConstraintState state = world.after({"<|tool_call_start|>"});
  ConstraintState slow = state;
  std::size_t calls = 0;
  for (bool is_ready = false; !is_ready; ++calls) {
    std::size_t budget = 30;
    is_ready = slow.prepare(&budget);
  }
  CHECK(calls > 5);
  const std::size_t of_names = work_of(state);
  CHECK(of_names > 30 * (calls - 1) / 2);
  grammar::MaskWords words, slow_words;
  const auto mask = state.mask(words);
  const auto slow_mask = slow.mask(slow_words);
  CHECK(std::vector(mask.begin(), mask.end()) == std::vector(slow_mask.begin(), slow_mask.end()));
  CHECK_FALSE(world.takes(slow, "[other("));
  CHECK(world.takes(slow, "[get"));
  // Tokens that cannot continue what is there take no work of their own.
  state = world.after({"say"});
  CHECK(work_of(state) < of_names / 2);
}

}  // namespace
}  // namespace lintel::testing
