// "Did you mean": the known word that an unknown one is a slip of.
#pragma once

#include <string>
#include <vector>

namespace lintel::cli {

// The nearest of `known` by letters left out, added, changed or swapped with their neighbour, or
// the only one that begins with `word`; empty where none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace lintel::cli
