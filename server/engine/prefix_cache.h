// SPDX-License-Identifier: Apache-2.0
// PrefixCache: what prompts of before have left for those that begin alike.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/core/state_bytes.h"
#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/session_memory.h"

namespace lintel {

// PrefixTree: prompts that came before, by their tokens, and the states after some of their
// beginnings.

class Transformer;

// A sequence after some tokens, as SequenceState::save writes it. It refers to nothing but blocks
// (pages of KV caches), which it shares with sequences and other states.
using SavedState = SharedState;

// The key of prompts that are computed alike and belong to one owner. No other owner sees them.
struct PrefixPartKey {
  const Transformer* model = nullptr;
  const ServedAdapter* adapter = nullptr;
  Owner owner;
  auto operator<=>(const PrefixPartKey&) const = default;
};

// The purpose of a state, in the order in which states are evicted: those of one rank by their
// worth. The three in the middle are of conversations (docs/chat.md).
enum class KeptFor : std::uint8_t {
  kOlderTurn,  // the boundary of a turn with a later one behind it
  kCall,       // before the generation prompt of an answer that may have called a tool
  kEnd,        // behind an answer, as it was generated
  kTurn,       // the boundary of a conversation's last turn
  kPrefix,     // of kTurn's rank: where prompts part, or where a request asked for it
};
inline constexpr std::size_t kNumKeptFor = 5;

// A radix tree for each part, of exact tokens: every node stands for the tokens on the way to it.
// Nodes know in which order they were used last, states what they are worth; what goes when there
// is too much of either is for others to say. Not thread-safe.
class PrefixTree {
 public:
  struct Part;
  // A node. Constant but for the tree.
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
    KeptFor kept_for = KeptFor::kPrefix;  // of the state
    bool is_turn = false;                 // a conversation's turn had its boundary here
    double worth = 0;                     // of the state
    std::list<Node>::iterator self;       // in the order of use
  };
  struct Part {
    PrefixPartKey key;
    std::weak_ptr<const ServedAdapter>
        adapter;  // distinguishes it from a later one at the same address
    Node* root = nullptr;
  };
  // The part of a prompt that a tree has.
  struct Walk {
    Node* node = nullptr;        // whose edge, or end, it got to
    std::int64_t matched = 0;    // tokens that are the same
    Node* nearest = nullptr;     // the last with a state on the way; null: none
    std::int64_t last_turn = 0;  // tokens up to the last boundary of a turn on the way; 0: none
  };
  // States by rank, then by worth.
  using StateKey = std::tuple<int, double, Node*>;
  using States = std::map<StateKey, std::shared_ptr<const SavedState>>;
  // Nodes and states taken out, which needs no memory; to be freed where no lock is held.
  struct Gone {
    std::list<Node> nodes;
    States states;
  };
  // The tokens on the way to a node.
  static std::vector<std::int32_t> tokens_of(const Node& node);

  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The part's root. Drops nodes of a part with the same key whose adapter is no more.
  Node& root(const PrefixPartKey& key, const SharedAdapter& adapter, Gone& gone);
  // Walks as far as the prompt matches from the root on; nodes on the way count as used now.
  Walk walk(Node& root, std::span<const std::int32_t> prompt);
  // The node after the whole prompt, which is made where there is none: `walk` is the prompt's.
  Node& node_behind(std::span<const std::int32_t> prompt, const Walk& walk);

  // Null: it has none.
  std::shared_ptr<const SavedState> state_of(Node& node) const;
  // REQUIRES: the node is no root and has no state.
  void put_state(Node& node, std::shared_ptr<const SavedState> state,
                 KeptFor kept_for = KeptFor::kPrefix);
  // Called after a state was put at the boundary of a turn. Of the conversation's earlier states it
  // keeps the last two, and those where another conversation parts, and drops those after answers
  // that the conversation left out. Returns how many were dropped.
  std::size_t prune_conversation(Node& turn, Gone& gone);
  // The node after exactly these tokens; null: there is none.
  Node* find(Node& root, std::span<const std::int32_t> tokens);
  // A state was used now: it is worth what reading its tokens again costs, for its bytes, on top of
  // what the last one was worth that went for want of memory. So what is not used loses against
  // what comes (GreedyDual-Size: Cao and Irani 1997, "Cost-Aware WWW Proxy Caching Algorithms",
  // section 4).
  void note_use(Node& node);
  // The state that is worth the least; null: there is none.
  Node* least_worth() const;
  // Evicts the state for want of memory.
  void evict_state(Node& node, Gone& gone);
  // Drops a state that is of no more use, and with it the node if it leads nowhere else.
  void drop_state(Node& node, Gone& gone);
  std::size_t num_states(KeptFor kept_for) const {
    return num_states_[static_cast<std::size_t>(kept_for)];
  }
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

