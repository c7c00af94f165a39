// SPDX-License-Identifier: Apache-2.0
// Common parts of the answers of OpenAI's APIs: ids, usage, tokens, errors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"

namespace lintel {

// Ids of answers. Those that are not stored contain the id of their request, a response's its
// digits.
std::string completion_id(const std::string& request_id);
std::string chat_completion_id(const std::string& request_id);
std::string response_id(const std::string& digits);

// The first members of every object of one answer: of the whole answer, or each event of its
// stream.
struct AnswerHead {
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint = {};  // of the model; empty: unknown
};
// {"id", "object", "created", "model", "system_fingerprint", "choices": [`choices`], "usage"}
// around the JSON of choices that are separated by commas: its text before them, and after them.
// `usage`: JSON; empty: the object has no such member. `more`: further members, each with a comma
// before it.
std::string text_before_choices(const AnswerHead& head, std::string_view object);
std::string text_after_choices(std::string_view usage, std::string_view more = {});

enum class UsageForm {
  kCompletion,      // completions have no reasoning
  kChatCompletion,  // prompt_tokens, completion_tokens
  kResponse         // input_tokens, output_tokens
};
nlohmann::ordered_json usage_json(const v1::ChatUsage& usage, UsageForm form);

// The times of reading and writing, in llama.cpp's form: tokens, milliseconds, tokens a second.
struct AnswerTimings {
  std::int64_t cached = 0, prompt = 0, predicted = 0;  // tokens: not read, read, written
  double prompt_ms = 0, predicted_ms = 0;
};
void add_timings(const v1::Timings& wire, AnswerTimings& timings);
nlohmann::ordered_json timings_json(const AnswerTimings& timings);

// "stop", "length", "tool_calls".
const char* finish_reason_name(v1::ChatFinishReason reason);
const char* finish_reason_name(v1::FinishReason reason);

// The natural logarithm of a probability; kNoProbability if that is 0.
inline constexpr float kNoProbability = -9999.0F;
float natural_log(float log2_prob);
// The shortest decimal that is read as this float.
double decimal(float value);
// {"token", "logprob", "bytes"}: of the log-probabilities of a chat or response, without the
// alternatives.
nlohmann::ordered_json token_json(std::string_view text, float log2_prob);

// A call of a tool in a message, or a delta: {"index", "id", "type", "function"}; a further piece
// of its arguments has no id and type.
nlohmann::ordered_json call_json(const v1::ToolCallDelta& call, bool is_delta);

struct OpenAiError {
  std::string message;
  std::string param;  // the member of the request that is wrong; empty: none
  std::string code;   // "model_not_found"; empty: none
};
// {"error": {"message", "type", "param", "code"}}. The type follows from HTTP's status.
nlohmann::ordered_json error_json(int http_status, const OpenAiError& error);

}  // namespace lintel
