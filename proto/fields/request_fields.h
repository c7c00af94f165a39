// SPDX-License-Identifier: Apache-2.0
// The fields of a request for tokens: one table, which every API and every client reads.
//
// lintel.v1's GenerateRequest has each of them under its name; server/api/params/generate_params.h
// has the member that holds it. A field that is added here, there and in the .proto exists in every
// API and client whose column names it: `lintel-server --print-fields` writes the table as JSON,
// and scripts/fields.py makes the keywords of Python, the fields of the page and the tables of the
// documentation from it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lintel {

enum class FieldType {
  kFlag,      // true or false
  kCount,     // a whole number of 32 bits, 0 or more
  kPosition,  // a whole number of 63 bits, 0 or more
  kSeed,      // 64 bits
  kNumber,    // a float
  kText,
  kTexts,    // a list
  kTokens,   // a list of ids
  kBiases,   // token ids and what is added to their logits
  kSpans,    // known tokens, each span at its position
  kValues,   // a text, token ids or pixels
  kSeconds,  // a duration
};

// The interval that a number has to lie in. Where low is high, the checks of the request say what
// may be: it depends on the model, or on a flag of the server.
struct FieldRange {
  float low = 0;
  float high = 0;
  bool is_above_low = false;  // low itself is outside

  constexpr bool is_given() const { return low < high; }
  constexpr bool contains(float value) const {  // not NaN
    return (is_above_low ? value > low : value >= low) && value <= high;
  }
};

// An empty name: the API has no such field, or reads it in its own way.
struct RequestField {
  std::string_view name;  // in lintel.v1.GenerateRequest, with the messages that it is in
  FieldType type;
  FieldRange range;
  std::string_view default_value;  // as the documentation says it; empty: none
  std::string_view help;           // a phrase

  std::string_view completions;  // the member of /v1/completions
  std::string_view chat;         // of /v1/chat/completions and /v1/responses
  std::string_view kserve;       // the parameter of the Open Inference Protocol
  std::string_view cli;          // the flag of `lintel generate`
  std::string_view metavar;      // what stands for its value there
  std::string_view python;       // the keyword of generate()
  std::string_view page;         // the label on the page of the server

  // Requests that differ in it alone may have other tokens: a call that is repeated is refused
  // where such a field has changed.
  bool changes_answer = true;
};

