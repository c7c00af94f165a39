// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/paged_state.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

namespace lintel {
namespace {

using StateRef = SessionStorage::StateRef;

// Pages of many short turns are stored together again once there are so many runs of them: a row
// names each, and a load reads each.
constexpr std::size_t kMostRuns = 192;
// The bound of one run: data read from a storage is not trusted.
constexpr std::uint32_t kMostBlocks = 1U << 24;

// The runs that a state needs, adjacent from 0 to its `first`; nothing if one is missing.
bool pages_of(const StoredStates& states, const StateRef& state, std::vector<StateRef>& runs) {
  std::int64_t end = 0;
  for (const StateRef& ref : states) {
    if (!ref.is_pages || ref.position > state.first) continue;
    if (ref.first != end) return false;
    runs.push_back(ref);
    end = ref.position;
  }
  return end == state.first;
}

// Counts what runs of the full pages of the first tokens take.
class RunBytes final : public StateWriter {
 public:
  explicit RunBytes(std::int64_t end) : end_(end) {}

  // The size of all blocks, written in so many runs by write_run().
  std::size_t bytes(std::size_t runs) const { return runs * sizeof(std::uint32_t) + bytes_; }
  void block(const SharedBlock& block, std::int64_t end) override {
    if (end > 0 && end <= end_) bytes_ += sizeof(std::uint32_t) + block.bytes().size();
  }

 private:
  void write(std::span<const std::byte> /*bytes*/) override {}

