// SPDX-License-Identifier: Apache-2.0
// Members of other servers' requests that change the answer and are not served: these APIs refuse
// them, where they ignore others that they do not know.
#pragma once

#include <string_view>

namespace lintel {

struct UnservedMember {
  enum Api : unsigned { kCompletions = 1, kChat = 2, kResponses = 4, kAny = 7 };

  std::string_view name;
  unsigned apis = kAny;             // the APIs that refuse it
  std::string_view neutral = "[]";  // values that ask for nothing, as a list of JSON
  std::string_view instead = {};    // the served member in its place; empty: none
};

inline constexpr UnservedMember kUnservedMembers[] = {
    // The number of samples.
    {"best_of", UnservedMember::kChat | UnservedMember::kResponses, "[1]"},
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
    {"epsilon_cutoff", UnservedMember::kAny, "[0]"},
    {"eta_cutoff", UnservedMember::kAny, "[0]"},
    {"penalty_alpha", UnservedMember::kAny, "[0]"},
    {"guidance_scale", UnservedMember::kAny, "[1]"},
    {"negative_prompt", UnservedMember::kAny, R"([""])"},
    {"no_repeat_ngram_size", UnservedMember::kAny, "[0]"},
    {"encoder_repetition_penalty", UnservedMember::kAny, "[1]"},
    {"repeat_penalty", UnservedMember::kAny, "[1]", "repetition_penalty"},
    {"do_sample", UnservedMember::kAny, "[true]", "temperature 0"},
    {"allowed_token_ids", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"bad_words", UnservedMember::kAny, "[[]]", "logit_bias"},
    {"custom_token_bans", UnservedMember::kAny, R"(["", []])", "logit_bias"},
    {"logits_processors", UnservedMember::kAny, "[[]]"},
    {"ban_eos_token", UnservedMember::kAny, "[false]", "ignore_eos"},
    // Lengths of prompts and answers.
    {"n_predict", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"max_new_tokens", UnservedMember::kAny, "[-1]", "max_tokens"},
    {"truncate_prompt_tokens", UnservedMember::kAny},
    {"echo", UnservedMember::kChat | UnservedMember::kResponses, "[false]"},
    {"add_special_tokens", UnservedMember::kCompletions, "[true]"},
    {"add_special_tokens", UnservedMember::kChat | UnservedMember::kResponses, "[false]"},
    {"prompt_embeds", UnservedMember::kAny},
    {"images", UnservedMember::kAny, "[[]]"},
    {"image_data", UnservedMember::kAny, "[[]]"},
    {"lora", UnservedMember::kAny, "[[]]", "adapter"},
    // The form of an answer.
    {"json_schema", UnservedMember::kAny, "[{}]", "response_format of chats"},
    {"regex", UnservedMember::kAny, R"([""])", "structured_outputs of chats"},
    {"ebnf", UnservedMember::kAny, R"([""])", "structured_outputs of chats"},
    {"structural_tag", UnservedMember::kAny},
    {"guided_whitespace_pattern", UnservedMember::kAny},
    {"stop_regex", UnservedMember::kAny, R"(["", []])"},
    {"structured_outputs", UnservedMember::kCompletions, "[]", "/v1/chat/completions"},
    {"guided_choice", UnservedMember::kCompletions, "[]", "/v1/chat/completions"},
    {"guided_regex", UnservedMember::kCompletions, "[]", "/v1/chat/completions"},
    {"guided_json", UnservedMember::kCompletions, "[]", "/v1/chat/completions"},
    {"guided_grammar", UnservedMember::kCompletions, "[]", "/v1/chat/completions"},
    {"grammar", UnservedMember::kCompletions, R"([""])", "/v1/chat/completions"},
    {"response_format", UnservedMember::kCompletions, R"([{"type": "text"}])",
     "/v1/chat/completions"},
};

}  // namespace lintel
