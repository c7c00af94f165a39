// SPDX-License-Identifier: Apache-2.0
// Members of a request that define the form of an answer's text: OpenAI's, llama.cpp's and vLLM's.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/api/params/chat_params.h"
#include "server/rpc/ignored_members.h"

namespace lintel {

// A request may have one of them.
inline constexpr std::string_view kAnswerFormats[] = {
    "response_format", "grammar",     "structured_outputs", "guided_choice",
    "guided_regex",    "guided_json", "guided_grammar"};

bool is_answer_format(std::string_view name);

// The member has a format: response_format of the type text and empty texts, which front ends send
// for fields that are not set, have none.
bool has_answer_format(std::string_view name, const nlohmann::ordered_json& value);

// Reads the member `name`, one of these. Returns the error; empty: it was read. What has no effect
// is added to `ignored`.
std::string read_answer_format(std::string_view name, const nlohmann::ordered_json& value,
                               api::AnswerFormat& format, IgnoredMembers& ignored);

}  // namespace lintel
