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
    // Whether nobody waits in vain for the state behind so many values any more: it is there, or
    // will never be.
    bool has_passed(std::int64_t values) const { return passed_.load() >= values; }

   private:
    friend class PrefixReadings;
    PrefixPartKey key_;
    std::span<const std::int32_t> prompt_;
    std::int64_t first_ = 0;  // values that it began behind
    TimePoint began_;
    std::atomic<std::int64_t> passed_{0};
    std::vector<std::int64_t> wanted_;  // values behind which states are waited for
    std::list<Reading*>::iterator self_;
  };
  using Shared = std::shared_ptr<Reading>;

  // What there is to wait for.
  struct Wait {
    Shared reading;           // null: nothing
    std::int64_t values = 0;  // that both begin with
    Duration longest{};       // what reading those behind `cached` would take
  };

  // wake: called whenever those that wait may go on, by whoever reads.
  explicit PrefixReadings(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The prompt is read from now on, behind its first `cached` values, until end(). `prompt` lives
  // as long. Throws std::bad_alloc, and then nothing has happened.
  Shared begin(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
               TimePoint now) EXCLUDES(mutex_);
  // So many values were read; the state behind them is kept by now if somebody waits for it.
  void advance(Reading& reading, std::int64_t values) EXCLUDES(mutex_);
  // Behind how many values somebody waits for a state next; 0: nobody does.
  std::int64_t next_wanted(const Reading& reading) const EXCLUDES(mutex_);
  // It is over, read to its end or not. now: the beginning of time where nobody looked at a clock.
  void end(Reading& reading, TimePoint now) EXCLUDES(mutex_);

  // The reading that has the most values in common with the prompt, at least `least` more than the
  // `cached` ones that the prompt need not read, has read no fewer than those, and has not come to
  // where they part. Its state there is waited for from now on.
  Wait wait_for(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
                std::int64_t least, TimePoint now) EXCLUDES(mutex_);

 private:
  // What a value takes: of this reading so far, else of the one that ended last.
  Duration pace(const Reading& reading, TimePoint now) const REQUIRES(mutex_);

  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::list<Reading*> readings_ GUARDED_BY(mutex_);
  std::map<const Transformer*, Duration> paces_ GUARDED_BY(mutex_);  // of those that ended last
};

}  // namespace lintel
