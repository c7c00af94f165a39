#include "server/grpc/lintel_v1/restored_image.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "server/api/generate_checks.h"
#include "server/api/session_checks.h"
#include "server/api/value_checks.h"
#include "server/grpc/lintel_v1/snapshot_bytes.h"
#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

constexpr std::int64_t kFarthestValue = std::int64_t{1} << 53;

std::size_t most_bytes_of(const Transformer& model, std::int64_t history_values) {
  const ModelConfig& config = model.config();
  const std::int64_t values = config.max_values() == 0 ? kFarthestValue : config.max_values();
  // In windows text continues past the model's length.
  const bool ends = config.modality == ModalityKind::kImage;
  return most_snapshot_bytes(model, values,
                             ends ? std::min(values, history_values) : history_values);
}

}  // namespace

std::size_t most_restored_bytes(const ModelRegistry& models, const ServedModel* model,
                                const SessionStore::Options& store) {
  std::size_t most = 0;
  if (model != nullptr) {
    most = most_bytes_of(*model->transformer, store.history_tokens);
  } else {
    for (const SharedModel& ready : models.ready()) {
      most = std::max(most, most_bytes_of(*ready->transformer, store.history_tokens));
    }
  }
  return std::min(most, store.session_memory_bytes);
}

grpc::Status snapshot_refused(const SnapshotError& error) {
  if (error.kind() == SnapshotError::Kind::kInvalid) {
    // "snapshot: FIELD: ...": "snapshot" is the violation's field already.
    std::string_view text = error.what();
    text.remove_prefix(std::min(text.size(), text.find(' ') + 1));
    return invalid_argument({{"snapshot", std::string(text)}});
  }
  return data_loss("SNAPSHOT_DAMAGED", error.what());
}

grpc::Status check_restored(const SnapshotOf& snapshot, const ServedModel& model,
                            bool accept_other_numerics) {
  const Transformer& transformer = *model.transformer;
  const SnapshotOf here = snapshot_of({}, model);
  const auto differs = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return wrong_state("MODEL_MISMATCH",
                       "the snapshot is of another " + std::string(what) + " than model " +
                           clip(model.name) + " here: " + clip(theirs) + ", not " + clip(ours),
                       {{"what", what}, {"snapshot", theirs}, {"model", ours}});
  };
  if (snapshot.model_fingerprint != here.model_fingerprint) {
    return differs("fingerprint", snapshot.model_fingerprint, here.model_fingerprint);
  }
  if (snapshot.attention != here.attention) {
    return differs("attention", snapshot.attention, here.attention);
  }
  if (snapshot.weight_type != here.weight_type) {
    return differs("weight type", snapshot.weight_type, here.weight_type);
  }
  if (snapshot.numerics != here.numerics && !accept_other_numerics) {
    return wrong_state("NUMERICS_CHANGED",
                       "this machine computes other bits than the one that made the snapshot (" +
                           clip(snapshot.numerics_text) + " there, " + here.numerics_text +
                           " here): accept_other_numerics restores it all the same",
                       {{"snapshot", snapshot.numerics}, {"model", here.numerics}});
  }
  const SessionImage& image = snapshot.image;
  const ModelConfig& config = transformer.config();
  Violations violations;
  check_window(image.window, config, violations);
  const std::int64_t limit = image.window > 0 ? 0 : config.max_values();
  check_session_length(image.max_values, "snapshot.max_values", limit, violations);
  const std::int64_t most = image.max_values == 0 ? limit : image.max_values;
  if (most != 0 && image.position > most) {
    violations.add("snapshot.position",
                   std::to_string(image.position) + " is more than " + std::to_string(most));
  }
  for (std::size_t i = 0; i < image.values.size() && violations.empty(); ++i) {
    check_token(image.values[i], indexed("snapshot.values", i), config.vocab_size, violations);
  }
  if (!violations.empty()) return violations.status();
  return check_window_of_state(image.window, image);
}

}  // namespace lintel
