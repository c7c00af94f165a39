#include "server/v1/generate_stream.h"

#include <algorithm>
#include <iterator>

#include "server/call/status.h"
#include "server/call/wire_time.h"
#include "server/stream/chunk_interval.h"
#include "server/stream/outcome_status.h"

namespace lintel {
namespace {

constexpr std::size_t kDefaultMessageTokens = 1024;
// gRPC clients accept 4 MiB by default; a value and its log-probability take up to 10 bytes.
constexpr std::size_t kMaxMessageValues = 300'000;

std::size_t message_tokens(const GenerateStream::Options& options) {
  std::size_t most = options.max_tokens_per_message > 0
                         ? static_cast<std::size_t>(options.max_tokens_per_message)
                         : kDefaultMessageTokens;
  most = std::min(most, kMaxMessageValues / (1 + static_cast<std::size_t>(options.top_log2_probs)));
  // A paused stream has to get below half its bound by writing full messages.
  most = std::min(most, static_cast<std::size_t>(options.outbox_tokens) / 2);
  return std::max<std::size_t>(most, 1);
}

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

v1::ValueSource wire_source(ValueSource source) {
  switch (source) {
    case ValueSource::kSampled:
      return v1::VALUE_SOURCE_SAMPLED;
    case ValueSource::kGiven:
      return v1::VALUE_SOURCE_GIVEN;
    case ValueSource::kPrompt:
      return v1::VALUE_SOURCE_PROMPT;
  }
  return v1::VALUE_SOURCE_UNSPECIFIED;
}

}  // namespace

void write_result(const SampleResult& result, v1::SampleFinish& wire) {
  wire.set_sample(static_cast<std::uint32_t>(result.sample));
  wire.set_reason(wire_reason(result.reason));
  wire.set_prompt_tokens(static_cast<std::uint32_t>(result.prompt_tokens));
  wire.set_reused_tokens(result.reused_tokens);
  wire.set_generated_tokens(static_cast<std::uint32_t>(result.generated_tokens));
  wire.set_given_tokens(static_cast<std::uint32_t>(result.given_tokens));
  wire.set_drafted_tokens(static_cast<std::uint32_t>(result.drafted_tokens));
  wire.set_accepted_tokens(static_cast<std::uint32_t>(result.accepted_tokens));
  wire.set_seed(result.seed);
  wire.set_stop_string(result.stop_string);
  wire.set_position(result.position);
  v1::Timings& timings = *wire.mutable_timings();
  write_duration(result.queued, *timings.mutable_queued());
  write_duration(result.prompt, *timings.mutable_prompt());
  write_duration(result.generation, *timings.mutable_generation());
  if (result.generated_tokens > 1) {
    write_duration(result.generation / (result.generated_tokens - 1), *timings.mutable_per_token());
  }
}

GenerateStream::GenerateStream(SharedModel model, const Clock& clock, const ActiveCalls& calls,
                               Options options)
    : clock_(clock),
      calls_(calls),
      options_(std::move(options)),
      message_tokens_(message_tokens(options_)),
      model_(std::move(model)),
      chunk_of_sample_(static_cast<std::size_t>(options_.num_samples), -1) {}

void GenerateStream::attach(RequestHandle handle) {
  SharedModel model;
  {
    MutexLock lock(mutex_);
    handle_ = handle;
    if (abandoned_) model = model_;  // while nobody could know this handle
  }
  if (model != nullptr) model->scheduler->cancel(handle);
}

bool GenerateStream::on_token(const TokenEvent& event) {
  Entry entry;
  entry.position = event.position;
  entry.token = event.token;
  entry.sample = event.sample;
  entry.source = event.source;
  entry.has_log2_prob = event.log2_prob.has_value();
  entry.log2_prob = event.log2_prob.value_or(0.0f);
  entry.top.assign(event.top.begin(), event.top.end());
  gathered_.push_back(std::move(entry));
  ++gathered_tokens_;
  const auto most = static_cast<std::size_t>(options_.outbox_tokens);
  if (gathered_tokens_ + tokens_.load(std::memory_order_relaxed) < most) return true;
  MutexLock lock(mutex_);
  hand_over();
  if (tokens_.load() >= most) paused_ = true;
  return !paused_;
}

void GenerateStream::on_sample_finish(const SampleResult& result) {
  MutexLock lock(mutex_);
  results_.push_back(result);  // before the entry, which says that it is there
  Entry& entry = gathered_.emplace_back();
  entry.sample = result.sample;
  entry.is_finish = true;
  sample_ended_ = true;
  // The samples' one prompt was read once.
  used_.prompt = std::max(used_.prompt, result.prompt_tokens);
  used_.generated += result.generated_tokens;
}

void GenerateStream::on_step_end() {
  if (!due()) return;
  {
    MutexLock lock(mutex_);
    hand_over();
  }
  pump();
}

void GenerateStream::on_finish(RequestOutcome outcome) {
  {
    MutexLock lock(mutex_);
    outcome_ = outcome;  // first, and without memory: whatever fails from here on, the call ends
    try {
      hand_over();
      ended_ = status_of(outcome);
    } catch (...) {
      ended_ = out_of_memory();
    }
    model_.reset();  // a slow reader does not keep it
  }
  pump();
}

bool GenerateStream::due() {
  if (gathered_.empty()) return tokens_.load(std::memory_order_relaxed) > 0;
  if (is_first_ || sample_ended_ || gathered_tokens_ >= message_tokens_) return true;
  if (options_.chunk_interval.count() == 0) return true;
  return clock_.now() - last_handed_over_ >=
         chunk_interval(options_.chunk_interval, calls_.count());
}

void GenerateStream::hand_over() {
  is_first_ = false;
  sample_ended_ = false;
  last_handed_over_ = clock_.now();
  if (!abandoned_) {  // else nobody reads it; the cancellation is on its way
    outbox_.insert(outbox_.end(), std::make_move_iterator(gathered_.begin()),
                   std::make_move_iterator(gathered_.end()));
    tokens_.fetch_add(gathered_tokens_);
  }
  gathered_.clear();
  gathered_tokens_ = 0;
}

ResponseStream<v1::GenerateResponse>::Next GenerateStream::next(v1::GenerateResponse& message,
                                                                grpc::Status& status) {
  if (abandoned_) {
    if (!outcome_) return Next::kNothing;
    status = std::move(*abandoned_);
    return Next::kFinish;
  }
  if (!outbox_.empty()) {
    fill(message);
    // gRPC sends no message together with an error.
    const bool last = outbox_.empty() && outcome_.has_value();
    if (last) status = copy_of(ended_);
    return last && status.ok() ? Next::kWriteAndFinish : Next::kWrite;
  }
  if (!outcome_) return Next::kNothing;
  status = std::move(ended_);
  return Next::kFinish;
}

void GenerateStream::fill(v1::GenerateResponse& message) {
  std::size_t values = 0;
  std::fill(chunk_of_sample_.begin(), chunk_of_sample_.end(), -1);
  for (; written_ < outbox_.size(); ++written_) {
    const Entry& entry = outbox_[written_];
    if (entry.is_finish) {
      write_result(results_.front(), *message.add_finished());
      results_.pop_front();
    } else {
      if (values == message_tokens_) break;
      append_value(entry, message);
      ++values;
    }
  }
  tokens_.fetch_sub(values);
  if (written_ < outbox_.size() && 2 * written_ < outbox_.size()) return;
  outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(written_));
  written_ = 0;
}

