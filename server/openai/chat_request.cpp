// SPDX-License-Identifier: Apache-2.0
#include "server/openai/chat_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/chat/template/request_json.h"
#include "server/chat/template/template.h"
#include "server/openai/answer_format.h"
#include "server/openai/members.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// Returned by readers for a member that they accept.
const std::string kTaken;

std::string read_count(const Json& value, std::uint32_t& count) {
  if (!is_whole<std::uint32_t>(value)) return "is not a whole number from 0 to 4294967295";
  count = value.get<std::uint32_t>();
  return kTaken;
}

std::string read_flag(const Json& value, bool& flag) {
  if (!value.is_boolean()) return "is not true or false";
  flag = value.get<bool>();
  return kTaken;
}

std::string read_text(const Json& value, std::string& text) {
  if (!value.is_string()) return "is not a text";
  text = value.get<std::string>();
  return kTaken;
}

std::string read_messages(Json& value, api::ChatParams& params) {
  if (!value.is_array() || value.empty()) return "is not a list of at least one message";
  if (value.size() > kMostMessages) {
    return "has " + std::to_string(value.size()) + " messages, at most " +
           std::to_string(kMostMessages) + " are taken";
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& message = value[i];
    const std::string at = "[" + std::to_string(i) + "]";
    if (!message.is_object()) return at + " is not an object";
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) return at + ".role is not a text";
  }
  params.messages = std::move(value);
  return kTaken;
}

std::string read_tools(Json& value, ChatRequest& request) {
  if (!value.is_array()) return "is not a list of tools";
  if (value.empty()) return kTaken;  // as if there were none
  if (value.size() > kMostTools) {
    return "has " + std::to_string(value.size()) + " tools, at most " + std::to_string(kMostTools) +
           " are taken";
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& tool = value[i];
    const std::string at = "[" + std::to_string(i) + "]";
    if (!tool.is_object() || tool.value("type", Json()) != "function") {
      return at + ".type is not \"function\"";
    }
    const Json function = tool.value("function", Json());
    if (!function.is_object()) return at + ".function is not an object";
    const std::string wrong = tool_name_error(function.value("name", Json()));
    if (!wrong.empty()) return at + ".function.name " + wrong;
  }
  const std::size_t bytes = value.dump(-1, ' ', false, Json::error_handler_t::replace).size();
  if (bytes > kMostToolBytes) {
    return "has " + std::to_string(bytes) + " bytes, at most " + std::to_string(kMostToolBytes) +
           " are taken";
  }
  request.params.tools = std::move(value);
  return kTaken;
}

// The name in {"type": "function", "function": {"name": NAME}}; nothing for other values.
std::optional<std::string> read_function_name(const Json& value) {
  if (!value.is_object() || value.value("type", Json()) != "function") return std::nullopt;
  const Json function = value.value("function", Json());
  const Json name = function.is_object() ? function.value("name", Json()) : Json();
  if (!name.is_string()) return std::nullopt;
  return name.get<std::string>();
}

std::string read_tool_choice(Json& value, ChatRequest& request) {
  using ToolChoice = api::ChatParams::ToolChoice;
  constexpr const char* kWrong =
      "is not \"auto\", \"none\", \"required\", a function, or allowed_tools";
  const auto read_mode = [&](const Json& mode) {
    if (mode == "auto") return true;
    if (mode != "none" && mode != "required") return false;
    request.params.tool_choice = mode == "none" ? ToolChoice::kNone : ToolChoice::kRequired;
    return true;
  };
  if (value.is_string()) return read_mode(value) ? kTaken : kWrong;
  if (const std::optional<std::string> name = read_function_name(value)) {
    request.params.tool_choice = ToolChoice::kRequired;
    request.params.offered_tools = {*name};
    return kTaken;
  }
  if (!value.is_object() || value.value("type", Json()) != "allowed_tools") return kWrong;
  const Json allowed = value.value("allowed_tools", Json());
  if (!allowed.is_object() || !read_mode(allowed.value("mode", Json("auto")))) return kWrong;
  const Json tools = allowed.value("tools", Json());
  if (!tools.is_array() || tools.empty()) return kWrong;
  for (const Json& tool : tools) {
    const std::optional<std::string> name = read_function_name(tool);
    if (!name) return kWrong;
    request.params.offered_tools.push_back(*name);
  }
  return kTaken;
}