  // Bytes of all states; a block that several of them share counts once.
  std::size_t state_bytes() const { return state_bytes_; }
  std::size_t path_bytes() const { return path_bytes_; }
  // Bytes that a state would add.
  std::size_t bytes_added_by(const SavedState& state) const;
  // The same where it shares nothing. saved_bytes: with its blocks.
  static std::size_t bytes_of_state(std::size_t saved_bytes);
  static std::size_t bytes_of_path(std::size_t num_tokens);  // of one more node

 private:
  Node& new_node(std::list<Node>::iterator before, Part& part, Node* parent,
                 std::span<const std::int32_t> edge);
  // Cuts the edge: returns the node in its middle.
  Node& split(Node& node, std::int64_t at);
  // Makes the node and all before it the last used.
  void use(Node* node);
  static StateKey key_of(Node& node);
  void take_state(Node& node, Gone& gone);
  void set_kept_for(Node& node, KeptFor kept_for);
  void hold_blocks(const SavedState& state);
  // Releases the first `count` blocks.
  void release_blocks(const SavedState& state, std::size_t count) noexcept;

  std::map<PrefixPartKey, Part> parts_;
  std::list<Node> nodes_;  // the last used first, parents before their children
  States states_;
  std::unordered_map<const std::byte*, std::uint32_t> blocks_;  // how many states have each
  double gone_worth_ = 0;  // of the state that went last for want of memory
  std::array<std::size_t, kNumKeptFor> num_states_{};
  std::size_t state_bytes_ = 0;
  std::size_t path_bytes_ = 0;
};

// A prompt whose beginning came before need not be read from its first token on: the state after
// that beginning is a function of the tokens alone, so what comes of a copy has the same bits.
//
// States are kept where a prompt asks for one, and where one leaves those that came before, which
// may be at its end: a beginning is kept when it is seen for the second time, not for the first. A
// conversation shows more: the tokens that a turn has in common with the next one, for any answer
// and question. There a state is kept at once, and others where the next turn may begin later
// (KeptFor). A conversation has at most four.
//
// All kinds of attention have a part in it, those whose states grow too: what a state takes is
// known before it is copied. Recomputing models have none, their states save nothing.
//
// Prompts are known for each model, adapter and owner apart; no owner's prompt is faster for
// another's.
//
// States may take seven eighths of the budget, the prompts' tokens one. The state that is worth the
// least goes first (PrefixTree::note_use), of the tokens the longest unused. All of it is spare
// memory: sessions and calls are admitted as if it were free.
//
// Thread-safe; used between the steps of a worker and, when memory runs out, by any thread.
class PrefixCache final : public SpareMemory {
 public:
  // Shorter beginnings are read in a step or two.
  static constexpr std::int64_t kLeastTokens = 32;

  struct Options {
    std::size_t memory_bytes = std::size_t{512} << 20;  // 0: nothing is kept
    std::int64_t least_tokens = kLeastTokens;           // shorter beginnings are not looked at
    bool reads_ahead = false;  // answers of conversations are read as their next turn begins
  };
  struct Stats {
    std::uint64_t hits = 0, misses = 0;  // prompts
    std::uint64_t joins = 0;             // of the hits: those that waited for another to be read
    std::uint64_t saved_tokens = 0;      // not read, of hits
    std::uint64_t evictions = 0;         // states that went for want of memory
    std::size_t bytes = 0;               // held now
    // Counts of conversations: tokens of their prompts; prompts that were read from before the
    // boundary of an earlier turn; tokens that were known from another prompt, but without a state
    // after them.
    std::uint64_t chat_cached_tokens = 0, chat_read_tokens = 0;
    std::uint64_t chat_rereads = 0, chat_common_not_cached = 0;
    std::size_t turn_states = 0, call_states = 0, end_states = 0;  // held now
    std::uint64_t chat_states_dropped = 0;  // that a later turn, or the answer, left without use
  };
  // The reader of a prompt.
  struct Reader {
    const Transformer& model;
    SharedAdapter adapter;  // null: none
    Owner owner;
  };
  // The numbers of tokens of a prompt after which states are wanted.
  struct Wanted {
    std::int64_t at = 0;    // 0: wherever it is worth it
    bool is_turn = false;   // `at` is the boundary of a conversation's turn
    std::int64_t call = 0;  // KeptFor::kCall; 0: none
    bool is_ahead = false;  // the turn's prompt has not come yet: it is not counted
  };
  // A conversation's last turn whose state went for want of memory.
  struct EvictedTurn {
    const Transformer* model = nullptr;  // to find the model by; not to be used
    std::weak_ptr<const ServedAdapter> adapter;
    bool has_adapter = false;
    Owner owner;
    std::vector<std::int32_t> tokens;
    std::shared_ptr<const SavedState> state;
  };
  // The cached beginning of a prompt.
  struct Beginning {
    std::int64_t cached = 0;        // tokens that the sequence has now
    std::int64_t keep_at = 0;       // keep() is wanted when it has so many; 0: it is not
    std::int64_t keep_call_at = 0;  // the same for KeptFor::kCall; more than keep_at
  };

