// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/generation_service.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "server/api/lintel_v1/session_calls.h"
#include "server/api/lookup.h"
#include "server/api/params/generate_params.h"
#include "server/api/prepare_generation.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// Bytes of a token's text in a message, as libprotobuf keeps it.
constexpr std::size_t kTokenBytesInMessage = 64;

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
  wire.mutable_omitted_tokens()->Add(result.omitted_tokens.begin(), result.omitted_tokens.end());
  write_times(SampleTimes(result), *wire.mutable_timings());
}

void write_times(const SampleTimes& times, v1::Timings& wire) {
  write_duration(times.queued, *wire.mutable_queued());
  write_duration(times.prompt, *wire.mutable_prompt());
  write_duration(times.generation, *wire.mutable_generation());
  if (times.generated_tokens > 1) {
    write_duration(times.generation / (times.generated_tokens - 1), *wire.mutable_per_token());
  }
}

grpc::Status GenerateStream::begin(PreparedGeneration prepared, bool spells_special,
                                   const StreamingOptions& streaming, const Clock& clock) {
  spells_special_ = spells_special;
  const GenerationRequest& request = prepared.checked.request;
  top_log2_probs_ = request.top_log2_probs;
  if (prepared.checked.token_bytes) tokenizer_ = prepared.model->transformer->tokenizer();
  chunk_of_sample_.resize(static_cast<std::size_t>(request.num_samples));
  return run(std::move(prepared), streaming, clock);
}

void GenerateStream::fill(std::span<const OutboxEntry> entries, bool /*is_last*/,
                          v1::GenerateResponse& message) {
  std::fill(chunk_of_sample_.begin(), chunk_of_sample_.end(), -1);
  for (const OutboxEntry& entry : entries) {
    if (entry.finished != nullptr) {
      write_result(*entry.finished, *message.add_finished());
    } else {
      append_token(entry, message);
    }
  }
}

void GenerateStream::append_token(const OutboxEntry& entry, v1::GenerateResponse& message) {
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
  const auto add_bytes = [this](std::int32_t token, std::int32_t cut, auto& list) {
    if (tokenizer_ == nullptr) return;
    const bool is_named = spells_special_ && tokenizer_->is_special(token);
    list.add_token_bytes(std::string(is_named ? tokenizer_->text_of_special(token)
                                              : text_of_token(*tokenizer_, token, cut)));
  };
  add_bytes(entry.token, entry.cut_bytes, *chunk);
  if (!entry.has_log2_prob) return;
  chunk->add_log2_probs(entry.log2_prob);
  if (top_log2_probs_ == 0) return;
  v1::TopValues& top = *chunk->add_top();
  for (const TopToken& value : entry.top) {
    top.add_tokens(value.token);
    add_bytes(value.token, 0, top);
    top.add_log2_probs(value.log2_prob);
  }
}

namespace {

// True if memory that others release may help. (Memory that the budget promised and the machine
// does not have ends the call, as any other want of memory does.)
bool may_have_room_later(const SessionRefusal& refusal) {
  return refusal.error == SessionError::kOwnerOutOfMemory ||
         (refusal.error == SessionError::kOutOfMemory && refusal.bytes_needed > refusal.bytes_free);
}

}  // namespace

void write_score(std::size_t index, const std::vector<float>& log2_probs, v1::ScoreResponse& wire) {
  wire.set_index(static_cast<std::uint32_t>(index));
  wire.mutable_log2_probs()->Add(log2_probs.begin(), log2_probs.end());
  double sum = 0;
  for (const float log2_prob : log2_probs) sum += log2_prob;
  wire.set_bits_per_dim(log2_probs.empty() ? 0.0 : -sum / static_cast<double>(log2_probs.size()));
}

// Gathers the log2-probabilities of one sequence.
class ScoreStream::SequenceSink final : public TokenSink {
 public:
  SequenceSink(std::shared_ptr<ScoreStream> stream, std::size_t index)
      : stream_(std::move(stream)), index_(index) {}

  bool on_token(const TokenEvent& event) override {
    if (event.log2_prob) log2_probs_.push_back(*event.log2_prob);
    return true;  // bounded by the sequence
  }
  void on_sample_finish(const SampleResult& result) override {
    is_unread_ = result.prompt_tokens == 0;
  }
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    if (is_unread_ || outcome == RequestOutcome::kMemory) stream_->take_back(index_);
    stream_->sequence_done(index_, std::move(log2_probs_), outcome);
  }

 private:
  const std::shared_ptr<ScoreStream> stream_;
  const std::size_t index_;
  std::vector<float> log2_probs_;
  bool is_unread_ = false;  // it has ended before its first token was read
};