std::string read_extension(Json& value, ChatRequest& request) {
  if (!value.is_object()) return "is not an object";
  for (const auto& [name, member] : value.items()) {
    if (name != "tool_grammar" && name != "cache") {
      return "has '" + clip(name) + "', which is not served";
    }
    const std::string wrong =
        read_flag(member, name == "cache" ? request.params.cache : request.params.tool_grammar);
    if (!wrong.empty()) return "has a " + name + " that " + wrong;
  }
  return kTaken;
}

std::string read_effort(Json& value, ChatRequest& request) {
  constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (std::ranges::none_of(kEfforts, [&](const char* effort) { return value == effort; })) {
    return "is not none, minimal, low, medium, high, xhigh or max";
  }
  return read_text(value, request.params.reasoning_effort);
}

std::string read_verbosity(Json& value, ChatRequest& request) {
  if (value != "low" && value != "medium" && value != "high") return "is not low, medium or high";
  return read_text(value, request.params.verbosity);
}

int depth_of(const Json& value, int limit) {
  if (!value.is_structured()) return 0;
  if (limit == 0) return 1;
  int depth = 0;
  for (const Json& item : value) depth = std::max(depth, depth_of(item, limit - 1));
  return depth + 1;
}

std::string read_kwargs(Json& value, ChatRequest& request) {
  constexpr int kMostDepth = 16;
  if (!value.is_object()) return "is not an object";
  if (value.dump(-1, ' ', false, Json::error_handler_t::replace).size() > kMostKwargsBytes) {
    return "has more than " + std::to_string(kMostKwargsBytes) + " bytes";
  }
  if (depth_of(value, kMostDepth) > kMostDepth) {
    return "is deeper than " + std::to_string(kMostDepth);
  }
  for (const auto& [name, member] : value.items()) {
    if (is_given_variable(name)) return "has '" + clip(name) + "', which the server sets";
  }
  request.params.kwargs = std::move(value);
  return kTaken;
}

std::string read_documents(Json& value, ChatRequest& request) {
  if (!value.is_array()) return "is not a list";
  request.params.documents = std::move(value);
  return kTaken;
}

std::string read_modalities(Json& value, ChatRequest&) {
  return value == Json::array({"text"}) ? kTaken : "is not [\"text\"]";
}

std::string ignore(Json&, ChatRequest&) { return kTaken; }

struct Member {
  const char* name;
  // Returns an error; empty: none. It may take the value.
  std::string (*read)(Json& value, ChatRequest& request);
};

// Members that the table of fields lacks.
constexpr Member kOwnMembers[] = {
    {"messages", [](Json& v, ChatRequest& r) { return read_messages(v, r.params); }},
    {"tools", read_tools},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls",
     [](Json& v, ChatRequest& r) { return read_flag(v, r.params.parallel_tool_calls); }},
    {"max_completion_tokens", nullptr},  // with max_tokens, below
    {"max_tokens", nullptr},
    {"n", [](Json& v, ChatRequest& r) { return read_count(v, r.params.num_choices); }},
    {"stream", [](Json& v, ChatRequest& r) { return read_flag(v, r.streams); }},
    {"stream_options",
     [](Json& v, ChatRequest& r) {
       StreamOptions options;
       std::string wrong = read_stream_options(v, options, r.ignored);
       r.include_usage = options.include_usage;
       r.continuous_usage = options.continuous_usage;
       return wrong;
     }},
    {"logit_bias",
     [](Json& v, ChatRequest& r) {
       return read_logit_bias(v, r.params.base.sampling.logit_bias, r.params.text_biases);
     }},
    {"skip_special_tokens",
     [](Json& v, ChatRequest& r) { return read_flag(v, r.params.skip_special_tokens); }},
    {"timings_per_token", [](Json& v, ChatRequest& r) { return read_flag(v, r.timings); }},
    {"logprobs", [](Json& v, ChatRequest& r) { return read_flag(v, r.params.logprobs); }},
    {"top_logprobs", [](Json& v, ChatRequest& r) { return read_count(v, r.params.top_logprobs); }},
    {"return_token_ids",
     [](Json& v, ChatRequest& r) { return read_flag(v, r.params.return_token_ids); }},
    {"lintel", read_extension},
    {"reasoning_effort", read_effort},
    {"thinking_token_budget",
     [](Json& v, ChatRequest& r) { return read_count(v, r.params.thinking_budget.emplace()); }},
    {"chat_template_kwargs", read_kwargs},
    {"enable_thinking", nullptr},  // with chat_template_kwargs, below
    {"documents", read_documents},
    {"add_generation_prompt",
     [](Json& v, ChatRequest& r) { return read_flag(v, r.params.add_generation_prompt); }},
    {"continue_final_message",
     [](Json& v, ChatRequest& r) { return read_flag(v, r.params.continue_final_message); }},
    {"verbosity", read_verbosity},
    {"user", [](Json& v, ChatRequest&) { return v.is_string() ? kTaken : "is not a text"; }},
    {"modalities", read_modalities},
    {"metadata", ignore},
    {"store", ignore},
    {"service_tier", ignore},
    {"safety_identifier", ignore},
    {"prompt_cache_key", ignore},
    {"prompt_cache_retention", ignore},
    {"prompt_cache_options", ignore},
};

