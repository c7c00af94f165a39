// SPDX-License-Identifier: Apache-2.0
// ModelAlias: names of requests that stand for a model (--model-alias).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lintel {

struct ModelAlias {
  std::string pattern;  // each * stands for any text, also none
  std::string model;    // the model for such names
};

// Longer names match no pattern.
inline constexpr std::size_t kMostAliasBytes = 256;

// True if the whole name fits the pattern. Takes time linear in the name for each * of the pattern.
bool matches(std::string_view pattern, std::string_view name);

// The model of the first alias whose pattern the name fits; empty if there is none.
std::string aliased_model(std::span<const ModelAlias> aliases, std::string_view name);

}  // namespace lintel
