// GenerationRequest: what the scheduler runs, checked. Free of gRPC.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/sampling/head.h"
#include "server/core/clock.h"
#include "server/core/token_allowance.h"

namespace lintel {

// Only sampled tokens stop. A stop string is matched over consecutive sampled bytes of the
// sequence, across calls of a session; a given or prompt byte in between breaks the match.
struct StopOptions {
  std::vector<std::int32_t> tokens;
  std::vector<std::string> strings;  // byte models only; 1 .. kMaxStopStringBytes long
  bool include_in_output = false;
};

// Longest permitted stop string: a sequence remembers one byte less for matches across calls.
inline constexpr std::size_t kMaxStopStringBytes = 256;

// A known token at an absolute position of the sequence.
struct GivenValue {
  std::int64_t position = 0;
  std::int32_t value = 0;
};

// REQUIRES (request_checks sees to it): tokens in 0 .. V-1; prompt within the model's length; given
// ascending by position, none before the first new token (but position 0 when the sequence is empty
// and so is the prompt); num_samples 1 with a session.
//
// What a call leaves in its session: every token it read or produced, the last one pending
// (produced, not yet fed), so that the next call continues without resending anything. That
// includes a stop token or stop string excluded from the output: it was sampled, and belongs to the
// sequence. Also a cancelled or expired call leaves what it had read and produced.
struct GenerationRequest {
  // Tokens of the sequence that its state lacks, the next ones in order (after a rewind, for one):
  // read before the prompt as a prompt is, and paid for, but neither sent nor logged nor matched.
  // Empty: the state is complete.
  std::vector<std::int32_t> replay;
  // The sequence's generated_tail after them.
  std::string replay_tail;
  // Whenever the state has taken so many tokens it is reset and reads the last half of them again:
  // for text longer than the model was trained on. Even, at least 2; 0: never.
  std::int64_t window = 0;
  // With a window, or penalties in one: the tokens of the sequence before the replay, the last of
  // them that either needs at least, or all.
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
  bool log2_probs = false;
  int top_log2_probs = 0;    // TokenEvent::top; independent of log2_probs
  bool echo_prompt = false;  // every sample gets the echo
  // Tokens of the prompt after which its caller wants a state kept for later prompts
  // (server/prefix); 0: wherever it is worth it.
  std::int64_t cache_prefix_tokens = 0;
  int num_samples = 1;
  // More than 1: so many copies of the sequence draw, are weighed by the probabilities they give to
  // `given`, and the samples are chosen among them (server/engine). Particle i draws from seed +
  // i. Neither a session, `stop`, `window` nor top_log2_probs with it; num_samples at most as many.
  int particles = 1;
  std::vector<GivenValue> given;
  // Of a call that is run again: the tokens it had, from the first new position on. They are read
  // as a prompt is and reported as when they were drawn, then the call continues.
  std::vector<std::int32_t> drawn;
  std::optional<TimePoint> deadline;
  std::shared_ptr<TokenAllowance> allowance;  // null: as many tokens as there are
  // Who sent it, an identity or a connection: callers take turns. Requests of one caller, the empty
  // name included, are served in the order in which they came.
  std::string caller;
  // The tokens of its session were computed with other numerics than it is.
  bool numerics_changed = false;
  // What the caller keeps of this request until it is over, in bytes: all sequences of a Score,
  // for one, by which each has its share.
  std::size_t held_bytes = 0;

  // Tokens of the sequence before this call that it needs beside its state, at most.
  std::int64_t recent_wanted() const {
    return std::max<std::int64_t>(window, sampling.penalty_window);
  }

  bool uses_particles() const { return particles > 1; }
  // That draw side by side, a row of a step each.
  int num_sequences() const { return uses_particles() ? particles : num_samples; }
};

}  // namespace lintel
