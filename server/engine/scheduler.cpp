// SPDX-License-Identifier: Apache-2.0
#include "server/engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "server/core/threads.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/request_queue.h"
#include "server/engine/sequence_group.h"
#include "server/engine/worker.h"

namespace lintel {
namespace {

void check_option(const char* name, int value, int least) {
  if (value >= least) return;
  throw std::invalid_argument(std::string("Scheduler: ") + name + " is " + std::to_string(value) +
                              ", must be at least " + std::to_string(least));
}

// The number of cores, or no limit where the number of threads is configured.
std::size_t cores(const Scheduler::Options& options) {
  return options.step_threads > 0 ? SIZE_MAX : static_cast<std::size_t>(usable_cores());
}

// A worker of a large model fills its rows before another worker leads.
int least_share(const Transformer& model, const Scheduler::Options& options) {
  const bool shares = options.workers > 1 && options.step_threads != 1;
  return shares && is_large(model) ? options.max_batch_rows : 1;
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<const Transformer> model, const Options& options,
                     const Clock& clock, PrefixCache* prefixes, const std::optional<StepCost>& cost)
    : model_(std::move(model)),
      options_(options),
      clock_(clock),
      prefixes_(prefixes),
      metrics_(std::make_unique<SchedulerMetrics>()),
      queue_(std::make_unique<RequestQueue>(
          static_cast<std::size_t>(std::max(options.max_queued_requests, 0)), options.workers,
          options.max_queued_bytes, least_share(*model_, options))) {
  check_option("workers", options.workers, 0);
  check_option("max_batch_rows", options.max_batch_rows, 1);
  check_option("max_queued_requests", options.max_queued_requests, 1);
  check_option("prefill_rows_per_step", options.prefill_rows_per_step, 0);
  check_option("speculation_rows", options.speculation_rows, 1);
  check_option("step_threads", options.step_threads, 0);
  check_option("mask_budget", options.mask_budget == 0 ? 0 : 1, 1);
  if (options.workers > 1 && options.step_threads != 1) {
    help_ = std::make_unique<IntraOpParallelism>(static_cast<std::size_t>(options.workers),
                                                 cores(options));
  }

  Worker::Options worker_options;
  worker_options.max_rows = options.max_batch_rows;
  worker_options.prefill_rows = options.prefill_rows_per_step;
  worker_options.prompt_rows = options.prompt_rows_per_step;
  worker_options.most_rows =
      std::max({options.prompt_rows_per_step, options.max_batch_rows, options.most_rows_per_step});
  worker_options.speculation_rows = options.speculation_rows;
  worker_options.drafts_always = options.speculation == Speculation::kOn;
  worker_options.step_cost = cost.value_or(assumed_step_cost(model_->weight_type()));
  worker_options.drafts = uses_drafts(options.speculation, model_->recomputes());
  worker_options.step_threads = options.step_threads;
  worker_options.is_large_model = is_large(*model_);
  worker_options.help = help_.get();
  worker_options.mask_budget = options.mask_budget;
  for (int i = 0; i < std::max(options.workers, 1); ++i) {
    worker_options.index = i;
    workers_.push_back(
        std::make_unique<Worker>(*model_, worker_options, clock_, *queue_, *metrics_));
  }
  try {
    MutexLock lock(stop_mutex_);
    for (int i = 0; i < options.workers; ++i) {
      Worker& worker = *workers_[static_cast<std::size_t>(i)];
      threads_.emplace_back([this, &worker] { run_worker(worker); });
    }
  } catch (...) {  // the system has no thread for it: those that run are joined before they go
    stop();
    throw;
  }
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::run_worker(Worker& worker) {
  constexpr std::chrono::milliseconds kAfterFailure{10};
  // Counted before it asks whether to stop: a stop() between the two ends the wait.
  for (std::uint64_t wakes = queue_->wakes(); !stopping_.load(); wakes = queue_->wakes()) {
    const bool is_well = survives(ServerThread::kWorker, [&] {
      if (worker.run_one_step()) return;
      const auto is_woken = [&] { return queue_->wakes() != wakes; };
      if (help_ != nullptr && help_->help(worker.index(), is_woken, clock_)) return;
      queue_->wait(wakes, worker.next_deadline(), clock_);
    });
    // An exception that returns each time must not fill a core and the log.
    if (!is_well) std::this_thread::sleep_for(kAfterFailure);
  }
  worker.end_all(RequestOutcome::kShutdown);
}

void Scheduler::set_step_cost(const StepCost& cost) {
  measured_cost_ = cost;
  for (const auto& worker : workers_) worker->set_step_cost(measured_cost_);
}

Scheduler::SubmitError Scheduler::submit(GenerationRequest request, SessionLease lease,
                                         std::shared_ptr<TokenSink> sink,
                                         const RequestHandle& handle) {
  const int sequences = request.num_sequences();
  if (request.num_samples < 1 || request.num_samples > sequences ||
      sequences > options_.max_batch_rows) {
    throw std::invalid_argument("Scheduler: num_samples is " + std::to_string(request.num_samples) +
                                " and particles " + std::to_string(request.particles) +
                                ", must be 1 to " + std::to_string(options_.max_batch_rows));
  }
  auto running = std::make_unique<SequenceGroup>(
      std::move(request), std::move(lease), std::move(sink), handle.control_, *model_, clock_.now(),
      *metrics_, prefixes_, &queue_->readings());
  RequestQueue::Push pushed = RequestQueue::Push::kClosed;
  try {
    if (running->waits_for_memory()) running->wait_for_memory(*queue_);
    pushed = queue_->push(running);
  } catch (...) {
    // There is no memory for its places: the caller hears of it here, and not from the sink too.
    running->refuse();
    throw;
  }
  if (pushed == RequestQueue::Push::kAccepted) return SubmitError::kNone;
  running->refuse();
  return pushed == RequestQueue::Push::kFull ? SubmitError::kQueueFull : SubmitError::kDraining;
}

void Scheduler::cancel(const RequestHandle& handle) {
  if (handle.control_->cancelled.exchange(true)) return;
  queue_->note_cancel();
}

void Scheduler::resume(const RequestHandle& handle) {
  handle.control_->resumed.store(true);
  queue_->wake();
}

void Scheduler::note_adapter_end() {
  queue_->note_cancel();          // its requests are lost as cancelled ones are
  queue_->waiting_room().tell();  // those who wait in vain learn of it
}

void Scheduler::forget_gone_adapters() {
  if (prefixes_ != nullptr) prefixes_->forget_gone_adapters();
}

CapacityListeners& Scheduler::waiting_room() { return queue_->waiting_room(); }

void Scheduler::end_memory_waits() { queue_->drop_held(); }

void Scheduler::begin_drain() { queue_->close(); }

bool Scheduler::draining() const { return queue_->closed(); }

bool Scheduler::idle() const { return metrics_->in_flight.load() == 0; }

void Scheduler::stop() {
  MutexLock lock(stop_mutex_);
  queue_->close();
  stopping_.store(true);
  queue_->wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& worker : workers_) worker->end_all(RequestOutcome::kShutdown);
  const TimePoint now = clock_.now();
  for (auto& request : queue_->take_all()) {
    request->end(RequestOutcome::kShutdown, now);
    request.reset();
  }
  if (prefixes_ != nullptr) prefixes_->forget(*model_);
}

bool Scheduler::run_one_step() { return workers_.front()->run_one_step(); }

Scheduler::Stats Scheduler::stats() const {
  Stats stats;
  stats.steps = metrics_->steps.load();
  stats.rows = metrics_->rows.load();
  stats.shared_steps = metrics_->shared_steps.load();
  stats.prompt_tokens = metrics_->prompt_tokens.load();
  stats.generated_tokens = metrics_->generated_tokens.load();
  stats.drafted_tokens = metrics_->drafted_tokens.load();
  stats.accepted_tokens = metrics_->accepted_tokens.load();
  stats.mask_waits = metrics_->mask_waits.load();
  stats.empty_masks = metrics_->empty_masks.load();
  stats.queued = queue_->size();
  const std::uint64_t unfinished = metrics_->unfinished.load();
  stats.running = unfinished > stats.queued ? unfinished - stats.queued : 0;
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    stats.ended[i] = metrics_->ended[i].load();
    stats.ended_after[i] = Duration(metrics_->ended_ticks[i].load());
  }
  return stats;
}

void Scheduler::Stats::add(const Stats& other) {
  steps += other.steps;
  rows += other.rows;
  shared_steps += other.shared_steps;
  prompt_tokens += other.prompt_tokens;
  generated_tokens += other.generated_tokens;
  drafted_tokens += other.drafted_tokens;
  accepted_tokens += other.accepted_tokens;
  mask_waits += other.mask_waits;
  empty_masks += other.empty_masks;
  running += other.running;
  queued += other.queued;
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    ended[i] += other.ended[i];
    ended_after[i] += other.ended_after[i];
  }
}

SchedulerTimings Scheduler::timings() const {
  SchedulerTimings timings;
  for (const auto& worker : workers_) timings.add(worker->metrics());
  return timings;
}

}  // namespace lintel
