// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response_request.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/core/sha256.h"
#include "proto/fields/field_names.h"
#include "proto/fields/request_fields.h"
#include "proto/fields/unserved_members.h"
#include "server/grammar/grammar.h"
#include "server/openai/answer_format.h"
#include "server/openai/custom_tools.h"
#include "server/openai/members.h"
#include "server/openai/response_items.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// Thrown while the body is read: the member and its error.
struct MemberError {
  std::string member;
  std::string what;
};

const Json kNull;

const Json& part_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

bool is_among(std::span<const char* const> names, const std::string& name) {
  return std::ranges::any_of(names, [&](const char* each) { return name == each; });
}

// Members that a chat completion has under the same name, and reads itself: next to those of the
// table of fields.
constexpr const char* kSameMembers[] = {
    "parallel_tool_calls", "chat_template_kwargs", "enable_thinking",   "thinking_token_budget",
    "documents",           "skip_special_tokens",  "timings_per_token", "lintel"};
// The same of those that say what the text of an answer is, as text.format does.
constexpr const char* kFormatMembers[] = {"grammar",      "structured_outputs", "guided_choice",
                                          "guided_regex", "guided_json",        "guided_grammar"};

bool is_same_member(const std::string& name) {
  return is_among(kSameMembers, name) || is_among(kFormatMembers, name) ||
         find_field(&RequestField::responses, name);
}

// Members read by Reader.
constexpr const char* kResponseMembers[] = {"input",
                                            "instructions",
                                            "previous_response_id",
                                            "tools",
                                            "tool_choice",
                                            "max_output_tokens",
                                            "top_logprobs",
                                            "text",
                                            "reasoning",
                                            "store",
                                            "stream",
                                            "stream_options",
                                            "include",
                                            "metadata",
                                            "max_tool_calls",
                                            "safety_identifier",
                                            "prompt_cache_key",
                                            "prompt_cache_options",
                                            "client_metadata",
                                            "user",
                                            "service_tier",
                                            "truncation",
                                            "background",
                                            "prompt_cache_retention"};

constexpr std::string_view kTextMembers[] = {"format", "verbosity"};
constexpr std::string_view kReasoningMembers[] = {"effort", "summary", "generate_summary"};

const std::vector<std::string_view>& served_response_members() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> own(std::begin(kResponseMembers), std::end(kResponseMembers));
    own.insert(own.end(), std::begin(kSameMembers), std::end(kSameMembers));
    own.insert(own.end(), std::begin(kFormatMembers), std::end(kFormatMembers));
    return served_names(&RequestField::responses, std::move(own));
  }();
  return names;
}

constexpr const char* kRefused[] = {"conversation", "prompt", "context_management", "moderation"};

// Reads the members of a body.
class Reader {
 public:
  Reader(const Json& body, ResponseUse use, ResponseRequest& request)
      : body_(body), use_(use), request_(request) {}

