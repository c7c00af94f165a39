// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "model/core/non_finite.h"
#include "model/families/family.h"
#include "model/formats/weights.h"
#include "model/layers/mixers/attention_mixer.h"
#include "model/layers/mixers/decoder.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "model/ops/tile_scope.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {
namespace {

// Memory by which a step's drafts can be taken back: two halves in turn, as drafts of one step may
// enter their states with the rows of the next. Each grows to its high-water mark. One worker
// thread's.
class DraftMemory {
 public:
  using Layouts = SequenceState::Layouts;

  // Announces the drafts to the states of their sequences, with memory to take them back. What the
  // step before last announced is no longer needed.
  void begin_speculation(std::span<const BatchRow> rows, Layouts layouts) {
    turn_ = 1 - turn_;
    Half& half = halves_[turn_];
    std::size_t total = 0;
    for_each_drafting(rows, [&](SequenceState&, std::size_t drafts, std::int64_t end) {
      for (const auto& layout : layouts) total += floats_of(*layout, drafts, end);
    });
    half.grow(total);
    float* next = half.memory.get();
    for_each_drafting(rows, [&](SequenceState& sequence, std::size_t drafts, std::int64_t end) {
      sequence.begin_drafts();
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        const std::size_t floats = floats_of(*layouts[i], drafts, end);
        sequence.layer(i)->begin_speculation(drafts, {next, floats});
        next += floats;
      }
    });
  }

  // For any drafts in a step of `rows` rows, but of long sequences: of one, or of half as many as
  // there are rows. Copies of states of many megabytes are made when there are drafts.
  void reserve(std::size_t rows, Layouts layouts) {
    constexpr std::size_t kMostReserved = (std::size_t{64} << 20) / sizeof(float);
    if (rows < 2) return;
    std::size_t of_one = 0;
    std::size_t of_many = 0;
    for (const auto& layout : layouts) {
      of_one += floats_of(*layout, rows - 1, 0);
      of_many += rows / 2 * floats_of(*layout, 2, 0);
    }
    const std::size_t floats = std::max(of_one, of_many);
    if (floats > kMostReserved) return;
    for (Half& half : halves_) half.grow(floats);
  }

  std::size_t bytes() const { return (halves_[0].floats + halves_[1].floats) * sizeof(float); }

 private:
  struct Half {
    // The states zero what they had there.
    void grow(std::size_t count) {
      if (count <= floats) return;
      memory = make_aligned<float>(count);
      floats = count;
    }
    AlignedArray<float> memory;
    std::size_t floats = 0;
  };

  // Calls body(sequence, number of its drafts, where they end) for every sequence that has any.
  template <typename Body>
  static void for_each_drafting(std::span<const BatchRow> rows, Body&& body) {
    for (std::size_t r = 0; r < rows.size();) {
      const std::size_t first = r;
      std::size_t drafts = 0;
      for (; r < rows.size() && rows[r].sequence == rows[first].sequence; ++r) {
        assert(drafts == 0 || rows[r].is_draft);
        if (rows[r].is_draft) ++drafts;
      }
      if (drafts == 0) continue;
      SequenceState& sequence = *rows[first].sequence;
      body(sequence, drafts, sequence.position() + static_cast<std::int64_t>(r - first));
    }
  }

  // Memory of a sequence's drafts in a layer, in whole cache lines.
  static std::size_t floats_of(const StateLayout& layout, std::size_t drafts, std::int64_t end) {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    const std::size_t needed = layout.rollback_floats(drafts, end);
    return (needed + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
  }

  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;  // the half of the last step
};

// Working memory of a draft head.
class DraftBuffers {
 public:
  DraftBuffers(const Decoder& model, std::size_t max_rows)
      : in_(model.weight_type, max_rows, 2 * model.width),
        x_(max_rows, model.width),
        layers_(model.drafts->layers, max_rows),
        last_(model.head->weight_type(), max_rows, model.width),
        rows_(max_rows) {}

