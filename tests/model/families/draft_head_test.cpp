// SPDX-License-Identifier: Apache-2.0
// Draft heads of checkpoints (multi-token prediction): what they propose, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/core/step_thread_pool.h"
#include "model/formats/gguf.h"
#include "model/formats/safetensors.h"
#include "model/lora/adapter.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kWidth = 32, kVocabulary = 80, kFfWidth = 48;
constexpr std::size_t kHeads = 4, kKvHeads = 2, kHeadWidth = 16, kRotated = 4;
constexpr double kTheta = 1e7, kEps = 1e-6;

using Row = std::vector<double>;

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using TensorsByName = std::map<std::string, Tensor>;

// The golden checkpoint qwen3_5 with a random draft head.
class CheckpointWithDrafts {
 public:
  CheckpointWithDrafts() {
    const std::filesystem::path golden =
        std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "families" / "qwen3_5";
    std::filesystem::copy_file(golden / "config.json", path() / "config.json");
    const SafetensorsFile from(golden / "model.safetensors");
    for (const auto& [name, tensor] : from.tensors()) {
      tensors[name] = {tensor.shape, from.read_f32(name)};
    }
    add("fc.weight", {kWidth, 2 * kWidth});
    add("layers.0.self_attn.q_proj.weight", {2 * kHeads * kHeadWidth, kWidth});
    add("layers.0.self_attn.k_proj.weight", {kKvHeads * kHeadWidth, kWidth});
    add("layers.0.self_attn.v_proj.weight", {kKvHeads * kHeadWidth, kWidth});
    add("layers.0.self_attn.o_proj.weight", {kWidth, kHeads * kHeadWidth});
    add("layers.0.self_attn.q_norm.weight", {kHeadWidth});
    add("layers.0.self_attn.k_norm.weight", {kHeadWidth});
    add("layers.0.mlp.gate_proj.weight", {kFfWidth, kWidth});
    add("layers.0.mlp.up_proj.weight", {kFfWidth, kWidth});
    add("layers.0.mlp.down_proj.weight", {kWidth, kFfWidth});
    for (const char* const norm :
         {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.input_layernorm",
          "layers.0.post_attention_layernorm"}) {
      add(norm + std::string(".weight"), {kWidth});
    }
    write();
  }

  const std::filesystem::path& path() const { return directory_.path(); }
  void write() const {
    std::vector<TensorToWrite> all;
    for (const auto& [name, tensor] : tensors) {
      all.push_back({.name = name, .shape = tensor.shape, .values = tensor.values});
    }
    std::filesystem::remove(path() / "model.safetensors");
    write_safetensors(path() / "model.safetensors", all);
  }
  const std::vector<float>& of(const std::string& name) const {
    return tensors.at("mtp." + name + ".weight").values;
  }

  TensorsByName tensors;

 private:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    std::normal_distribution<float> values(0.0f, 0.3f);
    Tensor& tensor = tensors["mtp." + name];
    tensor.shape = std::move(shape);
    for (std::size_t i = 0; i < count; ++i) tensor.values.push_back(values(random_));
  }

  TemporaryDirectory directory_;
  std::mt19937 random_{7};
};

// The names of a GGUF file's block for those of a directory.
constexpr std::pair<const char*, const char*> kGgufNames[] = {
    {"fc", "nextn.eh_proj"},
    {"norm", "nextn.shared_head_norm"},
    {"pre_fc_norm_embedding", "nextn.enorm"},
    {"pre_fc_norm_hidden", "nextn.hnorm"},
    {"layers.0.input_layernorm", "attn_norm"},
    {"layers.0.post_attention_layernorm", "post_attention_norm"},
    {"layers.0.self_attn.q_proj", "attn_q"},
    {"layers.0.self_attn.k_proj", "attn_k"},
    {"layers.0.self_attn.v_proj", "attn_v"},
    {"layers.0.self_attn.o_proj", "attn_output"},
    {"layers.0.self_attn.q_norm", "attn_q_norm"},
    {"layers.0.self_attn.k_norm", "attn_k_norm"},
    {"layers.0.mlp.gate_proj", "ffn_gate"},
    {"layers.0.mlp.up_proj", "ffn_up"},
    {"layers.0.mlp.down_proj", "ffn_down"}};

