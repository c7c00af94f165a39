// SPDX-License-Identifier: Apache-2.0
#include "server/engine/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "model/core/tensor.h"
#include "server/core/threads.h"

namespace lintel {
namespace {

// Bytes with the allocator's own share: the node, its place in the order of use and among its
// parent's children, and of a root the part and its owner's name.
constexpr std::size_t kNodeBytes = 320;
constexpr std::size_t kRootBytes = 512;
// The same of a state: its object, and its place in the order of worth.
constexpr std::size_t kStateBytes = 192;
// A reference to a block, and its place among those that are counted.
constexpr std::size_t kHandleBytes = sizeof(SharedBlock);
constexpr std::size_t kBlockBytes = 48;

std::size_t bytes_of_block(const SharedBlock& block) {
  return kHandleBytes + kBlockBytes + SharedBlock::bytes_of(block.bytes().size());
}

// Bytes of a state that shares nothing.
std::size_t bytes_alone(const SavedState& state) {
  std::size_t bytes = state.bytes.size();
  for (const SharedBlock& block : state.blocks) bytes += bytes_of_block(block);
  return bytes;
}

// The place of the child whose edge begins with the token, or where it would be.
auto place_of(std::vector<PrefixTree::Node*>& children, std::int32_t token) {
  return std::ranges::lower_bound(
      children, token, {}, [](const PrefixTree::Node* child) { return child->edge.front(); });
}

std::size_t bytes_of(const PrefixTree::Node& node) {
  return node.parent == nullptr ? kRootBytes + node.part->key.owner.size()
                                : PrefixTree::bytes_of_path(node.edge.size());
}

}  // namespace

PrefixTree::Node::~Node() { zero_memory(std::span(edge)); }

std::size_t PrefixTree::bytes_of_state(std::size_t saved_bytes) {
  return saved_bytes + kStateBytes;
}

std::size_t PrefixTree::bytes_added_by(const SavedState& state) const {
  std::size_t bytes = bytes_of_state(state.bytes.size());
  for (const SharedBlock& block : state.blocks) {
    bytes += blocks_.contains(block.data()) ? kHandleBytes : bytes_of_block(block);
  }
  return bytes;
}

void PrefixTree::hold_blocks(const SavedState& state) {
  state_bytes_ += bytes_of_state(state.bytes.size());
  std::size_t count = 0;
  try {
    for (const SharedBlock& block : state.blocks) {
      const bool is_new = blocks_[block.data()]++ == 0;
      state_bytes_ += is_new ? bytes_of_block(block) : kHandleBytes;
      ++count;
    }
  } catch (...) {
    release_blocks(state, count);
    throw;
  }
}

void PrefixTree::release_blocks(const SavedState& state, std::size_t count) noexcept {
  state_bytes_ -= bytes_of_state(state.bytes.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = blocks_.find(state.blocks[i].data());
    const bool is_last = --found->second == 0;
    state_bytes_ -= is_last ? bytes_of_block(state.blocks[i]) : kHandleBytes;
    if (is_last) blocks_.erase(found);
  }
}

std::size_t PrefixTree::bytes_of_path(std::size_t num_tokens) {
  return kNodeBytes + num_tokens * sizeof(std::int32_t);
}

PrefixTree::Node& PrefixTree::root(const PrefixPartKey& key, const SharedAdapter& adapter,
                                   Gone& gone) {
  const auto found = parts_.find(key);
  if (found != parts_.end()) {
    if (found->second.adapter.lock() == adapter) return *found->second.root;
    const Part* const old = &found->second;
    take_parts([&](const Part& part) { return &part == old; }, gone);
  }
  const auto made = parts_.emplace(key, Part{key, adapter, nullptr}).first;
  try {
    made->second.root = &new_node(nodes_.begin(), made->second, nullptr, {});
  } catch (...) {
    parts_.erase(made);
    throw;
  }
  return *made->second.root;
}

PrefixTree::Node& PrefixTree::new_node(std::list<Node>::iterator before, Part& part, Node* parent,
                                       std::span<const std::int32_t> edge) {
  const auto made = nodes_.emplace(before);
  Node& node = *made;
  try {
    node.edge.assign(edge.begin(), edge.end());
  } catch (...) {
    nodes_.erase(made);
    throw;
  }
  node.part = &part;
  node.parent = parent;
  node.end = (parent == nullptr ? 0 : parent->end) + static_cast<std::int64_t>(edge.size());
  node.self = made;
  path_bytes_ += bytes_of(node);
  return node;
}

PrefixTree::Walk PrefixTree::walk(Node& root, std::span<const std::int32_t> prompt) {
  Walk walk{.node = &root};
  while (!prompt.empty()) {
    const auto next = place_of(walk.node->children, prompt.front());
    if (next == walk.node->children.end() || (*next)->edge.front() != prompt.front()) break;
    walk.node = *next;
    const std::vector<std::int32_t>& edge = walk.node->edge;
    const auto same = std::ranges::mismatch(edge, prompt).in1 - edge.begin();
    walk.matched += same;
    if (static_cast<std::size_t>(same) < edge.size()) break;
    if (walk.node->has_state) walk.nearest = walk.node;
    if (walk.node->is_turn) walk.last_turn = walk.node->end;
    prompt = prompt.subspan(edge.size());
  }
  use(walk.node);
  return walk;
}

PrefixTree::Node& PrefixTree::node_behind(std::span<const std::int32_t> prompt, const Walk& walk) {
  Node& at = walk.matched < walk.node->end ? split(*walk.node, walk.matched) : *walk.node;
  const auto rest = prompt.subspan(static_cast<std::size_t>(walk.matched));
  if (rest.empty()) return at;
  if (at.children.size() == at.children.capacity()) {
    at.children.reserve(std::max<std::size_t>(4, 2 * at.children.size()));
  }
  Node& node = new_node(nodes_.begin(), *at.part, &at, rest);
  at.children.insert(place_of(at.children, rest.front()), &node);
  use(&at);
  return node;
}

PrefixTree::Node& PrefixTree::split(Node& node, std::int64_t at) {
  Node& parent = *node.parent;
  const auto length = static_cast<std::size_t>(at - parent.end);
  const std::span<const std::int32_t> edge(node.edge);
  std::vector<std::int32_t> rest(edge.begin() + static_cast<std::ptrdiff_t>(length), edge.end());
  Node& middle = new_node(node.self, *node.part, &parent, edge.first(length));
  try {
    middle.children.push_back(&node);
  } catch (...) {
    path_bytes_ -= bytes_of(middle);
    nodes_.erase(middle.self);
    throw;
  }
  *place_of(parent.children, middle.edge.front()) = &middle;
  path_bytes_ -= length * sizeof(std::int32_t);
  node.edge.swap(rest);
  zero_memory(std::span(rest));
  node.parent = &middle;
  return middle;
}

void PrefixTree::use(Node* node) {
  for (; node != nullptr; node = node->parent) {
    nodes_.splice(nodes_.begin(), nodes_, node->self);
  }
}

PrefixTree::Node* PrefixTree::find(Node& root, std::span<const std::int32_t> tokens) {
  const Walk found = walk(root, tokens);
  const bool is_whole = found.matched == static_cast<std::int64_t>(tokens.size());
  return is_whole && found.node->end == found.matched ? found.node : nullptr;
}

std::vector<std::int32_t> PrefixTree::tokens_of(const Node& node) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(node.end));
  for (const Node* at = &node; at->parent != nullptr; at = at->parent) {
    std::ranges::copy(at->edge, tokens.begin() + at->parent->end);
  }
  return tokens;
}