// Members of OpenAI's that are not served, and why.
constexpr std::pair<std::string_view, const char*> kRefusedMembers[] = {
    {"audio", "is not served: models here read and write text"},
    {"prediction", "is not served"},
    {"web_search_options", "is not served"},
    {"moderation", "is not served"},
    {"functions", "is not served: `tools` has its place"},
    {"function_call", "is not served: `tools` has its place"},
    {"chat_template", "is not taken from a request: the model's own is used"},
};

// Reads max_completion_tokens and max_tokens, which are the same.
std::string read_max_tokens(const Json& body, ChatRequest& request, std::string& name) {
  for (const char* const member : {"max_completion_tokens", "max_tokens"}) {
    const auto found = body.find(member);
    if (found == body.end() || found->is_null()) continue;
    name = member;
    if (*found == -1) continue;  // no limit
    std::uint32_t count = 0;
    std::string wrong = read_count(*found, count);
    if (!wrong.empty()) return wrong;
    if (request.params.max_tokens && *request.params.max_tokens != count) {
      return "is not equal to max_completion_tokens";
    }
    request.params.max_tokens = count;
    request.max_tokens_member = member;
  }
  return kTaken;
}

// Reads enable_thinking, one of chat_template_kwargs by either name that templates have for it.
std::string read_enable_thinking(const Json& body, ChatRequest& request) {
  const auto found = body.find("enable_thinking");
  if (found == body.end() || found->is_null()) return kTaken;
  bool thinks = false;
  std::string wrong = read_flag(*found, thinks);
  if (!wrong.empty()) return wrong;
  Json& kwargs = request.params.kwargs;
  if (kwargs.is_null()) kwargs = Json::object();
  for (const char* const name : {"enable_thinking", "thinking"}) {
    if (!kwargs.contains(name)) {
      kwargs[name] = thinks;
    } else if (kwargs[name] != thinks) {
      return std::string("is not equal to chat_template_kwargs.") + name;
    }
  }
  return kTaken;
}

const std::vector<std::string_view>& served_members() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> own;
    for (const Member& member : kOwnMembers) own.push_back(member.name);
    own.insert(own.end(), std::begin(kAnswerFormats), std::end(kAnswerFormats));
    return served_names(&RequestField::chat, std::move(own));
  }();
  return names;
}

}  // namespace

std::string tool_name_error(const Json& name) {
  if (!name.is_string()) return "is not a text";
  const auto& text = name.get_ref<const std::string&>();
  const bool has_others = !std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
  if (has_others) return "has characters other than a-z A-Z 0-9 _ . -";
  if (!text.empty() && text.size() <= kMostToolNameBytes) return "";
  return "has " + std::to_string(text.size()) + " characters, 1 to " +
         std::to_string(kMostToolNameBytes) + " are taken";
}

grpc::Status read_json_body(std::string_view text, const JsonBounds& bounds,
                            nlohmann::ordered_json& body, JsonFailure& failure) {
  std::optional<Json> read = read_request_json(text, bounds, failure);
  if (!read) {
    const bool is_json = failure.kind != JsonFailure::Kind::kNotJson;
    return invalid_argument({{"body", is_json ? failure.what
                                              : "is not JSON: " + failure.what + " (byte " +
                                                    std::to_string(failure.byte) + ")"}});
  }
  if (!read->is_object()) return invalid_argument({{"body", "is not an object of JSON"}});
  body = *std::move(read);
  return grpc::Status::OK;
}

