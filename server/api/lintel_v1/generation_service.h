// SPDX-License-Identifier: Apache-2.0
// GenerationService: translates Generate and Score between the wire and the scheduler.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lintel/v1/generation.grpc.pb.h"
#include "lintel/v1/generation.pb.h"
#include "server/api/handlers.h"
#include "server/api/lintel_v1/answer_grammars.h"
#include "server/api/prepare_generation.h"
#include "server/api/request_checks.h"
#include "server/api/response_stream.h"
#include "server/api/service_context.h"
#include "server/api/token_stream.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/notification.h"
#include "server/engine/scheduler.h"
#include "server/engine/token_sink.h"
#include "server/models/model_registry.h"
#include "server/openai/generate_object.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// GenerateStream: one Generate call, and how it writes.

// Puts what the outbox has into chunks: consecutive tokens of a sample, of one source.
class GenerateStream final : public TokenReactor<v1::GenerateResponse> {
 public:
  using TokenReactor::TokenReactor;

  // Starts the call; the status is run()'s. spells_special: bytes of special tokens are their
  // names, of which they have none otherwise.
  grpc::Status begin(PreparedGeneration prepared, bool spells_special,
                     const StreamingOptions& streaming, const Clock& clock);

 private:
  void fill(std::span<const OutboxEntry> entries, bool is_last,
            v1::GenerateResponse& message) override;
  void append_token(const OutboxEntry& entry, v1::GenerateResponse& message);

  int top_log2_probs_ = 0;
  bool spells_special_ = false;
  std::shared_ptr<const Tokenizer> tokenizer_;  // where the client wants the bytes of tokens
  std::vector<int> chunk_of_sample_;            // in the message being filled; -1: none
};

// A result as the wire has it.
void write_result(const SampleResult& result, v1::SampleFinish& wire);
void write_times(const SampleTimes& times, v1::Timings& wire);

// ScoreStream: the sequences of one Score request, a window of them in the scheduler at a time,
// their results written in the order of the request.

// A sequence joins when it is less than `window` ahead of what was written, so a slow reader holds
// up its own request only, and memory is bounded. A queue that is full when the request arrives
// refuses it; one that fills up later is waited for, and so is memory.
//
// Threads: any. Sequences are submitted by gRPC's threads (begin, a message is out), the model's
// workers (a sequence is done) and any thread that makes room; submitting_ lets in one at a time.
class ScoreStream final : public ResponseStream<v1::ScoreResponse>, public CapacityListener {
 public:
  struct Options {
    std::size_t window = 1;
    std::size_t held_bytes = 0;  // of the call, for each sequence
    std::shared_ptr<TokenAllowance> allowance;
    Owner owner;            // of the memory
    std::string caller;     // GenerationRequest::caller
    SharedAdapter adapter;  // null: none
    std::optional<TimePoint> deadline;
    std::shared_ptr<const Tokenizer> tokenizer;  // where the client wants the bytes of tokens
  };

  // memory: of the sequences and what comes of them.
  ScoreStream(SharedModel model, SessionManager& store, ScoreSequences sequences,
              const Options& options, RequestMemory::Charge memory = {});

  // Submits what the window takes. Not OK when the first sequence found no place: nothing was
  // submitted and the stream has to be refused.
  grpc::Status begin() EXCLUDES(mutex_);

 private:
  class SequenceSink;

  // A sequence from before its submission until it is written.
  struct Slot {
    RequestHandle handle;
    std::vector<float> log2_probs;
    bool done = false;
  };

  // The result of a try to submit a sequence.
  struct Attempt {
    enum class Lacks { kNothing, kPlace, kMemory };  // who lacks memory waits for a place, too
    grpc::Status status;                             // OK: it was taken
    Lacks lacks = Lacks::kNothing;  // else: what it may wait for; kNothing: the call has failed
  };

  // Submits while the window and the scheduler have room; when they have not, on_room() or the end
  // of a sequence comes back to it. Returns the refusal of the first sequence.
  grpc::Status advance() EXCLUDES(mutex_);
  // The sequence that is to be submitted next, by this thread alone until it is settled; none: the
  // window is full, another thread is at it, or there is nothing to do.
  std::optional<std::size_t> claim() EXCLUDES(mutex_);
  Attempt submit(std::size_t index) EXCLUDES(mutex_);
  // Settles a try: counts a refused sequence out, and joins the waiting rooms of what it lacked,
  // unless it had `joined` them before. Returns true if it is to be tried again at once.
  bool settle(std::size_t index, Attempt attempt, Attempt::Lacks& joined) EXCLUDES(mutex_);
  void join(Attempt::Lacks lacks);
  void on_room() noexcept override EXCLUDES(mutex_);
  // A sequence of which no token was read costs none.
  void take_back(std::size_t index) EXCLUDES(mutex_);
  void sequence_done(std::size_t index, std::vector<float> log2_probs, RequestOutcome outcome)
      EXCLUDES(mutex_);
  // Ends everything with `status`; what runs is cancelled.
  void fail(grpc::Status status) EXCLUDES(mutex_);

  Next next(v1::ScoreResponse& message, grpc::Status& status) override REQUIRES(mutex_);
  void on_written() override { advance(); }
  void on_gone() override;
  void on_lost() override;
  TokenUse tokens_used() const override REQUIRES(mutex_) { return used_; }

  const SharedModel model_;
  SessionManager& sessions_;
  const ScoreSequences sequences_;
  const Options options_;
  const RequestMemory::Charge memory_;  // of the sequences and what comes of them

  std::deque<Slot> slots_ GUARDED_BY(mutex_);  // the first is next_write_'s; at most the window
  std::size_t next_submit_ GUARDED_BY(mutex_) = 0;
  std::size_t next_write_ GUARDED_BY(mutex_) = 0;
  std::size_t running_ GUARDED_BY(mutex_) = 0;
  TokenUse used_ GUARDED_BY(mutex_);            // by the sequences that were submitted
  bool submitting_ GUARDED_BY(mutex_) = false;  // a thread has claimed next_submit_ - 1
  bool told_ GUARDED_BY(mutex_) = false;        // of room, since that was claimed
  std::optional<grpc::Status> failure_ GUARDED_BY(mutex_);
};

// The response of a sequence; bits/dim is minus the mean of the log2-probabilities, summed in
// double.
void write_score(std::size_t index, const std::vector<float>& log2_probs, v1::ScoreResponse& wire);

// Thread-safe. Checks, takes a lease, submits; the streams do the rest.
class GenerationService final : public HandlerService {
 public:
  // `grammars` outlive the service.
  GenerationService(const ServiceContext& context, AnswerGrammars& grammars);

 private:
  Task<grpc::Status> generate(Call call, ObjectOr<v1::GenerateRequest, GenerateObject> asked,
                              GenerateStream& stream);
  Task<grpc::Status> score(Call call, v1::ScoreRequest wire, ScoreStream::Reactor& stream);

  AnswerGrammars& grammars_;
};

}  // namespace lintel