// In the order in which documentation lists them.
inline constexpr RequestField kRequestFields[] = {
    {.name = "model",
     .type = FieldType::kText,
     .default_value = "the one that is served; of a session, its own",
     .help = "Model that answers",
     .completions = "model",
     .chat = "model",
     .python = "model"},
    {.name = "session_id",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "Continue this session",
     .python = "session"},
    {.name = "prompt",
     .type = FieldType::kValues,
     .help = "Text, token ids or pixels that the model reads first"},
    {.name = "max_new_tokens",
     .type = FieldType::kCount,
     .default_value = "up to the end of the sequence, or --max-new-tokens of the server",
     .help = "Most tokens to produce, given ones included",
     .completions = "max_tokens",
     .kserve = "max_new_tokens",
     .python = "max_new_tokens"},
    {.name = "sampling.temperature",
     .type = FieldType::kNumber,
     .range = {0, 1000},
     .default_value = "1",
     .help = "0: the most likely token; 1: the model's distribution",
     .completions = "temperature",
     .chat = "temperature",
     .kserve = "temperature",
     .cli = "--temperature",
     .metavar = "T",
     .python = "temperature",
     .page = "Temperature"},
    {.name = "sampling.top_k",
     .type = FieldType::kCount,
     .default_value = "all",
     .help = "Keep the K most likely tokens; 0: all",
     .completions = "top_k",
     .chat = "top_k",
     .kserve = "top_k",
     .cli = "--top-k",
     .metavar = "K",
     .python = "top_k",
     .page = "Top k"},
    {.name = "sampling.top_p",
     .type = FieldType::kNumber,
     .range = {0, 1, /*is_above_low=*/true},
     .default_value = "1",
     .help = "Keep the smallest set of tokens with this probability",
     .completions = "top_p",
     .chat = "top_p",
     .kserve = "top_p",
     .cli = "--top-p",
     .metavar = "P",
     .python = "top_p",
     .page = "Top p"},
    {.name = "sampling.min_p",
     .type = FieldType::kNumber,
     .range = {0, 1},
     .default_value = "0",
     .help = "Drop tokens below this share of the most likely one's probability",
     .completions = "min_p",
     .chat = "min_p",
     .kserve = "min_p",
     .cli = "--min-p",
     .metavar = "P",
     .python = "min_p",
     .page = "Min p"},
    {.name = "sampling.repetition_penalty",
     .type = FieldType::kNumber,
     .range = {0.001f, 1000},
     .default_value = "1",
     .help = "Divides (multiplies) positive (negative) logits of tokens that occurred",
     .completions = "repetition_penalty",
     .chat = "repetition_penalty",
     .kserve = "repetition_penalty",
     .cli = "--repetition-penalty",
     .metavar = "X",
     .python = "repetition_penalty",
     .page = "Repetition"},
    {.name = "sampling.presence_penalty",
     .type = FieldType::kNumber,
     .range = {-1000, 1000},
     .default_value = "0",
     .help = "Subtracted once from the logits of tokens that occurred",
     .completions = "presence_penalty",
     .chat = "presence_penalty",
     .kserve = "presence_penalty",
     .cli = "--presence-penalty",
     .metavar = "X",
     .python = "presence_penalty"},
    {.name = "sampling.frequency_penalty",
     .type = FieldType::kNumber,
     .range = {-1000, 1000},
     .default_value = "0",
     .help = "Subtracted from logits once per occurrence of the token",
     .completions = "frequency_penalty",
     .chat = "frequency_penalty",
     .kserve = "frequency_penalty",
     .cli = "--frequency-penalty",
     .metavar = "X",
     .python = "frequency_penalty"},
    {.name = "sampling.penalty_window",
     .type = FieldType::kCount,
     .range = {0, 65536},
     .default_value = "0",
     .help = "Penalties count the last N tokens only; 0: all of the sequence",
     .completions = "penalty_window",
     .chat = "penalty_window",
     .kserve = "penalty_window",
     .cli = "--penalty-window",
     .metavar = "N",
     .python = "penalty_window"},
    {.name = "sampling.logit_bias",
     .type = FieldType::kBiases,
     .range = {-10000, 10000},
     .default_value = "none",
     .help = "Added to the logit of a token",
     .completions = "logit_bias",
     .chat = "logit_bias",
     .cli = "--logit-bias",
     .metavar = "ID=VALUE",
     .python = "logit_bias"},
    {.name = "sampling.seed",
     .type = FieldType::kSeed,
     .default_value = "random",
     .help = "The same one gives the same tokens; sample i has seed + i",
     .completions = "seed",
     .chat = "seed",
     .kserve = "seed",
     .python = "seed",
     .changes_answer = false},
    {.name = "stop.strings",
     .type = FieldType::kTexts,
     .default_value = "none",
     .help = "Texts that end the answer, at most --max-stop-strings of 1 to 256 bytes",
     .completions = "stop",
     .chat = "stop"},
    {.name = "stop.token_ids",
     .type = FieldType::kTokens,
     .default_value = "none",
     .help = "Tokens that end the answer, at most 256"},
    {.name = "stop.include_in_output",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "The stop token or text is part of the answer",
     .kserve = "include_stop_str_in_output"},
    {.name = "num_samples",
     .type = FieldType::kCount,
     .default_value = "1",
     .help = "Samples of one prompt, which is read once; not with a session",
     .completions = "n",
     .kserve = "num_samples",
     .python = "num_samples"},
    {.name = "log2_probs",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Report the log2-probability of every token",
     .python = "log2_probs"},
    {.name = "top_log2_probs",
     .type = FieldType::kCount,
     .default_value = "0",
     .help = "Report the N most likely tokens at each position",
     .kserve = "top_log2_probs",
     .python = "top_log2_probs"},
    {.name = "echo_prompt",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "The answer begins with the prompt",
     .completions = "echo",
     .kserve = "echo",
     .python = "echo_prompt"},
    {.name = "given",
     .type = FieldType::kSpans,
     .default_value = "none",
     .help = "Known tokens from a position on, fed in place of samples",
     .completions = "given"},
    {.name = "particles",
     .type = FieldType::kCount,
     .default_value = "0",
     .help = "Draw so many in parallel with regard to later given tokens; 0 or 1: no filter",
     .completions = "particles",
     .kserve = "particles",
     .python = "particles"},
    {.name = "window",
     .type = FieldType::kPosition,
     .default_value = "the session's, the initial state's, or what the model was trained on",
     .help = "Reset the state whenever it has read N tokens, and re-read the last N/2; 0: never",
     .completions = "window",
     .kserve = "window",
     .cli = "--window",
     .metavar = "N",
     .python = "window"},
    {.name = "adapter",
     .type = FieldType::kText,
     .default_value = "none; of a session, its own",
     .help = "LoRA adapter of the model",
     .completions = "adapter",
     .chat = "adapter",
     .kserve = "adapter",
     .python = "adapter"},
    {.name = "initial_state",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "Begin with this named state; not with a session",
     .cli = "--initial-state",
     .metavar = "NAME",
     .python = "initial_state"},
    {.name = "cache_prefix_tokens",
     .type = FieldType::kCount,
     .default_value = "the server decides",
     .help = "Keep the state after so many tokens of the prompt for later prompts"},
    {.name = "parse_special",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Special tokens that are spelt out in a text prompt become their ids",
     .kserve = "parse_special",
     .cli = "--parse-special",
     .python = "parse_special"},
    {.name = "add_special",
     .type = FieldType::kFlag,
     .default_value = "at the beginning of a sequence",
     .help = "Add the tokens that the model wants before and after a text, as <s>",
     .kserve = "add_special",
     .python = "add_special"},
    {.name = "token_bytes",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Report the bytes that each token adds to the text"},
    {.name = "max_tokens_per_message",
     .type = FieldType::kCount,
     .default_value = "the server decides",
     .help = "At most N tokens in a message; 1: each as it comes",
     .kserve = "max_tokens_per_message",
     .cli = "--tokens-per-message",
     .metavar = "N",
     .python = "max_tokens_per_message",
     .changes_answer = false},
    {.name = "time_limit",
     .type = FieldType::kSeconds,
     .default_value = "none",
     .help = "End generation after this long, with what there is",
     .changes_answer = false},
    {.name = "call_id",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "Name of a call on a session that outlives the server, which can be repeated",
     .kserve = "lintel_call_id"},
    {.name = "from_position",
     .type = FieldType::kPosition,
     .default_value = "0",
     .help = "Of a repeat: tokens before this position are not sent again",
     .kserve = "lintel_from_position",
     .changes_answer = false},
    {.name = "expected_position",
     .type = FieldType::kPosition,
     .default_value = "any",
     .help = "Position of the session; another one is refused",
     .kserve = "lintel_expected_position",
     .changes_answer = false},
};

// The index of the field that an API calls `name`; nothing: it has none. api: the column of the
// table that has the names of the API.
std::optional<std::size_t> find_field(std::string_view RequestField::*api, std::string_view name);

}  // namespace lintel
