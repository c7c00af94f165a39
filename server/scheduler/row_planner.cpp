#include "server/scheduler/row_planner.h"

#include <algorithm>

namespace lintel {
RowPlanner::RowPlanner(const Options& options) : options_(options) {
  hungry_.reserve(static_cast<std::size_t>(options.max_rows));
  drafting_.reserve(static_cast<std::size_t>(options.max_rows));
}

void RowPlanner::plan(std::vector<RowRun>& runs) {
  grant_rows(runs);
  grant_drafts(runs);
}

void RowPlanner::grant_rows(std::vector<RowRun>& runs) {
  int decoding = 0;
  bool client_waits = false;
  for (RowRun& run : runs) {
    run.rows = run.is_decoding ? 1 : 0;
    decoding += run.rows;
    client_waits |= run.is_decoding && run.samples_next;
  }
  const int prompt_rows = options_.prompt_rows > 0 ? options_.prompt_rows : options_.max_rows;
  const int beside = std::min(options_.max_rows - decoding, options_.prefill_rows);
  int left = client_waits ? beside
                          : std::max(prompt_rows - decoding, std::min(beside, prompt_rows));

  hungry_.clear();
  for (RowRun& run : runs) {
    if (run.rows < run.wanted) hungry_.push_back(&run);
  }
  if (hungry_.empty()) return;
  std::rotate(hungry_.begin(),
              hungry_.begin() + static_cast<std::ptrdiff_t>(turn_++ % hungry_.size()),
              hungry_.end());
  while (left > 0 && !hungry_.empty()) {
    const int share = std::max(left / static_cast<int>(hungry_.size()), 1);
    for (RowRun* run : hungry_) {
      const int granted = std::min({share, run->wanted - run->rows, left});
      run->rows += granted;
      left -= granted;
    }
    std::erase_if(hungry_, [](const RowRun* run) { return run->rows == run->wanted; });
  }
}

void RowPlanner::grant_drafts(std::vector<RowRun>& runs) {
  int rows = 0;
  for (const RowRun& run : runs) rows += run.rows;
  if (rows >= options_.draft_rows) return;
  drafting_.clear();
  float values = 0.0f;  // expected of the step
  int sequences = 0;
  for (RowRun& run : runs) {
    sequences += run.rows > 0 ? 1 : 0;
    values += static_cast<float>(run.rows);
    if (run.is_decoding && run.rows == run.wanted && run.drafts->begin_drafts(run.rows)) {
      drafting_.push_back(&run);
    }
  }
  float time = options_.cost.of(rows, sequences);
  const auto less_likely = [](const RowRun* a, const RowRun* b) {
    return a->drafts->draft_probability() < b->drafts->draft_probability();
  };
  while (rows < options_.draft_rows && !drafting_.empty()) {
    const auto likeliest = std::ranges::max_element(drafting_, less_likely);
    RowRun& run = **likeliest;
    const float probability = run.drafts->draft_probability();
    const float more_time = options_.cost.of(rows + 1, sequences) - time;
    // Worth it where it yields as many values for its time as the step does without it.
    if (!options_.drafts_always && probability * time <= more_time * values) return;
    if (!run.drafts->take_draft()) drafting_.erase(likeliest);
    ++run.rows;
    ++rows;
    values += probability;
    time += more_time;
  }
}

}  // namespace lintel