ScoreStream::ScoreStream(SharedModel model, SessionManager& store, ScoreSequences sequences,
                         const Options& options, RequestMemory::Charge memory)
    : model_(std::move(model)),
      sessions_(store),
      sequences_(std::move(sequences)),
      options_(options),
      memory_(std::move(memory)) {}

grpc::Status ScoreStream::begin() { return advance(); }

std::optional<std::size_t> ScoreStream::claim() {
  MutexLock lock(mutex_);
  if (failure_ || submitting_ || next_submit_ == sequences_.size()) return std::nullopt;
  if (next_submit_ >= next_write_ + options_.window) return std::nullopt;
  submitting_ = true;
  told_ = false;
  // Counted first: the sequence, and the call with it, may end before submit() returns.
  ++running_;
  used_.prompt += static_cast<std::int64_t>(sequences_[next_submit_].size());
  return next_submit_++;
}

ScoreStream::Attempt ScoreStream::submit(std::size_t index) {
  Attempt attempt;
  attempt.status = catch_exceptions([&]() -> grpc::Status {
    // Checked before memory is asked for: a call that waits for memory would not notice otherwise.
    if (model_->scheduler->draining()) return stopped_status(*model_);
    if (options_.adapter != nullptr && options_.adapter->ended.load()) {
      return adapter_unloaded(model_->name);
    }
    const std::span<const std::int32_t> values = sequences_[index];
    // A call of which something runs tries again when that has ended.
    const bool runs = [&] {
      MutexLock lock(mutex_);
      return running_ > 1;
    }();
    SessionManager::LeaseResult leased = sessions_.lease_one_shot(
        model_->name, model_->transformer, static_cast<std::int64_t>(values.size()),
        /*num_samples=*/1, options_.owner, /*call_bytes=*/0, options_.adapter, /*may_wait=*/!runs);
    if (leased.refusal) {
      if (may_have_room_later(leased.refusal)) attempt.lacks = Attempt::Lacks::kMemory;
      return store_refusal(leased.refusal, sessions_.options(), /*session_id=*/"", options_.owner);
    }
    GenerationRequest request;
    request.prompt.assign(values.begin(), values.end());
    request.log2_probs = true;
    request.echo_prompt = true;
    request.deadline = options_.deadline;
    request.allowance = options_.allowance;
    request.caller = options_.caller;
    request.held_bytes = options_.held_bytes;
    const RequestHandle handle = [&] {
      MutexLock lock(mutex_);
      if (next_write_ + slots_.size() == index) slots_.emplace_back();  // else from an earlier try
      return slots_[index - next_write_].handle;
    }();
    auto self = std::static_pointer_cast<ScoreStream>(shared_from_this());
    const Scheduler::SubmitError error =
        model_->scheduler->submit(std::move(request), std::move(leased.lease),
                                  std::make_shared<SequenceSink>(std::move(self), index), handle);
    if (error == Scheduler::SubmitError::kQueueFull) attempt.lacks = Attempt::Lacks::kPlace;
    return submit_status(error, *model_);
  });
  return attempt;
}

grpc::Status ScoreStream::advance() {
  Attempt::Lacks joined = Attempt::Lacks::kNothing;  // the rooms of these, before this try
  while (const std::optional<std::size_t> index = claim()) {
    Attempt attempt = submit(*index);
    grpc::Status refusal = *index == 0 ? copy_of(attempt.status) : grpc::Status::OK;
    const bool goes_on = settle(*index, std::move(attempt), joined);
    if (!refusal.ok()) return refusal;
    pump();  // a failure may have waited for submitting_
    if (!goes_on) break;
  }
  return grpc::Status::OK;
}

bool ScoreStream::settle(std::size_t index, Attempt attempt, Attempt::Lacks& joined) {
  bool goes_on = attempt.status.ok();
  bool runs = false;
  if (!goes_on) {
    MutexLock lock(mutex_);
    --next_submit_;
    --running_;
    used_.prompt -= static_cast<std::int64_t>(sequences_[index].size());
    runs = running_ > 0;
  }
  if (!goes_on && index > 0) {
    if (attempt.lacks == Attempt::Lacks::kNothing) {
      fail(std::move(attempt.status));
    } else if (joined < attempt.lacks) {  // tries once more: room may have come before it joined
      grpc::Status waits = catch_exceptions([&] {
        join(attempt.lacks);
        return grpc::Status::OK;
      });
      joined = attempt.lacks;
      goes_on = waits.ok();
      if (!waits.ok()) fail(std::move(waits));
    } else if (!runs && model_->retired) {
      // Other users may fill the memory for any time; the model is wanted back before that.
      fail(catch_exceptions([&] { return stopped_status(*model_); }));
    }
  }
  MutexLock lock(mutex_);
  submitting_ = false;
  if (told_) joined = Attempt::Lacks::kNothing;
  return goes_on || told_;
}

