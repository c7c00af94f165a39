// SPDX-License-Identifier: Apache-2.0
// GenerationRequest: what the scheduler runs, checked. Free of gRPC.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "model/sampling/head.h"
#include "model/tokenizer/stop_matcher.h"
#include "model/tokenizer/tokenizer.h"
#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/grammar_constraint.h"
#include "server/engine/reasoning_budget.h"
#include "server/engine/token_sink.h"

namespace lintel {

// Windows: the positions at which a state is reset.
// RecentTokens: the last tokens of one sequence, which a state reads again after a reset.
// RecentCounts: how often each token is among them, for penalties that count no others.

// First position of the state that takes the token at this one. window: even, at least 2; 0: none.
inline std::int64_t window_origin(std::int64_t window, std::int64_t position) {
  if (window == 0 || position < window) return 0;
  const std::int64_t half = window / 2;
  return (position - window) / half * half + half;
}

// The number of resets of the state within the tokens [begin, end).
inline std::int64_t window_restarts(std::int64_t window, std::int64_t begin, std::int64_t end) {
  if (window == 0 || end <= begin) return 0;
  const std::int64_t before = begin == 0 ? 0 : window_origin(window, begin - 1);
  return (window_origin(window, end - 1) - before) / (window / 2);
}

// The number of first tokens of the known ones [begin, end) that no later token depends on.
inline std::int64_t window_skips(std::int64_t window, std::int64_t begin, std::int64_t end) {
  return end <= begin ? 0 : std::max<std::int64_t>(window_origin(window, end) - begin, 0);
}

// A ring by absolute position. Allocates in begin() and when copied; zeroes what it held.
class RecentTokens {
 public:
  RecentTokens() = default;
  RecentTokens(const RecentTokens&) = default;
  RecentTokens(RecentTokens&&) = default;
  RecentTokens& operator=(const RecentTokens&) = default;
  ~RecentTokens() { zero_memory(std::span(ring_)); }

  // Holds the last `count` tokens from now on. REQUIRES: it held none.
  void begin(std::int64_t count) { ring_.resize(static_cast<std::size_t>(count)); }
  // Bytes of an object that holds so many.
  static std::size_t bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(std::int32_t);
  }

  bool empty() const { return ring_.empty(); }
  void put(std::int64_t position, std::int32_t token) { ring_[index(position)] = token; }
  // REQUIRES: put() had this position, and none that is `count` or more after it.
  std::int32_t at(std::int64_t position) const { return ring_[index(position)]; }

 private:
  std::size_t index(std::int64_t position) const {
    return static_cast<std::size_t>(position) % ring_.size();
  }

  std::vector<std::int32_t> ring_;
};

// Counts of the last tokens of one sequence, or of all while it has fewer. Allocates in begin() and
// when copied; zeroes what it held.
class RecentCounts {
 public:
  RecentCounts() = default;
  RecentCounts(const RecentCounts&) = default;
  RecentCounts(RecentCounts&&) = default;
  RecentCounts& operator=(const RecentCounts&) = default;
  ~RecentCounts() { zero_memory(std::span(counts_)); }

  // Counts the last `window` tokens from now on, each in 0 .. vocab_size-1. REQUIRES: it had none.
  void begin(std::int64_t window, int vocab_size) {
    window_ = static_cast<std::size_t>(window);
    last_.begin(window);
    counts_.resize(static_cast<std::size_t>(vocab_size));
  }
  // Bytes that an object takes after that.
  static std::size_t bytes(std::int64_t window, int vocab_size) {
    return RecentTokens::bytes(window) +
           static_cast<std::size_t>(vocab_size) * sizeof(std::uint32_t);
  }

  bool empty() const { return counts_.empty(); }
  // The next token of the sequence: the one that is `window` before it counts no more.
  void put(std::int32_t token) {
    const auto position = static_cast<std::int64_t>(num_tokens_);
    if (num_tokens_ >= window_) --counts_[static_cast<std::size_t>(last_.at(position))];
    last_.put(position, token);
    ++counts_[static_cast<std::size_t>(token)];
    ++num_tokens_;
  }
  std::span<const std::uint32_t> counts() const { return counts_; }  // [V]

