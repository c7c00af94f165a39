// SPDX-License-Identifier: Apache-2.0
#include "server/http/openai/completion_request.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/chat/openai_members.h"
#include "server/http/encoding/bounded_json.h"
#include "server/http/encoding/status_details.h"
#include "server/http/transport/response_head.h"

namespace lintel {
namespace {

// lintel.v1's fields, and what OpenAI calls them. Of others the name is the same, without the
// message that it is in.
constexpr std::pair<std::string_view, std::string_view> kMembers[] = {
    {"max_new_tokens", "max_tokens"},
    {"num_samples", "n"},
    {"top_log2_probs", "logprobs"},
    {"stop.strings", "stop"},
    {"prompt.text", "prompt"},
    {"prompt.tokens.ids", "prompt"},
    {"name", "model"},
};

std::string member_of(std::string_view field) {
  for (const auto& [ours, theirs] : kMembers) {
    if (field.substr(0, ours.size()) == ours) {
      return std::string(theirs) + std::string(field.substr(ours.size()));
    }
  }
  constexpr std::string_view kSampling = "sampling.";
  if (field.substr(0, kSampling.size()) == kSampling) field.remove_prefix(kSampling.size());
  return std::string(field);
}

const char* type_of(int http_status) {
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

// What has no details is of the listener: a path that there is none of is no model.
std::string code_of(int http_status, const grpc::Status& status, const StatusDetails& details) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return "invalid_api_key";
    case grpc::StatusCode::NOT_FOUND:
      if (status.error_details().empty()) return "unknown_url";
      return (details.resource.empty() ? "model" : details.resource) + "_not_found";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return http_status == 413 ? "request_too_large" : "rate_limit_exceeded";
    default:
      return "";
  }
}

HttpAnswer shaped(int http_status, const OpenAiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json json = {{"error",
                                        {{"message", error.message},
                                         {"type", type_of(http_status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return json_answer(http_status, dumped(json));
}

}  // namespace

HttpAnswer openai_answer(const OpenAiError& error) { return shaped(400, error); }

HttpAnswer openai_answer(const grpc::Status& status) {
  return openai_refusal({}, http_status_of(status.error_code()), status);
}

HttpAnswer openai_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  const StatusDetails details = read_status_details(status);
  OpenAiError error{status.error_message(), "", code_of(http_status, status, details)};
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT && !details.reason.empty()) {
    error.code = details.reason;  // "NO_CHAT_TEMPLATE"
    std::ranges::transform(error.code, error.code.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  if (!details.violations.empty()) {
    error.message.clear();
    for (const auto& [field, description] : details.violations) {
      error.message += (error.message.empty() ? "" : "; ") + member_of(field) + ": " + description;
    }
    const std::string member = member_of(details.violations.front().first);
    error.param = member.substr(0, member.find_first_of("[."));
  }
  HttpAnswer answer = shaped(http_status, error);
  add_retry_header(details, answer.headers);
  return answer;
}

namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kDefaultMaxTokens = 16;  // OpenAI's

// read_into() reads a member of the body by a setter, of the settings or of their sampling, or into
// a flag. Not empty: what is wrong with it.

template <typename Message>
std::string read_into(void (Message::*set)(std::uint32_t), const Json& value,
                      CompletionRequest& request) {
  if (!is_whole<std::uint32_t>(value)) return "is not a whole number from 0 to 4294967295";
  if constexpr (std::is_same_v<Message, v1::Sampling>) {
    (request.settings.mutable_sampling()->*set)(value.get<std::uint32_t>());
  } else {
    (request.settings.*set)(value.get<std::uint32_t>());
  }
  return "";
}

std::string read_into(void (v1::GenerateRequest::*set)(std::int64_t), const Json& value,
                      CompletionRequest& request) {
  if (!is_whole<std::int64_t>(value)) return "is not a whole number from 0 on";
  (request.settings.*set)(value.get<std::int64_t>());
  return "";
}

std::string read_into(void (v1::Sampling::*set)(float), const Json& value,
                      CompletionRequest& request) {
  if (!value.is_number()) return "is not a number";
  (request.settings.mutable_sampling()->*set)(value.get<float>());
  return "";
}

std::string read_into(bool CompletionRequest::*flag, const Json& value,
                      CompletionRequest& request) {
  if (!value.is_boolean()) return "is not true or false";
  request.*flag = value.get<bool>();
  return "";
}

template <auto field>
std::string read_field(const Json& value, CompletionRequest& request) {
  return read_into(field, value, request);
}

std::string read_model(const Json& value, CompletionRequest& request) {
  if (!value.is_string()) return "is not a text";
  request.model = value.get<std::string>();
  return "";
}

std::string read_adapter_name(const Json& value, CompletionRequest& request) {
  if (!value.is_string()) return "is not a text";
  request.settings.set_adapter(value.get<std::string>());
  return "";
}

std::string read_user(const Json& value, CompletionRequest&) {
  return value.is_string() ? "" : "is not a text";
}

std::string read_logprobs(const Json& value, CompletionRequest& request) {
  request.logprobs = true;
  request.settings.set_log2_probs(true);
  return read_into(&v1::GenerateRequest::set_top_log2_probs, value, request);
}

std::string read_stop_texts(const Json& value, CompletionRequest& request) {
  const auto take = [&request](const std::string& stop) {
    request.settings.mutable_stop()->add_strings(stop);
    return true;
  };
  return read_texts(value, take) ? "" : "is not a text or a list of texts";
}

std::string read_best_of(const Json& value, CompletionRequest& request) {
  if (!is_whole<std::uint32_t>(value) || value == 0) return "is not a whole number from 1 on";
  request.num_samples = value.get<std::uint32_t>();
  return "";
}

bool read_ids(const Json& ids, v1::Values& prompt) {
  if (ids.empty()) return false;
  auto& tokens = *prompt.mutable_tokens();
  tokens.mutable_ids()->Reserve(static_cast<int>(ids.size()));
  for (const Json& id : ids) {
    if (!is_whole<std::int32_t>(id)) return false;
    tokens.add_ids(id.get<std::int32_t>());
  }
  return true;
}

// A text, texts, ids, or lists of ids.
std::string read_prompt(const Json& value, CompletionRequest& request) {
  constexpr const char* kWrong =
      "is not a text, a list of texts, a list of token ids, or a list of lists of token ids";
  const bool is_one =
      value.is_string() || (value.is_array() && !value.empty() && value.front().is_number());
  if (!is_one && (!value.is_array() || value.empty())) return kWrong;
  const std::size_t count = is_one ? 1 : value.size();
  constexpr std::size_t kMostPrompts = 1024;
  if (count > kMostPrompts) return "has more than " + std::to_string(kMostPrompts) + " prompts";
  for (std::size_t i = 0; i < count; ++i) {
    const Json& given = is_one ? value : value[i];
    v1::Values& prompt = request.prompts.emplace_back();
    if (given.is_string()) {
      prompt.set_text(given.get<std::string>());
    } else if (!given.is_array() || !read_ids(given, prompt)) {
      return kWrong;
    }
  }
  return "";
}

// Known tokens after the prompt: [{"position": P, "text" or "tokens": ...}].
std::string read_given(const Json& value, CompletionRequest& request) {
  if (!value.is_array()) return "is not a list of spans";
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& span = value[i];
    const std::string path = "[" + std::to_string(i) + "]";
    const bool is_span = span.is_object() && span.size() == 2 && span.contains("position") &&
                         (span.contains("text") || span.contains("tokens"));
    if (!is_span) return path + " is not {\"position\": P, \"text\" or \"tokens\": values}";
    if (!is_whole<std::int64_t>(span["position"])) return path + ".position is not a position";
    v1::GivenSpan& given = *request.settings.add_given();
    given.set_position(span["position"].get<std::int64_t>());
    if (span.contains("text")) {
      if (!span["text"].is_string()) return path + ".text is not a text";
      given.mutable_values()->set_text(span["text"].get<std::string>());
    } else if (!span["tokens"].is_array() || !read_ids(span["tokens"], *given.mutable_values())) {
      return path + ".tokens is not a list of token ids";
    }
  }
  return "";
}

std::string read_suffix(const Json&, CompletionRequest&) {
  return "is not served: models here continue a prompt, and fill no gaps";
}

struct Member {
  const char* name;
  // Not empty: what is wrong with it.
  std::string (*read)(const Json& value, CompletionRequest& request);
};

constexpr Member kRequestMembers[] = {
    {"model", read_model},
    {"prompt", read_prompt},
    {"max_tokens", read_field<&v1::GenerateRequest::set_max_new_tokens>},
    {"temperature", read_field<&v1::Sampling::set_temperature>},
    {"top_p", read_field<&v1::Sampling::set_top_p>},
    {"seed", [](const Json& v,
                CompletionRequest& r) { return read_seed(v, *r.settings.mutable_sampling()); }},
    {"stop", read_stop_texts},
    {"n", read_field<&v1::GenerateRequest::set_num_samples>},
    {"echo", read_field<&CompletionRequest::echo>},
    {"logprobs", read_logprobs},
    {"presence_penalty", read_field<&v1::Sampling::set_presence_penalty>},
    {"frequency_penalty", read_field<&v1::Sampling::set_frequency_penalty>},
    {"logit_bias",
     [](const Json& v, CompletionRequest& r) {
       return read_logit_bias(v, *r.settings.mutable_sampling());
     }},
    {"stream", read_field<&CompletionRequest::streams>},
    {"stream_options",
     [](const Json& v, CompletionRequest& r) { return read_stream_options(v, r.include_usage); }},
    {"best_of", read_best_of},
    {"suffix", read_suffix},
    {"user", read_user},
    // Not OpenAI's.
    {"top_k", read_field<&v1::Sampling::set_top_k>},
    {"min_p", read_field<&v1::Sampling::set_min_p>},
    {"repetition_penalty", read_field<&v1::Sampling::set_repetition_penalty>},
    {"adapter", read_adapter_name},
    {"penalty_window", read_field<&v1::Sampling::set_penalty_window>},
    {"window", read_field<&v1::GenerateRequest::set_window>},  // 0 is a window, too: none
    {"particles", read_field<&v1::GenerateRequest::set_particles>},
    {"given", read_given},
};

// As many samples as choices are chosen from. Not empty: what is wrong with best_of.
std::string settle_best_of(const Json& json, CompletionRequest& request) {
  const bool is_given = json.contains("best_of") && !json["best_of"].is_null();
  const std::uint32_t best_of = is_given ? request.num_samples : request.num_choices;
  if (best_of < request.num_choices) {
    return "is less than n, " + std::to_string(request.num_choices);
  }
  request.num_samples = best_of;
  if (best_of == request.num_choices) return "";
  if (request.streams) return "cannot be streamed, for which is the best is known in the end";
  if (request.settings.particles() > 1) {
    return "cannot be combined with particles, which choose themselves";
  }
  request.settings.set_num_samples(best_of);
  request.settings.set_log2_probs(true);
  return "";
}

}  // namespace

std::optional<CompletionRequest> read_completion_request(const Json& body, OpenAiError& error) {
  CompletionRequest request;
  const auto refuse = [&](const std::string& param, const std::string& wrong) {
    error.param = param;
    error.message = param + ": " + wrong;
    return std::nullopt;
  };
  for (const auto& [name, value] : body.items()) {
    if (value.is_null()) continue;  // as if it were not there
    const auto* const known = std::ranges::find_if(
        kRequestMembers, [&](const Member& member) { return name == member.name; });
    const std::string wrong = known == std::end(kRequestMembers)
                                  ? "is not a parameter of this server"
                                  : known->read(value, request);
    if (!wrong.empty()) return refuse(name.substr(0, 64), wrong);
  }
  if (request.prompts.empty()) return refuse("prompt", "is missing");
  if (body.contains("stream_options") && !body["stream_options"].is_null() && !request.streams) {
    return refuse("stream_options", "goes with stream");
  }
  v1::GenerateRequest& settings = request.settings;
  settings.set_model(request.model);
  settings.set_echo_prompt(request.echo);
  if (!settings.has_max_new_tokens()) settings.set_max_new_tokens(kDefaultMaxTokens);
  if (settings.has_num_samples()) request.num_choices = settings.num_samples();
  const std::string wrong = settle_best_of(body, request);
  if (!wrong.empty()) return refuse("best_of", wrong);
  return request;
}

v1::GenerateRequest generate_request(const CompletionRequest& request, std::size_t index) {
  v1::GenerateRequest generate = request.settings;
  *generate.mutable_prompt() = request.prompts[index];
  if (generate.sampling().has_seed()) {
    v1::Sampling& sampling = *generate.mutable_sampling();
    sampling.set_seed(sampling.seed() + index * request.num_samples);
  }
  return generate;
}

}  // namespace lintel
