// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/completion_request.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "proto/fields/request_fields.h"
#include "server/api/params/generate_params.h"
#include "server/openai/answer_format.h"
#include "server/openai/members.h"

namespace lintel {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kDefaultMaxTokens = 16;  // OpenAI's

std::string read_user(const Json& value, CompletionRequest&) {
  return value.is_string() ? "" : "is not a text";
}

std::string read_logprobs(const Json& value, CompletionRequest& request) {
  request.logprobs = true;
  request.settings.log2_probs = true;
  return MemberReader<Json>{value}.read(request.settings.top_log2_probs);
}

std::string read_best_of(const Json& value, CompletionRequest& request) {
  if (!is_whole<std::uint32_t>(value) || value == 0) return "is not a whole number from 1 on";
  request.num_samples = value.get<std::uint32_t>();
  return "";
}

// Reads a prompt: a text, texts, ids, or lists of ids.
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
    api::Values& prompt = request.prompts.emplace_back();
    if (given.is_string()) {
      prompt = api::text_values(given.get<std::string>());
      continue;
    }
    std::vector<std::int32_t> ids;
    if (!read_ids(given, ids) || ids.empty()) return kWrong;
    prompt = api::token_values(std::move(ids));
  }
  return "";
}

std::string read_suffix(const Json& value, CompletionRequest&) {
  if (value == "") return "";
  return "is not served: models here continue a prompt, and fill no gaps";
}

struct Member {
  const char* name;
  // Returns an error; empty: none.
  std::string (*read)(const Json& value, CompletionRequest& request);
};

// Members that the table of fields lacks.
constexpr Member kOwnMembers[] = {
    {"prompt", read_prompt},
    {"logprobs", read_logprobs},
    {"best_of", read_best_of},
    {"suffix", read_suffix},
    {"user", read_user},
    {"stream",
     [](const Json& v, CompletionRequest& r) { return MemberReader<Json>{v}.read(r.streams); }},
    {"stream_options",
     [](const Json& v, CompletionRequest& r) {
       StreamOptions options;
       std::string wrong = read_stream_options(v, options, r.ignored);
       r.include_usage = options.include_usage;
       r.continuous_usage = options.continuous_usage;
       return wrong;
     }},
    {"logit_bias",
     [](const Json& v, CompletionRequest& r) {
       return read_logit_bias(v, r.settings.sampling.logit_bias, r.text_biases);
     }},
    {"return_token_ids",
     [](const Json& v, CompletionRequest& r) { return MemberReader<Json>{v}.read(r.token_ids); }},
    {"skip_special_tokens",
     [](const Json& v, CompletionRequest& r) {
       return MemberReader<Json>{v}.read(r.skips_special);
     }},
    {"timings_per_token",
     [](const Json& v, CompletionRequest& r) { return MemberReader<Json>{v}.read(r.timings); }},
};

const std::vector<std::string_view>& served_completion_members() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> own;
    for (const Member& member : kOwnMembers) {
      if (member.read != read_suffix) own.push_back(member.name);
    }
    own.insert(own.end(), std::begin(kAnswerFormats), std::end(kAnswerFormats));
    return served_names(&RequestField::completions, std::move(own));
  }();
  return names;
}

// Reads a member. Returns its error; empty: none.
std::string read_member(const std::string& name, const Json& value, CompletionRequest& request) {
  const auto* const own =
      std::ranges::find_if(kOwnMembers, [&](const Member& member) { return name == member.name; });
  if (own != std::end(kOwnMembers)) return own->read(value, request);
  if (is_answer_format(name)) {
    return read_answer_format(name, nlohmann::ordered_json(value), request.format, request.ignored);
  }
  bool is_known = false;
  std::string wrong =
      read_field(&RequestField::completions, name, value, request.settings, is_known);
  if (is_known) return wrong;
  return pass_unknown("", name, value, UnservedMember::kCompletions, served_completion_members(),
                      request.ignored);
}

// Sets the number of samples to select choices from. Returns the error of best_of; empty: none.
std::string settle_best_of(const Json& json, CompletionRequest& request) {
  const bool is_given = json.contains("best_of") && !json["best_of"].is_null();
  const std::uint32_t best_of = is_given ? request.num_samples : request.num_choices;
  if (best_of < request.num_choices) {
    return "is less than n, " + std::to_string(request.num_choices);
  }
  request.num_samples = best_of;
  if (best_of == request.num_choices) return "";
  if (request.streams) return "cannot be streamed, for which is the best is known in the end";
  if (request.settings.particles > 1) {
    return "cannot be combined with particles, which choose themselves";
  }
  request.settings.num_samples = best_of;
  request.settings.log2_probs = true;
  return "";
}

// Refuses what a format cannot go with. Returns the member, with its error; empty: nothing.
std::pair<std::string, std::string> check_format(const Json& body,
                                                 const CompletionRequest& request) {
  std::string format;
  for (const std::string_view member : kAnswerFormats) {
    const auto found = body.find(std::string(member));
    if (found == body.end() || !has_answer_format(member, *found)) continue;
    if (!format.empty()) return {std::string(member), "cannot be combined with " + format};
    format = member;
  }
  if (request.format.format == api::AnswerFormat::Format::kText) return {};
  const api::GenerateParams& settings = request.settings;
  const std::string wrong = "cannot be combined with " + format;
  if (settings.stop.ignore_eos) return {"ignore_eos", wrong + ", which needs the model's end"};
  if (settings.particles > 1) {
    return {"particles", wrong + ": what has ended cannot be weighed by what is given behind"};
  }
  if (!settings.given.empty()) return {"given", wrong + ", of which all tokens are drawn"};
  return {};
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
    const std::string wrong = read_member(name, value, request);
    if (!wrong.empty()) return refuse(name.substr(0, 64), wrong);
  }
  if (request.prompts.empty()) return refuse("prompt", "is missing");
  if (body.contains("stream_options") && !body["stream_options"].is_null() && !request.streams) {
    return refuse("stream_options", "goes with stream");
  }
  const auto [member, conflict] = check_format(body, request);
  if (!member.empty()) return refuse(member, conflict);
  api::GenerateParams& settings = request.settings;
  const bool is_unlimited = body.contains("max_tokens") && body["max_tokens"] == -1;
  if (!settings.max_new_tokens && !is_unlimited) settings.max_new_tokens = kDefaultMaxTokens;
  request.num_choices = settings.num_samples.value_or(1);
  const std::string wrong = settle_best_of(body, request);
  if (!wrong.empty()) return refuse("best_of", wrong);
  return request;
}

v1::GenerateRequest generate_request(const CompletionRequest& request, std::size_t index) {
  v1::GenerateRequest generate;
  api::write_params(request.settings, generate);
  api::write_values(request.prompts[index], *generate.mutable_prompt());
  if (request.settings.sampling.seed) {
    generate.mutable_sampling()->set_seed(*request.settings.sampling.seed +
                                          index * request.num_samples);
  }
  return generate;
}

}  // namespace lintel