  const std::int64_t end_;
  std::size_t bytes_ = 0;
};

// A run as one piece, little-endian: u32 number of blocks, u32 bytes of each, the blocks.
std::size_t run_bytes(const PageRun& run) {
  std::size_t bytes = sizeof(std::uint32_t) * (1 + run.blocks.size());
  for (const SharedBlock& block : run.blocks) bytes += block.bytes().size();
  return bytes;
}

void write_run(const PageRun& run, std::byte* to) {
  const auto number = [&to](std::size_t value) {
    const auto narrow = static_cast<std::uint32_t>(value);
    std::memcpy(to, &narrow, sizeof(narrow));
    to += sizeof(narrow);
  };
  number(run.blocks.size());
  for (const SharedBlock& block : run.blocks) number(block.bytes().size());
  for (const SharedBlock& block : run.blocks) {
    std::memcpy(to, block.data(), block.bytes().size());
    to += block.bytes().size();
  }
}

// Reads a run; false if these bytes are not one.
bool read_run(std::span<const std::byte> bytes, PageRun& run) {
  std::uint32_t count = 0;
  if (bytes.size() < sizeof(count)) return false;
  std::memcpy(&count, bytes.data(), sizeof(count));
  bytes = bytes.subspan(sizeof(count));
  const std::size_t table = std::size_t{count} * sizeof(std::uint32_t);
  if (count > kMostBlocks || bytes.size() < table) return false;
  std::span<const std::byte> blocks = bytes.subspan(table);
  run.blocks.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t size = 0;
    std::memcpy(&size, bytes.data() + i * sizeof(size), sizeof(size));
    if (size == 0 || size > blocks.size()) return false;
    run.blocks.emplace_back(blocks.first(size));
    blocks = blocks.subspan(size);
  }
  return blocks.empty();
}

// Memory for runs, one after the other, that is not zeroed for each.
class RunBuffer {
 public:
  ~RunBuffer() { zero_memory(std::span(bytes_.get(), size_)); }
  std::span<std::byte> of(std::size_t bytes) {
    if (bytes > size_) {
      zero_memory(std::span(bytes_.get(), size_));
      size_ = 0;
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return {bytes_.get(), bytes};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
};

}  // namespace

std::int64_t last_state_of(const StoredStates& states) {
  std::int64_t last = 0;
  for (const StateRef& ref : states) {
    if (!ref.is_pages) last = std::max(last, ref.position);
  }
  return last;
}

void add_states(StoredStates& states, const StoredStates& put, std::int64_t start) {
  const StateRef& last = put.back();
  const std::int64_t kept = put.front().is_pages ? put.front().first : last.first;
  StoredStates pages, whole;
  for (const StateRef& ref : states) {
    if (ref.is_pages && ref.position <= kept) pages.push_back(ref);
    if (!ref.is_pages && ref.first <= kept) whole.push_back(ref);
  }
  pages.insert(pages.end(), put.begin(), put.end() - 1);
  whole.push_back(last);
  while (whole.size() > kMostStates) {
    std::size_t least = 0;
    double least_loss = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i + 1 < whole.size(); ++i) {
      const std::int64_t after = whole[i + 1].position;
      if (whole[i].position <= start && start < after) continue;
      const std::int64_t before = i == 0 ? 0 : whole[i - 1].position;
      // The length of the gap without it, relative to the distance from which one goes back to it.
      const double loss =
          static_cast<double>(after - before) / static_cast<double>(last.position - before);
      if (loss >= least_loss) continue;
      least_loss = loss;
      least = i;
    }
    whole.erase(whole.begin() + static_cast<std::ptrdiff_t>(least));
  }
  states.resize(pages.size() + whole.size());
  std::ranges::merge(pages, whole, states.begin(), {}, &StateRef::position, &StateRef::position);
}

void PagedState::save(const SequenceState& sequence, const StoredStates& stored) {
  clear();
  const std::int64_t end = sequence.full_pages();
  std::int64_t there = 0;
  std::size_t runs = 0;
  std::size_t stored_bytes = 0;
  for (const StateRef& ref : stored) {
    if (!ref.is_pages || ref.first != there || ref.position > end) continue;
    there = ref.position;
    stored_bytes += ref.bytes;
    ++runs;
  }
  if (runs >= kMostRuns) there = 0;
  if (there > 0) {
    // Cells of each KV type take other bytes.
    RunBytes own(there);
    sequence.save(own);
    if (stored_bytes != own.bytes(runs)) there = 0;
  }
  sequence.save_pages(there, bytes, pages);
  position = sequence.next_position();
  pages_end = end;
}

void PagedState::clear() {
  zero_memory(std::span(bytes));
  bytes.clear();
  pages.clear();
  position = pages_end = 0;
}

SessionError PagedState::put(SessionStorage& storage, const SessionStorage::SessionId& id,
                             StoredStates& refs) const {
  RunBuffer buffer;
  for (const PageRun& run : pages) {
    const std::span<std::byte> run_as_bytes = buffer.of(run_bytes(run));
    write_run(run, run_as_bytes.data());
    StateRef ref{.position = run.end, .first = run.first, .is_pages = true};
    const SessionError put = storage.put_state(id, run_as_bytes, &ref);
    if (put != SessionError::kNone) return put;
    refs.push_back(ref);
  }
  StateRef ref{.position = position, .first = pages_end};
  const SessionError put = storage.put_state(id, bytes, &ref);
  if (put == SessionError::kNone) refs.push_back(ref);
  return put;
}

bool PagedState::read(SessionStorage& storage, const StoredStates& states, const StateRef& state,
                      std::size_t most) {
  std::vector<StateRef> runs;
  if (!pages_of(states, state, runs)) return false;
  std::size_t left = most;
  const auto fits = [&left](const StateRef& ref) {
    if (ref.bytes > left) return false;
    left -= ref.bytes;
    return true;
  };
  if (!fits(state) || !std::ranges::all_of(runs, fits)) return false;
  position = state.position;
  pages_end = state.first;
  RunBuffer buffer;
  for (const StateRef& ref : runs) {
    const std::span<std::byte> run_as_bytes = buffer.of(ref.bytes);
    PageRun& run = pages.emplace_back(PageRun{.first = ref.first, .end = ref.position});
    if (storage.read_state(ref, run_as_bytes) != SessionError::kNone) return false;
    if (!read_run(run_as_bytes, run)) return false;
  }
  bytes.resize(state.bytes);
  return storage.read_state(state, bytes) == SessionError::kNone;
}

bool holds_state(SessionStorage& storage, const StoredStates& states, const StateRef& state) {
  std::vector<StateRef> needed;
  if (!pages_of(states, state, needed)) return false;
  needed.push_back(state);
  return std::ranges::all_of(needed, [&](const StateRef& ref) { return storage.holds_state(ref); });
}

}  // namespace lintel
