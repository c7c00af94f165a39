// SPDX-License-Identifier: Apache-2.0
// Converts the body to one of OpenAI's chats, whose reader checks it.
#include "server/ollama/request.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "proto/fields/field_names.h"
#include "server/chat/chat_output.h"
#include "server/openai/members.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// A body during its conversion to OpenAI's.
struct OllamaReading {
  OllamaRequest& request;
  Json openai = Json::object();
  Json system, prompt;  // of /api/generate
  bool logprobs = false;
  Json top_logprobs;
  std::optional<std::int64_t> repeat_last_n;
};

// Returned by readers for a member that they accept.
const std::string kRead;

std::string read_true_or_false(const Json& value, bool& flag) {
  if (!value.is_boolean()) return "is not true or false";
  flag = value.get<bool>();
  return kRead;
}

// True for an empty value of a member that is not served; others are refused.
bool is_nothing(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || (value.is_structured() && value.empty());
}

template <int reason>
std::string refuse_unless_empty(Json& value, OllamaReading&) {
  constexpr const char* kReasons[] = {
      "is not served: models here read and write text",
      "is not served: /api/chat continues a conversation by its messages",
      "is not taken from a request: the model's own is used",
      "is not served: models here continue a prompt, and fill no gaps",
  };
  return is_nothing(value) ? kRead : kReasons[reason];
}

// A whole number; clients also write 40.0.
std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto number = value.get<double>();
  if (!(std::abs(number) <= kExact) || number != std::trunc(number)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

constexpr const char* kNotWhole = "is not a whole number";

std::string read_num_predict(Json& value, OllamaReading& reading) {
  const std::optional<std::int64_t> count = whole_number(value);
  if (!count) return kNotWhole;
  if (*count < -2) return "is " + std::to_string(*count) + ", at least -2 is required";
  // Both -1 and -2 mean as many as fit, and so does what is beyond 32 bits.
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (*count >= 0) reading.openai["max_tokens"] = std::min(*count, kMost);
  return kRead;
}

std::string read_top_k(Json& value, OllamaReading& reading) {
  const std::optional<std::int64_t> count = whole_number(value);
  if (!count) return kNotWhole;
  reading.openai["top_k"] = std::max<std::int64_t>(*count, 0);
  return kRead;
}

std::string read_seed(Json& value, OllamaReading& reading) {
  const std::optional<std::int64_t> seed = whole_number(value);
  if (!seed) return kNotWhole;
  if (*seed != -1) reading.openai["seed"] = *seed;  // -1: the server draws one
  return kRead;
}

std::string read_repeat_last_n(Json& value, OllamaReading& reading) {
  const std::optional<std::int64_t> count = whole_number(value);
  if (!count) return kNotWhole;
  if (*count < -1) return "is " + std::to_string(*count) + ", at least -1 is required";
  reading.repeat_last_n = count;
  return kRead;
}

// Reads an option that is not served: only `neutral`, its off value, is accepted.
template <int neutral>
std::string refuse_unless_off(Json& value, OllamaReading&) {
  if (value.is_number() && value.get<double>() == neutral) return kRead;
  return "is not served: only " + std::to_string(neutral) + ", which is off";
}

std::string ignore_member(Json&, OllamaReading&) { return kRead; }

struct OllamaOption {
  const char* name;
  const char* openai;  // the member there; empty: none
  // Returns an error; empty: none. Null: the value is copied to that member.
  std::string (*read)(Json& value, OllamaReading& reading);
};

// Options of /api/chat and /api/generate. Those about the way in which Ollama runs a model have no
// effect.
constexpr OllamaOption kOllamaOptions[] = {
    {"temperature", "temperature", nullptr},
    {"top_k", "top_k", read_top_k},
    {"top_p", "top_p", nullptr},
    {"min_p", "min_p", nullptr},
    {"seed", "seed", read_seed},
    {"num_predict", "max_tokens", read_num_predict},
    {"stop", "stop", nullptr},
    {"repeat_penalty", "repetition_penalty", nullptr},
    {"presence_penalty", "presence_penalty", nullptr},
    {"frequency_penalty", "frequency_penalty", nullptr},
    {"repeat_last_n", "penalty_window", read_repeat_last_n},
    {"typical_p", "", refuse_unless_off<1>},
    {"tfs_z", "", refuse_unless_off<1>},
    {"mirostat", "", refuse_unless_off<0>},
    {"mirostat_tau", "", ignore_member},
    {"mirostat_eta", "", ignore_member},
    {"penalize_newline", "", ignore_member},
    {"num_keep", "", ignore_member},
    {"num_ctx", "", ignore_member},
    {"num_batch", "", ignore_member},
    {"num_gpu", "", ignore_member},
    {"main_gpu", "", ignore_member},
    {"num_thread", "", ignore_member},
    {"numa", "", ignore_member},
    {"low_vram", "", ignore_member},
    {"f16_kv", "", ignore_member},
    {"logits_all", "", ignore_member},
    {"vocab_only", "", ignore_member},
    {"use_mmap", "", ignore_member},
    {"use_mlock", "", ignore_member},
    {"embedding_only", "", ignore_member},
    {"draft_num_predict", "", ignore_member},
};

// Sets the number of last tokens that penalties count; 64 by default.
void set_penalty_window(OllamaReading& reading) {
  constexpr std::int64_t kDefaultLast = 64;
  Json& openai = reading.openai;
  const bool has_penalty = openai.contains("repetition_penalty") ||
                           openai.contains("presence_penalty") ||
                           openai.contains("frequency_penalty");
  if (!reading.repeat_last_n && !has_penalty) return;
  const std::int64_t last = reading.repeat_last_n.value_or(kDefaultLast);
  if (last > 0) openai["penalty_window"] = last;
  if (last != 0) return;  // -1: all tokens
  openai["repetition_penalty"] = 1;
  openai["presence_penalty"] = 0;
  openai["frequency_penalty"] = 0;
}

// Names of options that have an effect.
const std::vector<std::string_view>& served_options() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> served;
    for (const OllamaOption& option : kOllamaOptions) {
      if (*option.openai != '\0') served.emplace_back(option.name);
    }
    return served;
  }();
  return names;
}

