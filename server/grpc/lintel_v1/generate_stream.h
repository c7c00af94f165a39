// GenerateStream: one Generate call, and how it writes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/api/prepare_generation.h"
#include "server/api/stream_reactor.h"
#include "server/api/streaming_options.h"
#include "server/api/token_outbox.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace lintel {

// Puts what the outbox has into chunks: consecutive values of a sample, of one source.
class GenerateStream final : public StreamReactor<v1::GenerateResponse>, private TokenWire {
 public:
  using StreamReactor::StreamReactor;

  // Submits the request; then the call ends with it, and the stream may be gone when this returns.
  // Once, by the method or, after it has returned, by another thread. Not OK, or an exception:
  // nothing runs.
  grpc::Status begin(PreparedGeneration prepared, const StreamingOptions& streaming,
                     const Clock& clock);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;

 private:
  void write(std::span<const OutboxEntry> entries) override;
  void end(std::span<const OutboxEntry> entries, grpc::Status status, ValueUse used) override;
  void gone(grpc::Status status, ValueUse used) noexcept override;

  void fill(std::span<const OutboxEntry> entries);
  void append_value(const OutboxEntry& entry);

  // What OnCancel finds, which may come before begin() does.
  std::shared_ptr<TokenOutbox> outbox() const EXCLUDES(mutex_);
  // False where the client is gone.
  bool set_outbox(std::shared_ptr<TokenOutbox> outbox) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<TokenOutbox> outbox_ GUARDED_BY(mutex_);  // null: nothing runs
  bool gone_ GUARDED_BY(mutex_) = false;
  int top_log2_probs_ = 0;
  v1::GenerateResponse message_;      // the write in flight's, else of whose turn it is
  std::vector<int> chunk_of_sample_;  // in the message being filled; -1: none
};

// A result as the wire has it.
void write_result(const SampleResult& result, v1::SampleFinish& wire);

}  // namespace lintel
