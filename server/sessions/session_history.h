// SPDX-License-Identifier: Apache-2.0
// SessionHistory: every token of a session, its source, and a digest of them all.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "server/core/mutex.h"
#include "server/sessions/digest.h"

namespace lintel {

class Tokenizer;  // model/tokenizer/tokenizer.h

// TokenSource: the origin of a token of a sequence.

enum class TokenSource : std::uint8_t { kSampled, kGiven, kPrompt };

// TokenLog: receives the tokens of a sequence as it takes them.

// Written by the thread that runs the sequence's request, once for every token, in order of
// position. Must not block.
class TokenLog {
 public:
  virtual ~TokenLog() = default;
  virtual void append(std::int32_t token, TokenSource source) = 0;
};

// SessionImage: a whole session, independent of the process it lives in.

// Tokens from `position` on, up to the next mark, came from `source`. A position at which the match
// of stop strings is reset (a call with other stops, a given token) has a mark, too.
struct HistoryMark {
  std::int64_t position = 0;
  TokenSource source = TokenSource::kSampled;

  bool operator==(const HistoryMark&) const = default;
};

// The members of an image except its lists.
struct SessionImageHead {
  std::string model;    // its name
  std::string adapter;  // empty: none
  std::string adapter_fingerprint;
  std::int64_t max_tokens = 0;  // 0: unbounded
  std::int64_t window = 0;      // tokens after which the state is rebuilt; 0: never
  std::int64_t base = 0;        // the history begins here; what lies before is in the state alone
  std::int64_t position = 0;    // tokens of the sequence, the pending one included
  Digest digest;                // of the history up to `position`
  Digest base_digest;           // and up to `base`
  std::int64_t state_position = 0;  // tokens that the state holds, at most `position`
};

// The content of a snapshot, from which a session is restored.
struct SessionImage : SessionImageHead {
  std::vector<std::int32_t> tokens;  // [base, position); empty if the history was left out
  std::vector<HistoryMark> marks;    // of them, ascending
  // The state as SequenceState::save wrote it; empty: computed by reading the tokens (base is 0
  // then).
  std::vector<std::byte> state;
  // The state if it is not owned by the image but part of the bytes that the image was read from,
  // which outlive it; a state is several hundred times as large as the rest.
  std::span<const std::byte> state_elsewhere;
  // Full pages that the state's bytes lack (SequenceState::save_pages).
  std::vector<PageRun> pages;

  std::span<const std::byte> state_bytes() const { return state.empty() ? state_elsewhere : state; }
};

// Zeroes tokens and state, before their memory is freed.
inline void zero(SessionImage& image) {
  zero_memory(std::span(image.tokens));
  zero_memory(std::span(image.state));
  image.tokens.clear();
  image.state.clear();
  image.pages.clear();
  image.state_elsewhere = {};
}

// HistoryChunk: a range of a session's tokens, packed.

// Tokens of `width` bytes each and two bits for the source of each, zeroed before they are freed.
// Not thread-safe: SessionHistory's mutex guards it, and a full one is never written again.
class HistoryChunk {
 public:
  // Bytes that hold any token of a vocabulary: 1, 2 or 4.
  static std::size_t width_of(int vocab_size) {
    return vocab_size <= 1 << 8 ? 1 : vocab_size <= 1 << 16 ? 2 : 4;
  }
  static std::size_t bytes_of(std::size_t width, std::size_t capacity) {
    return width * capacity + (capacity + 3) / 4;
  }

  // before: digest of the history up to the first token here.
  HistoryChunk(std::size_t width, std::size_t capacity, const Digest& before)
      : width_(width),
        capacity_(capacity),
        before_(before),
        bytes_(std::make_unique<std::byte[]>(bytes_of(width, capacity))) {}
  ~HistoryChunk() { zero_memory(std::span(bytes_.get(), bytes_of(width_, capacity_))); }
  HistoryChunk(const HistoryChunk&) = delete;
  HistoryChunk& operator=(const HistoryChunk&) = delete;

  // A copy with the first `count` tokens.
  std::shared_ptr<HistoryChunk> copy(std::size_t count) const {
    auto made = std::make_shared<HistoryChunk>(width_, capacity_, before_);
    std::memcpy(made->bytes_.get(), bytes_.get(), width_ * count);
    for (std::size_t i = 0; i < count; ++i) made->put_code(i, code(i));
    return made;
  }

  // Sets the token at `i` and its source; `new_match`: a match of stop strings begins with it.
  // REQUIRES: nothing was put there; i < capacity().
  void put(std::size_t i, std::int32_t token, TokenSource source, bool new_match) {
    assert(i < capacity_);
    const auto bits = static_cast<std::uint32_t>(token);
    for (std::size_t b = 0; b < width_; ++b) {
      bytes_[width_ * i + b] = static_cast<std::byte>(bits >> (8 * b));
    }
    put_code(i, new_match && source == TokenSource::kSampled ? kNewMatch
                                                             : static_cast<unsigned>(source));
  }

  std::int32_t token(std::size_t i) const {
    std::uint32_t bits = 0;
    for (std::size_t b = 0; b < width_; ++b) {
      bits |= std::to_integer<std::uint32_t>(bytes_[width_ * i + b]) << (8 * b);
    }
    return static_cast<std::int32_t>(bits);
  }
  TokenSource source(std::size_t i) const {
    return code(i) == kNewMatch ? TokenSource::kSampled : static_cast<TokenSource>(code(i));
  }
  bool new_match(std::size_t i) const { return code(i) == kNewMatch; }

  const Digest& before() const { return before_; }

 private:
  static constexpr unsigned kNewMatch = 3;  // a sampled token, with which a match begins

