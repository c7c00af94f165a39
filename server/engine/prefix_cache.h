// PrefixCache: what prompts of before have left for those that begin alike.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/transformer.h"
#include "server/core/mutex.h"
#include "server/core/thread_annotations.h"
#include "server/engine/prefix_tree.h"
#include "server/lora/served_adapter.h"
#include "server/sessions/session_store.h"

namespace lintel {

// A prompt whose beginning came before need not be read from its first token on: the state after
// that beginning is a function of the tokens alone, so what comes of a copy has the same bits.
//
// States are kept where a prompt asks for one, and where one leaves those that came before, which
// may be at its end: a beginning is kept when it is seen for the second time, not for the first.
// All kinds of attention have a part in it, those whose states grow too: what a state takes is
// known before it is copied. Recomputing models have none, their states save nothing.
//
// Prompts are known for each model, adapter and owner apart; no owner's prompt is faster for
// another's.
//
// States take what the budget has beside an eighth of it, which the prompts' tokens have. Of the
// former the one that is worth the least goes (PrefixTree::note_use), of the latter the longest
// unused. All of it is spare memory: sessions and calls are admitted as if it were free.
//
// Thread-safe; used between the steps of a worker and, when memory runs out, by any thread.
class PrefixCache final : public SpareMemory {
 public:
  // Shorter beginnings are read in a step or two.
  static constexpr std::int64_t kLeastTokens = 32;

  struct Options {
    std::size_t memory_bytes = std::size_t{64} << 20;  // 0: nothing is kept
    std::int64_t least_tokens = kLeastTokens;          // shorter beginnings are not looked at
  };
  struct Stats {
    std::uint64_t hits = 0, misses = 0;  // prompts
    std::uint64_t joins = 0;             // of the hits: those that waited for another to be read
    std::uint64_t saved_tokens = 0;      // not read, of hits
    std::uint64_t evictions = 0;         // states that went for want of memory
    std::size_t bytes = 0;               // held now
  };
  // Who asks.
  struct Reader {
    const Transformer& model;
    SharedAdapter adapter;  // null: none
    Owner owner;
  };
  // What a prompt begins with.
  struct Beginning {
    std::int64_t cached = 0;   // tokens that the sequence has now
    std::int64_t keep_at = 0;  // keep() is wanted when it has so many; 0: it is not
  };

  // Lends the store what it holds. The store outlives it.
  PrefixCache(const Options& options, SessionStore& store);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Whether prompts of so many tokens are looked up.
  bool takes(const Transformer& model, std::size_t num_values) const;
  // An empty sequence becomes what it is after the longest beginning of the prompt that is kept.
  // Remembers the prompt. asked: tokens after which the caller wants a state kept; 0: wherever it
  // is worth it. Where there is no memory for anything, nothing is cached. REQUIRES: takes().
  Beginning begin(const Reader& reader, std::span<const std::int32_t> prompt, std::int64_t asked,
                  SequenceState& sequence) noexcept;
  // How many tokens the longest beginning of the prompt has that is kept.
  std::int64_t look_up(const Reader& reader, std::span<const std::int32_t> prompt) noexcept;
  // Whether a state of so many tokens may be kept.
  bool may_keep(const Transformer& model, std::int64_t num_values) const;
  std::int64_t least_tokens() const { return options_.least_tokens; }
  // One hit more that has waited for another prompt to be read (PrefixReadings).
  void count_join() noexcept { joins_.fetch_add(1, std::memory_order_relaxed); }
  // Keeps a copy of the sequence, whose tokens are these. Without memory for it nothing happens.
  void keep(const Reader& reader, std::span<const std::int32_t> values,
            const SequenceState& sequence) noexcept;

  // The model goes; no request reads with it any more.
  void forget(const Transformer& model) noexcept;
  // Of adapters that are no more.
  void forget_gone_adapters() noexcept;

  void keep_within(std::size_t bytes) noexcept override;
  Stats stats() const;

 private:
  using Tree = PrefixTree;

  // Where a state of this prompt is wanted.
  std::int64_t place_for(const Transformer& model, const Tree::Walk& walk, std::int64_t asked,
                         std::int64_t prompt_size, std::int64_t cached) const;
  // What there may be: the budget, or what sessions leave of their memory.
  std::size_t limit() const;
  std::size_t held() const REQUIRES(mutex_) { return tree_.state_bytes() + tree_.path_bytes(); }
  // What is too much goes.
  void shrink(std::size_t most, Tree::Gone& gone) REQUIRES(mutex_);
  template <typename Body>
  void change(const Body& body) noexcept EXCLUDES(mutex_);

  const Options options_;
  SessionStore& store_;

  std::atomic<std::size_t> bytes_{0};  // held(), to be read without the mutex
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::uint64_t> misses_{0};
  std::atomic<std::uint64_t> joins_{0};
  std::atomic<std::uint64_t> saved_tokens_{0};
  std::atomic<std::uint64_t> evictions_{0};

  mutable Mutex mutex_;  // no state is copied, made or freed under it
  Tree tree_ GUARDED_BY(mutex_);
};

}  // namespace lintel
