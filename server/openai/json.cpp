// SPDX-License-Identifier: Apache-2.0
#include "server/openai/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

namespace lintel {
namespace {

const char* error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string completion_id(const std::string& request_id) { return "cmpl-" + request_id; }

std::string chat_completion_id(const std::string& request_id) { return "chatcmpl-" + request_id; }

std::string response_id(const std::string& digits) { return "resp_" + digits; }

std::string text_before_choices(const AnswerHead& head, std::string_view object) {
  using Json = nlohmann::ordered_json;
  const Json json = {
      {"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  text.pop_back();
  if (!head.fingerprint.empty()) {
    text += ",\"system_fingerprint\":\"" + head.fingerprint + '"';
  }
  return text + ",\"choices\":[";
}

std::string text_after_choices(std::string_view usage, std::string_view more) {
  std::string text = "]";
  if (!usage.empty()) text.append(",\"usage\":").append(usage);
  return text.append(more) + '}';
}

nlohmann::ordered_json usage_json(const v1::ChatUsage& usage, UsageForm form) {
  const bool is_response = form == UsageForm::kResponse;
  nlohmann::ordered_json json = {
      {is_response ? "input_tokens" : "prompt_tokens", usage.prompt_tokens()},
      {is_response ? "output_tokens" : "completion_tokens", usage.completion_tokens()},
      {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
  json[is_response ? "input_tokens_details" : "prompt_tokens_details"] = {
      {"cached_tokens", usage.cached_tokens()}};
  if (form == UsageForm::kCompletion) return json;
  json[is_response ? "output_tokens_details" : "completion_tokens_details"] = {
      {"reasoning_tokens", usage.reasoning_tokens()}};
  return json;
}

void add_timings(const v1::Timings& wire, AnswerTimings& timings) {
  const auto milliseconds = [](const google::protobuf::Duration& duration) {
    return 1e3 * static_cast<double>(duration.seconds()) + 1e-6 * duration.nanos();
  };
  // Samples of one prompt run at the same time, and read it once.
  timings.prompt_ms = std::max(timings.prompt_ms, milliseconds(wire.prompt()));
  timings.predicted_ms = std::max(timings.predicted_ms, milliseconds(wire.generation()));
}

nlohmann::ordered_json timings_json(const AnswerTimings& timings) {
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  const auto prompt = static_cast<double>(timings.prompt);
  const auto predicted = static_cast<double>(timings.predicted);
  return {{"cache_n", timings.cached},
          {"prompt_n", timings.prompt},
          {"prompt_ms", timings.prompt_ms},
          {"prompt_per_token_ms", ratio(timings.prompt_ms, prompt)},
          {"prompt_per_second", ratio(1e3 * prompt, timings.prompt_ms)},
          {"predicted_n", timings.predicted},
          {"predicted_ms", timings.predicted_ms},
          {"predicted_per_token_ms", ratio(timings.predicted_ms, predicted)},
          {"predicted_per_second", ratio(1e3 * predicted, timings.predicted_ms)}};
}

const char* finish_reason_name(v1::ChatFinishReason reason) {
  switch (reason) {
    case v1::CHAT_FINISH_REASON_STOP:
      return "stop";
    case v1::CHAT_FINISH_REASON_TOOL_CALLS:
      return "tool_calls";
    default:
      return "length";
  }
}

const char* finish_reason_name(v1::FinishReason reason) {
  const bool stopped =
      reason == v1::FINISH_REASON_STOP_TOKEN || reason == v1::FINISH_REASON_STOP_STRING;
  return stopped ? "stop" : "length";
}

float natural_log(float log2_prob) {
  const auto value = static_cast<float>(log2_prob * std::numbers::ln2);
  return std::isfinite(value) ? value : kNoProbability;
}

double decimal(float value) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double read = value;
  std::from_chars(text.data(), written.ptr, read);
  return read;
}

nlohmann::ordered_json token_json(std::string_view text, float log2_prob) {
  nlohmann::ordered_json bytes = nlohmann::ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", text}, {"logprob", decimal(natural_log(log2_prob))}, {"bytes", bytes}};
}

nlohmann::ordered_json call_json(const v1::ToolCallDelta& call, bool is_delta) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (is_delta) json["index"] = call.index();
  const bool is_first = !call.id().empty();
  if (is_first) {
    json["id"] = call.id();
    json["type"] = "function";
    json["function"] = {{"name", call.name()}, {"arguments", call.arguments()}};
  } else {
    json["function"] = {{"arguments", call.arguments()}};
  }
  return json;
}

nlohmann::ordered_json error_json(int http_status, const OpenAiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error_type(http_status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

}  // namespace lintel
