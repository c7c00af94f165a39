// SPDX-License-Identifier: Apache-2.0
// Deterministic automata over bytes, made of expressions over Unicode code points.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel::grammar {

// States of one automaton, its dead one apart.
inline constexpr std::size_t kMaxDfaStates = 4096;
// Work of making an automaton deterministic: some 20 ms.
inline constexpr std::size_t kMaxDfaWork = 4'000'000;
// Bounds of a repetition, in patterns, schemas and GBNF.
inline constexpr std::uint32_t kMaxRepetition = 10'000;
inline constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();
inline constexpr char32_t kLastCodePoint = 0x10FFFF;

// An expression needs more states or more work than an automaton may have.
class TooLarge : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Code points, both ends included.
struct CodePoints {
  char32_t first = 0;
  char32_t last = 0;
};

// Sorted and disjoint.
using CodePointSet = std::vector<CodePoints>;

// The set of what `ranges` hold, in any order, sorted and disjoint.
CodePointSet normalized(CodePointSet ranges);
// All code points but those of `set`. Surrogates are code points here; no automaton takes them.
CodePointSet complement(const CodePointSet& set);

// Immutable; shared by threads. Every state but kDead lies on a way to an accepting state.
class Dfa {
 public:
  using State = std::uint16_t;
  static constexpr State kDead = 0xFFFF;

  // One for each automaton of the process: what is cached for a state is found by it.
  std::uint64_t id() const { return id_; }
  State start() const { return start_; }  // kDead: the language is empty
  State step(State state, unsigned char byte) const {
    return table_[state * std::size_t{num_classes_} + classes_[byte]];
  }
  bool accepts(State state) const { return (flags_[state] & kAccepts) != 0; }
  // True if a byte may follow.
  bool continues(State state) const { return (flags_[state] & kContinues) != 0; }
  std::size_t num_states() const { return flags_.size(); }
  std::size_t bytes() const {
    return sizeof(*this) + table_.size() * sizeof(State) + flags_.size();
  }
  bool matches(std::string_view text) const;
  // True if `byte` may come at some place of a text.
  bool has_byte(unsigned char byte) const;

 private:
  friend class DfaMaker;
  friend std::vector<unsigned char> samples_of(const Dfa& one, const Dfa& other);
  friend Dfa behind(const Dfa& text, unsigned char byte);
  static constexpr std::uint8_t kAccepts = 1, kContinues = 2;

  std::uint64_t id_ = 0;
  State start_ = kDead;
  std::uint16_t num_classes_ = 1;
  std::array<std::uint8_t, 256> classes_{};
  std::vector<State> table_;
  std::vector<std::uint8_t> flags_;
};

// Spellings of code points.
enum class Spelling {
  kUtf8,
  // The spelling within the quotes of a JSON string, with escapes only where JSON demands them.
  kJsonString,
};

// A nondeterministic automaton while it is put together: each function adds what leads from a state
// to another, and returns that. Throws TooLarge.
class Nfa {
 public:
  using State = std::uint32_t;

  State add_state();
  void add_edge(State from, unsigned char first, unsigned char last, State to);
  void add_empty(State from, State to);
  State add_bytes(State from, std::string_view bytes);
  State add_code_points(State from, const CodePointSet& set, Spelling spelling);
  // Any number of code points.
  State add_any(State from, Spelling spelling);
  // Adds the texts that `dfa` accepts.
  State add_dfa(State from, const Dfa& dfa);
  // Counts work that adds no state.
  void count_work(std::size_t units = 1);
  std::size_t work() const { return work_; }

  // The automaton that leads from `start` to `accept`. Adds all its work to *work, if there is one,
  // also where it throws. Takes at most `most_work` units, and kMaxDfaWork.
  Dfa determinize(State start, State accept, std::size_t* work = nullptr,
                  std::size_t most_work = kMaxDfaWork) const;

 private:
  class Determinizer;
  struct Edge {
    State from = 0;
    State to = 0;
    std::uint8_t first = 0;
    std::uint8_t last = 0;
  };
  struct Empty {
    State from = 0;
    State to = 0;
  };
  void add_utf8(State from, CodePoints range, State to);

  std::size_t num_states_ = 0;
  std::vector<Edge> edges_;
  std::vector<Empty> empty_;
  std::size_t work_ = 0;
};

// The interior of a JSON string and its quotes. `inside` is the state between characters.
struct StringDfa {
  Dfa dfa;
  Dfa::State inside = 0;
};

// A JSON string with its quotes; escapes as JSON has them, surrogates in pairs.
const std::shared_ptr<const StringDfa>& json_string();
// The same with escapes only where they are needed, and its closing quote, but not the opening one:
// the keys of objects.
const std::shared_ptr<const StringDfa>& json_key();
// Characters as they are: for counting them.
const std::shared_ptr<const StringDfa>& plain_text();
// A JSON number; -0 is none.
const std::shared_ptr<const Dfa>& json_number();
// One blank, or one LF and up to 32 blanks, or nothing.
const std::shared_ptr<const Dfa>& json_space();
// The same with up to 8 blanks.
const std::shared_ptr<const Dfa>& short_json_space();

// Texts that end with the first `tag` in them. Any bytes. begins_line: `tag` counts at the
// beginning of the text or of a line alone.
Dfa text_up_to(std::string_view tag, bool begins_line = false);
// Texts without `tag`.
Dfa text_without(std::string_view tag, bool begins_line = false);

// The texts that both accept. Adds its work to *work, if there is one.
Dfa intersection(const Dfa& one, const Dfa& other, std::size_t* work = nullptr);
// The texts of `one` that `other` does not accept. Adds its work to *work, if there is one.
Dfa difference(const Dfa& one, const Dfa& other, std::size_t* work = nullptr);
// The rests of the texts of `text` that begin with `byte`.
Dfa behind(const Dfa& text, unsigned char byte);
// The texts of `text`, each of which ends with `last` and has it nowhere else, with `end` in its
// place. Adds its work to *work, if there is one.
Dfa ending(const Dfa& text, unsigned char last, std::string_view end, std::size_t* work = nullptr);
// The texts of `text` that have no other bytes than `bytes`.
Dfa spelt_by(const Dfa& text, const std::bitset<256>& bytes);
// True if some beginning of a text of `text` has no other bytes than `bytes`, though no text that
// begins so does.
bool has_dead_end(const Dfa& text, const std::bitset<256>& bytes);
// A byte of each class of bytes that both automata treat alike.
std::vector<unsigned char> samples_of(const Dfa& one, const Dfa& other);
// The texts of `text` that have `least` to `most` characters: times that `shape`, an automaton of
// the same spelling, returns to its state `inside`.
Dfa with_lengths(const Dfa& text, const StringDfa& shape, std::uint32_t least, std::uint32_t most,
                 std::size_t* work = nullptr);

// `text` as a JSON string without its quotes, with escapes only where JSON demands them.
std::string json_spelling(std::string_view text);

}  // namespace lintel::grammar
