// PrefixReadings: prompts that are being read, for those that begin alike to wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/thread_annotations.h"
#include "server/engine/prefix_tree.h"

namespace lintel {

// Of two prompts that come at once and begin alike, one is read, and the other waits for the state
// behind what they have in common, in place of reading all of it as well. It waits no longer than
// reading would have taken, and no longer than the first one reads: where that ends, fails or is
// slow, it begins for itself.
//
// Thread-safe; used between the steps of workers.
class PrefixReadings {
 public:
  // A prompt that is being read. Its worker has it, and those that wait for it.
  class Reading : public std::enable_shared_from_this<Reading> {
   public:
    // Whether waiting for the state after so many tokens is over: it is there, or will never be.
    bool has_passed(std::int64_t values) const { return passed_.load() >= values; }

   private:
    friend class PrefixReadings;
    PrefixPartKey key_;
    std::span<const std::int32_t> prompt_;
    std::int64_t first_ = 0;  // tokens that it began after
    TimePoint began_;
    std::atomic<std::int64_t> passed_{0};
    std::vector<std::int64_t> wanted_;  // tokens after which states are waited for
    std::list<Reading*>::iterator self_;
  };
  using Shared = std::shared_ptr<Reading>;

  // What there is to wait for.
  struct Wait {
    Shared reading;           // null: nothing
    std::int64_t values = 0;  // that both begin with
    Duration longest{};       // what reading those after `cached` would take
  };

  // wake: called by the reader whenever those that wait may continue.
  explicit PrefixReadings(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The prompt is read from now on, after its first `cached` tokens, until end(). `prompt` lives
  // as long. Throws std::bad_alloc, and then nothing has happened.
  Shared begin(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
               TimePoint now) EXCLUDES(mutex_);
  // So many tokens were read; if a prompt waits for the state after them, it is kept by now.
  void advance(Reading& reading, std::int64_t values) EXCLUDES(mutex_);
  // After how many tokens the next state is waited for; 0: none is.
  std::int64_t next_wanted(const Reading& reading) const EXCLUDES(mutex_);
  // It is over, read to its end or not. now: the beginning of time where no clock was read.
  void end(Reading& reading, TimePoint now) EXCLUDES(mutex_);

  // The reading that has the most tokens in common with the prompt, at least `least` more than the
  // `cached` ones that the prompt need not read, has read no fewer than those, and has not come to
  // where they part. Its state there is waited for from now on.
  Wait wait_for(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
                std::int64_t least, TimePoint now) EXCLUDES(mutex_);

 private:
  // What a token takes: of this reading so far, else of the one that ended last.
  Duration pace(const Reading& reading, TimePoint now) const REQUIRES(mutex_);

  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::list<Reading*> readings_ GUARDED_BY(mutex_);
  std::map<const Transformer*, Duration> paces_ GUARDED_BY(mutex_);  // of those that ended last
};

}  // namespace lintel
