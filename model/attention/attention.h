// AttentionBackend and AttentionState: the contract every kind of attention keeps.
//
// A new backend is one .cpp beside this file, one line in the table of attention.cpp and one CMake
// line. Nothing else names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/attention/attention_config.h"
#include "model/base/model_error.h"
#include "model/base/tensor.h"

namespace lintel {

// What one layer of one sequence remembers. Made by the backend that uses it; used by one thread at
// a time. A state that holds memory of its own zeroes it before giving it back (zero_memory).
class AttentionState {
 public:
  virtual ~AttentionState() = default;

  // Bytes held now, the flat block included. At most state_bytes(tokens seen).
  virtual std::size_t bytes() const = 0;
  // What the next step will read whatever its row is, where that is known and of one piece: it may
  // be asked into a cache before. Else empty.
  virtual std::span<const float> read_next() const { return {}; }
  // Becomes equal to `other`, a state of the same backend. The two share nothing afterwards.
  virtual void assign(const AttentionState& other) = 0;
  // Back to the state of an empty sequence; what it held is zeroed.
  virtual void reset() = 0;

  // The last `num_rows` rows that the next step feeds are drafts, which rewind() may take back.
  // `memory` has rewind_floats(num_rows) floats and lasts until the step after it.
  virtual void expect_drafts(std::size_t num_rows, std::span<float> memory) = 0;
  // Takes back the last `num_rows` rows of the step before: everything goes on bit for bit as if
  // they had never been fed. REQUIRES: they were expected as drafts; at most once after a step.
  virtual void rewind(std::size_t num_rows) = 0;
};

// Shapes and weights a backend is made from.
struct AttentionParams {
  AttentionConfig config;
  int n_heads = 0;                // H
  int d_head = 0;                 // D, of queries, keys and values
  std::span<const float> planes;  // [rounds, bits, D]; lsh only; copied by the backend
};

// Working memory a step may use; grows to its high-water mark and stays. One per worker thread.
struct AttentionScratch {
  std::vector<float> floats;
  std::vector<std::int32_t> ints;
  std::vector<const float*> pointers;
  std::vector<std::size_t> ends;
};

// The attention of one layer. Const and shareable between threads.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Floats of flat memory that a state takes from its sequence's block: all but its position where
  // the state is constant, so that a sequence is one relocatable block; 0 where it grows.
  virtual std::size_t block_floats() const = 0;

  // A state of an empty sequence. `block` has block_floats() zeroed, 64-byte aligned floats and
  // outlives the state.
  virtual std::unique_ptr<AttentionState> new_state(std::span<float> block) const = 0;

  // Upper bound of AttentionState::bytes() after num_tokens tokens. Known before a session starts.
  // SIZE_MAX where no state can hold so many.
  virtual std::size_t state_bytes(std::int64_t num_tokens) const = 0;

  // Whether state_bytes is the same for every length.
  virtual bool constant_state() const = 0;

  // Floats of working memory that a step keeps for AttentionState::rewind of up to num_rows rows.
  virtual std::size_t rewind_floats(std::size_t num_rows) const = 0;

  // Whether step() reads k. Where it does not, the keys are never computed and k is an empty view.
  virtual bool uses_keys() const { return true; }

  // Feeds one token a row: row r extends *states[r] and attends from there. Consecutive rows may
  // share a state, in order of position. The bits of a row's output depend on its sequence only.
  // q, k, v, out: [rows, H*D], each with a stride of its own: q, k and v may lie side by side.
  virtual void step(std::span<AttentionState* const> states, MatrixView<const float> q,
                    MatrixView<const float> k, MatrixView<const float> v, MatrixView<float> out,
                    AttentionScratch& scratch) const = 0;

  // All tokens of one sequence at once, as recompute mode runs a prefix: row t attends from
  // position t to those up to it. Shapes as in step(). By default what a fresh state gives step by
  // step.
  virtual void full_pass(MatrixView<const float> q, MatrixView<const float> k,
                         MatrixView<const float> v, MatrixView<float> out,
                         AttentionScratch& scratch) const;

  // Whether full_pass() has the bits of step(). Where it has not, the backend documents how the two
  // differ.
  virtual bool full_pass_equals_steps() const { return true; }
};

// Throws ModelError for a type that is not in the table or parameters the backend refuses.
std::unique_ptr<AttentionBackend> make_attention(const AttentionParams& params);

// Names in the table, in its order.
std::vector<std::string> attention_types();

// A small configuration of a type, valid for any n_heads and d_head: what tests run every backend
// with. Throws ModelError for a type that is not in the table.
AttentionConfig default_attention(const std::string& type);

// Planes [rounds, bits, D] for a layer of a model whose weights have none, drawn from N(0, 1): a
// pure function of its arguments. Empty for a type that hashes nothing (bits 0).
std::vector<float> draw_planes(const AttentionConfig& config, int d_head, std::uint64_t seed,
                               int layer);

}  // namespace lintel
