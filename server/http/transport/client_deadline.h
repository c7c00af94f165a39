// ClientDeadline: how long a connection waits for its client, by one timer for all it waits for.
#pragma once

#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/wait_traits.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lintel {

// Whose handlers Asio runs.
class HandlerOwner {
 public:
  virtual ~HandlerOwner() = default;
  // Ends it, for an exception that is being handled. From any thread.
  virtual void fail() noexcept = 0;
  // Notes that a handler of it will never run. From any thread, also when Asio is being taken down.
  virtual void lose() noexcept = 0;
};

// A handler of Asio's that keeps its owner alive. An exception of it ends the owner and not the
// thread. Where Asio has no memory to run a handler it throws and drops it: its owner, which may
// wait for nothing else, gets to know.
template <typename Function>
class OwnedHandler {
 public:
  OwnedHandler(std::shared_ptr<HandlerOwner> owner, Function function)
      : owner_(std::move(owner)), function_(std::move(function)) {}
  OwnedHandler(OwnedHandler&&) = default;
  OwnedHandler& operator=(OwnedHandler&&) = delete;
  ~OwnedHandler() {
    if (owner_ != nullptr) owner_->lose();
  }

  template <typename... Results>
  void operator()(Results... results) {
    const std::shared_ptr<HandlerOwner> owner = std::move(owner_);
    try {
      function_(results...);
    } catch (...) {
      owner->fail();
    }
  }

 private:
  std::shared_ptr<HandlerOwner> owner_;  // null: it ran
  Function function_;
};

// Used on the strand. A deadline that is moved on, as every write does, costs no call of the
// system: the timer looks again when it is over.
class ClientDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  template <typename Strand>
  explicit ClientDeadline(const Strand& strand) : timer_(strand) {}

  // Before all else. `expired` is called on the strand. The owner, of which this is a part, lives
  // until cancel() or the deadline.
  void bind(std::weak_ptr<HandlerOwner> owner, std::function<void()> expired) {
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
    timer_.async_wait(
        OwnedHandler(owner_.lock(), [this, wait](boost::system::error_code) { look(wait); }));
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

  // Of the strand's own type: an executor of any type needs memory where Asio may not throw.
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> timer_;
  std::weak_ptr<HandlerOwner> owner_;
  std::function<void()> expired_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool waits_ = false;
  int wait_ = 0;  // the number of the last one
};

}  // namespace lintel