// Adds the draft head to the golden GGUF file of a model of the same shape, as its last block.
// more: a tensor of one value in it; empty: none.
class GgufWithDrafts {
 public:
  explicit GgufWithDrafts(const CheckpointWithDrafts& checkpoint, const std::string& more = "") {
    const std::filesystem::path golden =
        std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "gguf" / "qwen35-f32.gguf";
    std::ifstream in(golden, std::ios::binary);
    const std::string from{std::istreambuf_iterator<char>(in), {}};
    const GgufFile file(golden);
    const std::size_t infos = from.find("token_embd.weight") - sizeof(std::uint64_t);
    std::size_t infos_end = infos;
    for (const TensorInfo& tensor : file.tensors()) {
      infos_end += 24 + tensor.name.size() + 8 * tensor.shape.size();
    }
    const std::size_t data = aligned(infos_end);
    std::string keys = from.substr(24, infos - 24), data_bytes = from.substr(data);
    const std::string blocks = "qwen35.block_count";
    keys[keys.find(blocks) + blocks.size() + 4] = 5;
    std::string tensors = from.substr(infos, infos_end - infos);
    std::uint64_t count = file.tensors().size();
    const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                         const std::vector<float>& values) {
      put_text(tensors, "blk.4." + name + ".weight");
      put(tensors, static_cast<std::uint32_t>(shape.size()));
      for (auto size = shape.rbegin(); size != shape.rend(); ++size) put(tensors, *size);
      put(tensors, std::uint32_t{0});  // F32
      data_bytes.resize(aligned(data_bytes.size()));
      put(tensors, std::uint64_t{data_bytes.size()});
      data_bytes.append(reinterpret_cast<const char*>(values.data()), 4 * values.size());
      ++count;
    };
    for (const auto& [name, in_gguf] : kGgufNames) {
      Tensor tensor = checkpoint.tensors.at("mtp." + std::string(name) + ".weight");
      if (tensor.shape.size() == 1) {
        for (float& value : tensor.values) value += 1.0f;  // gains, as the converter stores them
      }
      add(in_gguf, tensor.shape, tensor.values);
    }
    if (!more.empty()) add(more, {1}, {1.0f});
    put_text(keys, "qwen35.nextn_predict_layers");
    put(keys, std::uint32_t{4});  // its type: uint32
    put(keys, std::uint32_t{1});
    std::uint64_t num_keys = 0;
    std::memcpy(&num_keys, &from[16], sizeof num_keys);
    std::string bytes = from.substr(0, 8);
    put(bytes, count);
    put(bytes, num_keys + 1);
    bytes += keys + tensors;
    bytes.resize(aligned(bytes.size()));
    std::ofstream(path(), std::ios::binary) << bytes << data_bytes;
  }

  std::filesystem::path path() const { return directory_.path() / "model.gguf"; }

 private:
  static std::size_t aligned(std::size_t size) { return (size + 31) / 32 * 32; }
  template <typename Value>
  static void put(std::string& to, Value value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(std::string& to, const std::string& text) {
    put(to, std::uint64_t{text.size()});
    to += text;
  }

  TemporaryDirectory directory_;
};

// The draft head as its definition reads, in doubles. Keys and values are rounded to bfloat16, as
// the cache holds them.
class NaiveDraftHead {
 public:
  explicit NaiveDraftHead(const CheckpointWithDrafts& weights) : weights_(weights) {}

