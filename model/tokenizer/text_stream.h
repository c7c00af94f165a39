// SPDX-License-Identifier: Apache-2.0
// Tokens as they are generated, as text: whole characters, up to a stop string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/utf8.h"
#include "model/tokenizer/stop_matcher.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {

// Ends a stream of bytes before the first stop string in it: the one that ends first, of several
// the longest. Bytes that may be the beginning of one wait. Used by one thread at a time.
class StopFilter {
 public:
  // REQUIRES: no string is empty.
  explicit StopFilter(std::vector<std::string> strings = {});

  // Appends to `out` the bytes that no stop string can begin in any more. True: a stop string is
  // complete, all before it is in `out`, and the rest of `bytes` is dropped. may_match: false
  // before min_tokens: a stop string that these bytes complete is ignored. REQUIRES: not stopped.
  bool push(std::string_view bytes, std::string& out, bool may_match = true);
  // The stream ends without a stop string: appends what waits.
  void finish(std::string& out);

  // The index of the string that ended the stream.
  std::optional<std::size_t> stopped_by() const { return stopped_by_; }

 private:
  std::shared_ptr<const StopStrings> strings_;
  StopMatcher matcher_;
  std::string waiting_;
  std::optional<std::size_t> stopped_by_;
};

// One text made of tokens. The pieces joined are the text of all tokens at once, however they are
// cut. Used by one thread at a time.
class TextStream {
 public:
  // `tokenizer` outlives the stream. begins_text: the first token begins a text and does not follow
  // a prompt; vocabularies that mark words by a space in front drop the space of the first.
  TextStream(const Tokenizer& tokenizer, bool begins_text, std::vector<std::string> stop = {});

  // The characters that the token completes. Nothing after a stop string.
  std::string push(std::int32_t id);
  // Returns the rest, with U+FFFD for a character that is not complete.
  std::string finish();

  // The index of the stop string that ended the text. It is not part of it.
  std::optional<std::size_t> stopped_by() const { return stop_.stopped_by(); }

 private:
  const Tokenizer* tokenizer_;
  bool drops_space_;  // the next byte, if it is a space
  StopFilter stop_;
  Utf8Stream characters_;
};

// The text of a list of tokens.
std::string to_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                    bool begins_text = true);

}  // namespace lintel