std::string read_options(Json& value, OllamaReading& reading) {
  if (!value.is_object()) return "is not an object";
  for (auto& [name, option] : value.get_ref<Json::object_t&>()) {
    if (option.is_null()) continue;
    const auto* const known = std::ranges::find_if(
        kOllamaOptions, [&](const OllamaOption& row) { return name == row.name; });
    std::string wrong;
    if (known == std::end(kOllamaOptions)) {
      wrong = pass_unknown("options.", name, option, /*api=*/0, served_options(),
                           reading.request.chat->ignored);
    } else if (known->read == nullptr) {
      reading.openai[known->openai] = std::move(option);
    } else {
      wrong = known->read(option, reading);
    }
    if (!wrong.empty()) return "." + clip(name) + ": " + wrong;
  }
  set_penalty_window(reading);
  return kRead;
}

std::string read_model(Json& value, OllamaReading& reading) {
  if (!value.is_string()) return "is not a text";
  reading.request.model = value.get<std::string>();
  reading.openai["model"] = without_latest(reading.request.model);
  return kRead;
}

// Reads seconds, or a duration in Go's form: "5m", "1h30m", "0s".
std::string read_keep_alive(Json& value, OllamaReading& reading) {
  if (value.is_number()) {
    reading.request.keep_alive = value.get<double>() != 0;
    return kRead;
  }
  if (!value.is_string()) return "is not a number of seconds or a duration";
  const auto& text = value.get_ref<const std::string&>();
  reading.request.keep_alive =
      text.empty() || std::ranges::any_of(text, [](char c) { return c >= '1' && c <= '9'; });
  return kRead;
}

std::string read_format(Json& value, OllamaReading& reading) {
  if (value == "json") {
    reading.openai["response_format"] = {{"type", "json_object"}};
  } else if (value.is_object()) {
    Json& format = reading.openai["response_format"] = {{"type", "json_schema"}};
    format["json_schema"] = {{"name", "format"}};
    format["json_schema"]["schema"] = std::move(value);
  } else if (value != "") {
    return "is not \"json\" or a schema";
  }
  return kRead;
}

