// SPDX-License-Identifier: Apache-2.0
// ChatChoice: one sample's tokens as reasoning, content and calls of tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/reader/output_reader.h"

namespace lintel {

// Calls of an answer, which ends where more would come. docs/chat.md names it.
inline constexpr std::size_t kMostCalls = 128;

// The common part of all choices of one request. Constant; outlives them.
struct ChatOutput {
  std::shared_ptr<const Tokenizer> tokenizer;
  OutputReader::Options reader;
  ToolTypes tools;
  ThinkingStart thinking = ThinkingStart::kClosed;
  std::optional<std::uint32_t> thinking_budget;  // tokens of reasoning before the server ends it
  std::vector<std::string> stops;                // of the content
  std::size_t shown_stops = 0;                   // the first so many of `stops` are shown in it
  std::int64_t min_tokens = 0;                   // before a text ends it
  bool has_stop_token = false;  // the stop token is among the tokens (include_in_output)
  bool spells_special = false;  // special tokens are text
  bool logprobs = false;
  bool token_ids = false;  // deltas have those of their tokens
  std::uint64_t seed = 0;
};
// The output of a request and its prompt. Its stops are the request's; the model's may follow.
ChatOutput chat_output(const api::ChatParams& request, const ChatPrompt& prompt,
                       std::shared_ptr<const Tokenizer> tokenizer);

// A token that was drawn, with its log2-probability and the most likely ones in its place.
struct ChatToken {
  std::int32_t id = 0;
  std::optional<float> log2_prob;
  std::span<const std::pair<std::int32_t, float>> top{};
};

// The deltas do not depend on how tokens are grouped. Used by one thread at a time.
class ChatChoice {
 public:
  ChatChoice(const ChatOutput& output, std::uint32_t index);

  // Appends what the token adds. Nothing once the choice is over.
  void push(const ChatToken& token, v1::ChatResponse& message);
  // The token ends the sample, and is no part of its text. Before finish().
  void end_with(std::int32_t token);
  // The sample ended. by_itself: not by a limit.
  void finish(bool by_itself, v1::ChatResponse& message);
  // True if a stop text, its last call or kMostCalls has ended it before its sample did.
  bool is_over() const { return is_over_; }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  struct Waiting {  // for logprobs: whether the token is of the content is not known yet
    std::uint64_t begin = 0;
    std::int32_t id = 0;
    float log2_prob = 0;
    std::vector<std::pair<std::int32_t, float>> top;
  };

  // A new delta, which has the token ids that none before it had.
  v1::ChatDelta& add_delta(v1::ChatResponse& message);
  void add(std::span<const OutputDelta> deltas, v1::ChatResponse& message);
  void add_content(const OutputDelta& delta, v1::ChatResponse& message);
  // Adds the tokens of the content that begin before `end`.
  void add_tokens(std::uint64_t end, v1::ChatDelta& delta);
  void count_reasoning();
  // Drops tokens of the reasoning, which do not wait for the content.
  void drop_reasoning();
  // The text that the token adds to the output.
  std::string_view text_of(std::int32_t id) const;
  v1::ContentToken content_token(std::int32_t id, float log2_prob) const;
  void end(v1::ChatFinishReason reason, v1::ChatResponse& message);
  std::string call_id(std::size_t call) const;

  const ChatOutput& output_;
  const std::uint32_t index_;
  OutputReader reader_;
  StopFilter stop_;
  bool is_over_ = false;
  std::int64_t tokens_ = 0;
  std::int64_t reasoning_tokens_ = 0;
  std::vector<std::uint64_t> begins_;  // of tokens that may be of reasoning
  std::deque<Waiting> waiting_;
  std::vector<std::int32_t> ids_;  // of tokens since the last delta, where they are asked for
};

// True if the arguments of a call are a whole document of JSON. Its numbers may be larger than
// those of a double: they are passed on as they were written.
bool is_whole_json(std::string_view text);

}  // namespace lintel
