#include "model/bits_lost.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/core/kernels.h"

namespace lintel {
namespace {

constexpr std::size_t kSequences = 4;
constexpr std::int64_t kLongest = 192;          // values
constexpr std::int64_t kMostTerms = 1'000'000;  // of all sums: a large vocabulary has fewer values
constexpr std::int64_t kFewestValues = 8;

std::int64_t values_to_draw(const ModelConfig& config, int num_values) {
  const std::int64_t affordable =
      kMostTerms / (static_cast<std::int64_t>(kSequences) * std::max(num_values, 1));
  const std::int64_t wanted = std::clamp(affordable, kFewestValues, kLongest);
  return config.max_length > 0 ? std::min(config.max_length, wanted) : wanted;
}

// kSequences sequences of one model, of the same values as another's.
class Side {
 public:
  explicit Side(const Transformer& model)
      : model_(model), workspace_(model.new_workspace(kSequences)) {
    for (std::size_t i = 0; i < kSequences; ++i) sequences_.push_back(model.new_sequence());
  }

  MatrixView<const float> feed(std::span<const std::int32_t> values) {
    std::vector<StepRow> rows;
    for (std::size_t i = 0; i < kSequences; ++i) {
      rows.push_back({values[i], &sequences_[i], /*wants_output=*/true});
    }
    return model_.step(rows, workspace_);
  }

 private:
  const Transformer& model_;
  Workspace workspace_;
  std::vector<SequenceState> sequences_;
};

}  // namespace

double bits_lost(const Transformer& exact, const Transformer& narrow) {
  const ModelConfig& config = exact.config();
  const Head& head = exact.head();
  const auto num_values = static_cast<std::size_t>(head.num_values());
  const std::int64_t length = values_to_draw(config, head.num_values());
  Side of_exact(exact);
  Side of_narrow(narrow);
  SamplingScratch scratch;
  std::vector<double> p(num_values);
  std::vector<double> q(num_values);
  // Texts begin with values of their own: they have no token that stands before all.
  const bool is_image = config.modality == ModalityKind::kImage;
  std::vector<std::int32_t> values(kSequences, config.image.start_token);
  for (std::size_t i = 0; !is_image && i < kSequences; ++i) {
    values[i] = static_cast<std::int32_t>((i + 1) * num_values / (kSequences + 1));
  }
  double sum = 0.0;
  for (std::int64_t position = 0; position < length; ++position) {
    const MatrixView<const float> wanted = of_exact.feed(values);
    const MatrixView<const float> found = of_narrow.feed(values);
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (!all_finite(wanted.row(i)) || !all_finite(found.row(i))) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      head.log2_probs(wanted.row(i), p);
      head.log2_probs(found.row(i), q);
      for (std::size_t value = 0; value < num_values; ++value) {
        if (p[value] > -100.0) sum += std::exp2(p[value]) * (p[value] - q[value]);
      }
      const DrawSource draw{.seed = i, .position = position};
      values[i] = head.sample(wanted.row(i), {}, {}, draw, scratch);
    }
  }
  return sum / static_cast<double>(length * static_cast<std::int64_t>(kSequences));
}

}  // namespace lintel
