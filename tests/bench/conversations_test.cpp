// SPDX-License-Identifier: Apache-2.0
#include "bench/conversations.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "client/cli/console.h"
#include "tests/support/catch.h"

namespace lintel::bench {
namespace {

Lengths lengths_of(const std::string& text) { return Lengths::parse("--turns", text); }

std::vector<double> drawn_lengths(const std::string& text, int count) {
  DrawStream draws(/*seed=*/5, /*stream=*/0);
  const Lengths lengths = lengths_of(text);
  std::vector<double> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(static_cast<double>(lengths.draw(draws)));
  return drawn;
}

ConversationSource::Options small_talk(std::uint64_t seed) {
  return {.seed = seed,
          .turns = lengths_of("3"),
          .first_words = lengths_of("50-60"),
          .words = lengths_of("7"),
          .answer_tokens = lengths_of("10-20")};
}

std::size_t words_in(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, ' ')) + 1;
}

// The reason why a file is refused; empty: it is not.
std::string refusal_of(const std::string& text) {
  try {
    read_conversations(text, "talks.jsonl");
  } catch (const cli::Failure& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lengths are a number, a range or a log-normal distribution") {
  CHECK(drawn_lengths("200", 3) == std::vector<double>{200, 200, 200});
  const std::vector<double> range = drawn_lengths("3-6", 4000);
  for (const double length : {3, 4, 5, 6}) {
    CHECK(std::ranges::count(range, length) == Approx(1000).epsilon(0.1));
  }
  const std::vector<double> spread = drawn_lengths("lognormal:1000,0.5", 20000);
  CHECK(quantile(spread, 0.5) == Approx(1000).epsilon(0.02));
  CHECK(quantile(spread, 0.8413) == Approx(1000 * std::exp(0.5)).epsilon(0.03));
  CHECK(quantile(spread, 0.1587) == Approx(1000 * std::exp(-0.5)).epsilon(0.03));
  const std::vector<double> wide = drawn_lengths("lognormal:2,4", 20000);
  CHECK(std::ranges::min(wide) == 1);
  CHECK(std::ranges::max(wide) == 32);
}

TEST_CASE("lengths that make no sense are refused by flag and text") {
  for (const char* text :
       {"", "0", "-1", "x", "5-3", "0-3", "1-", "1000001", "1-1000001", "lognormal:", "lognormal:5",
        "lognormal:0,1", "lognormal:5,-1", "lognormal:5,5", "lognormal:5,1,2"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(lengths_of(text), cli::UsageError);
  }
  CHECK_THROWS_WITH(lengths_of("5-3"), "--turns '5-3': the range runs backwards");
}

TEST_CASE("arrivals are a Poisson process of the rate, and those of the seed") {
  const std::vector<double> times = poisson_arrivals(50, 400, 9);
  CHECK(times.size() == Approx(20000).epsilon(0.03));
  CHECK(std::ranges::is_sorted(times));
  CHECK(times.back() < 400);
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  CHECK(median(gaps) == Approx(std::log(2) / 50).epsilon(0.05));
  CHECK(quantile(gaps, 0.9) == Approx(std::log(10) / 50).epsilon(0.05));
  CHECK(poisson_arrivals(50, 400, 9) == times);
  CHECK(poisson_arrivals(50, 400, 10) != times);
  CHECK(poisson_arrivals(0.001, 0.001, 1).empty());
}

TEST_CASE("drawn conversations have their lengths, and are those of the seed") {
  const ConversationSource source(small_talk(1));
  const PlannedConversation talk = source.at(4);
  REQUIRE(talk.turns.size() == 3);
  CHECK(talk.system.empty());
  CHECK(words_in(talk.turns[0].text) >= 50);
  CHECK(words_in(talk.turns[0].text) <= 60);
  CHECK(words_in(talk.turns[1].text) == 7);
  for (const PlannedTurn& turn : talk.turns) {
    CHECK(turn.answer_tokens >= 10);
    CHECK(turn.answer_tokens <= 20);
  }
  CHECK(ConversationSource(small_talk(1)).at(4).turns[2].text == talk.turns[2].text);
  CHECK(ConversationSource(small_talk(2)).at(4).turns[2].text != talk.turns[2].text);
}

TEST_CASE("no two conversations begin alike, unless a shared prefix is asked for") {
  const ConversationSource source(small_talk(1));
  std::set<std::string> beginnings;
  for (int i = 0; i < 1000; ++i) beginnings.insert(source.at(i).turns[0].text.substr(0, 40));
  CHECK(beginnings.size() == 1000);

  ConversationSource::Options options = small_talk(1);
  options.shared_words = 30;
  const ConversationSource sharing(options);
  const std::string first = sharing.at(0).turns[0].text, second = sharing.at(1).turns[0].text;
  const std::string shared = first.substr(0, first.find("\n\n"));
  CHECK(words_in(shared) == 30);
  CHECK(second.starts_with(shared + "\n\n"));
  CHECK(second != first);
  CHECK(sharing.at(0).turns[1].text == source.at(0).turns[1].text);
}

TEST_CASE("conversations of a file are asked in its order, with open lengths drawn") {
  ConversationSource::Options options = small_talk(3);
  options.recorded = read_conversations(
      "{\"system\":\"Be brief.\",\"turns\":[{\"user\":\"Hello\",\"answer_tokens\":5},"
      "{\"user_words\":12}]}\n\n"
      "{\"turns\":[{\"user\":\"Bye\"}]}\n",
      "talks.jsonl");
  const ConversationSource source(options);
  CHECK(source.recorded() == 2);
  const PlannedConversation first = source.at(0);
  CHECK(first.system == "Be brief.");
  REQUIRE(first.turns.size() == 2);
  CHECK(first.turns[0].text == "Hello");
  CHECK(first.turns[0].answer_tokens == 5);
  CHECK(words_in(first.turns[1].text) == 12);
  CHECK(first.turns[1].answer_tokens >= 10);
  CHECK(source.at(1).turns[0].text == "Bye");
  CHECK(source.at(2).turns[0].text == "Hello");
  CHECK(source.at(2).turns[1].text != first.turns[1].text);
}

TEST_CASE("messages and ShareGPT's form are read, in lines and as an array") {
  const std::string messages =
      R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"one"},)"
      R"({"role":"assistant","content":"12345"},{"role":"user","content":"two"}]})";
  const std::string said = R"({"id":"x","conversations":[{"from":"gpt","value":"I begin"},)"
                           R"({"from":"human","value":"one"},{"from":"human","value":"more"},)"
                           R"({"from":"gpt","value":"1234"}]})";
  const auto both = read_conversations(messages + "\n" + said, "f");
  REQUIRE(both.size() == 2);
  CHECK(both[0].system == "S");
  REQUIRE(both[0].turns.size() == 2);
  CHECK(both[0].turns[0].answer_tokens == 2);
  CHECK_FALSE(both[0].turns[1].answer_tokens);
  REQUIRE(both[1].turns.size() == 1);
  CHECK(both[1].turns[0].text == "one\n\nmore");
  CHECK(both[1].turns[0].answer_tokens == 1);
  const auto array = read_conversations(
      " [" + said + "," + messages + R"(,{"conversations":[{"from":"gpt","value":"alone"}]}])",
      "f");
  REQUIRE(array.size() == 2);  // the one without a user's turn is left out
  CHECK(array[1].turns[0].text == "one");
}