void ScoreStream::join(Attempt::Lacks lacks) {
  const std::weak_ptr<CapacityListener> self =
      std::static_pointer_cast<ScoreStream>(shared_from_this());
  // The queue's room also says that the model goes.
  model_->scheduler->waiting_room().join(self);
  // Memory is awaited only if it lacks: what a try takes and releases would look like room.
  if (lacks == Attempt::Lacks::kMemory) sessions_.waiting_room().join(self);
}

void ScoreStream::on_room() noexcept {
  {
    MutexLock lock(mutex_);
    told_ = true;
  }
  advance();
}

void ScoreStream::take_back(std::size_t index) {
  MutexLock lock(mutex_);
  used_.prompt -= static_cast<std::int64_t>(sequences_[index].size());
}

void ScoreStream::sequence_done(std::size_t index, std::vector<float> log2_probs,
                                RequestOutcome outcome) {
  {
    MutexLock lock(mutex_);
    --running_;
    Slot& slot = slots_[index - next_write_];
    slot.log2_probs = std::move(log2_probs);
    slot.done = outcome == RequestOutcome::kDone;
  }
  if (outcome != RequestOutcome::kDone) {
    fail(catch_exceptions([&] { return outcome_status(outcome, *model_); }));
  }
  pump();
  advance();
}

void ScoreStream::fail(grpc::Status status) {
  {
    MutexLock lock(mutex_);
    if (failure_) return;
    failure_ = std::move(status);
  }
  // Nothing is written from here on, so the slots stay. They are cancelled one by one, without a
  // list: want of memory may be why the call ends.
  for (std::size_t i = 0;; ++i) {
    std::optional<RequestHandle> handle;
    {
      MutexLock lock(mutex_);
      if (i >= slots_.size()) return;
      if (slots_[i].done) continue;
      handle = slots_[i].handle;
    }
    model_->scheduler->cancel(*handle);
  }
}

void ScoreStream::on_gone() {
  fail(cancelled());
  pump();
}

void ScoreStream::on_lost() {
  fail(out_of_memory());
  pump();
}

ResponseStream<v1::ScoreResponse>::Next ScoreStream::next(v1::ScoreResponse& message,
                                                          grpc::Status& status) {
  if (!failure_) {
    if (slots_.empty() || !slots_.front().done) return Next::kNothing;
    const std::size_t index = next_write_;
    const Slot& slot = slots_.front();
    grpc::Status filled = catch_exceptions([&] {
      write_score(index, slot.log2_probs, message);
      if (options_.tokenizer != nullptr) {
        for (const std::int32_t token : sequences_[index]) {
          message.add_tokens(token);
          message.add_token_bytes(std::string(options_.tokenizer->bytes_of(token)));
        }
      }
      return grpc::Status::OK;
    });
    if (filled.ok()) {
      slots_.pop_front();
      ++next_write_;
      if (next_write_ < sequences_.size()) return Next::kWrite;
      status = grpc::Status::OK;
      return Next::kWriteAndFinish;
    }
    failure_ = std::move(filled);  // what runs ends by itself
  }
  // Sequences that could still join keep the call: its end may be the server's.
  if (running_ > 0 || submitting_) return Next::kNothing;
  status = std::move(*failure_);
  return Next::kFinish;
}

GenerationService::GenerationService(const ServiceContext& context, AnswerGrammars& grammars)
    : HandlerService(context), grammars_(grammars) {
  serve_stream<v1::GenerateResponse>(Method::kGenerate, &GenerationService::generate);
  serve_stream<v1::ScoreResponse>(Method::kScore, &GenerationService::score);
}

