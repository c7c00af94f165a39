#include "client/cli/frame/suggest.h"

#include <algorithm>
#include <utility>

namespace lintel::cli {
namespace {

// Optimal string alignment distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = 1 + std::max<std::size_t>(1, word.size() / 3);  // farther is another word
  for (const std::string& candidate : known) {
    const std::size_t d = distance(word, candidate);
    if (d >= least) continue;
    least = d;
    best = candidate;
  }
  if (!best.empty() || word.empty()) return best;
  const auto begins = [&word](const std::string& w) {
    return w.compare(0, word.size(), word) == 0;
  };
  const auto first = std::find_if(known.begin(), known.end(), begins);
  if (first == known.end() || std::any_of(first + 1, known.end(), begins)) return "";
  return *first;
}

}  // namespace lintel::cli
