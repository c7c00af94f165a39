// ClientDeadline: how long a connection waits for its client, by one timer for all it waits for.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lintel {

// Used on the strand. A deadline that is moved on, as every write does, costs no call of the
// system: the timer looks again when it is over.
class ClientDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  template <typename Strand>
  explicit ClientDeadline(const Strand& strand) : timer_(strand) {}

  // Before all else. `expired` is called on the strand, as long as the owner, of which this is a
  // part, is alive.
  void bind(std::weak_ptr<void> owner, std::function<void()> expired) {
    owner_ = std::move(owner);
    expired_ = std::move(expired);
  }

  // From now on the client has this long; nothing: as long as it likes.
  void allow(std::optional<Clock::duration> time) {
    deadline_ = time ? Clock::now() + *time : Clock::time_point::max();
    if (!time || (waits_ && timer_.expiry() <= deadline_)) return;
    timer_.expires_at(deadline_);
    waits_ = true;
    const int wait = ++wait_;
    timer_.async_wait([this, owner = owner_, wait](boost::system::error_code) {
      if (const auto alive = owner.lock()) look(wait);
    });
  }

  void cancel() {
    deadline_ = Clock::time_point::max();
    timer_.cancel();
  }

 private:
  void look(int wait) {
    if (wait != wait_) return;  // another wait took its place
    waits_ = false;
    if (deadline_ == Clock::time_point::max()) return;
    const auto left = deadline_ - Clock::now();
    left > Clock::duration::zero() ? allow(left) : expired_();
  }

  boost::asio::steady_timer timer_;
  std::weak_ptr<void> owner_;
  std::function<void()> expired_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool waits_ = false;
  int wait_ = 0;  // the number of the last one
};

}  // namespace lintel