namespace {

// Holds the text of an answer to a format. The model's end tokens end it.
grpc::Status add_format(RpcCall& rpc, const api::AnswerFormat& format, AnswerGrammars& grammars,
                        const Transformer& transformer, GenerationRequest& generation) {
  if (format.format == api::AnswerFormat::Format::kText) return grpc::Status::OK;
  const std::shared_ptr<const Tokenizer>& tokenizer = transformer.tokenizer();
  if (tokenizer == nullptr) {
    return invalid_argument({{format.format_member, "needs a model with a tokenizer"}});
  }
  std::vector<std::int32_t>& stops = generation.stop.tokens;
  for (const std::int32_t end : tokenizer->eos()) {
    if (std::ranges::find(stops, end) == stops.end()) stops.push_back(end);
  }
  api::ChatParams request;
  static_cast<api::AnswerFormat&>(request) = format;
  grpc::Status status = spell_grammar_tokens(*tokenizer, request);
  if (!status.ok()) return status;
  return grammars.constrain(rpc, request, TemplateTraits(), /*after_reasoning=*/false, transformer,
                            generation);
}

}  // namespace

Task<grpc::Status> GenerationService::generate(Call call,
                                               ObjectOr<v1::GenerateRequest, GenerateObject> asked,
                                               GenerateStream& stream) {
  if (asked.object == nullptr) {
    asked.object = std::make_unique<GenerateObject>();
    asked.object->params = api::read_params(std::move(asked.message));
  }
  const api::GenerateParams& params = asked.object->params;
  const std::string& caller = call.scope.caller().name;
  grpc::Status status;
  if (!params.session_id.empty()) status = co_await store_thread(call);
  if (status.ok()) status = stream.call().quota.check_tokens();
  if (!status.ok()) co_return status;
  GenerationTarget target;
  do {
    status = find_target(context_, caller, params, target);
  } while (co_await model_load(call, target.absent, status));
  if (!status.ok()) co_return status;
  PreparedGeneration prepared;
  prepared.memory = call.scope.charge();
  status = prepare_generation(context_, caller, params, params.prompt,
                              call_deadline(call.rpc, context_.clock), std::move(target), prepared);
  call.scope.set_model(prepared.model->name);
  if (status.ok() && prepared.past == nullptr) {
    status = charge_kept_answer(call.rpc, call.scope, prepared, "max_new_tokens");
  }
  if (status.ok()) {
    status = add_format(call.rpc, asked.object->format, grammars_, *prepared.model->transformer,
                        prepared.checked.request);
  }
  if (!status.ok()) co_return status;
  prepared.checked.request.allowance = stream.call().quota.allowance();
  prepared.checked.request.caller = call.scope.turn_name();
  co_return stream.begin(std::move(prepared), asked.object->spells_special, context_.streaming,
                         context_.clock);
}

Task<grpc::Status> GenerationService::score(Call call, v1::ScoreRequest wire,
                                            ScoreStream::Reactor& stream) {
  grpc::Status status = stream.call().quota.check_tokens();
  if (!status.ok()) co_return status;
  const SharedModel model = co_await model_use(call, wire.model(), status);
  if (model == nullptr) co_return status;
  Violations violations;
  const auto& tokenizer = model->transformer->tokenizer();
  ScoreSequences sequences =
      check_score(wire, model->transformer->config(), tokenizer.get(), model->limits, violations);
  if (!violations.empty()) co_return violations.status();
  ScoreStream::Options options;
  if (wire.token_bytes()) options.tokenizer = tokenizer;
  status = resolve_adapter(wire.adapter(), *model, &options.adapter);
  if (!status.ok()) co_return status;

  const Scheduler::Options& scheduling = model->scheduler->options();
  // Enough to fill every worker twice, and never more than half of the queue.
  const int window = std::min(2 * scheduling.max_batch_rows * std::max(scheduling.workers, 1),
                              scheduling.max_queued_requests / 2);
  options.window = static_cast<std::size_t>(std::max(window, 1));
  options.held_bytes =
      sequences.tokens.size() * sizeof(std::int32_t) / std::max<std::size_t>(sequences.size(), 1);
  options.allowance = stream.call().quota.allowance();
  options.owner = call.scope.caller().name;
  options.caller = call.scope.turn_name();
  options.deadline = call_deadline(call.rpc, context_.clock);
  // Memory of each token: its id, its log2-probability, and its part of the message.
  RequestMemory::Charge memory = call.scope.charge();
  const std::size_t each =
      3 * sizeof(std::int32_t) + (options.tokenizer == nullptr ? 0 : kTokenBytesInMessage);
  const RequestRefusal refusal = memory.add(sequences.tokens.size() * each);
  if (refusal) co_return request_memory_refusal(refusal, options.owner, "sequences");
  const auto scored = std::make_shared<ScoreStream>(model, context_.sessions, std::move(sequences),
                                                    options, std::move(memory));
  stream.run(scored);
  grpc::Status started = scored->begin();
  if (!started.ok()) stream.run(nullptr);
  co_return started;
}

}  // namespace lintel