 private:
  std::size_t window_ = 0;
  std::size_t num_tokens_ = 0;  // that were put
  RecentTokens last_;
  std::vector<std::uint32_t> counts_;  // [V]
};

// Only sampled tokens stop. A stop string is matched over the bytes of consecutive sampled tokens
// of the sequence, across calls of a session; a given or prompt token in between breaks the match.
// It may begin and end inside a token: the next match begins with the token after it.
struct StopOptions {
  std::vector<std::int32_t> tokens;
  std::vector<std::string> strings;  // models with a tokenizer only; 1 .. kMaxStopStringBytes long
  bool include_in_output = false;
  // The stop token is reported where it is no part of the output, with its bytes cut.
  bool reports_token = false;
  // Least tokens of the call: before that none of `tokens` is drawn, unless a grammar permits
  // nothing else, and a string that is complete by then does not end the sample. More than 0 needs
  // a head that supports filters.
  std::int64_t min_tokens = 0;
};

// Longest permitted stop string: a sequence remembers one byte less for matches across calls.
inline constexpr std::size_t kMaxStopStringBytes = 256;

// A known token at an absolute position of the sequence.
struct GivenToken {
  std::int64_t position = 0;
  std::int32_t token = 0;
};

// REQUIRES (request_checks sees to it): tokens in 0 .. V-1; prompt within the model's length; given
// ascending by position, none before the first new token (but position 0 when the sequence is empty
// and so is the prompt); num_samples 1 with a session.
//
// A call leaves in its session every token it read or produced, the last one pending (produced, not
// yet fed), so that the next call continues without resending anything. That includes a stop token
// or stop string excluded from the output: it was sampled, and belongs to the sequence. A cancelled
// or expired call leaves what it had read and produced, too.
struct GenerationRequest {
  // Tokens of the sequence that its state lacks, the next ones in order (after a rewind, for one):
  // read before the prompt as a prompt is, and paid for, but neither sent nor logged nor matched.
  // Empty: the state is complete.
  std::vector<std::int32_t> replay;
  // The sequence's generated_tail after them.
  std::string replay_tail;
  // Tokens after which the state is reset and reads the last half of them again: for text longer
  // than the model was trained on. Even, at least 2; 0: never.
  std::int64_t window = 0;
  // Tokens of the sequence before the replay, if there is a window, or penalties in one: at least
  // the last ones that either needs, or all.
  std::vector<std::int32_t> recent;
  std::vector<std::int32_t>
      prompt;  // fed after the sequence's pending token, if any; empty with an
               // empty sequence: the start token, if no given token is at 0
  // Tokens to produce: given ones included, and those a stop excludes from the output. 0: the
  // prompt is read (its last token stays pending) and the reason is kLength.
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  std::uint64_t seed = 0;  // sample i draws from seed + i (mod 2^64)
  StopOptions stop;
  // The grammar of every sample. Needs a stop token, and a head that supports filters; with
  // after_reasoning a tokenizer, too. Not with particles.
  std::optional<GrammarConstraint> constraint;
  // The budget of every sample. Needs a tokenizer. Not with particles.
  std::optional<ReasoningBudget> reasoning;
  bool log2_probs = false;
  int top_log2_probs = 0;    // TokenEvent::top; independent of log2_probs
  bool echo_prompt = false;  // every sample gets the echo
  // True if states after beginnings of the prompt are used, and kept for others.
  bool caches_prefix = true;
  // Tokens of the prompt after which its caller wants a state kept for later prompts
  // (server/engine/prefix_cache.h); 0: wherever it is worth it.
  std::int64_t cache_prefix_tokens = 0;
  // A conversation's turn, of which cache_prefix_tokens is the boundary: the tokens that the prompt
  // has in common with that of the next turn.
  struct Turn {
    // Tokens before the generation prompt, where a call of a tool may be answered; 0: no state is
    // wanted there.
    std::int64_t call = 0;
    // True if the next turn may begin with the answer as it is generated: the state after one
    // sample that ends by a stop token is kept.
    bool keeps_end = false;
    // The prompt is what the next turn will begin with, before that has come.
    bool is_ahead = false;
  };
  std::optional<Turn> turn;
  int num_samples = 1;
  // More than 1: so many copies of the sequence draw, are weighed by the probabilities they give to
  // `given`, and the samples are chosen among them (server/engine). Particle i draws from seed + i.
  // Not with a session, `stop`, `window` or top_log2_probs; num_samples is at most as many.
  int particles = 1;
  std::vector<GivenToken> given;
  // Tokens that a call had which is run again, from the first new position on. They are read as a
  // prompt is and reported as when they were drawn, then the call continues.
  std::vector<std::int32_t> drawn;
  std::optional<TimePoint> deadline;
  std::shared_ptr<TokenAllowance> allowance;  // null: as many tokens as there are
  // The sender, an identity or a connection: callers take turns. Requests of one caller, the empty
  // name included, are served in the order in which they came.
  std::string caller;
  // The tokens of its session were computed with other numerics than it is.
  bool numerics_changed = false;
  // Bytes that the caller keeps of this request until it is over: all sequences of a Score, for
  // one, by which each has its share.
  std::size_t held_bytes = 0;

