#include "server/engine/row_planner.h"

#include <algorithm>
#include <span>

namespace lintel {
RowPlanner::RowPlanner(const Options& options) : options_(options) {
  hungry_.reserve(static_cast<std::size_t>(options.max_rows));
  grouped_.reserve(static_cast<std::size_t>(options.max_rows));
  groups_.reserve(static_cast<std::size_t>(options.max_rows));
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
  int left =
      client_waits ? beside : std::max(prompt_rows - decoding, std::min(beside, prompt_rows));

  hungry_.clear();
  for (RowRun& run : runs) {
    if (run.rows < run.wanted) hungry_.push_back(&run);
  }
  if (hungry_.empty()) return;
  group_hungry();
  while (left > 0 && !groups_.empty()) {
    const int share = std::max(left / static_cast<int>(groups_.size()), 1);
    for (Group& group : groups_) {
      const int rows = std::min(share, left);
      left -= rows - grant(group, rows);
    }
    std::erase_if(groups_, [](const Group& group) { return group.size == 0; });
  }
}

void RowPlanner::group_hungry() {
  groups_.clear();
  for (const RowRun* run : hungry_) {
    auto group = std::ranges::find(groups_, run->caller, &Group::caller);
    if (group == groups_.end()) group = groups_.insert(group, Group{run->caller, 0, 0});
    ++group->size;
  }
  const std::size_t turn = turn_++;
  const auto rotate = [](auto first, std::size_t size, std::size_t by) {
    std::rotate(first, first + static_cast<std::ptrdiff_t>(by % size),
                first + static_cast<std::ptrdiff_t>(size));
  };
  const std::size_t callers = groups_.size();
  rotate(groups_.begin(), callers, turn);
  if (callers > 1) {
    grouped_.clear();
    for (Group& group : groups_) {
      group.first = grouped_.size();
      for (RowRun* run : hungry_) {
        if (run->caller == group.caller) grouped_.push_back(run);
      }
    }
    hungry_.swap(grouped_);
  }
  for (const Group& group : groups_) {
    rotate(hungry_.begin() + static_cast<std::ptrdiff_t>(group.first), group.size, turn / callers);
  }
}

int RowPlanner::grant(Group& group, int rows) {
  const int share = std::max(rows / static_cast<int>(group.size), 1);
  const auto runs = std::span(hungry_).subspan(group.first, group.size);
  for (RowRun* run : runs) {
    const int granted = std::min({share, run->wanted - run->rows, rows});
    run->rows += granted;
    rows -= granted;
  }
  const auto fed =
      std::ranges::remove_if(runs, [](const RowRun* run) { return run->rows == run->wanted; });
  group.size -= fed.size();
  return rows;
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
    // Worth it where it yields as many tokens for its time as the step does without it.
    if (!options_.drafts_always && probability * time <= more_time * values) return;
    if (!run.drafts->take_draft()) drafting_.erase(likeliest);
    ++run.rows;
    ++rows;
    values += probability;
    time += more_time;
  }
}

}  // namespace lintel
