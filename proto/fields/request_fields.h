// SPDX-License-Identifier: Apache-2.0
// The fields of a request for tokens: one table, which every API and every client reads.
//
// To add a field: add a row here, a member in generate_params.h, its line in generate_params.cpp
// (both in server/api/params/), and the field in the .proto. It then exists in every API and client
// whose column names it: `lintel-server --print-fields` writes the table as JSON, and
// scripts/fields.py makes the keywords of Python, the types of Node, the fields of the page and the
// tables of the documentation from it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
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
  // "from 0 to 1000", "more than 0 and at most 1"
  std::string text() const;
};

// The name of a field in an API; empty: the API has no such field.
struct FieldName {
  std::string_view text;
  // The API reads it in a way of its own, with another field or in another form.
  bool is_read_by_hand = false;

  constexpr FieldName() = default;
  constexpr FieldName(const char* name) : text(name) {}
  constexpr bool is_read_by_table() const { return !text.empty() && !is_read_by_hand; }
};

constexpr FieldName by_hand(const char* name) {
  FieldName made(name);
  made.is_read_by_hand = true;
  return made;
}

struct RequestField {
  std::string_view name;  // in lintel.v1.GenerateRequest, with the messages that it is in
  FieldType type;
  FieldRange range;
  std::string_view values;         // without a range: the values in the documentation
  std::string_view default_value;  // as the documentation says it; empty: none
  std::string_view help;           // a phrase

  FieldName completions;     // the member of /v1/completions
  FieldName chat;            // of /v1/chat/completions
  FieldName responses;       // of /v1/responses
  FieldName kserve;          // the parameter of the Open Inference Protocol
  FieldName cli;             // the flag of `lintel generate`
  std::string_view metavar;  // the placeholder of its value there
  FieldName python;          // the keyword of generate()
  FieldName page;            // the label on the page of the server

  // False: answers are the same with any value, and a call may be repeated with another.
  bool changes_answer = true;
};