  // The head's input from the hidden row before `token`, and from the token.
  Row read(const Row& hidden, std::int32_t token) {
    Row in = norm(embedding(token), "pre_fc_norm_embedding");
    const Row of_hidden = norm(hidden, "pre_fc_norm_hidden");
    in.insert(in.end(), of_hidden.begin(), of_hidden.end());
    Row x = product("fc", in);
    add(x, attend(norm(x, "layers.0.input_layernorm")));
    const Row normed = norm(x, "layers.0.post_attention_layernorm");
    Row gated = product("layers.0.mlp.gate_proj", normed);
    const Row up = product("layers.0.mlp.up_proj", normed);
    for (std::size_t i = 0; i < gated.size(); ++i) gated[i] *= up[i] / (1 + std::exp(-gated[i]));
    add(x, product("layers.0.mlp.down_proj", gated));
    return norm(x, "norm");
  }
  // The most likely token, and by how much it is ahead of the next one.
  std::pair<std::int32_t, double> expect(const Row& hidden) const {
    Row logits;
    for (std::size_t t = 0; t < kVocabulary; ++t) {
      const Row row = embedding(static_cast<std::int32_t>(t));  // tied
      double sum = 0;
      for (std::size_t i = 0; i < kWidth; ++i) sum += row[i] * hidden[i];
      logits.push_back(sum);
    }
    const auto best = std::ranges::max_element(logits);
    const auto token = static_cast<std::int32_t>(best - logits.begin());
    const double highest = *best;
    *best = -1e9;
    return {token, highest - *std::ranges::max_element(logits)};
  }

 private:
  static void add(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Row embedding(std::int32_t token) const {
    const std::vector<float>& all = weights_.tensors.at("model.embed_tokens.weight").values;
    const auto first = all.begin() + token * static_cast<std::ptrdiff_t>(kWidth);
    return {first, first + kWidth};
  }
  Row norm(const Row& x, const std::string& name) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] * scale * (1.0 + weights_.of(name)[i]));
    }
    return y;
  }
  Row product(const std::string& name, const Row& x) const {
    const std::vector<float>& weight = weights_.of(name);
    Row y(weight.size() / x.size());
    for (std::size_t n = 0; n < y.size(); ++n) {
      for (std::size_t i = 0; i < x.size(); ++i) y[n] += weight[n * x.size() + i] * x[i];
    }
    return y;
  }
  static void turn(Row& head, std::size_t position) {
    for (std::size_t i = 0; i < kRotated / 2; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(kTheta, -2.0 * static_cast<double>(i) / kRotated);
      const double a = head[i], b = head[i + kRotated / 2];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + kRotated / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  static Row part(const Row& x, std::size_t first) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
    return {begin, begin + kHeadWidth};
  }
  static Row rounded(Row x) {
    for (double& value : x) {
      const int exponent = std::ilogb(value);
      value = std::ldexp(std::nearbyint(std::ldexp(value, 7 - exponent)), exponent - 7);
    }
    return x;
  }
  Row attend(const Row& x) {
    const Row q = product("layers.0.self_attn.q_proj", x);
    const Row k = product("layers.0.self_attn.k_proj", x);
    const Row v = product("layers.0.self_attn.v_proj", x);
    const std::size_t position = keys_.size();
    keys_.emplace_back();
    values_.emplace_back();
    for (std::size_t h = 0; h < kKvHeads; ++h) {
      Row key = norm(part(k, h * kHeadWidth), "layers.0.self_attn.k_norm");
      turn(key, position);
      keys_.back().push_back(rounded(key));
      values_.back().push_back(rounded(part(v, h * kHeadWidth)));
    }
    Row out;
    for (std::size_t h = 0; h < kHeads; ++h) {
      Row query = norm(part(q, 2 * h * kHeadWidth), "layers.0.self_attn.q_norm");
      turn(query, position);
      const std::size_t of = h / (kHeads / kKvHeads);
      double total = 0;
      Row sum(kHeadWidth);
      for (std::size_t s = 0; s <= position; ++s) {
        double score = 0;
        for (std::size_t i = 0; i < kHeadWidth; ++i) score += query[i] * keys_[s][of][i];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(kHeadWidth)));
        total += weight;
        for (std::size_t i = 0; i < kHeadWidth; ++i) sum[i] += weight * values_[s][of][i];
      }
      for (std::size_t i = 0; i < kHeadWidth; ++i) {
        const double gate = q[(2 * h + 1) * kHeadWidth + i];
        out.push_back(sum[i] / total / (1 + std::exp(-gate)));
      }
    }
    return product("layers.0.self_attn.o_proj", out);
  }

  const CheckpointWithDrafts& weights_;
  std::vector<std::vector<Row>> keys_, values_;  // [positions, heads]
};

