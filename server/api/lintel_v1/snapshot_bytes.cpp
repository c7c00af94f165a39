// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/snapshot_bytes.h"

#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "model/config/config.h"
#include "model/ops/kv_type.h"

namespace lintel {
namespace {

// Header, marks and what lies between the sections.
constexpr std::size_t kBesideBytes = 64 << 10;
// A token in memory, and the mark that may stand at it.
constexpr std::size_t kHistoryTokenBytes = sizeof(std::int32_t) + sizeof(HistoryMark);

}  // namespace

std::size_t most_snapshot_bytes(const Transformer& model, std::int64_t num_tokens,
                                std::int64_t history_tokens) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  const std::size_t state = model.state_bytes(num_tokens);
  const std::size_t rest =
      static_cast<std::size_t>(history_tokens) * kHistoryTokenBytes + kBesideBytes;
  return state > kMost / 4 ? kMost : state + rest;
}

SnapshotOf snapshot_of(SessionImage image, const ServedModel& model) {
  const Transformer& transformer = *model.transformer;
  SnapshotOf out;
  out.image = std::move(image);
  out.model_fingerprint = transformer.fingerprint();
  out.attention = attention_names(transformer.config());
  out.weight_type = to_string(transformer.weight_type());
  if (transformer.kv_type()) out.kv_type = to_string(*transformer.kv_type());
  out.numerics = model.numerics().hex;
  out.numerics_text = model.numerics().text;
  out.lintel_version = LINTEL_VERSION;
  out.made = std::chrono::system_clock::now();
  return out;
}

void tell_numerics(const SessionInfo& session, std::int64_t position, SnapshotOf& snapshot) {
  const bool is_changed = session.numerics_changed_at > 0;
  const bool is_mixed = is_changed && position > session.numerics_changed_at;
  std::string numerics = session.numerics;
  if (is_changed && !is_mixed) {
    numerics = session.numerics_before.empty() ? kUnknownNumerics : session.numerics_before;
  }
  if (is_mixed) snapshot.numerics_changed_at = session.numerics_changed_at;
  if (numerics.empty() || numerics == snapshot.numerics) return;
  snapshot.numerics = std::move(numerics);
  snapshot.numerics_text =
      session.numerics_text.empty() ? "another machine" : session.numerics_text;
}

void take_numerics(const SnapshotOf& snapshot, const ServedModel& model, SessionOptions& session) {
  session.numerics_changed_at = snapshot.numerics_changed_at;
  const std::optional<KvType> type = model.transformer->kv_type();
  const bool is_converted = type && snapshot.kv_type != to_string(*type);
  if (snapshot.numerics == model.numerics().hex && !is_converted) return;
  session.numerics = is_converted ? kUnknownNumerics : snapshot.numerics;
  session.numerics_text = snapshot.numerics_text;
}

}  // namespace lintel
