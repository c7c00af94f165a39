// InferTokens: the values of one request of ModelStreamInfer, written as they come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/base/mutex.h"
#include "server/call/active_calls.h"
#include "server/call/call_scope.h"
#include "server/kserve/request.h"
#include "server/requests/prepare_generation.h"

namespace lintel {

// Between a scheduler that must not wait and a stream that may be slow, as GenerateStream is:
// values gather without a lock until a message is due; more than `outbox_tokens` that are not
// written pause the request. The last message is marked with triton_final_response.
//
// Lifetime: the reactor of the stream holds it until the last message is out, the scheduler until
// the request is over. Neither callback is called once the other has said that all is over.
// Threads: any.
class InferTokens final : public TokenSink, public std::enable_shared_from_this<InferTokens> {
 public:
  struct Options {
    std::chrono::nanoseconds chunk_interval{};
    int outbox_tokens = 4096;
    int max_tokens_per_message = 0;  // 0: all there are
  };
  struct Callbacks {
    // Writes this message; written() is called when it is out. One at a time.
    std::function<void(const inference::ModelStreamInferResponse*)> write;
    // The client is gone, or there was no memory for a message, and the request is over: nothing
    // more is written.
    std::function<void(grpc::Status)> gone;
    // The request is over, by this thread; before the last message. Must not throw.
    std::function<void()> over;
  };

  // `head` is what every message begins with. The calls outlive the object.
  InferTokens(std::shared_ptr<const TensorRequest> request, inference::ModelInferResponse head,
              const Options& options, const Clock& clock, const ActiveCalls& calls,
              Callbacks callbacks);

  // Once. Not OK: nothing runs, and no callback is called.
  grpc::Status begin(PreparedGeneration prepared) EXCLUDES(mutex_);
  // The message is out, or the client is gone. Returns whether it was the last: then the stream can
  // take the next request.
  bool written(bool ok) EXCLUDES(mutex_);
  // The client is gone. Idempotent.
  void cancel() EXCLUDES(mutex_);
  ValueUse used() const EXCLUDES(mutex_);

  bool on_token(const TokenEvent& event) override EXCLUDES(mutex_);
  void on_sample_finish(const SampleResult& result) override EXCLUDES(mutex_);
  void on_step_end() override EXCLUDES(mutex_);
  void on_finish(RequestOutcome outcome) override EXCLUDES(mutex_);

 private:
  enum class Action { kNothing, kWrite, kGone };

  bool due() const;
  // Moves what has gathered to the outbox.
  void hand_over() REQUIRES(mutex_);
  Action next() REQUIRES(mutex_);
  // Nothing more is written, and the request ends; then gone(status) is called.
  void abandon(grpc::Status status) EXCLUDES(mutex_);
  // Writes what there is to write. The caller holds no mutex: gRPC may call back at once.
  void pump() EXCLUDES(mutex_);

  const std::shared_ptr<const TensorRequest> request_;
  const Options options_;
  const std::size_t message_tokens_;
  const Clock& clock_;
  const ActiveCalls& calls_;
  const Callbacks callbacks_;

  // Of the scheduler's calls, which come one at a time.
  RowValues gathered_;
  bool is_first_ = true;
  TimePoint last_handed_over_{};

  mutable Mutex mutex_;
  SharedModel model_ GUARDED_BY(mutex_);  // until the request is over
  RequestHandle handle_ GUARDED_BY(mutex_);
  RowValues outbox_ GUARDED_BY(mutex_);
  std::size_t taken_ GUARDED_BY(mutex_) = 0;  // of the outbox
  std::atomic<std::size_t> waiting_{0};  // in the outbox and not taken; changed under the mutex
  ValueUse used_ GUARDED_BY(mutex_);
  bool paused_ GUARDED_BY(mutex_) = false;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool wrote_last_ GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> abandoned_ GUARDED_BY(mutex_);
  bool told_gone_ GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> ended_ GUARDED_BY(mutex_);
  inference::ModelStreamInferResponse message_;  // owned by the write in flight, else by next()
};

// Marks a response as the last of its request, or not.
void mark_final(inference::ModelInferResponse& response, bool is_final);

}  // namespace lintel
