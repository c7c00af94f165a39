// SPDX-License-Identifier: Apache-2.0
// Completion: one request of /v1/completions, from its body to its last byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "server/http/encoding/utf8_text.h"
#include "server/http/openai/completion_request.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// ChoiceText: a sample's tokens as a choice of OpenAI's API.

// Of a model of bytes the text is what its bytes spell; of a model of tokens, their ids with spaces
// between. Used by one thread at a time.
class ChoiceText {
 public:
  // first_offset: characters before the text, in what offsets count.
  ChoiceText(bool is_bytes, bool logprobs, std::size_t first_offset)
      : is_bytes_(is_bytes), logprobs_(logprobs), first_offset_(first_offset) {}

  void add(const v1::Chunk& chunk);
  // No token follows: what is held back of a character comes out.
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

// Asks what the model is, then generates: a Generate call for each prompt, one after the other, so
// that it has one stream of its caller's quota at a time. Held by its calls; one thread at a time
// has it.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  // `calls` outlives it.
  Completion(SharedExchange exchange, HttpCalls& calls, CompletionRequest request);

  void start();

 private:
  class PromptExchange;
  class PromptAnswer;

  grpc::Status check_model(const v1::Model& model);
  void next_prompt();
  void end_gathered(const grpc::Status& status);

  // Of the prompt that runs: its samples.
  void begin_choices();
  // Returns the choices that the message brings forward, as JSON, where they stream.
  std::vector<std::string> take_message(const v1::GenerateResponse& message);
  // What the end of a sample adds to the choices that stream, `pieces`, or to those of an answer
  // that is whole.
  void take_finish(const v1::SampleFinish& finish, std::vector<std::string>& pieces);
  // Of more samples than choices: the choices of the prompt that has run.
  void choose();
  std::uint32_t choice_index(std::uint32_t sample) const;

  // What each object begins with: {"id":...,"object":...,"created":...,"model":...
  std::string head() const;
  std::string usage() const;  // "usage":{...}

  const SharedExchange exchange_;
  HttpCalls& calls_;
  const CompletionRequest request_;
  const std::int64_t created_;
  bool is_bytes_ = false;
  std::size_t prompt_ = 0;  // that runs
  std::vector<ChoiceText> texts_;
  // Where choices are chosen from them: how likely each sample is by its mean log2-probability.
  struct Candidate {
    std::string finish_reason;
    double log2_prob = 0;
    std::int64_t values = 0;
    double mean() const { return values == 0 ? 0 : log2_prob / static_cast<double>(values); }
  };
  std::vector<Candidate> candidates_;
  std::vector<std::string> choices_;  // of an answer that is whole
  std::size_t gathered_bytes_ = 0;

  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t cached_of_prompt_ = 0;
  std::int64_t completion_tokens_ = 0;
  bool has_begun_ = false;  // the head of an answer in pieces is out
};

}  // namespace lintel
