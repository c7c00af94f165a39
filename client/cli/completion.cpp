// SPDX-License-Identifier: Apache-2.0
#include "client/cli/completion.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "client/cli/flags.h"
#include "client/cli/generate_output.h"

namespace lintel::cli {

std::vector<int> parse_counts(std::string_view flag, std::string_view text) {
  std::vector<int> counts;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    const std::uint32_t count = parse_uint32(flag, one);
    if (count < 1 || count > 4096) refuse_flag(flag, one, "expected 1 to 4096");
    counts.push_back(static_cast<int>(count));
    if (comma == std::string_view::npos) return counts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<Way> ways_of(const std::vector<int>& best_of, const std::vector<int>& particles) {
  std::vector<Way> ways;
  for (const int count : best_of) ways.push_back({.best_of = count});
  for (const int count : particles) ways.push_back({.particles = count});
  if (ways.empty()) ways.push_back({});
  return ways;
}

std::vector<Completion> keep_best(std::vector<Completion> completions, int best_of) {
  const auto worse = [](const Completion& a, const Completion& b) {
    if (a.done != b.done) return b.done;
    return a.log2_prob + a.log2_prob_given < b.log2_prob + b.log2_prob_given;
  };
  std::vector<Completion> kept;
  for (auto first = completions.begin(); first != completions.end();) {
    const auto end = first + std::min<std::ptrdiff_t>(best_of, completions.end() - first);
    kept.push_back(std::move(*std::max_element(first, end, worse)));
    kept.back().best_of = best_of;
    first = end;
  }
  return kept;
}

bool is_not_plain(const Completion& completion) {
  return completion.best_of > 1 || completion.particles > 1;
}

std::string way_name(const Completion& completion) {
  if (completion.best_of > 1) return "best of " + std::to_string(completion.best_of);
  if (completion.particles > 1) return std::to_string(completion.particles) + " particles";
  return "plain";
}

namespace {

// The samples of a job that go into one call.
struct Call {
  std::size_t job = 0;
  int first_sample = 0;
  int samples = 1;
};

std::vector<Call> cut_into_calls(const std::vector<CompletionJob>& jobs, std::uint32_t limit) {
  std::vector<Call> calls;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    int most = limit == 0 ? jobs[job].samples
                          : static_cast<int>(std::min<std::uint32_t>(
                                limit, static_cast<std::uint32_t>(jobs[job].samples)));
    if (jobs[job].particles > 1) most = std::min(most, jobs[job].particles);
    for (int first = 0; first < jobs[job].samples; first += most) {
      calls.push_back({job, first, std::min(most, jobs[job].samples - first)});
    }
  }
  return calls;
}

v1::GenerateRequest make_request(const CompletionJob& job, const Call& call,
                                 const CompletionOptions& options) {
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_adapter(options.adapter);
  *request.mutable_prompt() = pixel_tokens(job.plan.prompt);
  request.set_max_new_tokens(static_cast<std::uint32_t>(job.plan.new_tokens));
  request.MergeFrom(options.settings);
  request.mutable_sampling()->set_seed(job.seed + static_cast<std::uint64_t>(call.first_sample));
  request.set_num_samples(static_cast<std::uint32_t>(call.samples));
  request.set_log2_probs(true);
  if (job.particles > 1) request.set_particles(static_cast<std::uint32_t>(job.particles));
  for (const CompletionPlan::Span& span : job.plan.given) {
    v1::GivenSpan& given = *request.add_given();
    given.set_position(span.position);
    *given.mutable_values() = pixel_tokens(span.pixels);
  }
  request.set_max_tokens_per_message(options.max_tokens_per_message);
  return request;
}

class Runner {
 public:
  Runner(const Client& client, const std::vector<CompletionJob>& jobs,
         const CompletionOptions& options, const CompletionObserver& observer,
         Cancellation& cancellation)
      : client_(client),
        jobs_(jobs),
        options_(options),
        observer_(observer),
        cancellation_(cancellation),
        calls_(cut_into_calls(jobs, options.max_samples_per_call)) {
    for (const CompletionJob& job : jobs_) {
      Completion empty;
      empty.pixels = job.plan.prompt;  // grows to the whole image in raster order
      empty.particles = job.particles;
      results_.emplace_back(static_cast<std::size_t>(job.samples), empty);
    }
  }

  CompletionOutcome run() {
    std::vector<std::thread> threads;
    const auto count = std::min(static_cast<std::size_t>(options_.concurrency), calls_.size());
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    return {std::move(results_), error_};
  }

 private:
  void work() {
    for (std::size_t i = next_++; i < calls_.size(); i = next_++) {
      try {
        complete(calls_[i]);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        cancellation_.cancel();  // the others have no purpose any more
        return;
      }
    }
  }

  void complete(const Call& call) {
    const v1::GenerateRequest request = make_request(jobs_[call.job], call, options_);
    bool touched = false;
    retry_when_full(
        cancellation_, options_.patience,
        [&] {
          client_.generate(
              request,
              [&](const v1::Chunk& chunk) {
                touched = true;
                take(call, chunk);
              },
              [&](const v1::SampleFinish& finish) { end(call, finish); }, &cancellation_);
        },
        [&] { return !touched; });
  }

  // Each sample's result belongs to one call, and each call to one thread: nothing to lock.
  Completion& result(const Call& call, std::uint32_t sample) {
    return results_[call.job][static_cast<std::size_t>(call.first_sample) + sample];
  }

  void take(const Call& call, const v1::Chunk& chunk) {
    Completion& to = result(call, chunk.sample());
    if (chunk.source() == v1::VALUE_SOURCE_PROMPT) return;
    if (chunk.first_position() != static_cast<std::int64_t>(to.pixels.size())) {
      throw Failure("the server sent position " + std::to_string(chunk.first_position()) +
                    " where " + std::to_string(to.pixels.size()) + " was due");
    }
    double& sum = chunk.source() == v1::VALUE_SOURCE_GIVEN ? to.log2_prob_given : to.log2_prob;
    for (const float log2_prob : chunk.log2_probs()) sum += log2_prob;
    for (const std::int32_t token : chunk.tokens()) {
      if (token < 0 || token > 255) {
        throw Failure("the server sent " + std::to_string(token) + ", which is no pixel");
      }
      to.pixels.push_back(static_cast<std::uint8_t>(token));
    }
    if (observer_.on_chunk) {
      observer_.on_chunk(call.job, call.first_sample + static_cast<int>(chunk.sample()), chunk);
    }
  }

  void end(const Call& call, const v1::SampleFinish& finish) {
    const CompletionPlan& plan = jobs_[call.job].plan;
    const std::size_t wanted = plan.prompt.size() + static_cast<std::size_t>(plan.new_tokens);
    Completion& to = result(call, finish.sample());
    if (to.pixels.size() != wanted) {
      throw Failure("the server ended an image after " + std::to_string(to.pixels.size()) + " of " +
                    std::to_string(wanted) + " pixels: " + finish_reason_name(finish.reason()));
    }
    to.finish = finish;
    to.done = true;
    if (observer_.on_finish) {
      observer_.on_finish(call.job, call.first_sample + static_cast<int>(finish.sample()));
    }
  }

  const Client& client_;
  const std::vector<CompletionJob>& jobs_;
  const CompletionOptions& options_;
  const CompletionObserver& observer_;
  Cancellation& cancellation_;
  const std::vector<Call> calls_;

  std::vector<std::vector<Completion>> results_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_ until the threads are joined
};

}  // namespace

CompletionOutcome run_completions(const Client& client, const std::vector<CompletionJob>& jobs,
                                  const CompletionOptions& options,
                                  const CompletionObserver& observer, Cancellation& cancellation) {
  return Runner(client, jobs, options, observer, cancellation).run();
}

}  // namespace lintel::cli