std::string read_think(Json& value, OllamaReading& reading) {
  if (value.is_boolean() && value.get<bool>()) {
    reading.openai["chat_template_kwargs"] = {{"enable_thinking", true}, {"thinking", true}};
  } else if (value.is_boolean()) {
    reading.openai["reasoning_effort"] = "none";
  } else if (value == "low" || value == "medium" || value == "high" || value == "max") {
    reading.openai["reasoning_effort"] = std::move(value);
  } else {
    return "is not true, false, low, medium, high or max";
  }
  return kRead;
}

std::string refuse_render_only(Json& value, OllamaReading&) {
  if (value.is_boolean() && !value.get<bool>()) return kRead;
  return "is not served: lintel.v1.ChatService/Render shows a prompt";
}

// Calls of a message that have no results yet, at most kMostCalls.
using OpenCalls = std::deque<std::pair<std::string, std::string>>;  // id and name

// Converts a message's calls to OpenAI's form: with an id, by which their results name them.
std::string read_calls(Json& calls, std::size_t& num_calls, OpenCalls& open) {
  if (!calls.is_array()) return ".tool_calls: is not a list";
  open.clear();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string at = ".tool_calls[" + std::to_string(i) + "]";
    const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
    if (!calls[i].is_object() || function == calls[i].end() || !function->is_object() ||
        !function->contains("name") || !function->at("name").is_string()) {
      return at + ".function.name: is not a text";
    }
    const auto id = calls[i].find("id");
    const bool has_id = id != calls[i].end() && id->is_string() && *id != "";
    // Ids have 9 characters of A-Z a-z 0-9, as templates of Mistral require.
    const std::string digits = std::to_string(num_calls++);
    const std::string made =
        "call" + std::string(5 - std::min<std::size_t>(digits.size(), 5), '0') + digits;
    Json call = {{"id", has_id ? *id : Json(made)}, {"type", "function"}};
    function->erase("index");
    if (open.size() < kMostCalls) {
      open.emplace_back(call["id"].get<std::string>(), function->at("name").get<std::string>());
    }
    call["function"] = std::move(*function);
    calls[i] = std::move(call);
  }
  return kRead;
}

// Gives a result the id of its call: the first call without a result of the tool in tool_name.
void name_result(Json& message, OpenCalls& open) {
  const auto text_of = [&](const char* member) {
    const auto found = message.find(member);
    return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string name = text_of("tool_name"), id = text_of("tool_call_id");
  message.erase("tool_name");
  if (!name.empty()) message["name"] = name;
  const auto call = std::ranges::find_if(open, [&](const auto& each) {
    return id.empty() ? name.empty() || each.second == name : each.first == id;
  });
  if (call == open.end()) return;
  if (id.empty()) message["tool_call_id"] = call->first;
  open.erase(call);
}

std::string read_message(Json& message, std::size_t& num_calls, OpenCalls& open) {
  if (!message.is_object()) return ": is not an object";
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return ".role: is not a text";
  *role = in_lower_case(role->get<std::string>());
  const bool is_result = *role == "tool";
  if (message.contains("images") && !is_nothing(message["images"])) {
    return ".images: is not served: models here read and write text";
  }
  message.erase("images");
  if (const auto calls = message.find("tool_calls"); calls != message.end()) {
    if (is_nothing(*calls)) {
      message.erase("tool_calls");
    } else if (std::string wrong = read_calls(*calls, num_calls, open); !wrong.empty()) {
      return wrong;
    }
  }
  if (is_result) name_result(message, open);
  return kRead;
}

std::string read_chat_messages(Json& value, OllamaReading& reading) {
  if (!value.is_array()) return "is not a list";
  if (value.empty()) return kRead;
  if (value.size() > kMostMessages) {
    return "has " + std::to_string(value.size()) + " messages, at most " +
           std::to_string(kMostMessages) + " are taken";
  }
  std::size_t num_calls = 0;
  OpenCalls open;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string wrong = read_message(value[i], num_calls, open);
    if (!wrong.empty()) return "[" + std::to_string(i) + "]" + wrong;
  }
  // A last message of the assistant is continued.
  const Json& last = value.back();
  if (last["role"] == "assistant" && !last.contains("tool_calls") && last.contains("content") &&
      !is_nothing(last["content"])) {
    reading.openai["continue_final_message"] = true;
  }
  reading.openai["messages"] = std::move(value);
  return kRead;
}

