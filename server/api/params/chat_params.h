// SPDX-License-Identifier: Apache-2.0
// ChatParams: a chat as every protocol reads it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/params/generate_params.h"

namespace lintel::api {

// The form that the text of an answer has.
struct AnswerFormat {
  enum class Format { kText, kJsonObject, kJsonSchema, kGrammar, kPattern };

  Format format = Format::kText;
  std::string format_text;  // the schema, GBNF, or the pattern of the whole text
  // The member of the request that has the text, as errors name it: "structured_outputs.regex".
  std::string format_member;
  bool strict_schema = false;
};

// The trees are values for the model's template, which sees members in the client's order.
struct ChatParams : AnswerFormat {
  enum class ToolChoice { kAuto, kNone, kRequired };

  // Model, sampling, adapter, and stops, whose texts are matched in the content; the rest is not
  // used.
  GenerateParams base;
  // Texts whose tokens have a bias, as sampling.logit_bias has ids.
  std::vector<std::pair<std::string, float>> text_biases;
  nlohmann::ordered_json messages;  // a list of objects with a role
  nlohmann::ordered_json tools;     // null: none
  nlohmann::ordered_json documents;
  nlohmann::ordered_json kwargs;  // chat_template_kwargs; null: none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<std::string> offered_tools;  // those that may be called; empty: all
  bool parallel_tool_calls = true;
  bool tool_grammar = true;      // calls that the model begins by itself are held to their form
  bool cache = true;             // states after beginnings of the prompt are used, and kept
  std::string reasoning_effort;  // empty: not given
  std::optional<std::uint32_t> thinking_budget;  // tokens of reasoning
  std::string verbosity;                         // empty: not given
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<std::uint32_t> max_tokens;
  bool shortens_answer = false;  // max_tokens beyond context or memory are as many as fit
  bool logprobs = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;  // false: they are spelt in the answer
  std::uint32_t top_logprobs = 0;
  std::uint32_t num_choices = 1;
};

}  // namespace lintel::api