Row row_of(std::span<const float> values) { return {values.begin(), values.end()}; }

std::int32_t text_token(std::size_t t) { return static_cast<std::int32_t>(t * 31 % kVocabulary); }

TEST_CASE("a draft head proposes what its definition says, also after its own tokens") {
  CheckpointWithDrafts checkpoint;
  const GgufWithDrafts gguf(checkpoint);
  const bool is_gguf = GENERATE(false, true);
  const auto model = Transformer::load(is_gguf ? gguf.path() : checkpoint.path(), {});
  REQUIRE(model->has_draft_head());
  if (is_gguf) {
    const GgufFile file(gguf.path());
    std::vector<float>& embedding = checkpoint.tensors.at("model.embed_tokens.weight").values;
    read_f32(file, *file.find("token_embd.weight"), embedding);
  }
  Workspace workspace = model->new_workspace(8);
  SequenceState sequence = model->new_sequence();
  DraftState state = model->new_draft_state();
  NaiveDraftHead naive(checkpoint);
  constexpr std::size_t kDepth = 3;
  int compared = 0;
  std::size_t fed = 0;
  for (const std::size_t count : {1, 3, 1, 1, 2, 8, 1, 5, 1, 4}) {
    std::vector<BatchRow> rows;
    std::vector<std::int32_t> after;
    for (std::size_t i = 0; i < count; ++i, ++fed) {
      const bool is_last = i + 1 == count;  // earlier ones may be of a prompt
      rows.push_back({.token = text_token(fed),
                      .sequence = &sequence,
                      .wants_output = is_last || count % 2 == 0,
                      .keeps_hidden = !is_last});
      after.push_back(text_token(fed + 1));
    }
    model->step(rows, workspace);
    REQUIRE(workspace.hidden().rows() == count);
    Row found;
    for (std::size_t i = 0; i < count; ++i) {
      found = naive.read(row_of(workspace.hidden().row(i)), after[i]);
    }
    std::vector<std::int32_t> drafts(kDepth);
    const DraftRequest request{.state = &state, .tokens = after, .drafts = drafts};
    model->draft({&request, 1}, workspace);
    CHECK(state.length() == static_cast<std::int64_t>(fed));
    NaiveDraftHead drafted = naive;
    for (std::size_t d = 0; d < kDepth; ++d) {
      const auto [token, ahead] = drafted.expect(found);
      CAPTURE(fed, d, ahead);
      if (ahead < 0.02) break;  // rounding may decide
      CHECK(drafts[d] == token);
      ++compared;
      found = drafted.read(found, token);
    }
  }
  CHECK(compared >= 20);
}