PrefixTree::StateKey PrefixTree::key_of(Node& node) {
  const int rank = static_cast<int>(std::min(node.kept_for, KeptFor::kTurn));
  return {rank, node.worth, &node};
}

std::shared_ptr<const SavedState> PrefixTree::state_of(Node& node) const {
  return node.has_state ? states_.at(key_of(node)) : nullptr;
}

void PrefixTree::put_state(Node& node, std::shared_ptr<const SavedState> state, KeptFor kept_for) {
  assert(node.parent != nullptr && !node.has_state);
  node.worth = 0;
  node.kept_for = kept_for;
  const auto made = states_.emplace(key_of(node), std::move(state)).first;
  try {
    hold_blocks(*made->second);
  } catch (...) {
    states_.erase(made);
    throw;
  }
  node.has_state = true;
  ++num_states_[static_cast<std::size_t>(kept_for)];
  note_use(node);
}

void PrefixTree::note_use(Node& node) {
  const Node* before = node.parent;
  while (before->parent != nullptr && !before->has_state) before = before->parent;
  const auto saved = static_cast<double>(node.end - before->end);
  auto state = states_.extract(key_of(node));
  node.worth = gone_worth_ + saved / static_cast<double>(bytes_alone(*state.mapped()));
  state.key() = key_of(node);
  states_.insert(std::move(state));
}

