#include "server/grpc/lintel_v1/generate_stream.h"

#include <algorithm>
#include <utility>

#include "server/grpc/lintel_v1/wire_source.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/wire_time.h"

namespace lintel {
namespace {

constexpr int kDefaultMessageTokens = 1024;  // of a client that does not say how many it wants

v1::FinishReason wire_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kEndOfSequence:
      return v1::FINISH_REASON_END_OF_SEQUENCE;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

void write_result(const SampleResult& result, v1::SampleFinish& wire) {
  wire.set_sample(static_cast<std::uint32_t>(result.sample));
  wire.set_reason(wire_reason(result.reason));
  wire.set_prompt_tokens(static_cast<std::uint32_t>(result.prompt_tokens));
  wire.set_reused_tokens(result.reused_tokens);
  wire.set_replayed_tokens(result.replayed_tokens);
  wire.set_cached_tokens(result.cached_tokens);
  wire.set_skipped_tokens(result.skipped_tokens);
  wire.set_window(result.window);
  wire.set_window_restarts(result.restarts);
  wire.set_generated_tokens(static_cast<std::uint32_t>(result.generated_tokens));
  wire.set_given_tokens(static_cast<std::uint32_t>(result.given_tokens));
  wire.set_drafted_tokens(static_cast<std::uint32_t>(result.drafted_tokens));
  wire.set_accepted_tokens(static_cast<std::uint32_t>(result.accepted_tokens));
  wire.set_seed(result.seed);
  wire.set_stop_string(result.stop_string);
  wire.set_position(result.position);
  wire.set_digest(result.digest);
  if (result.log2_evidence) wire.set_log2_evidence(*result.log2_evidence);
  wire.set_numerics_changed(result.numerics_changed);
  v1::Timings& timings = *wire.mutable_timings();
  write_duration(result.queued, *timings.mutable_queued());
  write_duration(result.prompt, *timings.mutable_prompt());
  write_duration(result.generation, *timings.mutable_generation());
  if (result.generated_tokens > 1) {
    write_duration(result.generation / (result.generated_tokens - 1), *timings.mutable_per_token());
  }
}

grpc::Status GenerateStream::begin(PreparedGeneration prepared, const StreamingOptions& streaming,
                                   const Clock& clock) {
  GenerationRequest& request = prepared.checked.request;
  TokenOutbox::Options options;
  options.chunk_interval = streaming.chunk_interval_ms;
  options.outbox_tokens = streaming.outbox_tokens;
  options.max_tokens_per_message = prepared.checked.max_tokens_per_message > 0
                                       ? prepared.checked.max_tokens_per_message
                                       : kDefaultMessageTokens;
  options.top_log2_probs = top_log2_probs_ = request.top_log2_probs;
  options.tells_sample_ends = true;
  options.deadline_ends_well = !prepared.deadline_is_calls;
  if (prepared.lease) options.session_id = prepared.lease.session_id();
  options.session_is_stored = prepared.durable != nullptr;
  chunk_of_sample_.resize(static_cast<std::size_t>(request.num_samples));
  const auto outbox = std::make_shared<TokenOutbox>(static_cast<TokenWire&>(*this), prepared.model,
                                                    clock, calls(), std::move(options));
  // Before it runs: a write may be out, and the stream with it, before submit() returns.
  if (!set_outbox(outbox)) return cancelled();
  if (prepared.past) {  // it has been run
    outbox->tell(std::move(prepared.past));
    return grpc::Status::OK;
  }
  grpc::Status submitted = guarded([&] {
    return outbox->submit(std::move(request), std::move(prepared.lease), prepared.durable);
  });
  if (!submitted.ok()) set_outbox(nullptr);
  return submitted;
}

std::shared_ptr<TokenOutbox> GenerateStream::outbox() const {
  MutexLock lock(mutex_);
  return outbox_;
}

bool GenerateStream::set_outbox(std::shared_ptr<TokenOutbox> outbox) {
  MutexLock lock(mutex_);
  outbox_.swap(outbox);  // what was there goes without the mutex
  return !gone_;
}

void GenerateStream::write(std::span<const OutboxEntry> entries) {
  fill(entries);
  StartWrite(&message_);
}

void GenerateStream::end(std::span<const OutboxEntry> entries, grpc::Status status, ValueUse used) {
  fill(entries);
  finish(entries.empty() ? nullptr : &message_, std::move(status), used);
}

void GenerateStream::gone(grpc::Status status, ValueUse used) noexcept {
  finish(nullptr, std::move(status), used);
}

void GenerateStream::OnWriteDone(bool ok) {
  // A copy: the reactor may be gone as soon as it is finished.
  const std::shared_ptr<TokenOutbox> outbox = this->outbox();
  if (outbox != nullptr) outbox->written(ok);
}

void GenerateStream::OnCancel() {
  std::shared_ptr<TokenOutbox> outbox;
  {
    MutexLock lock(mutex_);
    gone_ = true;
    outbox = outbox_;
  }
  if (outbox != nullptr) outbox->gone();
}

void GenerateStream::fill(std::span<const OutboxEntry> entries) {
  message_.Clear();
  std::fill(chunk_of_sample_.begin(), chunk_of_sample_.end(), -1);
  for (const OutboxEntry& entry : entries) {
    if (entry.finished != nullptr) {
      write_result(*entry.finished, *message_.add_finished());
    } else {
      append_value(entry);
    }
  }
}

void GenerateStream::append_value(const OutboxEntry& entry) {
  int& index = chunk_of_sample_[static_cast<std::size_t>(entry.sample)];
  v1::Chunk* chunk = index < 0 ? nullptr : message_.mutable_chunks(index);
  const bool continues = chunk != nullptr && chunk->source() == wire_source(entry.source) &&
                         chunk->first_position() + chunk->tokens_size() == entry.position &&
                         (chunk->log2_probs_size() > 0) == entry.has_log2_prob;
  if (!continues) {
    index = message_.chunks_size();
    chunk = message_.add_chunks();
    chunk->set_sample(static_cast<std::uint32_t>(entry.sample));
    chunk->set_first_position(entry.position);
    chunk->set_source(wire_source(entry.source));
  }
  chunk->add_tokens(entry.token);
  if (!entry.has_log2_prob) return;
  chunk->add_log2_probs(entry.log2_prob);
  if (top_log2_probs_ == 0) return;
  v1::TopValues& top = *chunk->add_top();
  for (const TopValue& value : entry.top) {
    top.add_tokens(value.token);
    top.add_log2_probs(value.log2_prob);
  }
}

}  // namespace lintel