  grpc::Status read() {
    for (const auto& [name, value] : body_.items()) {
      if (use_ == ResponseUse::kTurn && name == "type") continue;
      if (value.is_null() || is_same_member(name) || is_among(kResponseMembers, name)) continue;
      if (is_among(kRefused, name)) throw MemberError{clip(name), "is not served"};
      pass("", name, value, served_response_members());
    }
    if (use_ == ResponseUse::kTurn && of("type") != "response.create") {
      throw MemberError{"type", "is not response.create, the one event that is served"};
    }
    chat_ = Json::object();
    for (const auto& [name, value] : body_.items()) {
      if (!value.is_null() && is_same_member(name)) chat_[name] = value;
    }
    request_.model = text_or_empty("model");
    request_.previous_response_id = text_or_empty("previous_response_id");
    request_.instructions = text_or_null("instructions");
    if (!of("input").is_null()) request_.input = of("input");
    if (request_.input.is_null()) {
      if (request_.previous_response_id.empty() || use_ == ResponseUse::kCreate ||
          use_ == ResponseUse::kTurn) {
        throw MemberError{"input", "is missing"};
      }
      request_.input = Json::array();
    }
    name_unread_items(request_.input, request_.ignored);
    if (use_ == ResponseUse::kCompact && request_.model.empty()) {
      throw MemberError{"model", "is missing"};
    }
    request_.store = flag("store", true);
    request_.streams = flag("stream", false) || use_ == ResponseUse::kTurn;
    request_.is_background = flag("background", false);
    if (request_.is_background && use_ == ResponseUse::kTurn) {
      throw MemberError{"background", "true is not served on a connection"};
    }
    if (request_.is_background && !request_.store) {
      throw MemberError{"background", "true goes with store"};
    }
    read_stream_options();
    read_include();
    read_tools();
    read_tool_choice();
    read_text();
    check_form_of_text();
    read_reasoning();
    read_numbers();
    make_response();
    ChatRequest chat;
    chat.ignored = std::move(request_.ignored);
    grpc::Status status = with_response_members(read_chat_members(std::move(chat_), chat));
    request_.chat = std::move(chat.params);
    request_.has_timings = chat.timings;
    request_.ignored = std::move(chat.ignored);
    return status;
  }

 private:
  const Json& of(const char* name) const { return part_of(body_, name); }

  // Ignores a member, or throws. object: the one that has it, with its dot.
  void pass(const std::string& object, const std::string& name, const Json& value,
            std::span<const std::string_view> served) {
    const std::string wrong =
        pass_unknown(object, name, value, UnservedMember::kResponses, served, request_.ignored);
    if (!wrong.empty()) throw MemberError{object + clip(name), wrong};
  }

  Json text_or_null(const char* name) const {
    if (!of(name).is_null() && !of(name).is_string()) throw MemberError{name, "is not a text"};
    return of(name);
  }
  std::string text_or_empty(const char* name) const {
    const Json text = text_or_null(name);
    return text.is_null() ? "" : text.get<std::string>();
  }
  bool flag(const char* name, bool otherwise) const {
    if (of(name).is_null()) return otherwise;
    if (!of(name).is_boolean()) throw MemberError{name, "is not true or false"};
    return of(name).get<bool>();
  }
  // Reads a whole number from `least` to `most`; null: it is missing.
  Json count(const char* name, std::int64_t least, std::int64_t most) const {
    const Json& value = of(name);
    if (value.is_null()) return value;
    const bool is_count = value.is_number_integer() && value.get<std::int64_t>() >= least &&
                          value.get<std::int64_t>() <= most;
    if (!is_count) {
      throw MemberError{name, "is not " + whole_number_text(least, most)};
    }
    return value;
  }

  void ignore(const std::string& name) { request_.ignored.add(name); }

  void read_stream_options() {
    const Json& options = of("stream_options");
    if (options.is_null()) return;
    if (!options.is_object()) throw MemberError{"stream_options", "is not an object"};
    for (const auto& [name, option] : options.items()) {
      constexpr std::string_view kServed[] = {"include_obfuscation"};
      if (name != kServed[0] || option == true) pass("stream_options.", name, option, kServed);
    }
  }

  void read_include() {
    const Json& include = of("include");
    if (include.is_null()) return;
    if (!include.is_array()) throw MemberError{"include", "is not a list"};
    for (const Json& each : include) {
      if (!each.is_string()) throw MemberError{"include", "has a value that is not a text"};
      if (each == "reasoning.encrypted_content") {
        request_.seals_reasoning = true;
      } else if (each == "message.output_text.logprobs") {
        request_.has_logprobs = true;
      } else {
        ignore("include=" + each.get<std::string>());
      }
    }
  }