void PrefixTree::set_kept_for(Node& node, KeptFor kept_for) {
  auto state = states_.extract(key_of(node));
  --num_states_[static_cast<std::size_t>(node.kept_for)];
  node.kept_for = kept_for;
  ++num_states_[static_cast<std::size_t>(kept_for)];
  state.key() = key_of(node);
  states_.insert(std::move(state));
}

void PrefixTree::take_state(Node& node, Gone& gone) {
  if (!node.has_state) return;
  auto state = states_.extract(key_of(node));
  release_blocks(*state.mapped(), state.mapped()->blocks.size());
  node.has_state = false;
  --num_states_[static_cast<std::size_t>(node.kept_for)];
  gone.states.insert(std::move(state));
}

void PrefixTree::drop_state(Node& node, Gone& gone) {
  take_state(node, gone);
  Node* at = &node;
  while (at->parent != nullptr && at->children.empty() && !at->has_state && !at->is_turn) {
    Node* const parent = at->parent;
    take_leaf(*at, gone);
    at = parent;
  }
}

std::size_t PrefixTree::prune_conversation(Node& turn, Gone& gone) {
  constexpr int kMostBefore = 2;
  constexpr std::size_t kMostLookedAt = 256;  // nodes behind the turn before
  const auto is_on_way = [&turn](const Node& node) {
    const Node* at = &turn;
    while (at->end > node.end) at = at->parent;
    return at == &node;
  };
  Node* last_turn = turn.parent;
  while (last_turn != nullptr && !last_turn->is_turn) last_turn = last_turn->parent;
  std::vector<Node*> answers, left;
  if (last_turn != nullptr) left.push_back(last_turn);
  for (std::size_t looked_at = 0; !left.empty() && looked_at < kMostLookedAt; ++looked_at) {
    Node& node = *left.back();
    left.pop_back();
    const bool is_answer = node.kept_for == KeptFor::kCall || node.kept_for == KeptFor::kEnd;
    if (node.has_state && is_answer && !is_on_way(node)) answers.push_back(&node);
    left.insert(left.end(), node.children.begin(), node.children.end());
  }
  for (Node* const node : answers) drop_state(*node, gone);
  std::size_t dropped = answers.size();
  int before = 0;
  for (Node* node = turn.parent; node != nullptr; node = node->parent) {
    if (!node->has_state || node->kept_for == KeptFor::kPrefix) continue;
    if (++before > kMostBefore && node->children.size() < 2) {
      take_state(*node, gone);
      ++dropped;
    } else if (node->kept_for == KeptFor::kTurn) {
      set_kept_for(*node, KeptFor::kOlderTurn);
    }
  }
  return dropped;
}

PrefixTree::Node* PrefixTree::least_worth() const {
  return states_.empty() ? nullptr : std::get<Node*>(states_.begin()->first);
}

void PrefixTree::evict_state(Node& node, Gone& gone) {
  gone_worth_ = std::max(gone_worth_, node.worth);
  take_state(node, gone);
}

