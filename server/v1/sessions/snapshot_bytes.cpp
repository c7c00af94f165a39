#include "server/v1/sessions/snapshot_bytes.h"

#include <chrono>
#include <limits>

#include "model/config/names.h"

namespace lintel {
namespace {

// Header, marks and what lies between the sections.
constexpr std::size_t kBesideBytes = 64 << 10;
// A value in memory, and the mark that may stand at it.
constexpr std::size_t kHistoryValueBytes = sizeof(std::int32_t) + sizeof(HistoryMark);

}  // namespace

std::size_t most_snapshot_bytes(const Transformer& model, std::int64_t num_values,
                                std::int64_t history_values) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  const std::size_t state = model.state_bytes(num_values);
  const std::size_t beside =
      static_cast<std::size_t>(history_values) * kHistoryValueBytes + kBesideBytes;
  return state > kMost / 4 ? kMost : state + beside;
}

SnapshotOf snapshot_of(SessionImage image, const ServedModel& model) {
  const Transformer& transformer = *model.transformer;
  SnapshotOf out;
  out.image = std::move(image);
  out.model_fingerprint = transformer.fingerprint();
  out.attention = attention_names(transformer.config());
  out.weight_type = to_string(transformer.weight_type());
  out.numerics = model.numerics.hex;
  out.numerics_text = model.numerics.text;
  out.lintel_version = LINTEL_VERSION;
  out.made = std::chrono::system_clock::now();
  return out;
}

}  // namespace lintel
