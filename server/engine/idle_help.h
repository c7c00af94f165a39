// IdleHelp: workers without requests help those that have some with their steps.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "model/core/team.h"
#include "server/core/clock.h"

namespace lintel {

// Each worker leads a team (model/core/team.h), which the idle ones join. A helper looks for work
// all the time while it belongs to a team, for a step has dozens of parts and waking up takes as
// long as some of them. It leaves when its leader has no requests any more, or wants fewer helpers,
// and may sleep then. Thread-safe.
class IdleHelp {
 public:
  // workers: threads that may help or lead. cores: how many there are for all workers of the
  // process: no more threads than that compute at a time.
  IdleHelp(std::size_t workers, std::size_t cores);
  ~IdleHelp();
  IdleHelp(const IdleHelp&) = delete;
  IdleHelp& operator=(const IdleHelp&) = delete;

  // ---- Of the worker itself.

  Team& team(std::size_t worker) { return *teams_[worker].team; }
  // Whether it has requests.
  void set_leading(std::size_t worker, bool leads);
  // Threads that may share its step, itself included: what is idle, by the number of those who
  // lead.
  std::size_t available() const;
  // How many helpers it would have. Returns how many of them have to be called.
  std::size_t want(std::size_t worker, std::size_t helpers);

  // ---- Of an idle worker.

  // Helps the worker that lacks helpers most, until `stop` says that there is something else to do
  // or it has helped for a millisecond, and then returns true; false when no worker wants help.
  bool help(std::size_t worker, const std::function<bool()>& stop, const Clock& clock);

 private:
  struct Led {
    std::unique_ptr<Team> team = std::make_unique<Team>();
    std::atomic<std::size_t> wanted{0};  // helpers
    std::atomic<std::size_t> here{0};
    bool leads = false;  // of the worker's own thread
  };

  Led* most_in_need();
  enum class Left { kNobodyWants, kStopped };
  static Left help_one(Led& led, std::size_t seat, const std::function<bool()>& stop,
                       const Clock& clock);

  const std::size_t cores_;
  std::vector<Led> teams_;
  std::atomic<std::size_t> leading_{0};
};

}  // namespace lintel