  // Lends the store what it holds. The store outlives it.
  PrefixCache(const Options& options, SessionManager& store);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // True if prompts of so many tokens are looked up; short ones only for conversations.
  bool takes(const Transformer& model, std::size_t num_tokens, bool is_turn = false) const;
  // An empty sequence becomes what it is after the longest beginning of the prompt that is kept.
  // Remembers the prompt. Where there is no memory for anything, nothing is cached. REQUIRES:
  // takes().
  Beginning begin(const Reader& reader, std::span<const std::int32_t> prompt, const Wanted& wanted,
                  SequenceState& sequence) noexcept;
  // A conversation's prompt of so many tokens is read whole, without begin().
  void count_read(std::size_t num_tokens) noexcept {
    chat_read_.fetch_add(num_tokens, std::memory_order_relaxed);
  }
  // The length of the longest kept beginning of the prompt, in tokens.
  std::int64_t look_up(const Reader& reader, std::span<const std::int32_t> prompt) noexcept;
  // True if a state of so many tokens may be kept.
  bool may_keep(const Transformer& model, std::int64_t num_tokens) const;
  std::int64_t least_tokens() const { return options_.least_tokens; }
  // One hit more that has waited for another prompt to be read (PrefillCoalescer).
  void count_join() noexcept { joins_.fetch_add(1, std::memory_order_relaxed); }
  // Keeps a copy of the sequence, whose tokens are these. Without memory for it nothing happens.
  void keep(const Reader& reader, std::span<const std::int32_t> tokens,
            const SequenceState& sequence, KeptFor kept_for = KeptFor::kPrefix) noexcept;
  // The state after exactly these tokens goes, if it is kept for that.
  void drop(const Reader& reader, std::span<const std::int32_t> tokens, KeptFor kept_for) noexcept;

  // The state after exactly these tokens; null: there is none.
  std::shared_ptr<const SavedState> state_after(const Reader& reader,
                                                std::span<const std::int32_t> tokens) noexcept;
  // The call receives each such turn, by any thread, and must not block. Null: they are dropped.
  void when_turn_evicted(std::function<void(EvictedTurn)> call) EXCLUDES(mutex_);
  const Options& options() const { return options_; }
  // Replaces Options::memory_bytes, before the first prompt.
  void set_memory(std::size_t bytes) { options_.memory_bytes = bytes; }

  // The model goes; no request reads with it any more.
  void forget(const Transformer& model) noexcept;
  // Forgets prompts of adapters that are no more.
  void forget_gone_adapters() noexcept;

  void keep_within(std::size_t bytes) noexcept override;
  Stats stats() const;

 private:
  using Tree = PrefixTree;

