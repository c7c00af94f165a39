// Ends calls from another thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

namespace grpc {
class ClientContext;
}

namespace lintel {

// One Cancellation may be given to any number of calls, at the same time and one after another. It
// must outlive them. cancel() ends every call that runs with it, which then throws CallError with
// CANCELLED, and every later one at once; the server frees what they held.
//
// Threads: all methods may be called from any thread. Not from a signal handler: let a thread wait
// for the signal.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void cancel();
  bool cancelled() const;
  // Sleeps, but not past cancel(). Returns cancelled().
  bool wait_for(std::chrono::milliseconds time);

  // Keeps a context attached for as long as it lives. For Client; `cancellation` may be null.
  class Attachment {
   public:
    Attachment(Cancellation* cancellation, grpc::ClientContext& context);
    ~Attachment();
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;

   private:
    Cancellation* const cancellation_;
    grpc::ClientContext& context_;
  };

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;                   // guarded by mutex_
  std::set<grpc::ClientContext*> contexts_;  // guarded by mutex_
};

}  // namespace lintel
