#include "model/transformer.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "model/formats/tensor_list.h"
#include "model/lora/adapter.h"
#include "model/ops/tile_scope.h"
#include "model/stepper.h"
#include "model/transformer_parts.h"

namespace lintel {
namespace {

class StateStepper final : public Stepper {
 public:
  explicit StateStepper(const TransformerParts& parts)
      : attention_(parts.attention), pass_(parts) {}

  MatrixView<const float> step(std::span<const StepRow> rows, Buffers& buffers) const override {
    buffers.drafts.announce(rows, attention_);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      SequenceState& sequence = *rows[r].sequence;
      pass_.embed(rows[r].token, sequence.position(), sequence.adapter().get(), r, buffers);
      sequence.advance();
    }
    return pass_.predict(pass_.run(rows, buffers), buffers);
  }

  void reserve_drafts(std::size_t rows, Buffers& buffers) const override {
    buffers.drafts.reserve(rows, attention_);
  }
  DraftMemory::Backends backends() const override { return attention_; }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    std::size_t total = 0;
    for (const auto& backend : attention_) {
      if (__builtin_add_overflow(total, backend->state_bytes(num_tokens), &total)) return SIZE_MAX;
    }
    return total;
  }
  std::int64_t tokens_until_full() const override {
    std::int64_t tokens = 0;
    for (const auto& backend : attention_) tokens = std::max(tokens, backend->tokens_until_full());
    return tokens;
  }

 private:
  const DraftMemory::Backends attention_;
  const Pass pass_;
};

}  // namespace

std::unique_ptr<Stepper> step_from_states(const TransformerParts& parts) {
  return std::make_unique<StateStepper>(parts);
}

struct Transformer::Impl {
  explicit Impl(TransformerParts given)
      : parts(std::move(given)),
        stepper(parts.recompute ? step_by_recomputing(parts) : step_from_states(parts)) {}

  int num_counts() const { return parts.head->supports_filters() ? parts.config.vocab_size : 0; }

  const TransformerParts parts;
  const std::unique_ptr<Stepper> stepper;
};

Transformer::Transformer(TransformerParts parts)
    : impl_(std::make_unique<Impl>(std::move(parts))) {}
Transformer::~Transformer() = default;

Workspace Transformer::new_workspace(std::size_t max_rows, std::size_t max_drafting_rows) const {
  std::unique_ptr<Buffers> buffers = Pass(impl_->parts).new_buffers(max_rows);
  impl_->stepper->reserve_drafts(max_drafting_rows, *buffers);
  return Workspace(std::move(buffers));
}

SequenceState Transformer::new_sequence(std::shared_ptr<const Adapter> adapter) const {
  assert(adapter == nullptr || adapter->num_layer_weights() == impl_->parts.layers.size());
  const ModelConfig& config = impl_->parts.config;
  return SequenceState(impl_->stepper->backends(), impl_->num_counts(), std::move(adapter),
                       {.max_length = config.max_length, .vocab_size = config.vocab_size});
}

MatrixView<const float> Transformer::step(std::span<const StepRow> rows,
                                          Workspace& workspace) const {
  assert(!rows.empty() && rows.size() <= workspace.max_rows());
  const TileScope tiles;  // one for all products of the step
  return impl_->stepper->step(rows, *workspace.buffers_);
}

const ModelConfig& Transformer::config() const { return impl_->parts.config; }
const Head& Transformer::head() const { return *impl_->parts.head; }
WeightType Transformer::weight_type() const { return impl_->parts.weight_type; }
// What a step does once, reading the weights above all, is no longer seen from here on. In f32
// products wait for arithmetic sooner, and of more rows less stays in the caches.
std::size_t Transformer::most_prompt_rows() const {
  return weight_type() == WeightType::kF32 ? 64 : 128;
}
std::string Transformer::kernels() const { return kernels_of(impl_->parts.layers); }
std::int64_t Transformer::num_parameters() const { return count_parameters(impl_->parts.config); }

std::size_t Transformer::weight_bytes() const {
  std::size_t total = impl_->parts.predictor->weight_bytes();
  for (const Layer& layer : impl_->parts.layers) {
    for (const Dense* dense : {&layer.projections, &layer.out, &layer.linear1, &layer.linear2}) {
      total += dense->weight_bytes();
    }
  }
  return total;
}

std::size_t Transformer::state_bytes(std::int64_t num_tokens) const {
  const std::size_t counts = impl_->num_counts() * sizeof(std::uint32_t);
  std::size_t total = 0;
  return __builtin_add_overflow(counts, impl_->stepper->state_bytes(num_tokens), &total) ? SIZE_MAX
                                                                                         : total;
}

std::size_t Transformer::sequence_bytes(std::int64_t num_tokens) const {
  // Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): a
  // layer's object and the ends of its blocks; the lists of layers and the tail of stop strings.
  constexpr std::size_t kLayerBytes = 320;
  constexpr std::size_t kSequenceBytes = 512;
  const std::size_t layers = impl_->stepper->backends().size();
  std::size_t total = state_bytes(num_tokens);
  const std::size_t objects = kSequenceBytes + layers * kLayerBytes;
  return __builtin_add_overflow(total, objects, &total) ? SIZE_MAX : total;
}

std::int64_t Transformer::tokens_until_full() const { return impl_->stepper->tokens_until_full(); }
bool Transformer::recomputes() const { return impl_->parts.recompute; }

const std::string& Transformer::fingerprint() const { return impl_->parts.fingerprint; }
const std::string& Transformer::config_json() const { return impl_->parts.config_json; }
const std::vector<std::string>& Transformer::warnings() const { return impl_->parts.warnings; }

}  // namespace lintel