  // An input of the head: the token that follows a row, and the head's substitute for h.
  struct Row {
    const float* hidden = nullptr;  // [E]
    std::int32_t token = 0;
    std::int64_t position = 0;  // of the token in what the head has read
    const std::unique_ptr<LayerState>* state = nullptr;
    bool wants_draft = false;
  };
  // Feeds the rows to the head, and keeps what it expects of those that want a draft.
  void step(const Decoder& model, std::span<const Row> rows, StepThreadPool* team) {
    const DraftHead& head = *model.drafts;
    const std::size_t width = model.width;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::span<float> row = in_.values().row(r);
      const MatrixView<float> token(row.data(), 1, width, width);
      const MatrixView<float> hidden(row.data() + width, 1, width, width);
      model.embed(rows[r].token, rows[r].position, token.row(0));
      head.embedding_norm.apply(token, token);
      head.hidden_norm.apply({rows[r].hidden, 1, width, width}, hidden);
    }
    in_.prepare(0, rows.size());
    const MatrixView<float> x = x_.view().rows_from(0, rows.size());
    head.in->apply(in_, x, Dense::Output::kStore, nullptr, team);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows_[r] = {.input = x.row(r).data(),
                  .position = rows[r].position,
                  .wants_output = rows[r].wants_draft,
                  .states = rows[r].state};
    }
    const MatrixView<const float> found =
        DecoderPass(head.layers).step(std::span(rows_).first(rows.size()), layers_, team, nullptr);
    predict(model, found, team);
  }
  // Results of the last step, in the order of its rows that wanted a draft.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  MatrixView<const float> hidden() { return layers_.hidden(); }

 private:
  // The most likely tokens of a large vocabulary come first in it, as byte pair encoding merges
  // them: beyond these a draft would cost more than it is worth.
  static constexpr std::size_t kMostCandidates = std::size_t{1} << 16;

  void predict(const Decoder& model, MatrixView<const float> found, StepThreadPool* team) {
    // A library that has the only copy of the head computes all of it.
    const bool is_first = model.head->has_rows();
    const std::size_t all = model.head->out_features();
    const std::size_t candidates = is_first ? std::min(all, kMostCandidates) : all;
    if (logits_.rows() < found.rows()) logits_ = Matrix(found.rows(), candidates);
    for (std::size_t r = 0; r < found.rows(); ++r) last_.assign(r, found.row(r));
    const MatrixView<float> logits = logits_.view().rows_from(0, found.rows());
    if (found.rows() > 0 && is_first) model.head->apply_first(last_, logits, team);
    if (found.rows() > 0 && !is_first) {
      model.head->apply(last_, logits, Dense::Output::kStore, nullptr, team);
    }
    tokens_.resize(found.rows());
    share_rows(team, found.rows(), [&](std::size_t r) {
      const std::span<const float> row = logits.row(r);
      tokens_[r] = static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin());
    });
  }

  DenseInput in_;  // [rows, 2 E]
  Matrix x_;       // [rows, E]
  DecoderBuffers layers_;
  DenseInput last_;  // [rows that want a draft, E]
  Matrix logits_;    // [rows that want a draft, candidates], which grows
  std::vector<DecoderRow> rows_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace

// Working memory of one thread.
struct Workspace::Activations {
  Activations(const Decoder& decoder, std::size_t rows) : max_rows(rows) {
    buffers.emplace(decoder, rows);
    fed.reserve(rows);
  }

  std::size_t max_rows;
  std::optional<DecoderBuffers> buffers;  // in recompute mode for the longest prefix so far
  std::vector<DecoderRow> fed;
  Matrix recomputed;  // [rows that want one, V]
  DraftMemory drafts;
  std::optional<DraftBuffers> draft_head;  // made at its first use
  std::vector<DraftBuffers::Row> drafted;
  StepObserver* observer = nullptr;
  StepThreadPool* team = nullptr;  // its leader is this thread; null: this thread alone
};

