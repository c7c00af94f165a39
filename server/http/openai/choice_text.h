// ChoiceText: a sample's values as a choice of OpenAI's API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lintel/v1/generation.pb.h"
#include "server/http/encoding/utf8_text.h"

namespace lintel {

// Of a model of bytes the text is what its bytes spell; of a model of tokens, their ids with spaces
// between. Used by one thread at a time.
class ChoiceText {
 public:
  // first_offset: characters before the text, in what offsets count.
  ChoiceText(bool is_bytes, bool logprobs, std::size_t first_offset)
      : is_bytes_(is_bytes), logprobs_(logprobs), first_offset_(first_offset) {}

  void add(const v1::Chunk& chunk);
  // No value follows: what is held back of a character comes out.
  void end();
  // Of particles; the next that take() returns has it.
  void set_log2_evidence(double log2_evidence) { log2_evidence_ = log2_evidence; }
  // Of text in a window; the next that take() returns has it.
  void set_window(std::int64_t window, std::int64_t restarts) {
    window_ = window;
    window_restarts_ = restarts;
  }

  // Bytes that take() would return.
  std::size_t size() const;
  // As JSON, what came since the last time: {"text":...,"index":...,"logprobs":...,
  // "finish_reason":...}. finish_reason: empty: null, there is more.
  std::string take(std::uint32_t index, const std::string& finish_reason);

 private:
  void add_value(std::int32_t token);
  // Its name among tokens, as JSON: a byte that is no character of its own is "bytes:\xe2".
  void add_token_name(std::string& list, std::int32_t token) const;
  void add_logprobs(const v1::Chunk& chunk, int i, std::size_t offset);

  const bool is_bytes_;
  const bool logprobs_;
  const std::size_t first_offset_;
  Utf8Text utf8_;
  std::size_t num_characters_ = 0;  // of ids' text
  std::string text_;
  // Lists of OpenAI's `logprobs`, without their brackets.
  std::string tokens_, token_logprobs_, top_logprobs_, text_offset_;
  std::optional<double> log2_evidence_;
  std::int64_t window_ = 0;  // 0: none, or not known yet
  std::int64_t window_restarts_ = 0;
};

// As OpenAI calls the reason.
std::string finish_reason_of(v1::FinishReason reason);

}  // namespace lintel