  void read_tools() {
    const Json& tools = of("tools");
    tools_ = Json::array();
    if (tools.is_null()) return;
    if (!tools.is_array()) throw MemberError{"tools", "is not a list"};
    Json nested = Json::array();
    for (std::size_t i = 0; i < tools.size(); ++i) {
      const std::string at = "tools[" + std::to_string(i) + "]";
      if (!tools[i].is_object()) throw MemberError{at, "is not an object"};
      const Json& type = part_of(tools[i], "type");
      if (!type.is_string()) throw MemberError{at + ".type", "is not a text"};
      if (type != "function" && type != "custom") {
        ignore("tools=" + type.get<std::string>());
        continue;
      }
      check_tool_name(tools[i], at);
      nested.push_back({{"type", "function"},
                        {"function", type == "custom" ? read_custom(tools[i], at)
                                                      : read_function(tools[i], at)}});
    }
    if (!nested.empty()) chat_["tools"] = std::move(nested);
  }

  // Checks that a name belongs to one kind of tool, so that calls are unambiguous.
  void check_tool_name(const Json& tool, const std::string& at) {
    const Json& name = part_of(tool, "name");
    const std::string wrong = tool_name_error(name);
    if (!wrong.empty()) throw MemberError{at + ".name", wrong};
    const std::string type = tool["type"];
    const auto [named, is_first] = tool_types_.emplace(name.get<std::string>(), type);
    if (!is_first && (named->second == "custom" || type == "custom")) {
      throw MemberError{at + ".name", "is " + named->first + ", the name of another tool"};
    }
  }

  // The following functions return a tool as a function of a chat.
  Json read_function(const Json& tool, const std::string& at) {
    Json function = Json::object();
    for (const auto& [name, value] : tool.items()) {
      if (name != "type" && !value.is_null()) function[name] = value;
    }
    Json echo = {{"type", "function"}};
    for (const char* const name : {"name", "description", "parameters", "strict"}) {
      echo[name] = part_of(tool, name);
    }
    if (!echo["strict"].is_null() && !echo["strict"].is_boolean()) {
      throw MemberError{at + ".strict", "is not true or false"};
    }
    if (!echo["parameters"].is_null() && !echo["parameters"].is_object()) {
      throw MemberError{at + ".parameters", "is not an object"};
    }
    check_description(tool, at);
    tools_.push_back(std::move(echo));
    return function;
  }

  Json read_custom(const Json& tool, const std::string& at) {
    const Json& format = part_of(tool, "format");
    Json echo = {{"type", "custom"}, {"name", tool["name"]}};
    check_description(tool, at);
    echo["description"] = part_of(tool, "description");
    echo["format"] = format.is_null() ? Json{{"type", "text"}} : format;
    if (!format.is_null()) check_format(format, at + ".format");
    Json function;
    try {
      function = function_of_custom_tool(echo);
    } catch (const grammar::GrammarError& error) {
      throw MemberError{at + ".format.definition",
                        "is not a regular expression that is served: " + error.reason()};
    }
    tools_.push_back(std::move(echo));
    return function;
  }

  void check_format(const Json& format, const std::string& at) {
    const Json& type = format.is_object() ? part_of(format, "type") : kNull;
    if (type == "text") return;
    if (type != "grammar") throw MemberError{at, "is not of type text or grammar"};
    const Json& syntax = part_of(format, "syntax");
    if (syntax != "lark" && syntax != "regex") {
      throw MemberError{at + ".syntax", "is not lark or regex"};
    }
    if (!part_of(format, "definition").is_string()) {
      throw MemberError{at + ".definition", "is not a text"};
    }
    // Shown to the model, and not enforced.
    if (syntax == "lark") ignore("tools.format=lark");
  }

  static void check_description(const Json& tool, const std::string& at) {
    const Json& description = part_of(tool, "description");
    if (!description.is_null() && !description.is_string()) {
      throw MemberError{at + ".description", "is not a text"};
    }
  }