TEST_CASE("draft tokens of a sequence do not depend on others in the call, nor on threads") {
  const CheckpointWithDrafts checkpoint;
  const auto type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const auto model = Transformer::load(checkpoint.path(), {.weight_type = type});
  constexpr std::size_t kSequences = 9, kDepth = 3;
  const auto drafts_of = [&](std::size_t together, StepThreadPool* team) {
    std::vector<std::int32_t> all;
    for (std::size_t first = 0; first < kSequences; first += together) {
      Workspace workspace = model->new_workspace(2 * together);
      workspace.share_with(team);
      std::vector<SequenceState> sequences;
      std::vector<DraftState> states;
      for (std::size_t s = 0; s < together; ++s) {
        sequences.push_back(model->new_sequence());
        states.push_back(model->new_draft_state());
      }
      std::vector<std::int32_t> drafts(together * kDepth);
      for (std::size_t step = 0; step < 4; ++step) {
        std::vector<BatchRow> rows;
        std::vector<std::int32_t> after;
        for (std::size_t s = 0; s < together; ++s) {
          for (std::size_t i = 0; i < 2; ++i) {
            const std::size_t t = 2 * step + i + 5 * (first + s);
            rows.push_back({text_token(t), &sequences[s], true});
            after.push_back(text_token(t + 1));
          }
        }
        model->step(rows, workspace);
        std::vector<DraftRequest> requests;
        for (std::size_t s = 0; s < together; ++s) {
          requests.push_back({.state = &states[s],
                              .first_hidden = 2 * s,
                              .tokens = std::span(after).subspan(2 * s, 2),
                              .drafts = std::span(drafts).subspan(s * kDepth, kDepth)});
        }
        model->draft(requests, workspace);
      }
      all.insert(all.end(), drafts.begin(), drafts.end());
    }
    return all;
  };
  const std::vector<std::int32_t> alone = drafts_of(1, nullptr);
  CHECK(drafts_of(3, nullptr) == alone);
  CHECK(drafts_of(9, nullptr) == alone);
  StepThreadPool team;
  const StepHelpers helpers(team, 2);
  CHECK(drafts_of(9, &team) == alone);
}

TEST_CASE("rows that keep their hidden row change no output, and have the one of an output") {
  const CheckpointWithDrafts checkpoint;
  const auto type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const auto model = Transformer::load(checkpoint.path(), {.weight_type = type});
  const TemporaryDirectory directory;
  write_random_adapter(directory.path(), model->modules());
  const std::shared_ptr<const Adapter> adapted =
      Adapter::load(AdapterFiles(directory.path(), model->modules()));
  constexpr std::size_t kSequences = 4, kRows = 6;
  const auto run = [&](bool all_have_outputs) {
    std::vector<SequenceState> sequences;
    for (std::size_t s = 0; s < kSequences; ++s) {
      sequences.push_back(model->new_sequence(s % 2 == 0 ? nullptr : adapted));
    }
    Workspace workspace = model->new_workspace(kSequences * kRows);
    std::vector<std::vector<float>> outputs, hidden;
    for (std::size_t step = 0; step < 2; ++step) {
      std::vector<BatchRow> rows;
      for (std::size_t r = 0; r < kSequences * kRows; ++r) {
        const bool wants_output = all_have_outputs || r % 7 == 5;
        rows.push_back({.token = text_token(r + step),
                        .sequence = &sequences[r / kRows],
                        .wants_output = wants_output,
                        .keeps_hidden = r % 3 > 0 || wants_output});
      }
      const MatrixView<const float> found = model->step(rows, workspace);
      std::size_t output = 0, kept = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const std::span<const float> last =
            rows[r].keeps_hidden ? workspace.hidden().row(kept++) : std::span<const float>();
        if (rows[r].wants_output && r % 7 == 5) {
          const std::span<const float> row = found.row(output);
          outputs.emplace_back(row.begin(), row.end());
        }
        if (rows[r].wants_output) ++output;
        if (r % 3 > 0) hidden.emplace_back(last.begin(), last.end());
      }
      CHECK(found.rows() == output);
      CHECK(workspace.hidden().rows() == kept);
    }
    return std::pair(outputs, hidden);
  };
  CHECK(run(false) == run(true));
}

