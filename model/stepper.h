// Stepper: how rows become outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "model/pass.h"

namespace lintel {

// What Transformer asks of the two ways there are. Const and shareable between threads.
class Stepper {
 public:
  virtual ~Stepper() = default;

  // As Transformer::step.
  virtual MatrixView<const float> step(std::span<const StepRow> rows, Buffers& buffers) const = 0;
  // Makes room for a step of so many rows that has drafts.
  virtual void reserve_drafts(std::size_t rows, Buffers& buffers) const = 0;

  // What a sequence keeps a state of, one a layer.
  virtual DraftMemory::Backends backends() const = 0;
  // Bytes of what a sequence keeps, as AttentionBackend::state_bytes and tokens_until_full.
  virtual std::size_t state_bytes(std::int64_t num_tokens) const = 0;
  virtual std::int64_t tokens_until_full() const = 0;
};

// From the states of the sequences.
std::unique_ptr<Stepper> step_from_states(const TransformerParts& parts);
// Recompute mode: sequences keep their tokens, and rows that want an output run their whole prefix
// again.
std::unique_ptr<Stepper> step_by_recomputing(const TransformerParts& parts);

}  // namespace lintel