  // The place in this prompt where a state is wanted.
  std::int64_t place_for(const Transformer& model, const Tree::Walk& walk, std::int64_t asked,
                         std::int64_t prompt_size, std::int64_t cached) const;
  void count_turn(const Tree::Walk& walk, std::int64_t prompt_size, std::int64_t cached) noexcept;
  // The bytes that may be held: the budget, or what sessions leave of their memory.
  std::size_t limit() const;
  std::size_t held() const REQUIRES(mutex_) { return tree_.state_bytes() + tree_.path_bytes(); }
  // States and nodes that left the tree, to be freed or reported where no lock is held.
  struct Removed {
    Tree::Gone gone;
    std::vector<EvictedTurn> turns;
  };
  // Evicts until at most `most` bytes are held.
  void shrink(std::size_t most, Removed& removed) REQUIRES(mutex_);
  void evict(Tree::Node& node, Removed& removed) REQUIRES(mutex_);
  void report(Removed& removed) noexcept EXCLUDES(mutex_);
  template <typename Body>
  void change(const Body& body) noexcept EXCLUDES(mutex_);

  Options options_;
  SessionManager& store_;

  std::atomic<std::size_t> bytes_{0};  // held(), to be read without the mutex
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::uint64_t> misses_{0};
  std::atomic<std::uint64_t> joins_{0};
  std::atomic<std::uint64_t> saved_tokens_{0};
  std::atomic<std::uint64_t> evictions_{0};
  std::atomic<std::uint64_t> chat_cached_{0}, chat_read_{0};
  std::atomic<std::uint64_t> chat_rereads_{0}, chat_common_not_cached_{0};
  std::atomic<std::uint64_t> chat_dropped_{0};

  mutable Mutex mutex_;  // no state is copied, made or freed under it
  Tree tree_ GUARDED_BY(mutex_);
  std::shared_ptr<const std::function<void(EvictedTurn)>> on_evicted_ GUARDED_BY(mutex_);
};

// PrefillCoalescer: prompts that are being read, for those that begin alike to wait for.

// Lets a prompt wait for another that begins alike and is being read: it takes the state after the
// tokens that they share, and does not read them as well. It waits no longer than reading them
// would have taken, and no longer than the first one reads: if that ends, fails or is slow, it
// begins by itself.
//
// Thread-safe; used between the steps of workers.
class PrefillCoalescer {
 public:
  // A prompt that is being read. Its worker has it, and those that wait for it.
  class Reading : public std::enable_shared_from_this<Reading> {
   public:
    // True if waiting for the state after so many tokens is over: it is there, or will never be.
    bool has_passed(std::int64_t tokens) const { return passed_.load() >= tokens; }

   private:
    friend class PrefillCoalescer;
    PrefixPartKey key_;
    std::span<const std::int32_t> prompt_;
    std::int64_t first_ = 0;  // tokens that it began after
    TimePoint began_;
    std::atomic<std::int64_t> passed_{0};
    std::vector<std::int64_t> wanted_;  // tokens after which states are waited for
    std::list<Reading*>::iterator self_;
  };
  using Shared = std::shared_ptr<Reading>;

  // A reading to wait for.
  struct Wait {
    Shared reading;           // null: nothing
    std::int64_t tokens = 0;  // that both begin with
    Duration longest{};       // what reading those after `cached` would take
  };

  // wake: called by the reader whenever those that wait may continue.
  explicit PrefillCoalescer(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The prompt is read from now on, after its first `cached` tokens, until end(). `prompt` lives
  // as long. Throws std::bad_alloc, and then nothing has happened.
  Shared begin(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
               TimePoint now) EXCLUDES(mutex_);
  // Notes that so many tokens were read. REQUIRES: a state that is waited for there is kept.
  void advance(Reading& reading, std::int64_t tokens) EXCLUDES(mutex_);
  // The number of tokens after which the next state is waited for; 0: none is.
  std::int64_t next_wanted(const Reading& reading) const EXCLUDES(mutex_);
  // Ends a reading, complete or not. now: the beginning of time where no clock was read.
  void end(Reading& reading, TimePoint now) EXCLUDES(mutex_);

  // The reading that has the most tokens in common with the prompt, at least `least` more than the
  // `cached` ones that the prompt need not read, has read no fewer than those, and has not come to
  // where they part. Its state there is waited for from now on.
  Wait wait_for(const PrefixPartKey& key, std::span<const std::int32_t> prompt, std::int64_t cached,
                std::int64_t least, TimePoint now) EXCLUDES(mutex_);

 private:
  // The time that a token takes: of this reading so far, else of the one that ended last.
  Duration pace(const Reading& reading, TimePoint now) const REQUIRES(mutex_);

  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::list<Reading*> readings_ GUARDED_BY(mutex_);
  std::map<const Transformer*, Duration> paces_ GUARDED_BY(mutex_);  // of those that ended last
};

}  // namespace lintel