template <Json OllamaReading::*member>
std::string read_text_of(Json& value, OllamaReading& reading) {
  if (!value.is_string()) return "is not a text";
  reading.*member = std::move(value);
  return kRead;
}

std::string pass_tools(Json& value, OllamaReading& reading) {
  reading.openai["tools"] = std::move(value);
  return kRead;
}

std::string pass_tool_choice(Json& value, OllamaReading& reading) {
  reading.openai["tool_choice"] = std::move(value);
  return kRead;
}

enum class Takes { kBoth, kChat, kGenerate };

struct OllamaMember {
  const char* name;
  Takes routes;
  // Returns an error; empty: none. It may take the value.
  std::string (*read)(Json& value, OllamaReading& reading);
  bool is_served = true;  // false: other values than empty ones are refused
};

constexpr OllamaMember kOllamaMembers[] = {
    {"model", Takes::kBoth, read_model},
    {"stream", Takes::kBoth,
     [](Json& v, OllamaReading& r) { return read_true_or_false(v, r.request.streams); }},
    {"options", Takes::kBoth, read_options},
    {"format", Takes::kBoth, read_format},
    {"think", Takes::kBoth, read_think},
    {"keep_alive", Takes::kBoth, read_keep_alive},
    {"logprobs", Takes::kBoth,
     [](Json& v, OllamaReading& r) { return read_true_or_false(v, r.logprobs); }},
    {"top_logprobs", Takes::kBoth,
     [](Json& v, OllamaReading& r) {
       r.top_logprobs = std::move(v);
       return kRead;
     }},
    {"truncate", Takes::kBoth, ignore_member},  // a prompt that is too long is refused
    {"shift", Takes::kBoth, ignore_member},
    {"_debug_render_only", Takes::kBoth, refuse_render_only, false},
    {"messages", Takes::kChat, read_chat_messages},
    {"tools", Takes::kChat, pass_tools},
    {"tool_choice", Takes::kChat, pass_tool_choice},  // an extension: OpenAI's
    {"prompt", Takes::kGenerate, read_text_of<&OllamaReading::prompt>},
    {"system", Takes::kGenerate, read_text_of<&OllamaReading::system>},
    {"raw", Takes::kGenerate,
     [](Json& v, OllamaReading& r) { return read_true_or_false(v, r.request.raw); }},
    {"images", Takes::kGenerate, refuse_unless_empty<0>, false},
    {"context", Takes::kGenerate, refuse_unless_empty<1>, false},
    {"template", Takes::kGenerate, refuse_unless_empty<2>, false},
    {"suffix", Takes::kGenerate, refuse_unless_empty<3>, false},
};

bool takes_member(OllamaRoute route, const OllamaMember& member) {
  return member.routes != (route == OllamaRoute::kChat ? Takes::kGenerate : Takes::kChat);
}

std::vector<std::string_view> made_served_members(OllamaRoute route) {
  std::vector<std::string_view> served;
  for (const OllamaMember& member : kOllamaMembers) {
    if (member.is_served && takes_member(route, member)) served.emplace_back(member.name);
  }
  return served;
}

const std::vector<std::string_view>& served_members_of(OllamaRoute route) {
  static const auto chat = made_served_members(OllamaRoute::kChat);
  static const auto generate = made_served_members(OllamaRoute::kGenerate);
  return route == OllamaRoute::kChat ? chat : generate;
}

