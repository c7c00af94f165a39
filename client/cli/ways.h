// Ways to complete an image: plainly, the best of several, or with particles.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/completion.h"

namespace lintel::cli {

struct Way {
  int best_of = 1;    // of so many completions the most probable one is kept
  int particles = 1;  // GenerateRequest.particles
};

// "1,8,32", for add_parsed. Throws UsageError for what is not counts from 1 to 4096.
std::vector<int> parse_counts(std::string_view flag, std::string_view text);

// One for each count, best-ofs first; the plain way where there are none.
std::vector<Way> ways_of(const std::vector<int>& best_of, const std::vector<int>& particles);

// Of every `best_of` completions, in order, the one whose pixels are the most probable together,
// the known ones included; of equals the first. One that is not done only where none is.
std::vector<Completion> keep_best(std::vector<Completion> completions, int best_of);

bool is_not_plain(const Completion& completion);
// "plain", "best of 8", "32 particles"
std::string way_name(const Completion& completion);

}  // namespace lintel::cli