void GenerateStream::append_value(const Entry& entry, v1::GenerateResponse& message) {
  int& index = chunk_of_sample_[static_cast<std::size_t>(entry.sample)];
  v1::Chunk* chunk = index < 0 ? nullptr : message.mutable_chunks(index);
  const bool continues = chunk != nullptr && chunk->source() == wire_source(entry.source) &&
                         chunk->first_position() + chunk->tokens_size() == entry.position &&
                         (chunk->log2_probs_size() > 0) == entry.has_log2_prob;
  if (!continues) {
    index = message.chunks_size();
    chunk = message.add_chunks();
    chunk->set_sample(static_cast<std::uint32_t>(entry.sample));
    chunk->set_first_position(entry.position);
    chunk->set_source(wire_source(entry.source));
  }
  chunk->add_tokens(entry.token);
  if (!entry.has_log2_prob) return;
  chunk->add_log2_probs(entry.log2_prob);
  if (options_.top_log2_probs == 0) return;
  v1::TopValues& top = *chunk->add_top();
  for (const TopValue& value : entry.top) {
    top.add_tokens(value.token);
    top.add_log2_probs(value.log2_prob);
  }
}

grpc::Status GenerateStream::status_of(RequestOutcome outcome) const {
  // A time limit of the request's own ends it well.
  if (outcome == RequestOutcome::kDeadline && !options_.deadline_is_calls) return grpc::Status::OK;
  return outcome_status(outcome, *model_, options_.session_id);
}

void GenerateStream::on_written() {
  SharedModel model;
  RequestHandle handle;
  {
    MutexLock lock(mutex_);
    if (!paused_ || tokens_.load() > static_cast<std::size_t>(options_.outbox_tokens) / 2) return;
    paused_ = false;
    model = model_;
    handle = handle_;
  }
  if (model != nullptr) model->scheduler->resume(handle);
}

void GenerateStream::on_gone() { abandon(cancelled()); }

void GenerateStream::on_lost() { abandon(out_of_memory()); }

void GenerateStream::abandon(grpc::Status status) {
  SharedModel model;
  RequestHandle handle;
  {
    MutexLock lock(mutex_);
    model = model_;
    if (!abandoned_) abandoned_ = std::move(status);
    outbox_.clear();
    written_ = 0;
    results_.clear();
    tokens_.store(0);
    handle = handle_;
  }
  if (model != nullptr) model->scheduler->cancel(handle);
  pump();
}

}  // namespace lintel
