// SPDX-License-Identifier: Apache-2.0
#include "model/numerics_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config/config.h"
#include "model/core/kernels.h"
#include "model/core/sha256.h"
#include "model/core/state_bytes.h"

namespace lintel {
namespace {

std::span<const char> chars_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Hashes what it is given instead of keeping it.
class HashWriter final : public StateWriter {
 public:
  explicit HashWriter(Sha256& hash) : hash_(hash) {}

 private:
  void write(std::span<const std::byte> bytes) override { hash_.add(chars_of(bytes)); }

  Sha256& hash_;
};

std::int32_t probe_token(std::size_t i, int vocab_size) {
  return static_cast<std::int32_t>((i * i * 37 + i * 101 + 7) %
                                   static_cast<std::size_t>(vocab_size));
}

// Outputs, the log2-probability of each next token, and the state they leave.
void add_probe(const Transformer& model, std::size_t slice, StepThreadPool* team, Sha256& hash) {
  const ModelConfig& config = model.config();
  std::size_t count = kNumericsTokens;
  if (config.max_length > 0) {
    count = std::min(count, static_cast<std::size_t>(config.max_length));
  }
  // Recompute mode takes the whole prefix for each output: the last one has read them all.
  const std::size_t first_output = model.recomputes() ? count - 1 : 0;
  Workspace workspace = model.new_workspace(std::min(slice, count));
  workspace.share_with(team);
  SequenceState sequence = model.new_sequence();
  for (std::size_t begin = 0; begin < count; begin += slice) {
    const std::size_t end = std::min(begin + slice, count);
    std::vector<BatchRow> rows;
    for (std::size_t i = begin; i < end; ++i) {
      rows.push_back({probe_token(i, config.vocab_size), &sequence, i >= first_output});
    }
    const MatrixView<const float> outputs = model.step(rows, workspace);
    for (std::size_t r = 0; r < outputs.rows(); ++r) {
      const std::span<const float> output = outputs.row(r);
      hash.add(chars_of(std::as_bytes(output)));
      if (!all_finite(output)) continue;  // no distribution
      const std::int32_t next =
          probe_token(std::max(begin, first_output) + r + 1, model.head().vocab_size());
      const double log2_prob = model.head().log2_prob(output, next);
      hash.add(chars_of(std::as_bytes(std::span(&log2_prob, 1))));
    }
  }
  HashWriter writer(hash);
  sequence.save(writer);
}

}  // namespace

NumericsFingerprint numerics_of(const Transformer& model, std::size_t slice, StepThreadPool* team) {
  const char* const type = to_string(model.weight_type());
  Sha256 hash;
  const auto add_text = [&hash](const std::string& text) {
    hash.add_length(text.size());
    hash.add(text);
  };
  add_text(model.fingerprint());
  // The configuration with the attention that runs.
  add_text(model.config().family.empty() ? to_json(model.config()) : model.config_json());
  add_text(model.recomputes() ? "recompute" : "state");
  add_text(type);
  const std::string kv_type = model.kv_type() ? to_string(*model.kv_type()) : "";
  if (!kv_type.empty()) add_text("kv " + kv_type);
  add_probe(model, slice, team, hash);
  return {.hex = hash.hex(),
          .text = std::string(type) + " " + model.kernels() + ", " +
                  (kv_type.empty() ? "" : "KV cache " + kv_type + ", ") + kernel_target() +
                  ", lintel " LINTEL_VERSION};
}

}  // namespace lintel
