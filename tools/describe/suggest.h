// SPDX-License-Identifier: Apache-2.0
// The known word that a mistyped one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lintel::describe {

// The known word nearest to `word` by edits of one letter (insert, delete, replace, swap two
// neighbours), '-' and '_' taken as one, or one that `word` begins: of a short word only if it is
// the only one. Empty when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// ", did you mean WORD?" with `prefix` before the word; empty when nothing is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                         std::string_view prefix = "");

}  // namespace lintel::describe