PrefixTree::Node* PrefixTree::longest_unused() { return nodes_.empty() ? nullptr : &nodes_.back(); }

void PrefixTree::take_leaf(Node& node, Gone& gone) {
  assert(node.children.empty());
  take_state(node, gone);
  path_bytes_ -= bytes_of(node);
  if (node.parent != nullptr) {
    std::vector<Node*>& siblings = node.parent->children;
    siblings.erase(place_of(siblings, node.edge.front()));
  } else {
    parts_.erase(parts_.find(node.part->key));
  }
  gone.nodes.splice(gone.nodes.end(), nodes_, node.self);
}

namespace {

// Parts of the budget, 1 / N: for the tokens of prompts, and of that for the longest prompt.
constexpr std::size_t kPathShare = 8;
constexpr std::size_t kLongestPathShare = 4;
// Part of the budget, 1 / N, for the largest state that is kept.
constexpr std::size_t kLargestStateShare = 2;

PrefixPartKey key_of(const PrefixCache::Reader& reader) {
  return {&reader.model, reader.adapter.get(), reader.owner};
}

std::shared_ptr<const SavedState> saved(const SequenceState& sequence) {
  auto state = std::make_shared<SavedState>();
  SharedStateCount count;
  sequence.save(count);
  state->bytes.reserve(count.bytes());
  state->blocks.reserve(count.blocks());
  SharedStateWriter writer(*state);
  sequence.save(writer);
  return state;
}

// Returns whether the sequence has become the one that was saved; if not, it is empty.
bool load(const SavedState& state, SequenceState& sequence) noexcept {
  return catch_exceptions(
      [&] {
        SharedStateReader reader(state);
        sequence.load(reader);
        return true;
      },
      [] { return false; });
}

}  // namespace

PrefixCache::PrefixCache(const Options& options, SessionManager& store)
    : options_(options), store_(store) {
  store_.lend(this);
}

PrefixCache::~PrefixCache() { store_.lend(nullptr); }

bool PrefixCache::takes(const Transformer& model, std::size_t num_tokens, bool is_turn) const {
  const auto least = static_cast<std::size_t>(is_turn ? 1 : options_.least_tokens);
  return num_tokens >= least && !model.recomputes() &&
         Tree::bytes_of_path(num_tokens) <= options_.memory_bytes / kPathShare / kLongestPathShare;
}

template <typename Body>
void PrefixCache::change(const Body& body) noexcept {
  Removed removed;  // freed without the mutex
  {
    MutexLock lock(mutex_);
    catch_exceptions([&] { body(removed); }, [] {});
    // Stored before the limit is read: either the limit is less by what was admitted just now, or
    // the admitting thread sees these bytes.
    bytes_.store(held());
    shrink(limit(), removed);
    bytes_.store(held());
  }
  report(removed);
}

void PrefixCache::evict(Tree::Node& node, Removed& removed) {
  if (on_evicted_ != nullptr && node.kept_for == KeptFor::kTurn) {
    // The state is lost if there is no memory to report it.
    catch_exceptions(
        [&]() REQUIRES(mutex_) {
          const PrefixPartKey& key = node.part->key;
          removed.turns.push_back({.model = key.model,
                                   .adapter = node.part->adapter,
                                   .has_adapter = key.adapter != nullptr,
                                   .owner = key.owner,
                                   .tokens = Tree::tokens_of(node),
                                   .state = tree_.state_of(node)});
        },
        [] {});
  }
  tree_.evict_state(node, removed.gone);
  evictions_.fetch_add(1, std::memory_order_relaxed);
}

void PrefixCache::report(Removed& removed) noexcept {
  if (removed.turns.empty()) return;
  std::shared_ptr<const std::function<void(EvictedTurn)>> call;
  {
    MutexLock lock(mutex_);
    call = on_evicted_;
  }
  if (call == nullptr) return;
  for (EvictedTurn& turn : removed.turns) {
    catch_exceptions([&] { (*call)(std::move(turn)); }, [] {});
  }
}

