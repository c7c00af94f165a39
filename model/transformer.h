// SPDX-License-Identifier: Apache-2.0
// Transformer: the paper's model as a recurrent network (Katharopoulos et al. 2020, section 3.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/core/step_observer.h"
#include "model/core/tensor.h"
#include "model/lora/adapter.h"
#include "model/ops/dense.h"
#include "model/ops/kv_type.h"
#include "model/sampling/head.h"
#include "model/sequence.h"

namespace lintel {

// Arguments of Transformer::step: rows to feed, and a Workspace.

class LayerState;
class SequenceState;
class StepThreadPool;

// One token to feed. Consecutive rows of a step may belong to one sequence, in order; rows of one
// sequence must be consecutive.
struct BatchRow {
  std::int32_t token = 0;  // 0 .. V-1
  SequenceState* sequence = nullptr;
  bool wants_output = false;  // true: the head's output after this token is needed
  // True if SequenceState::rollback may undo it, until the step after this one. Drafts are the last
  // rows of their sequence in the step.
  bool is_draft = false;
  // True if Workspace::hidden() has it also without an output. REQUIRES: a draft head.
  bool keeps_hidden = false;
};

// Activations of Transformer::step: sized once for max_rows. One per worker thread.
class Workspace {
 public:
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  ~Workspace();
  std::size_t max_rows() const;
  // The memory that it has by now, but for the head's outputs. It grows to what the largest steps
  // need.
  std::size_t bytes() const;
  // The normed residual stream after the last step, which the head reads: [rows that wanted an
  // output or to be kept, E], in their order. Valid until the next step.
  MatrixView<const float> hidden() const;

  // Both outlive what is stepped with them; null: none.
  void observe(StepObserver* observer);
  // The team's leader is the thread that steps. The bits are those of a single thread.
  void share_with(StepThreadPool* team);

 private:
  friend class Transformer;
  struct Activations;
  explicit Workspace(std::unique_ptr<Activations> buffers);
  std::unique_ptr<Activations> buffers_;
};

// The state of a model's draft head for a sequence: made by Transformer::new_draft_state, which
// must outlive it; used by one thread at a time. It is no part of the sequence: it decides how many
// draft tokens are right, never which token comes.
class DraftState {
 public:
  DraftState(DraftState&&) noexcept;
  DraftState& operator=(DraftState&&) noexcept;
  ~DraftState();  // zeroes what it held

  std::int64_t length() const { return length_; }  // tokens read
  // Becomes what another one of the model is.
  void assign(const DraftState& other);

 private:
  friend class Transformer;
  DraftState(std::unique_ptr<LayerState> read, std::unique_ptr<LayerState> drafted);
  std::unique_ptr<LayerState> read_;
  std::unique_ptr<LayerState> drafted_;  // the same and the draft tokens of a call
  std::int64_t length_ = 0;
};

// The draft head's input from one sequence's rows in a step, and the place of its draft tokens.
struct DraftRequest {
  DraftState* state = nullptr;
  std::size_t first_hidden = 0;  // of Workspace::hidden(): the sequence's rows, without a gap
  // The token after each of these rows, the first of which follows what the state has read.
  std::span<const std::int32_t> tokens;
  std::span<std::int32_t> drafts;  // of the tokens after these, as many as are wanted; may be empty
};

class ModelFiles;  // model/model_files.h
class Tokenizer;   // model/tokenizer/tokenizer.h

// Const and shareable: any number of threads may step different sequences, each with its Workspace.
class Transformer {
 public:
  struct Options {
    WeightType weight_type = WeightType::kF32;
    // Replaces the attention of config.json: to compare speed on the same weights.
    std::optional<AttentionSpec> attention;
    // Type of KV caches; nothing: kv_type_for() of the weights. A model without one gets a warning
    // where a type other than f32 is asked for.
    std::optional<KvType> kv_type;
    // ModelConfig::context of what is served.
    std::int64_t context = 0;
    // The library that multiplies where it is worthwhile. Null: this machine's. Outlives the model.
    const ProductLibrary* product_library = nullptr;
    // Matrices are not kept: every step reads them from the files, which outlive the model. Of f32,
    // for comparisons, and without a fingerprint.
    bool streams = false;
    // A fingerprint in progress: load() computes none, and fingerprint() waits for this one, if
    // valid.
    std::shared_future<std::string> fingerprint;
  };