  unsigned code(std::size_t i) const {
    return std::to_integer<unsigned>(codes()[i / 4]) >> (2 * (i % 4)) & 3u;
  }
  void put_code(std::size_t i, unsigned code) {
    codes()[i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
  }
  std::byte* codes() const { return bytes_.get() + width_ * capacity_; }

  const std::size_t width_, capacity_;
  const Digest before_;
  const std::unique_ptr<std::byte[]> bytes_;  // [capacity, width] tokens, [capacity / 4] codes
};

// Tokens [base, position), in chunks that histories with the same past share. One thread appends;
// others may read, copy and cut it at the same time (its mutex is held for no longer than the copy
// takes). Tokens are zeroed before their memory is freed.
//
// The digest is a chain, d(n+1) = XXH3-128(d(n), kValues, token, source), so that it does not
// depend on how the tokens came, were cut and copied. The beginnings of matches of stop strings are
// not part of it.
class SessionHistory final : public TokenLog {
 public:
  // Tokens of a chunk; the last one has as many as max_tokens leaves.
  static constexpr std::int64_t kChunkTokens = 1024;
  // The longest text kept to find stop strings (SequenceState::generated_tail).
  static constexpr std::size_t kMostTailBytes = 255;

  struct Options {
    int vocab_size = 0;  // decides how many bytes a token takes
    // The tokenizer of the text that is searched for stop strings; null: there is none.
    std::shared_ptr<const Tokenizer> tokenizer = nullptr;
    std::int64_t max_tokens = 0;  // upper bound of its tokens; 0: unbounded
    // The least number of last tokens to keep; whole chunks before them are dropped. 0: all are
    // kept.
    std::int64_t kept_tokens = 0;
  };
  // Most bytes that such a history allocates. REQUIRES: max_tokens or kept_tokens.
  static std::size_t bytes_of(const Options& options);

  explicit SessionHistory(const Options& options);
  ~SessionHistory() override;

  void append(std::int32_t token, TokenSource source) override EXCLUDES(mutex_);
  // Begins a new match of stop strings with the next token: earlier ones belong to none.
  void begin_match() EXCLUDES(mutex_);

  // Range and digest of the tokens, at one moment.
  struct Extent {
    std::int64_t base = 0, position = 0;
    Digest digest;  // of the tokens up to `position`
  };
  Extent extent() const EXCLUDES(mutex_);
  std::int64_t base() const { return extent().base; }
  std::int64_t position() const { return extent().position; }

  // True if at least half of kept_tokens come after `position`: with as many more, some of them
  // might be dropped.
  bool may_forget(std::int64_t position) const EXCLUDES(mutex_);

  // The digest at a position within [base, position()]; nothing elsewhere.
  std::optional<Digest> digest_at(std::int64_t position) const EXCLUDES(mutex_);
  // Tokens [from, to), or as many as there are.
  std::vector<std::int32_t> tokens(std::int64_t from, std::int64_t to) const EXCLUDES(mutex_);
  // Marks of the same tokens: one at `from`, and one at each change of the source or beginning of a
  // match; also at `to` if a match begins there.
  std::vector<HistoryMark> marks(std::int64_t from, std::int64_t to) const EXCLUDES(mutex_);
  // The generated_tail of a sequence that has `position` tokens.
  std::string tail_at(std::int64_t position) const EXCLUDES(mutex_);
  // The position of the first token in which a match of stop strings may begin that includes the
  // last token before `position`. May be less than base().
  std::int64_t first_of_match(std::int64_t position) const EXCLUDES(mutex_);

  // A history with the same tokens up to `position`; null if it does not reach there. Whole chunks
  // are shared.
  std::unique_ptr<SessionHistory> fork(std::int64_t position) const EXCLUDES(mutex_);
  // Drops the tokens from `position` on. REQUIRES: base <= position <= position().
  void rewind(std::int64_t position) EXCLUDES(mutex_);
  // Begins after tokens that it does not have: sets their number, digest and tail. REQUIRES: empty.
  void begin_at(std::int64_t base, const Digest& digest, std::string tail) EXCLUDES(mutex_);
  // Appends the tokens of an image that begins here. REQUIRES: the image has its tokens.
  void append(const SessionImage& image) EXCLUDES(mutex_);

  // The number of chunks that it shares with others now.
  std::size_t shared_chunks() const EXCLUDES(mutex_);

 private:
  struct Place {
    const HistoryChunk& chunk;
    std::size_t index;
  };
  Place at(std::int64_t position) const REQUIRES(mutex_);  // REQUIRES: the token exists
  void put(std::int32_t token, TokenSource source) REQUIRES(mutex_);
  Digest digest_of(std::int64_t position) const REQUIRES(mutex_);
  std::string tail_of(std::int64_t position) const REQUIRES(mutex_);
  bool match_begins_at(std::int64_t position) const REQUIRES(mutex_);
  std::string_view bytes_at(std::int64_t position) const REQUIRES(mutex_);
  std::shared_ptr<HistoryChunk> new_chunk(std::int64_t first) const REQUIRES(mutex_);

  const Options options_;
  const std::size_t most_chunks_;  // SIZE_MAX: unbounded

  mutable Mutex mutex_;
  // The first begins at first_chunk_ * kChunkTokens, which may lie before base_.
  std::vector<std::shared_ptr<HistoryChunk>> chunks_ GUARDED_BY(mutex_);
  std::int64_t first_chunk_ GUARDED_BY(mutex_) = 0;
  std::int64_t base_ GUARDED_BY(mutex_) = 0;
  std::int64_t position_ GUARDED_BY(mutex_) = 0;
  Digest digest_ GUARDED_BY(mutex_);  // at position_
  std::string base_tail_ GUARDED_BY(mutex_);
  bool match_begins_ GUARDED_BY(mutex_) = false;  // with the next token
};

}  // namespace lintel