// Reads the prompt of /api/generate as a conversation. Returns the member that cannot be combined
// with `raw`; empty: none.
std::string read_prompt_as_messages(OllamaReading& reading) {
  reading.request.has_system = !is_nothing(reading.system);
  if (reading.request.raw && reading.request.has_system) return "system";
  if (reading.request.raw && reading.openai.contains("response_format")) {
    return "format";
  }
  if (is_nothing(reading.prompt)) return kRead;
  Json& messages = reading.openai["messages"] = Json::array();
  if (reading.request.has_system) {
    messages.push_back({{"role", "system"}, {"content", std::move(reading.system)}});
  }
  messages.push_back({{"role", "user"}, {"content", std::move(reading.prompt)}});
  return kRead;
}

grpc::Status wrong_member(const std::string& name, const std::string& what) {
  // Errors about nested members: ".top_k: is not a whole number", "[3].role: is not a text".
  if (what.starts_with('.') || what.starts_with('[')) {
    const std::size_t end = what.find(": ");
    return invalid_argument({{name + what.substr(0, end), what.substr(end + 2)}});
  }
  return invalid_argument({{name, what}});
}

grpc::Status read_body_members(OllamaRoute route, Json body, OllamaRequest& request) {
  OllamaReading reading{.request = request};
  for (auto& [name, value] : body.get_ref<Json::object_t&>()) {
    if (value.is_null()) continue;  // as if it were not there
    const auto* const known = std::ranges::find_if(kOllamaMembers, [&](const OllamaMember& member) {
      return name == member.name && takes_member(route, member);
    });
    const std::string what = known == std::end(kOllamaMembers)
                                 ? pass_unknown("", name, value, /*api=*/0,
                                                served_members_of(route), request.chat->ignored)
                                 : known->read(value, reading);
    if (!what.empty()) return wrong_member(clip(name), what);
  }
  if (reading.logprobs) {
    reading.openai["logprobs"] = true;
    if (!reading.top_logprobs.is_null()) reading.openai["top_logprobs"] = reading.top_logprobs;
  }
  request.chat->params.shortens_answer = true;
  if (route == OllamaRoute::kGenerate) {
    const std::string wrong = read_prompt_as_messages(reading);
    if (!wrong.empty()) return invalid_argument({{wrong, "goes with raw false"}});
  }
  request.is_empty = !reading.openai.contains("messages");
  return request.is_empty ? read_chat_members(std::move(reading.openai), *request.chat)
                          : read_chat_request(std::move(reading.openai), *request.chat);
}

}  // namespace

JsonFailure read_ollama_request(OllamaRoute route, std::string_view text, const std::string& caller,
                                const std::function<bool()>& is_cancelled, OllamaRequest& request) {
  ChatRequest& chat = *request.chat;
  JsonFailure failure;
  chat.bytes = text.size();
  // The second copy is for the added members of messages and calls: roles and ids.
  RequestBudget tree(chat.charge, /*copies=*/2, is_cancelled);
  Json body;
  chat.status = read_json_body(text, {.budget = &tree}, body, failure);
  if (chat.status.ok()) chat.status = read_body_members(route, std::move(body), request);
  if (tree.refusal()) chat.status = request_memory_refusal(tree.refusal(), caller, "messages");
  return failure;
}

std::string without_latest(std::string name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return name;
}

std::string ollama_member(std::string_view field, OllamaRoute route) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"max_completion_tokens", "options.num_predict"},
      {"response_format.json_schema.schema", "format"},
      {"response_format.schema", "format"},
      {"response_format", "format"},
      {"reasoning_effort", "think"},
      {"chat_template_kwargs", "think"},
      {"prompt.text", "prompt"},
      {"name", "model"},  // of GetModelRequest
  };
  const std::string name = api_field(&RequestField::chat, field);
  for (const OllamaOption& option : kOllamaOptions) {
    const std::string_view openai = option.openai;
    if (openai.empty() || !is_of_field(name, openai)) continue;
    return "options." + (option.name + name.substr(openai.size()));
  }
  // The conversation that a prompt becomes.
  if (route == OllamaRoute::kGenerate && is_of_field(name, "messages")) return "prompt";
  for (const auto& [other, ours] : kOthers) {
    if (is_of_field(name, other)) return std::string(ours) + name.substr(other.size());
  }
  return name;
}

}  // namespace lintel
