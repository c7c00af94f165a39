// SPDX-License-Identifier: Apache-2.0
// Defects that are switched at run time, in the copy of the tree that scripts/mutate.py makes.
#pragma once

#include <cstdlib>
#include <string_view>

namespace lintel::mutations {

// True if this process has the defect of that name. The environment is read once.
inline bool is_chosen(std::string_view name) {
  static const char* const chosen = std::getenv("LINTEL_MUTATION");
  return chosen != nullptr && name == chosen;
}

}  // namespace lintel::mutations

// Nothing of the product includes this header: the script adds it to the files with defects.
#define LINTEL_MUTATION(name) (::lintel::mutations::is_chosen(name))
