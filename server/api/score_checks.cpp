#include "server/api/score_checks.h"

#include "server/api/value_checks.h"

namespace lintel {

ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const RequestLimits& limits, Violations& violations) {
  ScoreSequences out;
  const int count = wire.sequences_size();
  if (count == 0) violations.add("sequences", "is empty");
  if (count > kMaxScoreSequences) {
    violations.add("sequences", std::to_string(count) + " sequences are more than " +
                                    std::to_string(kMaxScoreSequences));
    return out;
  }
  out.ends.reserve(static_cast<std::size_t>(count));
  std::int64_t total = 0;
  const std::int64_t longest = config.max_values();
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    if (violations.full()) break;
    const v1::Values& values = wire.sequences(static_cast<int>(i));
    const std::string path = indexed("sequences", i);
    const std::int64_t size = num_values(values);
    total += size;
    if (total > limits.max_score_tokens) {
      violations.add("sequences",
                     "more than " + std::to_string(limits.max_score_tokens) + " values in all");
      break;
    }
    if (size < 2) {
      violations.add(
          path, std::to_string(size) + " values are fewer than 2: the first is given, not scored");
      continue;
    }
    read_values(values, path, config, longest == 0 ? size : longest, out.values, violations);
    out.ends.push_back(out.values.size());
  }
  return violations.empty() ? out : ScoreSequences();
}

}  // namespace lintel
