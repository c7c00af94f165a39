#include "bench/session_maker.h"

#include <algorithm>
#include <random>
#include <span>
#include <stdexcept>

#include "server/sessions/session_history.h"

namespace lintel::bench {
namespace {

constexpr std::size_t kRowsOfASlice = 64;

std::vector<std::int32_t> random_values(std::int64_t count, int vocab_size) {
  std::mt19937 random(1);
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int32_t& value : values) {
    value = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab_size));
  }
  return values;
}

SessionImage image_of(const Transformer& model, const std::vector<std::int32_t>& values) {
  SessionHistory history({.vocab_size = model.head().num_values()});
  for (const std::int32_t value : values) history.append(value, ValueSource::kSampled);
  const auto position = static_cast<std::int64_t>(values.size());
  SessionImage image;
  image.model = "model";
  image.position = position;
  image.values = values;
  image.marks = history.marks(0, position);
  image.digest = history.extent().digest;
  image.base_digest = *history.digest_at(0);
  return image;
}

// All but the last, which stays pending.
void feed(const Transformer& model, std::span<const std::int32_t> values, SequenceState& sequence) {
  Workspace workspace = model.new_workspace(kRowsOfASlice);
  std::vector<StepRow> rows;
  for (std::size_t at = 0; at + 1 < values.size(); at += rows.size()) {
    rows.clear();
    const std::size_t count = std::min(kRowsOfASlice, values.size() - 1 - at);
    for (std::size_t i = 0; i < count; ++i) rows.push_back({values[at + i], &sequence, false});
    model.step(rows, workspace);
  }
  sequence.pending = values.back();
}

}  // namespace

MadeSession::MadeSession(std::shared_ptr<const Transformer> model, std::int64_t num_values)
    : values_(random_values(num_values, model->head().num_values())),
      store_({.session_memory_bytes = std::size_t{1} << 40}, clock_) {
  model_.name = "model";
  model_.numerics = numerics_of(*model);
  model_.transformer = model;
  const auto made = store_.restore("model", model, image_of(*model, values_));
  id_ = made.info.id;
  SessionStore::LeaseResult leased = store_.lease(id_);
  if (!leased.lease) throw std::runtime_error("a session of this model cannot be made");
  feed(*model, values_, leased.lease.sequence());
}

}  // namespace lintel::bench
