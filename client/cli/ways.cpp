#include "client/cli/ways.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/cli/flag_values.h"

namespace lintel::cli {

std::vector<int> parse_counts(std::string_view flag, std::string_view text) {
  std::vector<int> counts;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    const std::uint32_t count = parse_uint32(flag, one);
    if (count < 1 || count > 4096) {
      throw UsageError(std::string(flag) + " '" + std::string(one) + "': expected 1 to 4096");
    }
    counts.push_back(static_cast<int>(count));
    if (comma == std::string_view::npos) return counts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<Way> ways_of(const std::vector<int>& best_of, const std::vector<int>& particles) {
  std::vector<Way> ways;
  for (const int count : best_of) ways.push_back({.best_of = count});
  for (const int count : particles) ways.push_back({.particles = count});
  if (ways.empty()) ways.push_back({});
  return ways;
}

std::vector<Completion> keep_best(std::vector<Completion> completions, int best_of) {
  const auto worse = [](const Completion& a, const Completion& b) {
    if (a.done != b.done) return b.done;
    return a.log2_prob + a.log2_prob_given < b.log2_prob + b.log2_prob_given;
  };
  std::vector<Completion> kept;
  for (auto first = completions.begin(); first != completions.end();) {
    const auto end = first + std::min<std::ptrdiff_t>(best_of, completions.end() - first);
    kept.push_back(std::move(*std::max_element(first, end, worse)));
    kept.back().best_of = best_of;
    first = end;
  }
  return kept;
}

bool is_not_plain(const Completion& completion) {
  return completion.best_of > 1 || completion.particles > 1;
}

std::string way_name(const Completion& completion) {
  if (completion.best_of > 1) return "best of " + std::to_string(completion.best_of);
  if (completion.particles > 1) return std::to_string(completion.particles) + " particles";
  return "plain";
}

}  // namespace lintel::cli
