#include "server/engine/prefix_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "model/core/state_bytes.h"
#include "server/core/guarded.h"

namespace lintel {
namespace {

// Of the budget: what the tokens of prompts may take, and the longest of them of that.
constexpr std::size_t kPathShare = 8;
constexpr std::size_t kLongestPathShare = 4;
// Of the budget: the largest state that is kept.
constexpr std::size_t kLargestStateShare = 2;

PrefixPartKey key_of(const PrefixCache::Reader& reader) {
  return {&reader.model, reader.adapter.get(), reader.owner};
}

std::shared_ptr<const SavedState> saved(const SequenceState& sequence) {
  auto state = std::make_shared<SavedState>();
  state->bytes.reserve(sequence.saved_bytes());
  StateByteWriter writer(state->bytes);
  sequence.save(writer);
  return state;
}

// Returns whether the sequence has become the one that was saved; if not, it is empty.
bool load(const SavedState& state, SequenceState& sequence) noexcept {
  return guarded(
      [&] {
        StateByteReader reader(state.bytes);
        sequence.load(reader);
        return true;
      },
      [] { return false; });
}

}  // namespace

PrefixCache::PrefixCache(const Options& options, SessionStore& store)
    : options_(options), store_(store) {
  store_.lend(this);
}

PrefixCache::~PrefixCache() { store_.lend(nullptr); }

bool PrefixCache::takes(const Transformer& model, std::size_t num_values) const {
  return num_values >= static_cast<std::size_t>(options_.least_tokens) && !model.recomputes() &&
         Tree::bytes_of_path(num_values) <= options_.memory_bytes / kPathShare / kLongestPathShare;
}

template <typename Body>
void PrefixCache::change(const Body& body) noexcept {
  Tree::Gone gone;  // freed without the mutex
  MutexLock lock(mutex_);
  guarded([&] { body(gone); }, [] {});
  // Before the limit is asked for: either it is less by what was admitted just now, or the
  // admitting thread sees these bytes.
  bytes_.store(held());
  shrink(limit(), gone);
  bytes_.store(held());
}

PrefixCache::Beginning PrefixCache::begin(const Reader& reader,
                                          std::span<const std::int32_t> prompt, std::int64_t asked,
                                          SequenceState& sequence) noexcept {
  Beginning beginning;
  std::shared_ptr<const SavedState> nearest;
  change([&](Tree::Gone& gone) REQUIRES(mutex_) {
    Tree::Node& root = tree_.root(key_of(reader), reader.adapter, gone);
    const Tree::Walk walk = tree_.walk(root, prompt);
    if (walk.nearest != nullptr) {
      nearest = tree_.state_of(*walk.nearest);
      tree_.note_use(*walk.nearest);
      beginning.cached = walk.nearest->end;
    }
    const auto size = static_cast<std::int64_t>(prompt.size());
    const std::int64_t place = place_for(reader.model, walk, asked, size, beginning.cached);
    const std::int64_t remembered = asked > 0 ? std::min(asked, size) : size;
    if (walk.matched < remembered) {
      tree_.node_behind(prompt.first(static_cast<std::size_t>(remembered)), walk);
    }
    beginning.keep_at = place;
  });
  if (nearest != nullptr && !load(*nearest, sequence)) beginning.cached = 0;
  (beginning.cached > 0 ? hits_ : misses_).fetch_add(1, std::memory_order_relaxed);
  saved_tokens_.fetch_add(static_cast<std::uint64_t>(beginning.cached), std::memory_order_relaxed);
  return beginning;
}

std::int64_t PrefixCache::place_for(const Transformer& model, const Tree::Walk& walk,
                                    std::int64_t asked, std::int64_t prompt_size,
                                    std::int64_t cached) const {
  std::int64_t place = 0;
  if (asked > 0) {
    place = asked <= prompt_size && asked > cached ? asked : 0;
  } else if (walk.matched >= cached + options_.least_tokens) {
    place = walk.matched;
  }
  if (place < options_.least_tokens) return 0;
  return may_keep(model, place) ? place : 0;
}

std::int64_t PrefixCache::look_up(const Reader& reader,
                                  std::span<const std::int32_t> prompt) noexcept {
  std::int64_t cached = 0;
  change([&](Tree::Gone& gone) REQUIRES(mutex_) {
    const Tree::Walk walk = tree_.walk(tree_.root(key_of(reader), reader.adapter, gone), prompt);
    if (walk.nearest != nullptr) cached = walk.nearest->end;
  });
  return cached;
}

bool PrefixCache::may_keep(const Transformer& model, std::int64_t num_values) const {
  return model.state_bytes(num_values) <= options_.memory_bytes / kLargestStateShare;
}

void PrefixCache::keep(const Reader& reader, std::span<const std::int32_t> values,
                       const SequenceState& sequence) noexcept {
  std::shared_ptr<const SavedState> state;
  guarded(
      [&] {
        const std::size_t bytes = Tree::bytes_of_state(sequence.saved_bytes());
        if (bytes <= std::min(options_.memory_bytes / kLargestStateShare, limit())) {
          state = saved(sequence);
        }
      },
      [] {});
  if (state == nullptr) return;
  change([&](Tree::Gone& gone) REQUIRES(mutex_) {
    Tree::Node& root = tree_.root(key_of(reader), reader.adapter, gone);
    Tree::Node& node = tree_.node_behind(values, tree_.walk(root, values));
    if (node.has_state) return;
    // Those that are worth less make room before it comes: it has not been used yet.
    const std::size_t bytes = Tree::bytes_of_state(state->bytes.size());
    const std::size_t most = options_.memory_bytes - options_.memory_bytes / kPathShare;
    while (tree_.state_bytes() + bytes > most && tree_.least_worth() != nullptr) {
      tree_.evict_state(*tree_.least_worth(), gone);
      evictions_.fetch_add(1, std::memory_order_relaxed);
    }
    tree_.put_state(node, std::move(state));
  });
}

std::size_t PrefixCache::limit() const {
  return std::min(options_.memory_bytes, store_.free_bytes());
}

void PrefixCache::shrink(std::size_t most, Tree::Gone& gone) {
  const std::size_t most_path = options_.memory_bytes / kPathShare;
  while (held() > most || tree_.path_bytes() > most_path) {
    Tree::Node* const state = tree_.path_bytes() > most_path ? nullptr : tree_.least_worth();
    if (state != nullptr) {
      tree_.evict_state(*state, gone);
      evictions_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    Tree::Node* const leaf = tree_.longest_unused();
    if (leaf == nullptr) return;
    if (leaf->has_state) evictions_.fetch_add(1, std::memory_order_relaxed);
    tree_.take_leaf(*leaf, gone);
  }
}

void PrefixCache::keep_within(std::size_t bytes) noexcept {
  if (bytes_.load() <= bytes) return;
  Tree::Gone gone;  // freed without the mutex
  MutexLock lock(mutex_);
  shrink(bytes, gone);
  bytes_.store(held());
}

void PrefixCache::forget(const Transformer& model) noexcept {
  change([&](Tree::Gone& gone) REQUIRES(mutex_) {
    tree_.take_parts([&](const Tree::Part& part) { return part.key.model == &model; }, gone);
  });
}

void PrefixCache::forget_gone_adapters() noexcept {
  change([&](Tree::Gone& gone) REQUIRES(mutex_) {
    tree_.take_parts(
        [](const Tree::Part& part) {
          return part.key.adapter != nullptr && part.adapter.expired();
        },
        gone);
  });
}

PrefixCache::Stats PrefixCache::stats() const {
  return {.hits = hits_.load(),
          .misses = misses_.load(),
          .joins = joins_.load(),
          .saved_tokens = saved_tokens_.load(),
          .evictions = evictions_.load(),
          .bytes = bytes_.load()};
}

}  // namespace lintel