  static Json nested_choice(const Json& function) {
    return {{"type", "function"}, {"function", {{"name", part_of(function, "name")}}}};
  }
  // Refuses a choice of tools that are not served; otherwise these are left out.
  static void check_choice(const Json& choice) {
    const Json& type = part_of(choice, "type");
    if (type == "function" || type == "custom") return;
    const std::string name = type.is_string() ? clip(type.get<std::string>()) : "no text";
    throw MemberError{"tool_choice",
                      "names a tool of type " + name + ": function and custom are served"};
  }

  void read_tool_choice() {
    const Json& choice = of("tool_choice");
    choice_ = choice.is_null() ? Json("auto") : choice;
    if (choice.is_null()) return;
    Json nested = choice;
    if (choice.is_object() && part_of(choice, "type") == "allowed_tools") {
      Json allowed = {{"mode", choice.value("mode", Json("auto"))}, {"tools", Json::array()}};
      for (const Json& tool : part_of(choice, "tools")) {
        if (!tool.is_object()) throw MemberError{"tool_choice", "allows what is no tool"};
        check_choice(tool);
        allowed["tools"].push_back(nested_choice(tool));
      }
      if (!choice_.contains("mode")) choice_["mode"] = "auto";
      nested = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
    } else if (choice.is_object()) {
      check_choice(choice);
      nested = nested_choice(choice);
    }
    chat_["tool_choice"] = std::move(nested);
  }

  void read_text() {
    const Json& text = of("text");
    text_ = {{"format", {{"type", "text"}}}};
    if (text.is_null()) return;
    if (!text.is_object()) throw MemberError{"text", "is not an object"};
    for (const auto& [name, value] : text.items()) {
      if (value.is_null()) continue;
      if (name == "format") {
        read_format(value);
      } else if (name == "verbosity") {
        if (value != "low" && value != "medium" && value != "high") {
          throw MemberError{"text.verbosity", "is not low, medium or high"};
        }
        text_["verbosity"] = value;
        chat_["verbosity"] = value;
      } else {
        pass("text.", name, value, kTextMembers);
      }
    }
  }

  void read_format(const Json& format) {
    const Json type = format.is_object() ? part_of(format, "type") : Json();
    std::vector<std::string_view> known = {"type"};
    if (type == "json_schema") {
      const Json strict = part_of(format, "strict");
      if (!strict.is_null() && !strict.is_boolean()) {
        throw MemberError{"text.format.strict", "is not true or false"};
      }
      if (!part_of(format, "name").is_string()) {
        throw MemberError{"text.format.name", "is not a text"};
      }
      if (!format.contains("schema")) throw MemberError{"text.format.schema", "is missing"};
      text_["format"] = {{"type", "json_schema"},
                         {"name", format["name"]},
                         {"description", part_of(format, "description")},
                         {"schema", format["schema"]},
                         {"strict", strict == true}};
      chat_["response_format"] = {
          {"type", "json_schema"},
          {"json_schema",
           {{"name", format["name"]}, {"schema", format["schema"]}, {"strict", strict == true}}}};
      known.insert(known.end(), {"name", "description", "schema", "strict"});
    } else if (type == "json_object") {
      text_["format"] = {{"type", type}};
      if (const Json schema = part_of(format, "schema"); !schema.is_null()) {
        text_["format"]["schema"] = schema;
      }
      chat_["response_format"] = text_["format"];
      known.emplace_back("schema");
    } else if (type != "text") {
      throw MemberError{"text.format", "is not of type text, json_object or json_schema"};
    }
    for (const auto& [name, value] : format.items()) {
      if (std::ranges::find(known, name) != known.end()) continue;
      pass("text.format.", name, value, known);
    }
  }

  // Refuses what a chat refuses next to response_format, by the names of a response.
  void check_form_of_text() const {
    if (!chat_.contains("response_format")) return;
    for (const char* const name : kFormatMembers) {
      if (has_answer_format(name, part_of(chat_, name))) {
        throw MemberError{name, "cannot be combined with text.format"};
      }
    }
    if (part_of(chat_, "ignore_eos") == true) {
      throw MemberError{"ignore_eos",
                        "cannot be combined with text.format, which needs the model's end"};
    }
  }