  // Completes the empty sequence of a call that waited for memory, and the request, before it
  // begins; null: there is nothing to complete.
  std::function<void(SequenceState&, GenerationRequest&)> begin_with;

  // Tokens of the sequence before this call that it needs beside its state, at most.
  std::int64_t recent_wanted() const {
    return std::max<std::int64_t>(window, sampling.penalty_window);
  }

  bool uses_particles() const { return particles > 1; }
  // The number of sequences that draw side by side, a row of a step each.
  int num_sequences() const { return uses_particles() ? particles : num_samples; }
};

// Returns the request. Throws std::invalid_argument for a constraint, a least length or a budget
// that the request or the model cannot have.
GenerationRequest checked_request(GenerationRequest request, const Transformer& model);

// RequestContext: what the samples of one request have in common.

// Constant once made.
struct RequestContext {
  // Makes the start token the prompt where there is nothing else to begin with; throws
  // std::invalid_argument where there is no start token either, and as checked_request().
  // most_tokens as SessionLease::max_tokens.
  RequestContext(GenerationRequest given_request, const Transformer& transformer,
                 const SequenceState& sequence, std::int64_t most_tokens);

  GenerationRequest request;
  const Transformer& model;
  StopStrings stop_strings;
  const std::int64_t max_tokens;  // of the sequence: image, position table, session; 0: unbounded
  const std::int64_t first_position;  // of the prompt: tokens the sequence had before, replay's too
  const Tokenizer* const tokenizer;   // of the model; null: it has none
  const bool uses_penalties;
  const std::optional<ConstraintRules> constraint;
  // A mask of the tokens that do not stop, with stop.min_tokens; empty: there is nothing to keep.
  const std::vector<std::uint64_t> unending;

  // The bytes that a token contributes to a text.
  std::string_view bytes_of(std::int32_t token) const {
    return tokenizer == nullptr ? std::string_view() : tokenizer->bytes_of(token);
  }

  // Position of the first new token.
  std::int64_t prompt_end() const {
    return first_position + static_cast<std::int64_t>(request.prompt.size());
  }
  // Position after the tokens that an earlier run of the request has drawn.
  std::int64_t drawn_end() const {
    return prompt_end() + static_cast<std::int64_t>(request.drawn.size());
  }
  // The token at a position of the prompt or after it if it is known beforehand, and whether it is
  // the prompt's, given, or was drawn before.
  std::optional<std::pair<std::int32_t, TokenSource>> known_token(std::int64_t position) const;
  const GivenToken* given_token(std::int64_t position) const;  // null: none is
  // Position of the first token that is replayed.
  std::int64_t replay_begin() const {
    return first_position - static_cast<std::int64_t>(request.replay.size());
  }
  // First position in the state that takes the token at this position: a function of the position
  // alone, so the bits are still one of the request.
  std::int64_t origin_at(std::int64_t position) const;
  // True if the outputs for the prompt's tokens are needed.
  bool scores_prompt() const {
    return request.echo_prompt && (request.log2_probs || request.top_log2_probs > 0);
  }
  // True if the model's output for the token at a position is needed.
  bool needs_output(std::int64_t position) const;
};

}  // namespace lintel