Workspace::Workspace(std::unique_ptr<Activations> buffers) : buffers_(std::move(buffers)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;

std::size_t Workspace::max_rows() const { return buffers_->max_rows; }
std::size_t Workspace::bytes() const {
  return buffers_->buffers->bytes() + buffers_->drafts.bytes();
}
MatrixView<const float> Workspace::hidden() const { return buffers_->buffers->hidden(); }
void Workspace::observe(StepObserver* observer) { buffers_->observer = observer; }
void Workspace::share_with(StepThreadPool* team) { buffers_->team = team; }

// The parts that load() makes from the files.
struct Transformer::Parts {
  ModelConfig config;
  WeightType weight_type = WeightType::kF32;
  std::string config_json;
  std::shared_future<std::string> fingerprint;  // not valid: none
  std::vector<std::string> warnings;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: ids alone
  bool recompute = false;
  std::unique_ptr<Head> head;
  std::unique_ptr<const WeightSource> drawn;  // source of a streaming `decoder`; null: the files
  std::unique_ptr<const Decoder> decoder;
};

struct Transformer::Impl : Parts {
  explicit Impl(Parts parts)
      : Parts(std::move(parts)),
        layouts(recompute ? std::vector<std::shared_ptr<const StateLayout>>() : decoder->layouts()),
        draft_layout(decoder->drafts ? decoder->drafts->layers.layouts().front() : nullptr),
        pass(*decoder) {}

  int num_counts() const { return head->supports_filters() ? config.vocab_size : 0; }

  MatrixView<const float> step(std::span<const BatchRow> rows,
                               Workspace::Activations& buffers) const {
    buffers.drafts.begin_speculation(rows, layouts);
    buffers.fed.clear();
    for (const BatchRow& row : rows) {
      SequenceState& sequence = *row.sequence;
      buffers.fed.push_back({.token = row.token,
                             .position = sequence.position(),
                             .wants_output = row.wants_output,
                             .keeps_hidden = row.keeps_hidden,
                             .adapter = sequence.adapter().get(),
                             .states = sequence.layers()});
      sequence.advance();
    }
    return pass.step(buffers.fed, *buffers.buffers, buffers.team, buffers.observer);
  }

  // Sequences keep their tokens, and rows that want an output run their whole prefix again.
  MatrixView<const float> recomputing_step(std::span<const BatchRow> rows,
                                           Workspace::Activations& buffers) const {
    const auto num_outputs = static_cast<std::size_t>(config.num_outputs());
    if (buffers.recomputed.rows() < rows.size()) {
      buffers.recomputed = Matrix(buffers.max_rows, num_outputs);
    }
    std::size_t wanted = 0;
    for (const BatchRow& row : rows) {
      row.sequence->remember(row.token);
      if (!row.wants_output) continue;
      const MatrixView<const float> last = run_prefix(*row.sequence, buffers);
      std::ranges::copy(last.row(0), buffers.recomputed.row(wanted++).begin());
    }
    return {buffers.recomputed.view().data(), wanted, num_outputs, num_outputs};
  }

  MatrixView<const float> run_prefix(const SequenceState& sequence,
                                     Workspace::Activations& buffers) const {
    const std::int64_t length = sequence.position();
    const auto rows = static_cast<std::size_t>(length);
    if (buffers.buffers->max_rows() < rows) {
      buffers.buffers.reset();
      buffers.buffers.emplace(*decoder, rows + rows / 2);
    }
    buffers.fed.clear();
    for (std::int64_t t = 0; t < length; ++t) {
      buffers.fed.push_back({.token = sequence.token(t),
                             .position = t,
                             .wants_output = t + 1 == length,
                             .adapter = sequence.adapter().get()});
    }
    return pass.step(buffers.fed, *buffers.buffers, buffers.team, buffers.observer);
  }

  // Bytes that a sequence keeps, as StateLayout::state_bytes.
  std::size_t state_bytes(std::int64_t num_tokens) const {
    if (recompute) return SequenceState::token_bytes(num_tokens);
    std::size_t total = 0;
    for (const auto& layout : layouts) {
      if (__builtin_add_overflow(total, layout->state_bytes(num_tokens), &total)) return SIZE_MAX;
    }
    return total;
  }

  // Layouts of the states that a sequence keeps; empty in recompute mode.
  const std::vector<std::shared_ptr<const StateLayout>> layouts;
  const std::shared_ptr<const StateLayout> draft_layout;  // null: no draft head
  const DecoderPass pass;
};

Transformer::Transformer(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
Transformer::~Transformer() = default;

Workspace Transformer::new_workspace(std::size_t max_rows, std::size_t max_drafting_rows) const {
  auto buffers = std::make_unique<Workspace::Activations>(*impl_->decoder, max_rows);
  buffers->drafts.reserve(max_drafting_rows, impl_->layouts);
  return Workspace(std::move(buffers));
}

SequenceState Transformer::new_sequence(std::shared_ptr<const Adapter> adapter) const {
  const ModelConfig& config = impl_->config;
  return SequenceState(impl_->layouts, impl_->num_counts(), std::move(adapter),
                       {.max_length = config.max_length, .vocab_size = config.vocab_size});
}

MatrixView<const float> Transformer::step(std::span<const BatchRow> rows,
                                          Workspace& workspace) const {
  assert(!rows.empty() && rows.size() <= workspace.max_rows());
  const TileScope tiles;  // one for all products of the step
  return impl_->recompute ? impl_->recomputing_step(rows, *workspace.buffers_)
                          : impl_->step(rows, *workspace.buffers_);
}

DraftState::DraftState(std::unique_ptr<LayerState> read, std::unique_ptr<LayerState> drafted)
    : read_(std::move(read)), drafted_(std::move(drafted)) {}
DraftState::DraftState(DraftState&&) noexcept = default;
DraftState& DraftState::operator=(DraftState&&) noexcept = default;
DraftState::~DraftState() = default;

void DraftState::assign(const DraftState& other) {
  read_->assign(*other.read_);
  length_ = other.length_;
}

bool Transformer::has_draft_head() const { return impl_->decoder->drafts != nullptr; }

DraftState Transformer::new_draft_state() const {
  return {impl_->draft_layout->new_state({}), impl_->draft_layout->new_state({})};
}

std::size_t Transformer::draft_state_bytes() const {
  if (!has_draft_head()) return 0;
  constexpr std::size_t kObjectBytes = 320;  // as sequence_bytes() has it
  return 2 * (impl_->draft_layout->state_bytes(draft_window()) + kObjectBytes);
}

std::int64_t Transformer::draft_window() const { return impl_->draft_layout->tokens_until_full(); }

void Transformer::draft(std::span<const DraftRequest> requests, Workspace& workspace) const {
  Workspace::Activations& buffers = *workspace.buffers_;
  const Decoder& decoder = *impl_->decoder;
  assert(has_draft_head() && !requests.empty());
  if (!buffers.draft_head) buffers.draft_head.emplace(decoder, buffers.max_rows);
  DraftBuffers& head = *buffers.draft_head;
  const TileScope tiles;
  std::vector<DraftBuffers::Row>& rows = buffers.drafted;
  rows.clear();
  for (const DraftRequest& request : requests) {
    const MatrixView<const float> hidden =
        workspace.hidden().rows_from(request.first_hidden, request.tokens.size());
    for (std::size_t i = 0; i < request.tokens.size(); ++i) {
      rows.push_back({.hidden = hidden.row(i).data(),
                      .token = request.tokens[i],
                      .position = request.state->length_++,
                      .state = &request.state->read_,
                      .wants_draft = !request.drafts.empty() && i + 1 == request.tokens.size()});
    }
  }
  head.step(decoder, rows, buffers.team);
  for (std::size_t d = 0; !head.tokens().empty(); ++d) {
    std::size_t found = 0;
    rows.clear();
    for (const DraftRequest& request : requests) {
      if (request.drafts.empty()) continue;
      const std::size_t i = found++;
      request.drafts[d] = head.tokens()[i];
      if (d + 1 == request.drafts.size()) continue;
      DraftState& state = *request.state;
      if (d == 0) state.drafted_->assign(*state.read_);
      rows.push_back({.hidden = head.hidden().row(i).data(),
                      .token = request.drafts[d],
                      .position = state.length_ + static_cast<std::int64_t>(d),
                      .state = &state.drafted_,
                      .wants_draft = true});
    }
    if (rows.empty()) break;
    head.step(decoder, rows, buffers.team);
  }
}

const ModelConfig& Transformer::config() const { return impl_->config; }
std::span<const AdaptableModule> Transformer::modules() const { return impl_->decoder->modules; }
const Head& Transformer::head() const { return *impl_->head; }
WeightType Transformer::weight_type() const { return impl_->weight_type; }
std::optional<KvType> Transformer::kv_type() const { return impl_->decoder->kv_type; }
// The fixed cost of a step, reading the weights above all, is negligible from here on. Products in
// f32 wait for arithmetic sooner, and with more rows less stays in the caches.
std::size_t Transformer::most_prompt_rows() const {
  return weight_type() == WeightType::kF32 ? 64 : 128;
}
std::int64_t Transformer::num_parameters() const { return impl_->decoder->num_parameters; }
std::size_t Transformer::weight_bytes() const { return impl_->decoder->weight_bytes(); }

std::string Transformer::kernels() const {
  const std::vector<const Dense*> products = impl_->decoder->products();
  std::vector<std::pair<std::string, int>> found;  // in order, and how many products have them
  for (const Dense* dense : products) {
    const std::string kernels = dense->kernels();
    const auto same = std::ranges::find(found, kernels, &std::pair<std::string, int>::first);
    if (same == found.end()) {
      found.emplace_back(kernels, 1);
    } else {
      ++same->second;
    }
  }
  if (found.size() == 1) return found.front().first;
  std::string all;
  for (const auto& [kernels, count] : found) {
    all += (all.empty() ? "" : "; ") + std::to_string(count) + " of " +
           std::to_string(products.size()) + " products " + kernels;
  }
  return all;
}

std::size_t Transformer::state_bytes(std::int64_t num_tokens) const {
  // One token more than were fed is pending.
  const std::int64_t counted = std::min(num_tokens, std::int64_t{INT32_MAX}) + 1;
  const auto vocab_size = static_cast<std::size_t>(impl_->num_counts());
  const std::size_t counts = num_tokens == 0 ? TokenCounts::most_bytes(vocab_size, 0)
                                             : TokenCounts::most_bytes(vocab_size, counted);
  std::size_t total = 0;
  return __builtin_add_overflow(counts, impl_->state_bytes(num_tokens), &total) ? SIZE_MAX : total;
}

std::size_t Transformer::sequence_bytes(std::int64_t num_tokens) const {
  // Measured, with the allocator's own share (tests/server/sessions/session_bytes_test.cpp): a
  // layer's object and the ends of its blocks; the lists of layers and the tail of stop strings.
  constexpr std::size_t kLayerBytes = 320;
  constexpr std::size_t kSequenceBytes = 512;
  std::size_t total = state_bytes(num_tokens);
  const std::size_t objects = kSequenceBytes + impl_->layouts.size() * kLayerBytes;
  return __builtin_add_overflow(total, objects, &total) ? SIZE_MAX : total;
}

bool Transformer::constant_state() const {
  return !impl_->recompute && std::ranges::all_of(impl_->layouts, [](const auto& layout) {
    return layout->tokens_until_full() == 0;
  });
}

std::int64_t Transformer::tokens_until_full() const {
  if (impl_->recompute) return kNeverFull;
  std::int64_t tokens =
      TokenCounts::tokens_until_full(static_cast<std::size_t>(impl_->num_counts()));
  for (const auto& layout : impl_->layouts) {
    tokens = std::max(tokens, layout->tokens_until_full());
  }
  return tokens;
}
std::int64_t Transformer::page_tokens() const {
  return impl_->recompute ? 0 : lintel::page_tokens(impl_->layouts);
}

bool Transformer::recomputes() const { return impl_->recompute; }
const std::string& Transformer::fingerprint() const {
  static const std::string kNone;
  return impl_->fingerprint.valid() ? impl_->fingerprint.get() : kNone;
}
bool Transformer::knows_fingerprint() const {
  return !impl_->fingerprint.valid() ||
         impl_->fingerprint.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}
const std::string& Transformer::config_json() const { return impl_->config_json; }
const std::vector<std::string>& Transformer::warnings() const { return impl_->warnings; }
const std::shared_ptr<const Tokenizer>& Transformer::tokenizer() const { return impl_->tokenizer; }

// Transformer::load: from a model directory to the parts of a transformer.

namespace {

std::string warning_of_recomputing(const Decoder& decoder) {
  const bool as_stepped = std::ranges::all_of(decoder.layers, [](const DecoderLayer& layer) {
    const auto& mixer = static_cast<const AttentionMixer&>(*layer.token_mixer);
    return mixer.attention().full_pass_equals_steps();
  });
  std::string warning =
      "recompute mode keeps no state and runs the whole prefix again for every token, as published "
      "baselines did: for comparison, not for production";
  if (!as_stepped) warning += "; its outputs differ from those of a session with state";
  return warning;
}

bool is_part_of_an_image(const ModelConfig& config) {
  return config.modality == ModalityKind::kImage &&
         config.max_tokens() != config.image.num_tokens();
}

}  // namespace

void Transformer::load_native(const ModelFiles& files, const Options& options,
                              const Dense::Options& products, Parts& parts) {
  check_tensors(files.weights(), parts.config);
  check_weight_type(parts.config, options.weight_type);
  if (!options.attention.has_value()) {
    parts.decoder = make_native(parts.config, files.weights(), products);
    return;
  }
  const AttentionSpec& spec = *options.attention;
  const std::vector<AttentionConfig> stored = parts.config.attention;
  parts.drawn = replace_attention(spec, parts.config, files.weights());
  parts.config = with_attention(std::move(parts.config), spec);
  if (parts.config.attention != stored || spec.seed.has_value()) {
    parts.warnings.push_back("the weights were not trained for attention " + spec.text +
                             ": its speed can be compared, what it generates means nothing");
  }
  parts.decoder = make_native(parts.config, *parts.drawn, products);
  if (!options.streams) parts.drawn.reset();
  parts.recompute = spec.recompute;
  if (parts.recompute) parts.warnings.push_back(warning_of_recomputing(*parts.decoder));
}

std::unique_ptr<Transformer> Transformer::load(const ModelFiles& files, const Options& options) {
  check_has_blocks(files, options.weight_type);
  const ModelFamily* const family = files.family();
  if (family != nullptr && options.attention.has_value()) {
    throw ModelError("--attention " + options.attention->text + ": a model of family " +
                     files.config().family + " has its own layers");
  }
  Parts parts;
  parts.config = files.config();
  parts.config.context = options.context;
  parts.weight_type = family != nullptr ? family_type_of(options.weight_type) : options.weight_type;
  parts.config_json =
      family != nullptr ? quote_non_finite(files.config_json()) : files.config_json();
  parts.warnings = warnings_of_unknown_keys(files);
  parts.fingerprint = options.fingerprint;
  const bool computes_fingerprint = !options.streams && !options.fingerprint.valid();
  if (computes_fingerprint) {  // which takes about as long as packing the weights
    parts.fingerprint =
        std::async(std::launch::async, [&files] { return fingerprint_of(files); }).share();
  }
  parts.head = make_head(parts.config);
  parts.tokenizer = files.load_tokenizer(parts.warnings);
  const Dense::Options products{.weight_type = parts.weight_type,
                                .library = options.product_library,
                                .streams = options.streams};
  if (family != nullptr) {
    parts.decoder =
        family->make(files.checkpoint(), products,
                     options.kv_type.value_or(kv_type_for(parts.weight_type)), parts.warnings);
  } else {
    load_native(files, options, products, parts);
  }
  if (computes_fingerprint) parts.fingerprint.get();
  if (!parts.decoder->kv_type && options.kv_type.value_or(KvType::kF32) != KvType::kF32) {
    parts.warnings.push_back("--kv-type " + std::string(to_string(*options.kv_type)) +
                             " changes nothing: the model has no KV cache, its states stay in f32");
  }
  if (is_part_of_an_image(parts.config)) {
    parts.warnings.push_back("max_length " + std::to_string(parts.config.max_length) +
                             " ends a sequence before its image of " +
                             std::to_string(parts.config.image.num_tokens()) + " tokens is whole");
  }
  return std::unique_ptr<Transformer>(new Transformer(std::move(parts)));
}

std::unique_ptr<Transformer> Transformer::load(const std::filesystem::path& directory,
                                               const Options& options) {
  return load(ModelFiles(directory), options);
}

}  // namespace lintel
