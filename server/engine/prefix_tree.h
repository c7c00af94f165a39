// PrefixTree: prompts that came before, by their tokens, and the states after some of their
// beginnings.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/lora/served_adapter.h"
#include "server/sessions/session_memory.h"

namespace lintel {

class Transformer;

// A sequence after some tokens, as SequenceState::save writes it: bytes that refer to nothing.
struct SavedState {
  SavedState() = default;
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;
  ~SavedState();  // zeroes them

  std::vector<std::byte> bytes;
};

// Whose prompts: they are computed alike, and belong to one owner. None but its own sees them.
struct PrefixPartKey {
  const Transformer* model = nullptr;
  const ServedAdapter* adapter = nullptr;
  Owner owner;
  auto operator<=>(const PrefixPartKey&) const = default;
};

// A radix tree for each part, of exact values: every node stands for the tokens on the way to it.
// Nodes know in which order they were used last, states what they are worth; what goes when there
// is too much of either is for others to say. Not thread-safe.
class PrefixTree {
 public:
  struct Part;
  // Constant but for the tree.
  struct Node {
    Node() = default;
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node();  // zeroes the edge

    Part* part = nullptr;
    Node* parent = nullptr;          // null: the part's root
    std::vector<std::int32_t> edge;  // tokens from the parent's end to its own
    std::int64_t end = 0;            // tokens up to here
    std::vector<Node*> children;     // ascending by the first token of their edges
    bool has_state = false;
    double worth = 0;                // of the state
    std::list<Node>::iterator self;  // in the order of use
  };
  struct Part {
    PrefixPartKey key;
    std::weak_ptr<const ServedAdapter>
        adapter;  // distinguishes it from a later one at the same address
    Node* root = nullptr;
  };
  // How far a tree has the tokens of a prompt.
  struct Walk {
    Node* node = nullptr;      // whose edge, or end, it got to
    std::int64_t matched = 0;  // tokens that are the same
    Node* nearest = nullptr;   // the last with a state on the way; null: none
  };
  using States = std::map<std::pair<double, Node*>, std::shared_ptr<const SavedState>>;  // by worth
  // What was taken out, which asks for no memory; to be freed where no lock is held.
  struct Gone {
    std::list<Node> nodes;
    States states;
  };

  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The part's root. What a part of the same key had with an adapter that is no more goes.
  Node& root(const PrefixPartKey& key, const SharedAdapter& adapter, Gone& gone);
  // As far as the prompt matches from the root on; what it passes is used now.
  Walk walk(Node& root, std::span<const std::int32_t> prompt);
  // The node after the whole prompt, which is made where there is none: `walk` is the prompt's.
  Node& node_behind(std::span<const std::int32_t> prompt, const Walk& walk);

  // Null: it has none.
  std::shared_ptr<const SavedState> state_of(Node& node) const;
  // REQUIRES: the node is no root and has no state.
  void put_state(Node& node, std::shared_ptr<const SavedState> state);
  // A state was used now: it is worth what reading its tokens again costs, for its bytes, on top of
  // what the last one was worth that went for want of memory. So what is not used loses against
  // what comes (GreedyDual-Size: Cao and Irani 1997, "Cost-Aware WWW Proxy Caching Algorithms",
  // section 4).
  void note_use(Node& node);
  // The state that is worth the least; null: there is none.
  Node* least_worth() const;
  // It goes for want of memory.
  void evict_state(Node& node, Gone& gone);
  // The longest unused node, which has no children; null: there is none.
  Node* longest_unused();
  // REQUIRES: it has no children.
  void take_leaf(Node& node, Gone& gone);
  // All of the parts that `goes`.
  template <typename Goes>
  void take_parts(const Goes& goes, Gone& gone) {
    for (auto it = nodes_.end(); it != nodes_.begin();) {
      Node& node = *--it;  // children come after their parents
      if (!goes(*node.part)) continue;
      ++it;
      take_leaf(node, gone);
    }
  }

  std::size_t state_bytes() const { return state_bytes_; }
  std::size_t path_bytes() const { return path_bytes_; }
  static std::size_t bytes_of_state(std::size_t saved_bytes);
  static std::size_t bytes_of_path(std::size_t num_values);  // of one more node

 private:
  Node& new_node(std::list<Node>::iterator before, Part& part, Node* parent,
                 std::span<const std::int32_t> edge);
  // Cuts the edge: returns the node in its middle.
  Node& split(Node& node, std::int64_t at);
  // Makes the node and all before it the last used.
  void use(Node* node);
  void take_state(Node& node, Gone& gone);

  std::map<PrefixPartKey, Part> parts_;
  std::list<Node> nodes_;  // the last used first, parents before their children
  States states_;
  double gone_worth_ = 0;  // of the state that went last for want of memory
  std::size_t state_bytes_ = 0;
  std::size_t path_bytes_ = 0;
};

}  // namespace lintel