TEST_CASE("a file that has no conversations is refused by its name and line") {
  CHECK_THAT(refusal_of("{\"turns\":[{\"user\":\"a\"}]}\n{\"turns\": 3}\n"),
             Catch::Contains("--conversations talks.jsonl, line 2: turns is no array"));
  CHECK_THAT(refusal_of("nonsense"), Catch::Contains("line 1: no JSON"));
  CHECK_THAT(refusal_of("[1]"), Catch::Contains("entry 1: expected an object"));
  CHECK_THAT(refusal_of("{}"), Catch::Contains("expected turns, messages or conversations"));
  CHECK_THAT(refusal_of("{\"turns\":[{}]}"), Catch::Contains("either user, a text, or user_words"));
  CHECK_THAT(refusal_of("{\"turns\":[{\"user\":\"a\",\"user_words\":3}]}"),
             Catch::Contains("either user, a text, or user_words"));
  CHECK_THAT(refusal_of("{\"turns\":[{\"user_words\":0}]}"),
             Catch::Contains("user_words is 0, expected a whole number from 1 to 1000000"));
  CHECK_THAT(refusal_of("{\"messages\":[{\"role\":\"user\",\"content\":[]}]}"),
             Catch::Contains("content is no text"));
  CHECK_THAT(refusal_of("\n \n"), Catch::Contains("no conversation has a turn of a user"));
}

}  // namespace lintel::bench
