// SPDX-License-Identifier: Apache-2.0
// Members of other servers' requests that change the answer and are not served: these APIs refuse
// them, where they ignore others that they do not know.
#pragma once

#include <string_view>

namespace lintel {

struct UnservedMember {
  enum Api : unsigned {
    kCompletions = 1,
    kChat = 2,
    kResponses = 4,
    kMessages = 8,
    kAny = 15,
    kNotCompletions = kAny - kCompletions,
    kNotResponses = kAny - kResponses,
    kNotMessages = kAny - kMessages
  };

  std::string_view name;
  unsigned apis = kAny;             // the APIs that refuse it
  std::string_view neutral = "[]";  // values that ask for nothing, as a list of JSON
  // The member in its place, named where the API serves it: "max_tokens", "text.format".
  std::string_view instead = {};
};

inline constexpr UnservedMember kUnservedMembers[] = {
    // The number of samples.
    {"best_of", UnservedMember::kNotCompletions, "[1]"},
    {"n", UnservedMember::kResponses | UnservedMember::kMessages, "[1]"},
    {"num_return_sequences", UnservedMember::kAny, "[1]", "n"},
    {"use_beam_search", UnservedMember::kAny, "[false]"},
    {"num_beams", UnservedMember::kAny, "[1]"},
    // Kinds of samplers.
    {"typical_p", UnservedMember::kAny, "[0, 1]"},
    {"typical", UnservedMember::kAny, "[0, 1]"},
    {"tfs", UnservedMember::kAny, "[1]"},
    {"tfs_z", UnservedMember::kAny, "[1]"},
    {"top_a", UnservedMember::kAny, "[0]"},
    {"top_n_sigma", UnservedMember::kAny, "[-1, 0]"},
    {"nsigma", UnservedMember::kAny, "[0]"},
    {"mirostat", UnservedMember::kAny, "[0]"},
    {"mirostat_mode", UnservedMember::kAny, "[0]"},
    {"dry_multiplier", UnservedMember::kAny, "[0]"},
    {"xtc_probability", UnservedMember::kAny, "[0]"},
    {"dynatemp_range", UnservedMember::kAny, "[0]"},
    {"dynamic_temperature", UnservedMember::kAny, "[false]"},
    {"smoothing_factor", UnservedMember::kAny, "[0]"},
    {"adaptive_target", UnservedMember::kAny, "[-1]"},
    {"epsilon_cutoff", UnservedMember::kAny, "[0]"},
    {"eta_cutoff", UnservedMember::kAny, "[0]"},
    {"penalty_alpha", UnservedMember::kAny, "[0]"},
    {"guidance_scale", UnservedMember::kAny, "[1]"},
    {"cfg_scale", UnservedMember::kAny, "[1]"},
    {"negative_prompt", UnservedMember::kAny, R"([""])"},
    {"no_repeat_ngram_size", UnservedMember::kAny, "[0]"},
    {"encoder_repetition_penalty", UnservedMember::kAny, "[1]"},
    {"repeat_penalty", UnservedMember::kAny, "[1]", "repetition_penalty"},
    {"rep_pen", UnservedMember::kAny, "[1]", "repetition_penalty"},
    {"do_sample", UnservedMember::kAny, "[true]", "temperature 0"},
    {"watermark", UnservedMember::kAny, "[false]"},
    {"allowed_token_ids", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"bad_words", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"bad_words_ids", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"force_words_ids", UnservedMember::kAny, "[[]]"},
    {"suppress_tokens", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"sequence_bias", UnservedMember::kAny, "[[], {}]", "logit_bias"},
    {"custom_token_bans", UnservedMember::kAny, R"(["", []])", "logit_bias"},
    {"banned_tokens", UnservedMember::kAny, R"(["", []])", "logit_bias"},
    {"banned_strings", UnservedMember::kAny, R"(["", []])", "logit_bias"},
    {"logits_processors", UnservedMember::kAny, "[[]]"},
    {"custom_logit_processor", UnservedMember::kAny, R"([""])"},
    {"ban_eos_token", UnservedMember::kAny, "[false]", "ignore_eos"},
    {"ignore_eos_token", UnservedMember::kAny, "[false]", "ignore_eos"},
    // Lengths of prompts and answers.
    {"n_predict", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"num_predict", UnservedMember::kAny, "[-1, -2]", "max_tokens"},
    {"max_new_tokens", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"max_new_token", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"max_length", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"max_output_tokens", UnservedMember::kNotResponses, "[]", "max_tokens"},
    {"max_completion_tokens", UnservedMember::kCompletions, "[]", "max_tokens"},
    {"max_completion_tokens", UnservedMember::kMessages, "[]", "max_tokens"},
    {"max_completion_tokens", UnservedMember::kResponses, "[]", "max_output_tokens"},
    {"max_tokens", UnservedMember::kResponses, "[-1]", "max_output_tokens"},
    {"min_new_tokens", UnservedMember::kAny, "[0]", "min_tokens"},
    {"min_length", UnservedMember::kAny, "[0]", "min_tokens"},
    {"t_max_predict_ms", UnservedMember::kAny, "[-1, 0]"},
    {"truncate_prompt_tokens", UnservedMember::kAny},
    {"truncate", UnservedMember::kAny},
    {"echo", UnservedMember::kNotCompletions, "[false]"},
    {"return_full_text", UnservedMember::kAny, "[false]", "echo"},
    {"add_special_tokens", UnservedMember::kCompletions, "[true]"},
    {"add_special_tokens", UnservedMember::kNotCompletions, "[false]"},
    {"prompt_embeds", UnservedMember::kAny},
    {"images", UnservedMember::kAny, "[[]]"},
    {"image_data", UnservedMember::kAny, "[[]]"},
    {"lora", UnservedMember::kAny, "[[]]", "adapter"},
    {"lora_path", UnservedMember::kAny, R"(["", []])", "adapter"},
    {"adapter_id", UnservedMember::kAny, R"([""])", "adapter"},
    // Ends of answers.
    {"stop", UnservedMember::kMessages, R"(["", []])", "stop_sequences"},
    {"stop_sequences", UnservedMember::kNotMessages, R"(["", []])", "stop"},
    {"stop_sequence", UnservedMember::kNotMessages, R"(["", []])", "stop"},
    {"stop_strings", UnservedMember::kAny, R"(["", []])", "stop"},
    {"no_stop_trim", UnservedMember::kAny, "[false]", "include_stop_str_in_output"},
    {"stop_regex", UnservedMember::kAny, R"(["", []])"},
    // Forms of answers.
    {"json_schema", UnservedMember::kChat | UnservedMember::kCompletions, "[{}]",
     "response_format"},
    {"json_schema", UnservedMember::kResponses, "[{}]", "text.format"},
    {"json_schema", UnservedMember::kMessages, "[{}]", "output_config.format"},
    {"regex", UnservedMember::kAny, R"([""])", "structured_outputs"},
    {"ebnf", UnservedMember::kAny, R"([""])", "structured_outputs"},
    {"structural_tag", UnservedMember::kAny},
    {"guided_whitespace_pattern", UnservedMember::kAny},
    {"structured_outputs", UnservedMember::kMessages, "[]", "output_config.format"},
    {"guided_choice", UnservedMember::kMessages},
    {"guided_regex", UnservedMember::kMessages},
    {"guided_json", UnservedMember::kMessages, "[]", "output_config.format"},
    {"guided_grammar", UnservedMember::kMessages},
    {"grammar", UnservedMember::kMessages, R"([""])"},
    {"response_format", UnservedMember::kResponses, R"([{"type": "text"}])", "text.format"},
    {"response_format", UnservedMember::kMessages, R"([{"type": "text"}])", "output_config.format"},
    {"skip_special_tokens", UnservedMember::kMessages, "[true]"},
    // Prompts of chats.
    {"chat_template_kwargs", UnservedMember::kMessages, "[{}]"},
    {"documents", UnservedMember::kMessages, "[[]]"},
    {"enable_thinking", UnservedMember::kMessages, "[]", "thinking"},
    {"thinking_token_budget", UnservedMember::kMessages, "[]", "thinking.budget_tokens"},
    {"reasoning_effort", UnservedMember::kMessages, "[]", "output_config.effort"},
    {"reasoning_effort", UnservedMember::kResponses, "[]", "reasoning.effort"},
    {"parallel_tool_calls", UnservedMember::kMessages, "[true]",
     "tool_choice.disable_parallel_tool_use"},
};

}  // namespace lintel
