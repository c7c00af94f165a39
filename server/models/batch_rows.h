// SPDX-License-Identifier: Apache-2.0
// Measures how many sequences a worker should step together, and how many rows of a prompt.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"

namespace lintel {

// A step streams the weights once for all its rows, so more rows are cheaper, until the states they
// belong to no longer fit the last cache beside the weights. In f32 the weights cost most, and
// there are kMostBatchRows; in bf16 and int8 as many as keep the states of all workers within a
// quarter of `cache_bytes`, but no fewer than kLeastBatchRows. Growing states count as they are
// after 64 tokens: they leave the caches anyway. Nothing of a large model (is_large) stays in a
// cache, so it has kMostBatchRows.
int batch_rows_for(const Transformer& model, int workers, std::size_t cache_bytes);

inline constexpr int kLeastBatchRows = 16;
inline constexpr int kMostBatchRows = 64;

// Bytes of this machine's last-level cache; 32 MiB if the system does not report it.
std::size_t last_cache_bytes();

// Bytes of one worker's buffers once it has run steps of `rows` rows, of which `output_rows` wanted
// an output and up to `drafting_rows` had drafts: computed from a step of few rows. Buffers of
// drafts that copy states of many megabytes are made when there are drafts, and do not count.
std::size_t worker_bytes(const Transformer& model, int rows, int output_rows, int drafting_rows);

// ---- Prompts. The rows of a step change its speed, not the bits of any output.
//
// All rows of a prompt belong to one sequence, whose state is read once. More rows share the
// reading of the weights, until what they need between two products no longer fits the caches of
// the core: that number depends on the machine, so it is measured.

struct PromptRowTime {
  int rows = 0;          // of a step
  float seconds = 0.0f;  // a row
};

struct PromptRows {
  int rows = 0;                         // of a step that only reads a prompt
  std::vector<PromptRowTime> measured;  // by rows; empty: nothing was measured

  // "48 rows a step, 57.2 us a row (8: 68.0, 16: 60.4, 48: 57.2, 128: 58.1)"
  std::string to_text() const;
};

// Numbers of rows to try, ascending: up to `most`, which is the last one, and no more than a
// sequence of `max_length` tokens (0: any) can have.
std::vector<int> prompt_row_candidates(int most, std::int64_t max_length);

// The candidate whose row takes least time; among those within 2 % of it the one with the fewest
// rows, which leaves most of the caches to others and ends soonest. seconds_of_row(rows) is called
// several times, as the machine may be disturbed at any time, and the least counts; candidates that
// are far behind after the first time are not tried again. REQUIRES: there are candidates.
PromptRows choose_prompt_rows(std::span<const int> candidates,
                              const std::function<float(int rows)>& seconds_of_row);

// Measures this model on this machine, with up to `most` rows. Takes as long as some 2,000 rows, on
// this thread. Nothing is measured, and the rows are `most`, if a step is too short to be measured
// or the model has fewer than kLeastMeasuredParameters or keeps no state.
PromptRows measure_prompt_rows(const Transformer& model, int most, const Clock& clock);

// The least number of parameters: steps of smaller models take microseconds.
inline constexpr std::int64_t kLeastMeasuredParameters = 200'000;
// Larger models are not measured, which would take half a minute: their weights are read from
// memory once a step, and from kLargeModelRows on a row takes about the same time.
inline constexpr std::int64_t kMostMeasuredParameters = 50'000'000;
inline constexpr int kLargeModelRows = 64;

}  // namespace lintel
