// SessionHistory: every value of a session, where it came from, and a digest of them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/mutex.h"
#include "server/core/thread_annotations.h"
#include "server/sessions/digest.h"
#include "server/sessions/history_chunk.h"
#include "server/sessions/session_image.h"
#include "server/sessions/value_log.h"

namespace lintel {

// Values [base, position), in chunks that histories with the same past share. One thread appends;
// others may read, copy and cut it at the same time (its mutex is held for no longer than it takes
// to copy what is asked for). Values are zeroed before their memory is freed.
//
// The digest is a chain, d(n+1) = XXH3-128(d(n), kValues, value, source), so that it is the same
// however the values came, were cut and copied. Where matches of stop strings begin is not part of
// it.
class SessionHistory final : public ValueLog {
 public:
  // Values of a chunk; of the last one as many as max_values leaves.
  static constexpr std::int64_t kChunkValues = 1024;
  // What a sequence remembers for stop strings (SequenceState::generated_tail).
  static constexpr std::size_t kMostTailBytes = 255;

  struct Options {
    int vocab_size = 0;           // decides how many bytes a value takes
    bool is_bytes = false;        // values are text that stop strings are looked for in
    std::int64_t max_values = 0;  // that it will ever have; 0: unbounded
    // At least so many of the last values are kept; before them whole chunks go. 0: all are.
    std::int64_t kept_values = 0;
  };
  // Most bytes that such a history takes of the allocator. REQUIRES: max_values or kept_values.
  static std::size_t bytes_of(const Options& options);

  explicit SessionHistory(const Options& options);
  ~SessionHistory() override;

  void append(std::int32_t value, ValueSource source) override EXCLUDES(mutex_);
  // Nothing that was sampled before the next value belongs to a match of stop strings.
  void begin_match() EXCLUDES(mutex_);

  // What there is, at one moment.
  struct Extent {
    std::int64_t base = 0, position = 0;
    Digest digest;  // of the values up to `position`
  };
  Extent extent() const EXCLUDES(mutex_);
  std::int64_t base() const { return extent().base; }
  std::int64_t position() const { return extent().position; }

  // Whether it has so many values behind `position` that with as many again it might let go of
  // them.
  bool may_forget(std::int64_t position) const EXCLUDES(mutex_);

  // Of what lies within [base, position]; nothing where the rest is wanted.
  std::optional<Digest> digest_at(std::int64_t position) const EXCLUDES(mutex_);
  // Values [from, to), or as many as there are.
  std::vector<std::int32_t> values(std::int64_t from, std::int64_t to) const EXCLUDES(mutex_);
  // Of the same: one at `from`, and one wherever the source changes or a match begins; also at `to`
  // where a match begins there.
  std::vector<HistoryMark> marks(std::int64_t from, std::int64_t to) const EXCLUDES(mutex_);
  // The generated_tail of a sequence that has `position` values.
  std::string tail_at(std::int64_t position) const EXCLUDES(mutex_);

  // One with the same past up to there; null where it does not reach there. Whole chunks are
  // shared.
  std::unique_ptr<SessionHistory> fork(std::int64_t position) const EXCLUDES(mutex_);
  // Takes back what came from there on. REQUIRES: base <= position <= position().
  void rewind(std::int64_t position) EXCLUDES(mutex_);
  // Begins after values that it does not have: their number, digest and tail. REQUIRES: empty.
  void begin_at(std::int64_t base, const Digest& digest, std::string tail) EXCLUDES(mutex_);
  // Takes the values of an image that begins here. REQUIRES: as many values as it says.
  void append(const SessionImage& image) EXCLUDES(mutex_);

  // Chunks that it shares with others just now.
  std::size_t shared_chunks() const EXCLUDES(mutex_);

 private:
  struct Place {
    const HistoryChunk& chunk;
    std::size_t index;
  };
  Place at(std::int64_t position) const REQUIRES(mutex_);  // of a value that is there
  void put(std::int32_t value, ValueSource source) REQUIRES(mutex_);
  Digest digest_of(std::int64_t position) const REQUIRES(mutex_);
  std::string tail_of(std::int64_t position) const REQUIRES(mutex_);
  bool match_begins_at(std::int64_t position) const REQUIRES(mutex_);
  std::shared_ptr<HistoryChunk> new_chunk(std::int64_t first) const REQUIRES(mutex_);

  const Options options_;
  const std::size_t most_chunks_;  // SIZE_MAX: as many as it takes

  mutable Mutex mutex_;
  // The first begins at first_chunk_ * kChunkValues, which may lie before base_.
  std::vector<std::shared_ptr<HistoryChunk>> chunks_ GUARDED_BY(mutex_);
  std::int64_t first_chunk_ GUARDED_BY(mutex_) = 0;
  std::int64_t base_ GUARDED_BY(mutex_) = 0;
  std::int64_t position_ GUARDED_BY(mutex_) = 0;
  Digest digest_ GUARDED_BY(mutex_);  // at position_
  std::string base_tail_ GUARDED_BY(mutex_);
  bool match_begins_ GUARDED_BY(mutex_) = false;  // with the next value
};

}  // namespace lintel
