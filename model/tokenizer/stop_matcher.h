// SPDX-License-Identifier: Apache-2.0
// StopMatcher: finds stop strings in the bytes of generated tokens, one byte at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// The stop strings of one request, prepared for matching (Knuth, Morris and Pratt 1977). Immutable,
// shared by the request's samples.
class StopStrings {
 public:
  // REQUIRES: no string is empty.
  explicit StopStrings(std::vector<std::string> strings);

  bool empty() const { return strings_.empty(); }
  std::size_t size() const { return strings_.size(); }
  const std::string& operator[](std::size_t i) const { return strings_[i]; }

 private:
  friend class StopMatcher;
  // The number of bytes of strings_[i] that the text matches after `byte`, `matched` before it.
  std::size_t advance(std::size_t i, std::size_t matched, char byte) const;

  std::vector<std::string> strings_;
  // borders_[i][n]: length of the longest proper suffix of the first n bytes that is a prefix too.
  std::vector<std::vector<std::size_t>> borders_;
};

// The progress of one text's matches with each of the strings. Cheap to copy; used by one thread at
// a time.
class StopMatcher {
 public:
  // `strings` outlives the matcher. The text so far is empty.
  explicit StopMatcher(const StopStrings& strings);

  // Text from before this call: a match may begin in it, but one that ends in it is over.
  void replay(std::string_view text);

  // Extends the text by a byte. When strings end with it: the longest of them, by index.
  std::optional<std::size_t> push(char byte);

  // Bytes at the end of the text that may turn out to be the beginning of a stop string.
  std::size_t undecided() const;

  // The text is broken: nothing matches across this point.
  void reset();

 private:
  const StopStrings* strings_;
  std::vector<std::size_t> matched_;  // per string: bytes of its beginning that end the text
};

}  // namespace lintel