  void read_reasoning() {
    const Json& reasoning = of("reasoning");
    reasoning_ = {{"effort", nullptr}, {"summary", nullptr}};
    if (reasoning.is_null()) return;
    if (!reasoning.is_object()) throw MemberError{"reasoning", "is not an object"};
    for (const auto& [name, value] : reasoning.items()) {
      if (value.is_null()) continue;
      if (name == "effort") {
        chat_["reasoning_effort"] = value;
        reasoning_["effort"] = value;
      } else if (name == "summary" || name == "generate_summary") {
        if (value != "auto" && value != "concise" && value != "detailed") {
          throw MemberError{"reasoning." + name, "is not auto, concise or detailed"};
        }
        reasoning_["summary"] = value;
      } else {
        pass("reasoning.", name, value, kReasoningMembers);
      }
    }
  }

  void read_numbers() {
    const Json most = count("max_output_tokens", 1, INT32_MAX);
    if (!most.is_null()) chat_["max_completion_tokens"] = most;
    const Json top = count("top_logprobs", 0, UINT32_MAX);
    if (request_.has_logprobs) {
      chat_["logprobs"] = true;
      if (!top.is_null()) chat_["top_logprobs"] = top;
    }
  }

  Json metadata() const {
    const Json& metadata = of("metadata");
    if (metadata.is_null()) return Json::object();
    if (!metadata.is_object() || metadata.size() > kMostMetadata) {
      throw MemberError{"metadata",
                        "is not an object of at most " + std::to_string(kMostMetadata) + " texts"};
    }
    for (const auto& [key, value] : metadata.items()) {
      if (key.size() > kMostMetadataKeyBytes || !value.is_string() ||
          value.get_ref<const std::string&>().size() > kMostMetadataValueBytes) {
        throw MemberError{"metadata", "has a key of more than " +
                                          std::to_string(kMostMetadataKeyBytes) +
                                          " bytes, or a value that is no text of at most " +
                                          std::to_string(kMostMetadataValueBytes)};
      }
    }
    return metadata;
  }

  Json number_or(const char* name, double otherwise) const {
    return of(name).is_number() ? of(name) : Json(otherwise);
  }

  void make_response() {
    const Json& truncation = of("truncation");
    if (!truncation.is_null() && truncation != "auto" && truncation != "disabled") {
      throw MemberError{"truncation", "is not auto or disabled"};
    }
    text_or_null("service_tier");
    text_or_null("prompt_cache_retention");
    const Json& previous = of("previous_response_id");
    Json& response = request_.response;
    response = {{"id", nullptr}, {"object", "response"}, {"created_at", 0}};
    response["completed_at"] = nullptr;
    response["status"] = "in_progress";
    response["incomplete_details"] = nullptr;
    response["model"] = request_.model;
    response["previous_response_id"] = previous;
    response["instructions"] = request_.instructions;
    response["output"] = Json::array();
    response["error"] = nullptr;
    response["tools"] = tools_;
    response["tool_choice"] = choice_;
    response["truncation"] = "disabled";
    response["parallel_tool_calls"] = flag("parallel_tool_calls", true);
    response["text"] = text_;
    response["top_p"] = number_or("top_p", 1.0);
    response["presence_penalty"] = number_or("presence_penalty", 0.0);
    response["frequency_penalty"] = number_or("frequency_penalty", 0.0);
    response["top_logprobs"] = of("top_logprobs").is_null() ? Json(0) : of("top_logprobs");
    response["temperature"] = number_or("temperature", 1.0);
    response["reasoning"] = reasoning_;
    response["usage"] = nullptr;
    response["max_output_tokens"] = of("max_output_tokens");
    response["max_tool_calls"] = count("max_tool_calls", 1, INT32_MAX);
    response["store"] = request_.store;
    response["background"] = request_.is_background;
    response["service_tier"] = "default";
    response["metadata"] = metadata();
    response["safety_identifier"] = text_or_null("safety_identifier");
    response["prompt_cache_key"] = text_or_null("prompt_cache_key");
    const Json user = text_or_null("user");
    if (!user.is_null()) response["user"] = user;
  }