void PrefixCache::when_turn_evicted(std::function<void(EvictedTurn)> call) {
  auto shared = call == nullptr
                    ? nullptr
                    : std::make_shared<const std::function<void(EvictedTurn)>>(std::move(call));
  MutexLock lock(mutex_);
  on_evicted_ = std::move(shared);
}

std::shared_ptr<const SavedState> PrefixCache::state_after(
    const Reader& reader, std::span<const std::int32_t> tokens) noexcept {
  std::shared_ptr<const SavedState> state;
  change([&](Removed& removed) REQUIRES(mutex_) {
    Tree::Node& root = tree_.root(key_of(reader), reader.adapter, removed.gone);
    if (Tree::Node* const node = tree_.find(root, tokens)) state = tree_.state_of(*node);
  });
  return state;
}

PrefixCache::Beginning PrefixCache::begin(const Reader& reader,
                                          std::span<const std::int32_t> prompt,
                                          const Wanted& wanted, SequenceState& sequence) noexcept {
  Beginning beginning;
  std::shared_ptr<const SavedState> nearest;
  change([&](Removed& removed) REQUIRES(mutex_) {
    Tree::Node& root = tree_.root(key_of(reader), reader.adapter, removed.gone);
    const Tree::Walk walk = tree_.walk(root, prompt);
    if (walk.nearest != nullptr) {
      nearest = tree_.state_of(*walk.nearest);
      tree_.note_use(*walk.nearest);
      beginning.cached = walk.nearest->end;
    }
    const auto size = static_cast<std::int64_t>(prompt.size());
    if (wanted.is_turn && !wanted.is_ahead) count_turn(walk, size, beginning.cached);
    const std::int64_t place = place_for(reader.model, walk, wanted.at, size, beginning.cached);
    const std::int64_t remembered = wanted.at > 0 ? std::min(wanted.at, size) : size;
    if (wanted.is_turn) {
      const auto turn = prompt.first(static_cast<std::size_t>(remembered));
      tree_.node_behind(turn, tree_.walk(root, turn)).is_turn = true;
    } else if (walk.matched < remembered) {
      tree_.node_behind(prompt.first(static_cast<std::size_t>(remembered)), walk);
    }
    beginning.keep_at = place;
    if (wanted.call > std::max(wanted.at, beginning.cached)) {
      beginning.keep_call_at = may_keep(reader.model, wanted.call) ? wanted.call : 0;
    }
  });
  if (nearest != nullptr && !load(*nearest, sequence)) beginning.cached = 0;
  (beginning.cached > 0 ? hits_ : misses_).fetch_add(1, std::memory_order_relaxed);
  saved_tokens_.fetch_add(static_cast<std::uint64_t>(beginning.cached), std::memory_order_relaxed);
  return beginning;
}