// The table, in the order in which the documentation lists the fields.
inline constexpr RequestField kRequestFields[] = {
    {.name = "model",
     .type = FieldType::kText,
     .default_value = "the one that is served",
     .help = "Model that answers",
     .completions = "model",
     .chat = "model",
     .responses = "model",
     .cli = by_hand("--model"),
     .python = "model"},
    {.name = "session_id",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "Continue this session",
     .cli = by_hand("--session"),
     .python = "session"},
    {.name = "prompt",
     .type = FieldType::kValues,
     .help = "Text, token ids or pixels that the model reads first",
     .completions = by_hand("prompt"),
     .cli = by_hand("--prompt"),
     .python = by_hand("prompt")},
    {.name = "max_new_tokens",
     .type = FieldType::kCount,
     .values = "0 to --max-new-tokens",
     .default_value = "16 in /v1/completions; else up to the end of the sequence, and the clients "
                      "ask for 256 of "
                      "a text",
     .help = "Most tokens to produce, given ones included",
     .completions = "max_tokens",
     .chat = by_hand("max_completion_tokens"),
     .responses = by_hand("max_output_tokens"),
     .kserve = "max_new_tokens",
     .cli = by_hand("--max-new-tokens"),
     .metavar = "N",
     .python = "max_new_tokens",
     .page = by_hand("Tokens to write")},
    {.name = "sampling.temperature",
     .type = FieldType::kNumber,
     .range = {0, 1000},
     .default_value = "1",
     .help = "0: the most likely token; 1: the model's distribution",
     .completions = "temperature",
     .chat = "temperature",
     .responses = "temperature",
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
     .responses = "top_k",
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
     .responses = "top_p",
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
     .responses = "min_p",
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
     .responses = "repetition_penalty",
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
     .responses = "presence_penalty",
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
     .responses = "frequency_penalty",
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
     .responses = "penalty_window",
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
     .responses = "logit_bias",
     .cli = "--logit-bias",
     .metavar = "ID=VALUE",
     .python = "logit_bias"},
    {.name = "sampling.seed",
     .type = FieldType::kSeed,
     .values = "64 bits",
     .default_value = "random",
     .help = "The same one gives the same tokens; sample i has seed + i",
     .completions = "seed",
     .chat = "seed",
     .responses = "seed",
     .kserve = "seed",
     .cli = by_hand("--seed"),
     .metavar = "N",
     .python = "seed",
     .page = by_hand("Seed")},
    {.name = "stop.strings",
     .type = FieldType::kTexts,
     .values = "1 to 256 bytes each",
     .default_value = "none",
     .help = "Texts that end the answer, at most --max-stop-strings",
     .completions = "stop",
     .chat = "stop",
     .responses = "stop",
     .kserve = by_hand("stop"),
     .cli = by_hand("--stop"),
     .metavar = "TEXT",
     .python = by_hand("stop")},
    {.name = "stop.token_ids",
     .type = FieldType::kTokens,
     .default_value = "none",
     .help = "Tokens that end the answer, at most 256",
     .completions = "stop_token_ids",
     .chat = "stop_token_ids",
     .responses = "stop_token_ids",
     .cli = by_hand("--stop-token"),
     .metavar = "ID",
     .python = by_hand("stop")},
    {.name = "stop.include_in_output",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "The stop token or text is part of the answer",
     .completions = "include_stop_str_in_output",
     .chat = "include_stop_str_in_output",
     .responses = "include_stop_str_in_output",
     .kserve = "include_stop_str_in_output",
     .cli = by_hand("--include-stop"),
     .python = by_hand("include_stop")},
    {.name = "stop.ignore_eos",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Tokens that end the model's texts do not end the answer",
     .completions = "ignore_eos",
     .chat = "ignore_eos",
     .responses = "ignore_eos",
     .kserve = "ignore_eos",
     .cli = "--ignore-eos",
     .python = "ignore_eos"},
    {.name = "stop.min_tokens",
     .type = FieldType::kCount,
     .values = "0 to max_new_tokens",
     .default_value = "0",
     .help = "Nothing ends the answer before it has so many tokens",
     .completions = "min_tokens",
     .chat = "min_tokens",
     .responses = "min_tokens",
     .kserve = "min_tokens",
     .cli = "--min-tokens",
     .metavar = "N",
     .python = "min_tokens"},
    {.name = "num_samples",
     .type = FieldType::kCount,
     .values = "1 to --max-samples",
     .default_value = "1",
     .help = "Samples of one prompt, which is read once",
     .completions = "n",
     .chat = by_hand("n"),
     .kserve = "num_samples",
     .cli = by_hand("--samples"),
     .metavar = "N",
     .python = "num_samples"},
    {.name = "log2_probs",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Report the log2-probability of every token",
     .chat = by_hand("logprobs"),
     .cli = by_hand("--log-probs"),
     .python = "log2_probs"},
    {.name = "top_log2_probs",
     .type = FieldType::kCount,
     .values = "0 to --max-top-log2-probs",
     .default_value = "0",
     .help = "Report the N most likely tokens at each position",
     .completions = by_hand("logprobs"),
     .chat = by_hand("top_logprobs"),
     .responses = by_hand("top_logprobs"),
     .kserve = "top_log2_probs",
     .cli = by_hand("--top-log-probs"),
     .metavar = "N",
     .python = "top_log2_probs"},
    {.name = "echo_prompt",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "The answer begins with the prompt",
     .completions = "echo",
     .kserve = "echo",
     .cli = by_hand("--echo"),
     .python = "echo_prompt"},
    {.name = "given",
     .type = FieldType::kSpans,
     .default_value = "none",
     .help = "Known tokens from a position on, fed in place of samples",
     .completions = "given",
     .cli = by_hand("--given"),
     .metavar = "POS=ID,ID,...",
     .python = by_hand("given")},
    {.name = "particles",
     .type = FieldType::kCount,
     .values = "up to the rows of a step",
     .default_value = "0",
     .help = "Draw so many in parallel with regard to later given tokens; 0 or 1: no filter",
     .completions = "particles",
     .kserve = "particles",
     .python = "particles"},
    {.name = "window",
     .type = FieldType::kPosition,
     .values = "0, or an even number from 2",
     .default_value = "the session's, the initial state's, or what the model was trained on",
     .help = "For text longer than the model was trained on: reset the state whenever it has read "
             "N tokens, and "
             "re-read the last N/2; 0: never",
     .completions = "window",
     .kserve = "window",
     .cli = "--window",
     .metavar = "N",
     .python = "window"},
    {.name = "adapter",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "LoRA adapter of the model",
     .completions = "adapter",
     .chat = "adapter",
     .responses = "adapter",
     .kserve = "adapter",
     .cli = by_hand("--adapter"),
     .metavar = "NAME",
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
     .cli = by_hand("--no-special"),
     .python = "add_special"},
    {.name = "token_bytes",
     .type = FieldType::kFlag,
     .default_value = "false",
     .help = "Report the bytes that each token adds to the text",
     .python = by_hand("text")},
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
     .cli = by_hand("--time-limit"),
     .metavar = "SECONDS",
     .python = by_hand("time_limit"),
     .changes_answer = false},
    {.name = "call_id",
     .type = FieldType::kText,
     .default_value = "none",
     .help = "Name of a call on a session that outlives the server, which can be repeated",
     .kserve = "lintel_call_id",
     .cli = by_hand("--call-id"),
     .metavar = "ID"},
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

// The index of the field that an API calls `name` and reads by the table; nothing: there is none.
// api: the column of the table that has the names of the API.
std::optional<std::size_t> find_field(FieldName RequestField::*api, std::string_view name);

}  // namespace lintel
