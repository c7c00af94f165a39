#include "server/engine/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "model/core/tensor.h"

namespace lintel {
namespace {

// With the allocator's own share: the node, its place in the order of use and among its parent's
// children, and of a root the part and its owner's name.
constexpr std::size_t kNodeBytes = 320;
constexpr std::size_t kRootBytes = 512;
// The same of a state: its object, and its place in the order of worth.
constexpr std::size_t kStateBytes = 192;

// Where a child whose edge begins with the token stands, or would.
auto place_of(std::vector<PrefixTree::Node*>& children, std::int32_t value) {
  return std::ranges::lower_bound(
      children, value, {}, [](const PrefixTree::Node* child) { return child->edge.front(); });
}

std::size_t bytes_of(const PrefixTree::Node& node) {
  return node.parent == nullptr ? kRootBytes + node.part->key.owner.size()
                                : PrefixTree::bytes_of_path(node.edge.size());
}

}  // namespace

SavedState::~SavedState() { zero_memory(std::span(bytes)); }

PrefixTree::Node::~Node() { zero_memory(std::span(edge)); }

std::size_t PrefixTree::bytes_of_state(std::size_t saved_bytes) {
  return saved_bytes + kStateBytes;
}

std::size_t PrefixTree::bytes_of_path(std::size_t num_values) {
  return kNodeBytes + num_values * sizeof(std::int32_t);
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

std::shared_ptr<const SavedState> PrefixTree::state_of(Node& node) const {
  return node.has_state ? states_.at({node.worth, &node}) : nullptr;
}

void PrefixTree::put_state(Node& node, std::shared_ptr<const SavedState> state) {
  assert(node.parent != nullptr && !node.has_state);
  const std::size_t bytes = bytes_of_state(state->bytes.size());
  node.worth = 0;
  states_.emplace(std::pair(node.worth, &node), std::move(state));
  node.has_state = true;
  state_bytes_ += bytes;
  note_use(node);
}

void PrefixTree::note_use(Node& node) {
  const Node* before = node.parent;
  while (before->parent != nullptr && !before->has_state) before = before->parent;
  const auto saved = static_cast<double>(node.end - before->end);
  auto state = states_.extract({node.worth, &node});
  node.worth = gone_worth_ + saved / static_cast<double>(state.mapped()->bytes.size());
  state.key().first = node.worth;
  states_.insert(std::move(state));
}

void PrefixTree::take_state(Node& node, Gone& gone) {
  if (!node.has_state) return;
  auto state = states_.extract({node.worth, &node});
  state_bytes_ -= bytes_of_state(state.mapped()->bytes.size());
  node.has_state = false;
  gone.states.insert(std::move(state));
}

PrefixTree::Node* PrefixTree::least_worth() const {
  return states_.empty() ? nullptr : states_.begin()->first.second;
}

void PrefixTree::evict_state(Node& node, Gone& gone) {
  gone_worth_ = node.worth;
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

}  // namespace lintel