  const Json& body_;
  const ResponseUse use_;
  ResponseRequest& request_;
  Json chat_;  // the body of the chat completion
  Json tools_, choice_, text_, reasoning_;
  std::map<std::string, std::string> tool_types_;  // by name
};

// The names of a chat completion's members, and those in a request for a response.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"messages", "input"},
    {"max_completion_tokens", "max_output_tokens"},
    {"max_tokens", "max_output_tokens"},
    {"response_format.json_schema.schema", "text.format.schema"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
};

std::string response_member(const std::string& given) {
  std::string field = api_field(&RequestField::responses, given);
  for (const auto& [theirs, ours] : kNames) {
    if (is_of_field(field, theirs)) return std::string(ours) + field.substr(theirs.size());
  }
  // A response's tool has no object `function`.
  const std::size_t nested = field.find(".function.");
  if (field.starts_with("tools") && nested != std::string::npos) field.erase(nested, 9);
  return field;
}

}  // namespace

grpc::Status read_response_request(const Json& body, ResponseUse use, ResponseRequest& request) {
  try {
    return Reader(body, use, request).read();
  } catch (const MemberError& error) {
    return invalid_argument({{error.member, error.what}});
  }
}

namespace {

// Finds the response that a body continues, without room for the tree of the body.
class PreviousReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit PreviousReader(std::string& id) : id_(id) {}

  bool key(std::string& name) override {
    is_previous_ = depth_ == 1 && name == "previous_response_id";
    return true;
  }
  bool string(std::string& value) override {
    if (std::exchange(is_previous_, false)) id_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not in JSON
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool open() {
    ++depth_;
    is_previous_ = false;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string& id_;
  std::size_t depth_ = 0;
  bool is_previous_ = false;  // the next value
};

}  // namespace

JsonFailure read_response_request(std::string_view text, ResponseUse use, const std::string& caller,
                                  const std::function<bool()>& is_cancelled,
                                  ReceivedResponse& response) {
  JsonFailure failure;
  ResponseRequest& request = response.request;
  response.bytes = text.size();
  RequestBudget tree(response.charge, kItemCopies, is_cancelled);
  Json body;
  response.status = read_json_body(text, {.budget = &tree}, body, failure);
  if (response.status.ok()) {
    const Json& previous = part_of(body, "previous_response_id");
    if (previous.is_string()) request.previous_response_id = previous.get<std::string>();
    response.has_temperature = !part_of(body, "temperature").is_null();
    response.has_top_p = !part_of(body, "top_p").is_null();
    response.status = read_response_request(body, use, request);
  } else if (use == ResponseUse::kTurn) {
    PreviousReader reader(request.previous_response_id);
    JsonFailure none;
    read_json_events(text, {}, reader, none);
  }
  RequestRefusal refusal = tree.refusal();
  if (!refusal) refusal = response.charge.add(response.idempotency_key.size());
  if (refusal) response.status = request_memory_refusal(refusal, caller, "input");
  if (!response.idempotency_key.empty()) {
    Sha256 hash;
    hash.add(text);
    response.digest = hash.hex();
  }
  if (request.store && request.is_background) response.text = text;
  return failure;
}

void ReceivedResponse::continue_turn(std::optional<std::string> items, const std::string& caller) {
  if (!items || !status.ok()) return;
  if (const RequestRefusal refusal = charge.add(items->size())) {
    status = request_memory_refusal(refusal, caller, "input");
    return;
  }
  earlier = std::move(items);
}

grpc::Status with_response_members(const grpc::Status& status) {
  return with_fields(status, response_member);
}

}  // namespace lintel
