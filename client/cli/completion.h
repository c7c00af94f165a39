// SPDX-License-Identifier: Apache-2.0
// Completes images over several streams at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/flags.h"
#include "client/image/image.h"
#include "client/image/occlusion.h"

namespace lintel::cli {

// One completed image.
struct Completion {
  std::vector<std::uint8_t> pixels;  // the whole image
  double log2_prob = 0;              // of the sampled pixels together, under the model
  double log2_prob_given = 0;        // of the known pixels after the first hidden one
  v1::SampleFinish finish;
  int particles = 1;  // the number of particles that it was chosen from
  int best_of = 1;    // completions of which it is the most probable
  bool done = false;  // else only so many pixels of it came as there are
};

// An image to complete `samples` times. Sample i is drawn with seed `seed` + i; with more than one
// particle, those of a call are chosen from as many that are drawn so.
struct CompletionJob {
  CompletionPlan plan;
  std::uint64_t seed = 0;
  int samples = 1;
  int particles = 1;  // GenerateRequest.particles
};

struct CompletionOptions {
  std::string model, adapter;
  v1::GenerateRequest settings;              // of sampling alone; its seed is not used
  int concurrency = 16;                      // streams at a time, a thread each
  std::uint32_t max_samples_per_call = 0;    // the server's limit; 0: none known
  std::uint32_t max_tokens_per_message = 0;  // 0: the server decides
  std::chrono::milliseconds patience{0};     // for a server whose queue is full
};

// Watches the pixels arrive. Called by many threads at once.
struct CompletionObserver {
  std::function<void(std::size_t job, int sample, const v1::Chunk& chunk)> on_chunk;
  std::function<void(std::size_t job, int sample)> on_finish;
};

struct CompletionOutcome {
  std::vector<std::vector<Completion>> results;  // [job][sample]
  // The error of the first call to fail, once the others had been cancelled; Failure when the
  // server left pixels out or sent invalid ones. Null: every sample is done.
  std::exception_ptr error;
};

CompletionOutcome run_completions(const Client& client, const std::vector<CompletionJob>& jobs,
                                  const CompletionOptions& options,
                                  const CompletionObserver& observer, Cancellation& cancellation);

// Ways to complete an image: plainly, the best of several, or with particles.

struct Way {
  int best_of = 1;    // of so many completions the most probable one is kept
  int particles = 1;  // GenerateRequest.particles
};

// "1,8,32", for add_parsed. Throws UsageError for what is not counts from 1 to 4096.
std::vector<int> parse_counts(std::string_view flag, std::string_view text);

// One for each count, best-ofs first; the plain way where there are none.
std::vector<Way> ways_of(const std::vector<int>& best_of, const std::vector<int>& particles);

// The most probable of every `best_of` completions, in order, the known pixels included; of equals
// the first. One that is not done only where none is.
std::vector<Completion> keep_best(std::vector<Completion> completions, int best_of);

bool is_not_plain(const Completion& completion);
// "plain", "best of 8", "32 particles"
std::string way_name(const Completion& completion);

}  // namespace lintel::cli