JsonFailure read_chat_request(std::string_view text, const std::string& caller,
                              const std::function<bool()>& is_cancelled, ChatRequest& request) {
  JsonFailure failure;
  request.bytes = text.size();
  RequestBudget tree(request.charge, /*copies=*/1, is_cancelled);
  Json body;
  request.status = read_json_body(text, {.budget = &tree}, body, failure);
  if (request.status.ok()) request.status = read_chat_request(std::move(body), request);
  if (tree.refusal()) {
    request.status = request_memory_refusal(tree.refusal(), caller, "messages");
  }
  return failure;
}

grpc::Status read_chat_request(nlohmann::ordered_json body, ChatRequest& request) {
  grpc::Status status = read_chat_members(std::move(body), request);
  if (!status.ok() || !request.params.messages.is_null()) return status;
  return invalid_argument({{"messages", "is missing"}});
}

grpc::Status take_messages(nlohmann::ordered_json messages, api::ChatParams& params) {
  const std::string what = read_messages(messages, params);
  return what.empty() ? grpc::Status::OK : invalid_argument({{"messages", what}});
}

grpc::Status read_chat_members(nlohmann::ordered_json body, ChatRequest& request) {
  const auto wrong = [](const std::string& name, const std::string& what) {
    return invalid_argument({{name, what}});
  };
  for (auto& [name, value] : body.get_ref<Json::object_t&>()) {
    if (value.is_null()) continue;  // as if it were not there
    std::string what;
    const auto* const own = std::ranges::find_if(
        kOwnMembers, [&](const Member& member) { return name == member.name; });
    const auto* const refused =
        std::ranges::find(kRefusedMembers, name, &std::pair<std::string_view, const char*>::first);
    if (is_answer_format(name)) {
      what = read_answer_format(name, value, request.params, request.ignored);
    } else if (own != std::end(kOwnMembers)) {
      if (own->read != nullptr) what = own->read(value, request);
    } else if (refused != std::end(kRefusedMembers)) {
      what = refused->second;
    } else {
      bool is_known = false;
      what = read_field(&RequestField::chat, name, value, request.params.base, is_known);
      if (!is_known) {
        what =
            pass_unknown("", name, value, UnservedMember::kChat, served_members(), request.ignored);
      }
    }
    if (!what.empty()) return wrong(clip(name), what);
  }
  std::string name;
  std::string what = read_max_tokens(body, request, name);
  if (!what.empty()) return wrong(name, what);
  what = read_enable_thinking(body, request);
  if (!what.empty()) return wrong("enable_thinking", what);
  if (request.params.tool_choice == api::ChatParams::ToolChoice::kRequired) {
    request.params.format =
        api::ChatParams::Format::kText;  // there is no text that a format could constrain
  }
  std::string format;
  for (const std::string_view member : kAnswerFormats) {
    const auto found = body.find(std::string(member));
    if (found == body.end() || !has_answer_format(member, *found)) continue;
    if (!format.empty()) return wrong(std::string(member), "cannot be combined with " + format);
    format = member;
  }
  if (request.params.base.stop.ignore_eos &&
      (request.params.format != api::ChatParams::Format::kText ||
       request.params.tool_choice == api::ChatParams::ToolChoice::kRequired)) {
    return wrong("ignore_eos", "cannot be combined with " +
                                   (format.empty() ? "tool_choice" : format) +
                                   ", which needs the model's end");
  }
  if (!request.params.offered_tools.empty() ||
      request.params.tool_choice == api::ChatParams::ToolChoice::kRequired) {
    if (request.params.tools.is_null()) return wrong("tool_choice", "goes with tools");
    for (const std::string& offered : request.params.offered_tools) {
      const bool is_there = std::ranges::any_of(request.params.tools, [&](const Json& tool) {
        return tool["function"]["name"] == offered;
      });
      if (!is_there) return wrong("tool_choice", "names '" + clip(offered) + "', which is no tool");
    }
  }
  if (request.params.num_choices == 0) return wrong("n", "is 0, at least 1 is required");
  if (request.params.top_logprobs > 0 && !request.params.logprobs) {
    return wrong("top_logprobs", "goes with logprobs");
  }
  if (request.include_usage && !request.streams) return wrong("stream_options", "goes with stream");
  if (request.params.continue_final_message && request.params.add_generation_prompt) {
    if (body.contains("add_generation_prompt")) {
      return wrong("continue_final_message", "goes with add_generation_prompt false");
    }
    request.params.add_generation_prompt = false;
  }
  return grpc::Status::OK;
}

}  // namespace lintel
