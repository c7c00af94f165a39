// SPDX-License-Identifier: Apache-2.0
#include "tools/describe/suggest.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace lintel::describe {
namespace {

// A longer word is no typing error; it bounds the table below.
constexpr std::size_t kLongestWord = 64;

std::string normal(std::string_view word) {
  std::string text(word);
  for (char& c : text) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Edits between two words: the optimal string alignment distance.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                          d[i - 1][j - 1] + static_cast<std::size_t>(a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  const std::string asked = normal(word);
  if (asked.empty() || asked.size() > kLongestWord) return "";
  // A third of the word may be wrong: else "drain" would be near "train" and everything near "a".
  const std::size_t most = std::max<std::size_t>(1, asked.size() / 3);
  std::string best, completed;  // `completed`: a word that `asked` begins
  std::size_t fewest = most + 1, begins = 0;
  for (const std::string& candidate : known) {
    const std::string there = normal(candidate);
    std::size_t distance = edits(asked, there);
    if (there.starts_with(asked)) {
      completed = candidate;
      ++begins;
      // The beginning of a long word is as good as one letter wrong.
      if (asked.size() >= 4) distance = std::min<std::size_t>(distance, 1);
    }
    if (distance < fewest) {
      fewest = distance;
      best = candidate;
    }
  }
  return best.empty() && begins == 1 ? completed : best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                         std::string_view prefix) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? "" : ", did you mean " + std::string(prefix) + nearest + "?";
}

}  // namespace lintel::describe
