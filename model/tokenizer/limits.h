// SPDX-License-Identifier: Apache-2.0
// Limits on what a tokenizer's files may ask for.
#pragma once

#include <cstddef>

namespace lintel {

// Ids are below it: as many rows as a model's embedding may have, and more.
inline constexpr std::size_t kMostTokens = std::size_t{1} << 20;
inline constexpr std::size_t kMostMerges = std::size_t{1} << 21;
// Bytes of a tokenizer's file. The largest known has 20 MB.
inline constexpr std::size_t kMostTokenizerFileBytes = std::size_t{64} << 20;
// Bytes of an entry of World's vocabulary, whose longest has 128, and of an added token. They are
// looked for at each byte of a text.
inline constexpr std::size_t kMostEntryBytes = 1024;
inline constexpr std::size_t kMostAddedTokens = std::size_t{1} << 16;

}  // namespace lintel
