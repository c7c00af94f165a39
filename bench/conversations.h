// SPDX-License-Identifier: Apache-2.0
// Conversations to load a server with, drawn from a seed or read from a file, and when they begin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/random.h"

namespace lintel::bench {

// Draws in a row. Those of one (seed, stream) are the same in every run and on every machine.
class DrawStream {
 public:
  DrawStream(std::uint64_t seed, std::int64_t stream) : source_{seed, stream} {}

  double uniform() { return source_.uniform(next_++); }  // in (0, 1)
  double exponential(double mean);
  double normal();                         // mean 0, standard deviation 1
  std::int64_t below(std::int64_t count);  // 0 .. count - 1; REQUIRES: count >= 1

 private:
  DrawSource source_;
  std::uint32_t next_ = 0;
};

// Seconds from the start at which conversations begin: a Poisson process of `rate` a second, up to
// `seconds`. Drawn before anything is sent, so that a slow server delays none of them.
std::vector<double> poisson_arrivals(double rate, double seconds, std::uint64_t seed);

// A distribution of lengths: words of a prompt, tokens of an answer, turns.
class Lengths {
 public:
  static constexpr std::int64_t kMost = 1'000'000;

  // "N", "LEAST-MOST" (each as likely) or "lognormal:MEDIAN,SIGMA" (SIGMA of the logarithm;
  // rounded, cut at 16 times the median); whole numbers from 1 to kMost. Throws cli::UsageError
  // naming `flag`.
  static Lengths parse(std::string_view flag, std::string_view text);

  std::int64_t draw(DrawStream& draws) const;
  const std::string& text() const { return text_; }  // as it was given

 private:
  std::int64_t least_ = 1, most_ = 1;
  double median_ = 0, sigma_ = 0;  // median_ 0: uniform
  std::string text_;
};

struct PlannedTurn {
  std::string text;                // of the user
  std::int64_t answer_tokens = 1;  // at most
};

struct PlannedConversation {
  std::string system;  // empty: none
  std::vector<PlannedTurn> turns;
};

// A conversation of a file: what it leaves open is drawn.
struct RecordedConversation {
  struct Turn {
    std::string text;        // empty: `words` of them are drawn
    std::int64_t words = 0;  // of the text where it is empty
    std::optional<std::int64_t> answer_tokens;
  };
  std::string system;
  std::vector<Turn> turns;  // not empty
};

// Reads conversations, one a line or all in an array, in one of three forms:
//   {"system": TEXT, "turns": [{"user": TEXT or "user_words": N, "answer_tokens": N}]}
//   {"messages": [{"role": "system" | "user" | "assistant", "content": TEXT}]}
//   {"conversations": [{"from": "human" | "gpt", "value": TEXT}]}     (ShareGPT)
// The answers of the last two limit the length of the server's, to a token for every 4 bytes.
// Conversations without a user's turn are left out. Throws cli::Failure naming `file` and the line,
// and where nothing is left.
std::vector<RecordedConversation> read_conversations(std::string_view text,
                                                     const std::string& file);

// The conversations of a run, by their index. Immutable; any number of threads.
class ConversationSource {
 public:
  struct Options {
    std::uint64_t seed = 0;
    Lengths turns, first_words, words, answer_tokens;
    std::int64_t shared_words = 0;               // at the beginning of every conversation
    std::vector<RecordedConversation> recorded;  // in turn; empty: all is drawn
  };

  explicit ConversationSource(Options options);

  PlannedConversation at(std::int64_t index) const;
  std::size_t recorded() const { return options_.recorded.size(); }

 private:
  const Options options_;
  const std::string shared_;
};

}  // namespace lintel::bench