  // Holds one tensor at a time beside what stays. Throws ModelError naming file, key or tensor and
  // both values, or what the options ask for and this model cannot do.
  static std::unique_ptr<Transformer> load(const ModelFiles& files, const Options& options);
  // Loads from a directory that is opened for this only.
  static std::unique_ptr<Transformer> load(const std::filesystem::path& directory,
                                           const Options& options);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // max_drafting_rows: of a step that has drafts; a step with more of them makes room for itself.
  Workspace new_workspace(std::size_t max_rows, std::size_t max_drafting_rows = 0) const;
  // adapter: of files opened with this model's config(); null: none.
  SequenceState new_sequence(std::shared_ptr<const Adapter> adapter = nullptr) const;

  // Feeds every row and returns the head's outputs, [rows that want one, num_outputs], in row
  // order; valid until the next step with this workspace. The bits of a row depend on its sequence
  // only, not on what else is in `rows`. REQUIRES: 1 <= rows.size() <= max_rows; no sequence past
  // max_length; tokens in 0 .. V-1.
  MatrixView<const float> step(std::span<const BatchRow> rows, Workspace& workspace) const;

  // True if the checkpoint has layers that predict more than the next token, which can propose
  // draft tokens.
  bool has_draft_head() const;
  // REQUIRES: a draft head.
  DraftState new_draft_state() const;
  // Upper bound of what one takes of memory, its objects included; 0 without a draft head.
  std::size_t draft_state_bytes() const;
  // Upper bound of the tokens that a draft token depends on, the last of those read. REQUIRES: a
  // draft head.
  std::int64_t draft_window() const;
  // Proposes tokens after the last step of the workspace, whose outputs are still valid after it.
  // Allocates at first, and for more rows than before. Throws std::bad_alloc; then the states are
  // in doubt. REQUIRES: a draft head; all requests that want drafts want as many; no more rows
  // than max_rows().
  void draft(std::span<const DraftRequest> requests, Workspace& workspace) const;

  const ModelConfig& config() const;  // with the attention that runs
  // The modules that an adapter may adapt.
  std::span<const AdaptableModule> modules() const;
  const Head& head() const;
  WeightType weight_type() const;
  // Nothing: the layers have no KV cache.
  std::optional<KvType> kv_type() const;
  // Rows of one sequence for a step that does nothing but read its prompt: with more of them a row
  // takes no less time on any machine. On some it takes least with fewer.
  std::size_t most_prompt_rows() const;
  // The kernels that multiply the layers' matrices on this machine: "avx512_vnni", or "24 of 32
  // products onednn (avx512_core_amx) in blocks of 2 to 64 rows; 8 of 32 products avx512_bf16 ...".
  std::string kernels() const;
  std::int64_t num_parameters() const;
  std::size_t weight_bytes() const;  // held for the packed weights
  // Upper bound of SequenceState::bytes() after num_tokens tokens; SIZE_MAX where no state can hold
  // so many.
  std::size_t state_bytes(std::int64_t num_tokens) const;
  // The same with the objects that hold the state: what a sequence takes of the allocator.
  std::size_t sequence_bytes(std::int64_t num_tokens) const;
  // From so many tokens on state_bytes stays as it is: 0 where it is the same for every length,
  // kNeverFull where it has no end.
  std::int64_t tokens_until_full() const;
  // True if all layers have states of constant size. Counts of the tokens of a large vocabulary
  // grow with the tokens all the same.
  bool constant_state() const;
  // Tokens of a page of a state that grows by pages (StateLayout::page_tokens); 0: it does not
  // grow, or in another way.
  std::int64_t page_tokens() const;
  // True if storing a state once more costs a constant amount and what the new tokens added: it
  // does not grow, or in pages.
  bool appends_state() const { return constant_state() || page_tokens() > 0; }
  bool recomputes() const;  // keeps no state: every output takes its whole prefix again
  // SHA-256 of config.json and the weights file, hexadecimal. Waits for one that was promised to
  // load().
  const std::string& fingerprint() const;
  bool knows_fingerprint() const;  // without waiting
  // The file's text, with numbers that JSON does not have as strings.
  const std::string& config_json() const;
  // Null: the model has ids alone.
  const std::shared_ptr<const Tokenizer>& tokenizer() const;
  // Warnings for an operator, a sentence each: the weights were not trained for this attention;
  // recompute mode.
  const std::vector<std::string>& warnings() const;

 private:
  struct Parts;
  struct Impl;
  explicit Transformer(Parts parts);
  // Loads our own format: the decoder, and its accompanying parts.
  static void load_native(const ModelFiles& files, const Options& options,
                          const Dense::Options& products, Parts& parts);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lintel