TEST_CASE("a draft head that has read rows without drafting proposes what it would have") {
  const CheckpointWithDrafts checkpoint;
  const auto model = Transformer::load(checkpoint.path(), {});
  // Two sequences, of which the first wants no drafts after the first step.
  const auto drafts_of = [&](bool reads_in_one_call) {
    Workspace workspace = model->new_workspace(8);
    SequenceState a = model->new_sequence(), b = model->new_sequence();
    DraftState of_a = model->new_draft_state(), of_b = model->new_draft_state();
    std::vector<std::int32_t> found(4);
    for (std::size_t step = 0; step < 2; ++step) {
      std::vector<BatchRow> rows;
      std::vector<std::int32_t> after;
      for (SequenceState* const sequence : {&a, &b}) {
        for (std::size_t i = 0; i < 3; ++i) {
          const std::size_t t = 3 * step + i + (sequence == &b ? 11 : 0);
          rows.push_back({.token = text_token(t), .sequence = sequence, .keeps_hidden = true});
          after.push_back(text_token(t + 1));
        }
      }
      model->step(rows, workspace);
      const std::span drafts(found);
      const DraftRequest requests[] = {
          {.state = &of_a,
           .tokens = std::span(after).first(3),
           .drafts = step == 0 ? std::span<std::int32_t>() : drafts.first(2)},
          {.state = &of_b,
           .first_hidden = 3,
           .tokens = std::span(after).subspan(3),
           .drafts = drafts.subspan(2)}};
      if (reads_in_one_call) {
        model->draft(requests, workspace);
      } else {
        model->draft(std::span(requests).first(1), workspace);
        model->draft(std::span(requests).subspan(1), workspace);
      }
    }
    DraftState copy = model->new_draft_state();
    copy.assign(of_a);
    CHECK(of_a.length() == 6);
    CHECK(copy.length() == 6);
    return found;
  };
  const std::vector<std::int32_t> found = drafts_of(true);
  CHECK(found == drafts_of(false));
  CHECK(found[0] != found[2]);
}

TEST_CASE("a draft head changes no output of its model") {
  const CheckpointWithDrafts checkpoint;
  const auto with = Transformer::load(checkpoint.path(), {});
  const auto without = Transformer::load(
      std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "families" / "qwen3_5", {});
  CHECK_FALSE(without->has_draft_head());
  CHECK(without->draft_state_bytes() == 0);
  CHECK(with->state_bytes(100) == without->state_bytes(100));
  CHECK(with->modules().size() == without->modules().size());
  CHECK(with->weight_bytes() > without->weight_bytes());
  for (const auto& model : {std::cref(with), std::cref(without)}) {
    CHECK(std::ranges::any_of(model.get()->warnings(), [](const std::string& warning) {
            return warning.find("draft head") != std::string::npos;
          }) == model.get()->has_draft_head());
  }
  Workspace workspace = with->new_workspace(1);
  Workspace other = without->new_workspace(1);
  SequenceState a = with->new_sequence(), b = without->new_sequence();
  DraftState state = with->new_draft_state();
  for (std::size_t t = 0; t < 20; ++t) {
    const BatchRow row{text_token(t), &a, true}, same{text_token(t), &b, true};
    const std::span<const float> found = with->step({&row, 1}, workspace).row(0);
    const std::vector<std::int32_t> after = {text_token(t + 1)};
    std::vector<std::int32_t> drafts(2);
    const DraftRequest request{.state = &state, .tokens = after, .drafts = drafts};
    with->draft({&request, 1}, workspace);
    CHECK(std::ranges::equal(found, without->step({&same, 1}, other).row(0)));
  }
}

