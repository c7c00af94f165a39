// SPDX-License-Identifier: Apache-2.0
// The body of a completion request, an object, as OpenAI's API has it
// (https://platform.openai.com/docs/api-reference/completions/create), read into requests of
// lintel.v1.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/api/params/chat_params.h"
#include "server/api/params/generate_params.h"
#include "server/openai/json.h"
#include "server/openai/members.h"
#include "server/rpc/ignored_members.h"

namespace lintel {

struct CompletionRequest {
  std::vector<api::Values> prompts;  // at least one
  api::GenerateParams settings;      // the parameters of each prompt
  std::uint32_t num_choices = 1;     // of each prompt
  std::uint32_t num_samples = 1;     // choices are the most likely samples
  bool logprobs = false;
  bool streams = false;
  bool include_usage = false;     // at the end of a stream
  bool continuous_usage = false;  // and in each event
  bool token_ids = false;         // choices have the prompt's and their own
  bool timings = false;           // the answer has them
  TextBiases text_biases;         // lintel.v1 has no texts: biases of their tokens
  // Members that lintel.v1 has no fields for: GenerateObject.
  api::AnswerFormat format;
  bool skips_special = true;  // false: special tokens are spelt in the text
  IgnoredMembers ignored;
};

// Reads a body. Checks types, and refuses members that change the answer and are not served; ranges
// are checked with those of all requests. Nothing: `error` has the reason.
std::optional<CompletionRequest> read_completion_request(const nlohmann::json& body,
                                                         OpenAiError& error);

// The request of prompt `index`, with seeds of its own: sample i of all prompts has seed + i.
v1::GenerateRequest generate_request(const CompletionRequest& request, std::size_t index);

}  // namespace lintel
