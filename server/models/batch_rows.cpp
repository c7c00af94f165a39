// SPDX-License-Identifier: Apache-2.0
#include "server/models/batch_rows.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <limits>

#include "server/engine/scheduler.h"

namespace lintel {
namespace {

constexpr int kTries = 3;
// The least rows of a measurement: the same for steps of few rows and of many.
constexpr int kTriedRows = 64;
constexpr float kFarBehind = 1.3f;
constexpr float kAsGood = 1.02f;

// Multiples of the rows of tiles, six for vectors and sixteen for AMX, and numbers between them.
constexpr int kCandidates[] = {8, 16, 24, 32, 48, 64, 96, 128};

// Reads a prompt from its beginning, a given number of rows a step.
class PromptReader {
 public:
  PromptReader(const Transformer& model, int most_rows, const Clock& clock)
      : model_(model),
        clock_(clock),
        workspace_(model.new_workspace(static_cast<std::size_t>(most_rows))),
        sequence_(model.new_sequence()) {
    rows_.reserve(static_cast<std::size_t>(most_rows));
    read(most_rows, 1);  // touches all memory
  }

  float seconds_of_row(int rows) {
    const std::int64_t length = model_.config().max_length;
    int steps = (kTriedRows + rows - 1) / rows;
    if (length > 0) steps = static_cast<int>(std::min<std::int64_t>(steps, length / rows));
    return read(rows, steps) / static_cast<float>(rows * steps);
  }

 private:
  float read(int rows, int steps) {
    sequence_.reset();
    const TimePoint start = clock_.now();
    for (int step = 0; step < steps; ++step) {
      rows_.clear();
      for (int r = 0; r < rows; ++r) {
        const std::int64_t token = (17 * (step * rows + r) + 5) % model_.config().vocab_size;
        rows_.push_back({.token = static_cast<std::int32_t>(token), .sequence = &sequence_});
      }
      model_.step(rows_, workspace_);
    }
    return std::chrono::duration<float>(clock_.now() - start).count();
  }

  const Transformer& model_;
  const Clock& clock_;
  Workspace workspace_;
  SequenceState sequence_;
  std::vector<BatchRow> rows_;
};

}  // namespace

int batch_rows_for(const Transformer& model, int workers, std::size_t cache_bytes) {
  // Neither states nor weights of a large model stay in a cache.
  if (model.weight_type() == WeightType::kF32 || is_large(model)) {
    return kMostBatchRows;
  }
  const std::size_t state_bytes = std::max<std::size_t>(model.state_bytes(/*num_tokens=*/64), 1);
  const std::size_t rows = cache_bytes / 4 / static_cast<std::size_t>(workers) / state_bytes;
  return static_cast<int>(std::clamp<std::size_t>(rows, kLeastBatchRows, kMostBatchRows));
}

std::size_t last_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{32} << 20;
}

std::size_t worker_bytes(const Transformer& model, int rows, int output_rows, int drafting_rows) {
  constexpr std::int64_t kFewRows = 8;
  constexpr std::size_t kDraftCandidates = std::size_t{1} << 16;
  constexpr std::size_t kSamplingBytes = 16;  // of a token of the vocabulary
  const std::int64_t length = model.config().max_length;
  const std::int64_t few = length > 0 ? std::min(length, kFewRows) : kFewRows;
  Workspace workspace = model.new_workspace(static_cast<std::size_t>(few));
  SequenceState sequence = model.new_sequence();
  std::vector<BatchRow> fed;
  for (std::int64_t i = 0; i < few; ++i) {
    fed.push_back({.token = static_cast<std::int32_t>(i % model.config().vocab_size),
                   .sequence = &sequence,
                   .wants_output = i + 1 == few});
  }
  model.step(fed, workspace);
  // A step of recompute mode has the rows of the whole sequence, and half as many to spare.
  const std::int64_t most =
      model.recomputes() ? std::max<std::int64_t>(rows, length * 3 / 2) : rows;
  const std::size_t step = workspace.bytes() / static_cast<std::size_t>(few) *
                           static_cast<std::size_t>(std::max(most, few));
  const auto outputs = static_cast<std::size_t>(model.config().num_outputs());
  const auto drawn = static_cast<std::size_t>(output_rows);
  std::size_t total = step + drawn * outputs * sizeof(float) + outputs * kSamplingBytes +
                      model.new_workspace(1, static_cast<std::size_t>(drafting_rows)).bytes();
  if (model.has_draft_head()) {
    total += step + drawn * std::min(outputs, kDraftCandidates) * sizeof(float);
  }
  return total;
}

std::string PromptRows::to_text() const {
  if (measured.empty()) return std::to_string(rows) + " rows a step, not measured";
  const auto number = [](float seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", 1e6f * seconds);
    return std::string(text);
  };
  std::string all;
  std::string chosen;
  for (const PromptRowTime& time : measured) {
    if (time.rows == rows) chosen = number(time.seconds);
    all += all.empty() ? "" : ", ";
    all += std::to_string(time.rows);
    all += ": ";
    all += number(time.seconds);
  }
  return std::to_string(rows) + " rows a step, " + chosen + " us a row (" + all + ")";
}

std::vector<int> prompt_row_candidates(int most, std::int64_t max_length) {
  if (max_length > 0) most = static_cast<int>(std::min<std::int64_t>(most, max_length));
  std::vector<int> candidates;
  for (const int rows : kCandidates) {
    if (rows < most) candidates.push_back(rows);
  }
  candidates.push_back(most);
  return candidates;
}

PromptRows choose_prompt_rows(std::span<const int> candidates,
                              const std::function<float(int rows)>& seconds_of_row) {
  assert(!candidates.empty());
  PromptRows chosen{.rows = candidates.back(), .measured = {}};
  std::vector<PromptRowTime>& times = chosen.measured;
  for (const int rows : candidates) times.push_back({rows, std::numeric_limits<float>::infinity()});
  const auto least = [&] { return std::ranges::min(times, {}, &PromptRowTime::seconds).seconds; };
  for (int i = 0; i < kTries; ++i) {
    const float far = i == 0 ? std::numeric_limits<float>::infinity() : kFarBehind * least();
    for (PromptRowTime& time : times) {
      if (time.seconds <= far) time.seconds = std::min(time.seconds, seconds_of_row(time.rows));
    }
  }
  const float good = kAsGood * least();
  if (good > 0) {  // else the clock stands still
    chosen.rows = std::ranges::find_if(times, [&](const PromptRowTime& time) {
                    return time.seconds <= good;
                  })->rows;
  }
  return chosen;
}

PromptRows measure_prompt_rows(const Transformer& model, int most, const Clock& clock) {
  const std::vector<int> candidates = prompt_row_candidates(most, model.config().max_length);
  if (candidates.size() < 2 || model.recomputes() ||
      model.num_parameters() < kLeastMeasuredParameters) {
    return {.rows = most, .measured = {}};
  }
  if (model.num_parameters() > kMostMeasuredParameters) {
    return {.rows = std::min(most, kLargeModelRows), .measured = {}};
  }
  PromptReader reader(model, candidates.back(), clock);
  return choose_prompt_rows(candidates, [&](int rows) { return reader.seconds_of_row(rows); });
}

}  // namespace lintel
