// The servers that a client may call, each of which will do, and the one that it calls.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lintel {

// `Server`: one of them. A client stays with one for as long as that answers, for what its sessions
// left in that server's memory; then it goes to the next. A name stands for one server until that
// fails; then for each of the addresses that it has, and when all of those were gone through for
// itself again: by then it may have others.
//
// Threads: any.
template <typename Server>
class Servers {
 public:
  using Shared = std::shared_ptr<Server>;
  // The servers behind that one's name, the one that answers at `peer` last; one or none: it is no
  // name of several. Waits.
  using Spread = std::function<std::vector<Shared>(const Server& server, const std::string& peer)>;

  // REQUIRES: all is not empty. spread: null: names stand for themselves.
  explicit Servers(std::vector<Shared> all, Spread spread = nullptr)
      : original_(std::move(all)), all_(original_), spread_(std::move(spread)) {}

  Shared current() const {
    const std::lock_guard lock(mutex_);
    return all_[current_];
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

  // `failed` is not to be called now: the one behind it is, unless another call has gone on
  // already. peer: where it was reached; empty: it was not. Returns whether there is another one.
  bool leave(const Shared& failed, const std::string& peer) {
    std::vector<Shared> several;
    if (spread_ != nullptr && !peer.empty() && current() == failed)
      several = spread_(*failed, peer);
    const std::lock_guard lock(mutex_);
    if (all_[current_] != failed) return all_.size() > 1;
    if (several.size() > 1) {
      const auto at = all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(current_));
      all_.insert(at, several.begin(), several.end());  // the first of which is current now
    } else if (++current_ == all_.size()) {
      all_ = original_;
      current_ = 0;
    }
    return all_.size() > 1;
  }

 private:
  const std::vector<Shared> original_;
  mutable std::mutex mutex_;
  std::vector<Shared> all_;  // guarded by mutex_
  std::size_t current_ = 0;  // guarded by mutex_
  const Spread spread_;
};

}  // namespace lintel