TEST_CASE("a draft head with experts proposes tokens, and no adapter changes it") {
  const std::filesystem::path golden =
      std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "families" / "qwen3_5_moe";
  const TemporaryDirectory directory;
  std::filesystem::copy_file(golden / "config.json", directory.path() / "config.json");
  // The layer of the head is one of the model's, which it has in full.
  const std::string layer = "model.language_model.layers.3.", own = "mtp.layers.0.";
  TensorsByName tensors;
  {
    const SafetensorsFile from(golden / "model.safetensors");
    for (const auto& [name, tensor] : from.tensors()) {
      tensors[name] = {tensor.shape, from.read_f32(name)};
      if (!name.starts_with(layer)) continue;
      tensors[own + std::string(name.substr(layer.size()))] = tensors[name];
    }
  }
  for (const char* const norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
    tensors["mtp." + std::string(norm) + ".weight"] = tensors.at("mtp.norm.weight");
  }
  std::vector<TensorToWrite> to_write;
  for (const auto& [name, tensor] : tensors) {
    to_write.push_back({.name = name, .shape = tensor.shape, .values = tensor.values});
  }
  write_safetensors(directory.path() / "model.safetensors", to_write);
  const auto model = Transformer::load(directory.path(), {});
  REQUIRE(model->has_draft_head());
  CHECK(model->modules().size() == Transformer::load(golden, {})->modules().size());
  Workspace workspace = model->new_workspace(1);
  SequenceState sequence = model->new_sequence();
  DraftState state = model->new_draft_state();
  std::vector<std::int32_t> seen;
  for (std::size_t t = 0; t < 12; ++t) {
    const BatchRow row{text_token(t), &sequence, true};
    model->step({&row, 1}, workspace);
    const std::vector<std::int32_t> after = {text_token(t + 1)};
    std::vector<std::int32_t> drafts(2, -1);
    const DraftRequest request{.state = &state, .tokens = after, .drafts = drafts};
    model->draft({&request, 1}, workspace);
    for (const std::int32_t token : drafts) {
      CHECK(token >= 0);
      CHECK(token < static_cast<std::int32_t>(kVocabulary));
    }
    seen.push_back(drafts[0]);
  }
  std::ranges::sort(seen);
  seen.erase(std::ranges::unique(seen).begin(), seen.end());
  CHECK(seen.size() > 3);
}

TEST_CASE("a draft head of another shape is refused, one that is not whole or served is ignored") {
  const auto ignored = [](const CheckpointWithDrafts& checkpoint) {
    const auto model = Transformer::load(checkpoint.path(), {});
    return !model->has_draft_head() &&
           std::ranges::any_of(model->warnings(), [](const std::string& warning) {
             return warning.find("of a draft head (mtp) are ignored") != std::string::npos;
           });
  };
  const auto with_key = [](const char* key, const nlohmann::json& value) {
    auto checkpoint = std::make_unique<CheckpointWithDrafts>();
    std::ifstream in(checkpoint->path() / "config.json");
    nlohmann::json config = nlohmann::json::parse(in);
    config[key] = value;
    std::ofstream(checkpoint->path() / "config.json") << config.dump();
    return checkpoint;
  };
  CheckpointWithDrafts checkpoint;
  checkpoint.tensors.at("mtp.fc.weight").shape = {2 * kWidth, kWidth};
  checkpoint.write();
  CHECK_THROWS_WITH(Transformer::load(checkpoint.path(), {}),
                    Catch::Contains("mtp.fc.weight") && Catch::Contains("[32, 64]"));
  checkpoint.tensors.at("mtp.fc.weight").shape = {kWidth, 2 * kWidth};
  checkpoint.tensors.erase("mtp.layers.0.mlp.up_proj.weight");
  checkpoint.write();
  CHECK_THROWS_WITH(Transformer::load(checkpoint.path(), {}),
                    Catch::Contains("mtp.layers.0.mlp.up_proj.weight"));
  checkpoint.tensors.erase("mtp.pre_fc_norm_hidden.weight");
  checkpoint.write();
  CHECK(ignored(checkpoint));
  CHECK(ignored(*with_key("mtp_num_hidden_layers", 2)));
  CHECK(ignored(*with_key("mtp_use_dedicated_embeddings", true)));
}

TEST_CASE("a draft head of a GGUF file that has its own embedding or head is ignored") {
  const CheckpointWithDrafts checkpoint;
  for (const char* const more : {"nextn.embed_tokens", "nextn.shared_head_head"}) {
    const GgufWithDrafts gguf(checkpoint, more);
    const auto model = Transformer::load(gguf.path(), {});
    CHECK_FALSE(model->has_draft_head());
    CHECK_THAT(model->warnings().front(), Catch::Contains("16 of a draft head (mtp) are ignored"));
  }
  const GgufWithDrafts gguf(checkpoint, "nextn.unknown");
  CHECK_THROWS_WITH(Transformer::load(gguf.path(), {}), Catch::Contains("nextn.unknown"));
}

}  // namespace
}  // namespace lintel::testing