void PrefixCache::count_turn(const Tree::Walk& walk, std::int64_t prompt_size,
                             std::int64_t cached) noexcept {
  const auto add = [](std::atomic<std::uint64_t>& to, std::int64_t count) {
    to.fetch_add(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
  };
  add(chat_cached_, cached);
  add(chat_read_, prompt_size - cached);
  add(chat_rereads_, cached < walk.last_turn ? 1 : 0);
  add(chat_common_not_cached_, walk.matched - cached);
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
  // A place that was asked for is kept however short it is.
  if (place == 0 || (asked == 0 && place < options_.least_tokens)) return 0;
  return may_keep(model, place) ? place : 0;
}

std::int64_t PrefixCache::look_up(const Reader& reader,
                                  std::span<const std::int32_t> prompt) noexcept {
  std::int64_t cached = 0;
  change([&](Removed& removed) REQUIRES(mutex_) {
    const Tree::Walk walk =
        tree_.walk(tree_.root(key_of(reader), reader.adapter, removed.gone), prompt);
    if (walk.nearest != nullptr) cached = walk.nearest->end;
  });
  return cached;
}

bool PrefixCache::may_keep(const Transformer& model, std::int64_t num_tokens) const {
  return model.state_bytes(num_tokens) <= options_.memory_bytes / kLargestStateShare;
}

void PrefixCache::keep(const Reader& reader, std::span<const std::int32_t> tokens,
                       const SequenceState& sequence, KeptFor kept_for) noexcept {
  std::shared_ptr<const SavedState> state;
  catch_exceptions(
      [&] {
        const std::size_t bytes = Tree::bytes_of_state(sequence.saved_bytes());
        if (bytes <= std::min(options_.memory_bytes / kLargestStateShare, limit())) {
          state = saved(sequence);
        }
      },
      [] {});
  if (state == nullptr) return;
  change([&](Removed& removed) REQUIRES(mutex_) {
    Tree::Node& root = tree_.root(key_of(reader), reader.adapter, removed.gone);
    Tree::Node& node = tree_.node_behind(tokens, tree_.walk(root, tokens));
    if (node.has_state) return;
    // States that are worth less make room before the new one comes, which has not been used yet.
    const std::size_t bytes = tree_.bytes_added_by(*state);
    const std::size_t most = options_.memory_bytes - options_.memory_bytes / kPathShare;
    while (tree_.state_bytes() + bytes > most && tree_.least_worth() != nullptr) {
      evict(*tree_.least_worth(), removed);
    }
    tree_.put_state(node, std::move(state), kept_for);
    if (kept_for != KeptFor::kTurn) return;
    node.is_turn = true;
    chat_dropped_.fetch_add(tree_.prune_conversation(node, removed.gone),
                            std::memory_order_relaxed);
  });
}

void PrefixCache::drop(const Reader& reader, std::span<const std::int32_t> tokens,
                       KeptFor kept_for) noexcept {
  change([&](Removed& removed) REQUIRES(mutex_) {
    Tree::Node* const node =
        tree_.find(tree_.root(key_of(reader), reader.adapter, removed.gone), tokens);
    if (node == nullptr || !node->has_state || node->kept_for != kept_for) return;
    tree_.drop_state(*node, removed.gone);
    chat_dropped_.fetch_add(1, std::memory_order_relaxed);
  });
}

std::size_t PrefixCache::limit() const {
  return std::min(options_.memory_bytes, store_.free_bytes());
}

void PrefixCache::shrink(std::size_t most, Removed& removed) {
  const std::size_t most_path = options_.memory_bytes / kPathShare;
  while (held() > most || tree_.path_bytes() > most_path) {
    Tree::Node* const state = tree_.path_bytes() > most_path ? nullptr : tree_.least_worth();
    if (state != nullptr) {
      evict(*state, removed);
      continue;
    }
    Tree::Node* const leaf = tree_.longest_unused();
    if (leaf == nullptr) return;
    if (leaf->has_state) evictions_.fetch_add(1, std::memory_order_relaxed);
    tree_.take_leaf(*leaf, removed.gone);
  }
}

void PrefixCache::keep_within(std::size_t bytes) noexcept {
  if (bytes_.load() <= bytes) return;
  Removed removed;  // freed without the mutex
  {
    MutexLock lock(mutex_);
    shrink(bytes, removed);
    bytes_.store(held());
  }
  report(removed);
}

void PrefixCache::forget(const Transformer& model) noexcept {
  change([&](Removed& removed) REQUIRES(mutex_) {
    tree_.take_parts([&](const Tree::Part& part) { return part.key.model == &model; },
                     removed.gone);
  });
}

void PrefixCache::forget_gone_adapters() noexcept {
  change([&](Removed& removed) REQUIRES(mutex_) {
    tree_.take_parts(
        [](const Tree::Part& part) {
          return part.key.adapter != nullptr && part.adapter.expired();
        },
        removed.gone);
  });
}

PrefixCache::Stats PrefixCache::stats() const {
  const auto states = [this](KeptFor kept_for) {
    MutexLock lock(mutex_);
    return tree_.num_states(kept_for);
  };
  return {.hits = hits_.load(),
          .misses = misses_.load(),
          .joins = joins_.load(),
          .saved_tokens = saved_tokens_.load(),
          .evictions = evictions_.load(),
          .bytes = bytes_.load(),
          .chat_cached_tokens = chat_cached_.load(),
          .chat_read_tokens = chat_read_.load(),
          .chat_rereads = chat_rereads_.load(),
          .chat_common_not_cached = chat_common_not_cached_.load(),
          .turn_states = states(KeptFor::kTurn) + states(KeptFor::kOlderTurn),
          .call_states = states(KeptFor::kCall),
          .end_states = states(KeptFor::kEnd),
          .chat_states_dropped = chat_dropped_.load()};
}

namespace {

// The pace if nothing was measured yet: of a small model on a busy machine.
constexpr Duration kUsualPace = std::chrono::microseconds(50);

std::int64_t tokens_in_common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

PrefillCoalescer::Shared PrefillCoalescer::begin(const PrefixPartKey& key,
                                                 std::span<const std::int32_t> prompt,
                                                 std::int64_t cached, TimePoint now) {
  auto reading = std::make_shared<Reading>();
  reading->key_ = key;
  reading->prompt_ = prompt;
  reading->first_ = cached;
  reading->began_ = now;
  reading->passed_ = cached;
  MutexLock lock(mutex_);
  reading->self_ = readings_.insert(readings_.end(), reading.get());
  return reading;
}

void PrefillCoalescer::advance(Reading& reading, std::int64_t tokens) {
  std::size_t waited = 0;
  {
    MutexLock lock(mutex_);
    reading.passed_.store(tokens);
    waited = std::erase_if(reading.wanted_, [&](std::int64_t wanted) { return wanted <= tokens; });
  }
  if (waited > 0) wake_();
}

std::int64_t PrefillCoalescer::next_wanted(const Reading& reading) const {
  MutexLock lock(mutex_);
  const auto next = std::ranges::min_element(reading.wanted_);
  return next == reading.wanted_.end() ? 0 : *next;
}

void PrefillCoalescer::end(Reading& reading, TimePoint now) {
  bool is_waited_for = false;
  {
    MutexLock lock(mutex_);
    // The next reading is taken for a usual one if there is no memory to note this one's pace.
    catch_exceptions([&]() REQUIRES(mutex_) { paces_[reading.key_.model] = pace(reading, now); },
                     [] {});
    readings_.erase(reading.self_);
    reading.passed_.store(std::numeric_limits<std::int64_t>::max());
    is_waited_for = !reading.wanted_.empty();
  }
  if (is_waited_for) wake_();
}

Duration PrefillCoalescer::pace(const Reading& reading, TimePoint now) const {
  const std::int64_t tokens = reading.passed_.load() - reading.first_;
  if (tokens > 0 && now > reading.began_) return (now - reading.began_) / tokens;
  const auto last = paces_.find(reading.key_.model);
  return last == paces_.end() ? kUsualPace : last->second;
}

PrefillCoalescer::Wait PrefillCoalescer::wait_for(const PrefixPartKey& key,
                                                  std::span<const std::int32_t> prompt,
                                                  std::int64_t cached, std::int64_t least,
                                                  TimePoint now) {
  Wait wait;
  MutexLock lock(mutex_);
  Reading* best = nullptr;
  for (Reading* const reading : readings_) {
    if (reading->key_ != key) continue;
    const std::int64_t passed = reading->passed_.load();
    const std::int64_t common = tokens_in_common(prompt, reading->prompt_);
    if (common <= wait.tokens || common < cached + least) continue;
    if (passed < cached || passed >= common) continue;
    best = reading;
    wait.tokens = common;
  }
  if (best == nullptr) return {};
  best->wanted_.push_back(wait.tokens);
  wait.reading = best->shared_from_this();
  wait.longest = pace(*best, now) * (wait.tokens - cached);
  return wait;
}

}  // namespace lintel
