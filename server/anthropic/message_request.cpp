// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic/message_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "proto/fields/field_names.h"
#include "proto/fields/request_fields.h"
#include "proto/fields/unserved_members.h"
#include "server/chat/template/request_json.h"
#include "server/openai/members.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;
using ToolChoice = api::ChatParams::ToolChoice;

constexpr const char* kThinkingPurpose = "thinking";

// Members that others may be slips for.
const std::vector<std::string_view>& served_members_of_messages() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all = served_names(
        &RequestField::chat,
        {"messages", "system", "max_tokens", "stream", "stop_sequences", "thinking", "tools",
         "tool_choice", "metadata", "output_config", "output_format", "cache_control"});
    std::erase(all, "stop");
    return all;
  }();
  return names;
}

// Thrown while a request is read: the member and what is wrong with it.
struct WrongMember {
  std::string member;  // "messages[0].content[1].type"
  std::string what;
  const char* reason = nullptr;  // that programs distinguish; null: none
};

const Json& member_of_object(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::string indexed_member(const std::string& list, std::size_t index) {
  return list + "[" + std::to_string(index) + "]";
}

// The text of a member, which the object keeps no more.
std::string take_text(Json& object, const char* name, const std::string& at) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    throw WrongMember{at + "." + name, "is not a text"};
  }
  return std::move(found->get_ref<std::string&>());
}

std::string type_of_object(const Json& object, const std::string& at) {
  if (!object.is_object()) throw WrongMember{at, "is not an object"};
  const Json& type = member_of_object(object, "type");
  if (!type.is_string()) throw WrongMember{at + ".type", "is not a text"};
  return type.get<std::string>();
}

[[noreturn]] void refuse_block(const std::string& type, const std::string& at) {
  throw WrongMember{at + ".type",
                    "is " + clip(type) + ", which is not served: models here read text"};
}

// Blocks that calls of a server's own tools leave in a conversation. No model here made them.
bool is_of_server_tool(std::string_view type) {
  constexpr std::array<std::string_view, 4> kOthers = {"server_tool_use", "mcp_tool_use",
                                                       "container_upload", "compaction"};
  return type.ends_with("_tool_result") || std::ranges::find(kOthers, type) != kOthers.end();
}

void append_with(const char* separator, std::string more, std::string& text) {
  if (text.empty()) {
    text = std::move(more);
  } else if (!more.empty()) {
    text += separator;
    text += more;
  }
}

// Messages of a chat completion, made of Anthropic's one after the other. Neighbours of one role
// become one message.
class ChatMessages {
 public:
  ChatMessages(const Sealer& sealer, IgnoredMembers& ignored)
      : sealer_(sealer), ignored_(ignored) {}

  void add(Json message, const std::string& at) {
    if (!message.is_object()) throw WrongMember{at, "is not an object"};
    const Json& role = member_of_object(message, "role");
    Json content = std::move(message["content"]);
    if (role == "assistant") {
      add_answer(std::move(content), at + ".content");
    } else if (role == "user") {
      add_user(std::move(content), at + ".content");
    } else if (role == "system") {
      add_system(std::move(content), at + ".content");
    } else {
      throw WrongMember{at + ".role", "is not user, assistant or system"};
    }
  }

  // Adds system text, unless there is none.
  void add_system(Json content, const std::string& at) {
    std::string text = text_of(std::move(content), at, /*skips_billing=*/true);
    if (!text.empty()) add_text("system", std::move(text));
  }

  Json take() { return std::move(messages_); }

 private:
  static constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

  // System text, or a user's.
  void add_text(const char* role, std::string text) {
    if (!messages_.empty() && messages_.back()["role"] == role) {
      append_with("\n\n", std::move(text), last_text());
    } else {
      messages_.push_back({{"role", role}, {"content", std::move(text)}});
    }
  }

  // A text, or blocks of text: a line each. skips_billing: without the billing header, which is
  // another one in each request of Claude Code, and says nothing to a model: a block that begins
  // with it, or the first line of a text.
  static std::string text_of(Json content, const std::string& at, bool skips_billing) {
    if (content.is_string()) {
      std::string text = std::move(content.get_ref<std::string&>());
      if (!skips_billing || !text.starts_with(kBillingHeader)) return text;
      const std::size_t rest = text.find_first_not_of('\n', text.find('\n'));
      return rest == std::string::npos ? "" : text.substr(rest);
    }
    if (!content.is_array()) throw WrongMember{at, "is not a text or a list of blocks"};
    std::string text;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string here = indexed_member(at, i);
      const std::string type = type_of_object(content[i], here);
      if (type != "text") refuse_block(type, here);
      std::string block = take_text(content[i], "text", here);
      if (skips_billing && block.starts_with(kBillingHeader)) continue;
      append_with("\n", std::move(block), text);
    }
    return text;
  }

  std::string& last_text() { return messages_.back()["content"].get_ref<std::string&>(); }

  void add_user(Json content, const std::string& at) {
    if (!content.is_array()) return add_text("user", text_of(std::move(content), at, false));
    std::string text;
    bool has_result = false;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string here = indexed_member(at, i);
      const std::string type = type_of_object(content[i], here);
      if (type == "text") {
        append_with("\n", take_text(content[i], "text", here), text);
      } else if (type == "tool_result") {
        if (!text.empty()) add_text("user", std::exchange(text, {}));
        add_result(std::move(content[i]), here);
        has_result = true;
      } else {
        leave_out(type, here);
      }
    }
    if (!text.empty() || !has_result) add_text("user", std::move(text));
  }

  void add_result(Json block, const std::string& at) {
    std::string id = take_text(block, "tool_use_id", at);
    if (!calls_.contains(id)) {
      throw WrongMember{at + ".tool_use_id",
                        "is " + clip(id) + ", which no tool_use before it has"};
    }
    const Json& is_error = member_of_object(block, "is_error");
    if (!is_error.is_null() && !is_error.is_boolean()) {
      throw WrongMember{at + ".is_error", "is not true or false"};
    }
    std::string text = is_error == true ? "Error: " : "";
    Json content = std::move(block["content"]);
    if (content.is_string()) {
      text += content.get_ref<const std::string&>();
    } else if (!content.is_null()) {
      text += text_of_result(std::move(content), at + ".content");
    }
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(text)}});
  }

  static std::string text_of_result(Json content, const std::string& at) {
    if (!content.is_array()) throw WrongMember{at, "is not a text or a list of blocks"};
    std::string text;
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string here = indexed_member(at, i);
      const std::string type = type_of_object(content[i], here);
      if (type == "text") {
        append_with("\n", take_text(content[i], "text", here), text);
      } else if (type == "tool_reference") {  // of a tool that was found: all tools are there
        append_with("\n", take_text(content[i], "tool_name", here), text);
      } else if (type == "search_result") {
        append_with("\n", take_text(content[i], "title", here), text);
        append_with("\n", take_text(content[i], "source", here), text);
        append_with("\n", text_of(std::move(content[i]["content"]), here + ".content", false),
                    text);
      } else {
        refuse_block(type, here);
      }
    }
    return text;
  }

  void add_answer(Json content, const std::string& at) {
    if (messages_.empty() || messages_.back()["role"] != "assistant") {
      messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    }
    std::string text;
    if (!content.is_array()) {
      text = text_of(std::move(content), at, false);
    } else {
      for (std::size_t i = 0; i < content.size(); ++i) {
        const std::string here = indexed_member(at, i);
        const std::string type = type_of_object(content[i], here);
        if (type == "text") {
          text += take_text(content[i], "text", here);  // as one answer was cut into blocks
        } else if (type == "thinking") {
          add_thinking(std::move(content[i]), here);
        } else if (type == "tool_use") {
          add_call(std::move(content[i]), here);
        } else if (type != "redacted_thinking") {
          leave_out(type, here);
        }
      }
    }
    if (text.empty()) return;
    Json& said = messages_.back()["content"];
    if (said.is_null()) said = "";
    append_with("\n\n", std::move(text), said.get_ref<std::string&>());
  }

  void add_thinking(Json block, const std::string& at) {
    if (!member_of_object(block, "thinking").is_null()) take_text(block, "thinking", at);
    // Clients may hold the signature alone, and have no part in what was thought. What has none
    // was thought elsewhere.
    if (member_of_object(block, "signature").is_null()) return;
    std::optional<std::string> text =
        sealer_.open(kThinkingPurpose, take_text(block, "signature", at));
    if (!text || text->empty()) return;
    Json& thought = messages_.back()["reasoning_content"];
    if (thought.is_null()) thought = "";
    append_with("\n", *std::move(text), thought.get_ref<std::string&>());
  }

  void add_call(Json block, const std::string& at) {
    std::string id = take_text(block, "id", at);
    std::string name = take_text(block, "name", at);
    Json input = std::move(block["input"]);
    if (input.is_null()) input = Json::object();
    if (!input.is_object()) throw WrongMember{at + ".input", "is not an object"};
    calls_.insert(id);
    messages_.back()["tool_calls"].push_back(
        {{"id", std::move(id)},
         {"type", "function"},
         {"function", {{"name", std::move(name)}, {"arguments", std::move(input)}}}});
  }

  void leave_out(const std::string& type, const std::string& at) {
    if (!is_of_server_tool(type)) refuse_block(type, at);
    ignored_.add("messages=" + type);
  }

  const Sealer& sealer_;
  IgnoredMembers& ignored_;
  Json messages_ = Json::array();
  std::set<std::string, std::less<>> calls_;
};

// One request while it is read.
class MessageReader {
 public:
  MessageReader(Json body, MessageUse use, const Sealer& sealer, ChatRequest& request,
                MessageForm& form)
      : body_(std::move(body)),
        use_(use),
        sealer_(sealer),
        request_(request),
        params_(request.params),
        form_(form) {}

  void read() {
    if (!take("thread").is_null()) {  // then clients send the whole conversation
      throw WrongMember{"thread", "is not served: no conversation is kept here",
                        "THREAD_UNSUPPORTED_REQUEST"};
    }
    read_messages();
    read_max_tokens();
    request_.streams = read_boolean("stream", take("stream"), false);
    read_stops();
    const bool thinks = read_thinking();
    read_output_config();
    // These outweigh the variables that an effort would set.
    params_.kwargs = {{"enable_thinking", thinks}, {"thinking", thinks}};
    read_tools();
    read_tool_choice();
    for (const char* const name : {"metadata", "cache_control"}) take(name);
    read_others();
  }

 private:
  // A member, which the body keeps no more; null: it is not there.
  Json take(const char* name) {
    const auto found = body_.find(name);
    return found == body_.end() ? Json() : std::exchange(*found, nullptr);
  }

  static bool read_boolean(const std::string& name, const Json& value, bool otherwise) {
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) throw WrongMember{name, "is not true or false"};
    return value.get<bool>();
  }

  // A limit; one beyond 32 bits is as good as none.
  static std::uint32_t read_limit(const std::string& name, const Json& value) {
    constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
    // A whole number beyond 64 bits is read as one with a fraction.
    if (value.is_number_float() && value.get<double>() > kMost) return kMost;
    if (!is_whole<std::uint64_t>(value)) throw WrongMember{name, "is not a whole number from 0 on"};
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value.get<std::uint64_t>(), kMost));
  }

  // Notes the members of an object that have no effect.
  void note_others(const Json& object, const std::string& at,
                   std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : object.items()) {
      if (value.is_null() || std::ranges::find(known, name) != known.end()) continue;
      request_.ignored.add(at + "." + name);
    }
  }

  void read_messages() {
    Json messages = take("messages");
    if (messages.is_null()) throw WrongMember{"messages", "is missing"};
    if (!messages.is_array() || messages.empty()) {
      throw WrongMember{"messages", "is not a list of at least one message"};
    }
    if (messages.size() > kMostMessages) {
      throw WrongMember{"messages", "has " + std::to_string(messages.size()) +
                                        " messages, at most " + std::to_string(kMostMessages) +
                                        " are taken"};
    }
    ChatMessages made(sealer_, request_.ignored);
    if (Json system = take("system"); !system.is_null()) {
      made.add_system(std::move(system), "system");
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      made.add(std::exchange(messages[i], nullptr), indexed_member("messages", i));
    }
    params_.messages = made.take();
    continue_answer();
  }

  // A last message of the assistant is the beginning of the answer.
  void continue_answer() {
    Json& messages = params_.messages;
    if (messages.empty()) throw WrongMember{"messages", "have no text"};
    if (messages.back()["role"] != "assistant") return;
    if (messages.back().contains("tool_calls")) {
      throw WrongMember{"messages", "end with a tool_use, whose tool_result is missing"};
    }
    if (messages.back()["content"].is_null()) {  // nothing to continue
      messages.erase(messages.size() - 1);
      if (messages.empty()) throw WrongMember{"messages", "have no text"};
      return;
    }
    params_.continue_final_message = true;
    params_.add_generation_prompt = false;
  }

  void read_max_tokens() {
    const Json count = take("max_tokens");
    if (count.is_null()) {
      if (use_ == MessageUse::kCreate) throw WrongMember{"max_tokens", "is missing"};
      return;
    }
    params_.max_tokens = read_limit("max_tokens", count);
    params_.shortens_answer = true;
  }

  void read_stops() {
    Json stops = take("stop_sequences");
    if (stops.is_null()) return;
    if (!stops.is_array()) throw WrongMember{"stop_sequences", "is not a list of texts"};
    for (Json& stop : stops) {
      if (!stop.is_string()) throw WrongMember{"stop_sequences", "is not a list of texts"};
      if (stop == "") continue;  // ends nothing
      params_.base.stop.strings.push_back(std::move(stop.get_ref<std::string&>()));
    }
  }

  // Returns whether the model is to think. Without the member it is not: clients that do not ask
  // for thinking expect the text as the first block.
  bool read_thinking() {
    const Json thinking = take("thinking");
    if (thinking.is_null()) return false;
    const std::string type = type_of_object(thinking, "thinking");
    note_others(thinking, "thinking", {"type", "budget_tokens", "display"});
    const Json& display = member_of_object(thinking, "display");
    if (display == "omitted") {
      form_.shows_thinking = false;
    } else if (!display.is_null() && display != "summarized") {
      throw WrongMember{"thinking.display", "is not summarized or omitted"};
    }
    if (type == "disabled") return false;
    if (type == "enabled") {
      const Json& budget = member_of_object(thinking, "budget_tokens");
      params_.thinking_budget = read_limit("thinking.budget_tokens", budget);
    } else if (type != "adaptive" && type != "between_tools") {
      throw WrongMember{"thinking.type", "is not enabled, adaptive or disabled"};
    }
    return true;
  }

  void read_output_config() {
    Json config = take("output_config");
    Json format = take("output_format");  // where it was before there was output_config
    std::string at = "output_format";
    if (!config.is_null()) {
      if (!config.is_object()) throw WrongMember{"output_config", "is not an object"};
      note_others(config, "output_config", {"effort", "format"});
      const Json& effort = member_of_object(config, "effort");
      constexpr std::array kEfforts = {"low", "medium", "high", "xhigh", "max"};
      if (!effort.is_null()) {
        if (std::ranges::none_of(kEfforts, [&](const char* each) { return effort == each; })) {
          throw WrongMember{"output_config.effort", "is not low, medium, high, xhigh or max"};
        }
        params_.reasoning_effort = effort.get<std::string>();
      }
      if (Json inner = std::move(config["format"]); !inner.is_null()) {
        format = std::move(inner);
        at = "output_config.format";
      }
    }
    if (format.is_null()) return;
    if (type_of_object(format, at) != "json_schema") {
      throw WrongMember{at + ".type", "is not json_schema"};
    }
    const Json& schema = member_of_object(format, "schema");
    if (schema.is_null()) throw WrongMember{at + ".schema", "is missing"};
    note_others(format, at, {"type", "schema", "name"});
    params_.format = api::ChatParams::Format::kJsonSchema;
    params_.format_text = json_text(schema);
    params_.format_member = at + ".schema";
    params_.strict_schema = true;
  }

  void read_tools() {
    Json tools = take("tools");
    if (tools.is_null()) return;
    if (!tools.is_array()) throw WrongMember{"tools", "is not a list of tools"};
    if (tools.size() > kMostTools) {
      throw WrongMember{"tools", "has " + std::to_string(tools.size()) + " tools, at most " +
                                     std::to_string(kMostTools) + " are taken"};
    }
    Json functions = Json::array();
    for (std::size_t i = 0; i < tools.size(); ++i) {
      read_tool(std::exchange(tools[i], nullptr), indexed_member("tools", i), functions);
    }
    const std::size_t bytes = functions.dump(-1, ' ', false, Json::error_handler_t::replace).size();
    if (bytes > kMostToolBytes) {
      throw WrongMember{"tools", "has " + std::to_string(bytes) + " bytes, at most " +
                                     std::to_string(kMostToolBytes) + " are taken"};
    }
    if (!functions.empty()) params_.tools = std::move(functions);
  }

  void read_tool(Json tool, const std::string& at, Json& functions) {
    if (!tool.is_object()) throw WrongMember{at, "is not an object"};
    const Json& type = member_of_object(tool, "type");
    const Json& name = member_of_object(tool, "name");
    if (!type.is_null() && type != "custom") {
      if (!type.is_string()) throw WrongMember{at + ".type", "is not a text"};
      request_.ignored.add("tools=" + type.get<std::string>());
      if (name.is_string()) left_out_.insert(name.get<std::string>());
      return;
    }
    const std::string wrong = tool_name_error(name);
    if (!wrong.empty()) throw WrongMember{at + ".name", wrong};
    const Json& schema = member_of_object(tool, "input_schema");
    if (!schema.is_object()) throw WrongMember{at + ".input_schema", "is not an object"};
    const Json& description = member_of_object(tool, "description");
    if (!description.is_null() && !description.is_string()) {
      throw WrongMember{at + ".description", "is not a text"};
    }
    const Json& strict = member_of_object(tool, "strict");
    if (!strict.is_null() && !strict.is_boolean()) {
      throw WrongMember{at + ".strict", "is not true or false"};
    }
    note_others(tool, "tools",
                {"type", "name", "description", "input_schema", "strict", "cache_control"});
    Json function = {{"name", std::move(tool["name"])}};
    if (!description.is_null()) function["description"] = std::move(tool["description"]);
    function["parameters"] = std::move(tool["input_schema"]);
    if (!strict.is_null()) function["strict"] = strict;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void read_tool_choice() {
    const Json choice = take("tool_choice");
    if (choice.is_null()) return;
    const std::string type = type_of_object(choice, "tool_choice");
    note_others(choice, "tool_choice", {"type", "name", "disable_parallel_tool_use"});
    params_.parallel_tool_calls =
        !read_boolean("tool_choice.disable_parallel_tool_use",
                      member_of_object(choice, "disable_parallel_tool_use"), false);
    if (type == "auto") return;
    if (type == "none") {
      params_.tool_choice = ToolChoice::kNone;
      return;
    }
    if (type != "any" && type != "tool") {
      throw WrongMember{"tool_choice.type", "is not auto, any, tool or none"};
    }
    params_.tool_choice = ToolChoice::kRequired;
    params_.format = api::ChatParams::Format::kText;  // there is no text that a format would bind
    if (type == "tool") choose_tool(member_of_object(choice, "name"));
    if (params_.tools.is_null()) throw WrongMember{"tool_choice", "goes with tools"};
  }

  void choose_tool(const Json& name) {
    constexpr const char* kMember = "tool_choice.name";
    if (!name.is_string()) throw WrongMember{kMember, "is not a text"};
    if (left_out_.contains(name.get_ref<const std::string&>())) {
      throw WrongMember{kMember, "names '" + clip(name.get<std::string>()) +
                                     "', a tool of the server's, which is not served"};
    }
    const bool is_there = std::ranges::any_of(
        params_.tools, [&](const Json& tool) { return tool["function"]["name"] == name; });
    if (!is_there) {
      throw WrongMember{kMember, "names '" + clip(name.get<std::string>()) + "', which is no tool"};
    }
    params_.offered_tools = {name.get<std::string>()};
  }

  // Reads sampling, and members without effect.
  void read_others() {
    for (const auto& [name, value] : body_.items()) {
      if (value.is_null()) continue;
      bool is_known = false;
      std::string what;
      if (name == "logit_bias") {
        is_known = true;
        what = read_logit_bias(value, params_.base.sampling.logit_bias, params_.text_biases);
      } else if (name != "stop") {  // stop_sequences here
        what = read_field(&RequestField::chat, name, value, params_.base, is_known);
      }
      if (!is_known) {
        what = pass_unknown("", name, value, UnservedMember::kMessages,
                            served_members_of_messages(), request_.ignored);
      }
      if (!what.empty()) throw WrongMember{clip(name), what};
    }
  }

  Json body_;
  const MessageUse use_;
  const Sealer& sealer_;
  ChatRequest& request_;
  api::ChatParams& params_;
  MessageForm& form_;
  std::set<std::string, std::less<>> left_out_;  // names of tools
};

}  // namespace

grpc::Status read_message_request(Json body, MessageUse use, const Sealer& sealer,
                                  ChatRequest& request, MessageForm& form) {
  try {
    MessageReader(std::move(body), use, sealer, request, form).read();
    return grpc::Status::OK;
  } catch (const WrongMember& error) {
    if (error.reason != nullptr) {
      return invalid_argument({{error.member, error.what}}, error.reason);
    }
    return invalid_argument({{error.member, error.what}});
  }
}

JsonFailure read_message_request(std::string_view text, MessageUse use, const Sealer& sealer,
                                 const std::string& caller,
                                 const std::function<bool()>& is_cancelled, ChatRequest& request,
                                 MessageForm& form) {
  // The body, and what it becomes.
  constexpr std::size_t kTrees = 2;
  JsonFailure failure;
  request.bytes = text.size();
  RequestBudget tree(request.charge, kTrees, is_cancelled);
  Json body;
  request.status = read_json_body(text, {.budget = &tree}, body, failure);
  if (request.status.ok()) {
    request.status = read_message_request(std::move(body), use, sealer, request, form);
  }
  if (tree.refusal()) {
    request.status = request_memory_refusal(tree.refusal(), caller, "messages");
  }
  request.charge.shrink_to(request.charge.bytes() / kTrees);
  return failure;
}

std::string seal_thinking(const Sealer& sealer, const std::string& text) {
  return sealer.seal(kThinkingPurpose, text);
}

std::string message_member(const std::string& ours) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"stop", "stop_sequences"},
      {"max_completion_tokens", "max_tokens"},
      {"reasoning_effort", "output_config.effort"},
      {"thinking_token_budget", "thinking.budget_tokens"},
  };
  std::string field = api_field(&RequestField::chat, ours);
  for (const auto& [chats, theirs] : kNames) {
    if (is_of_field(field, chats)) return std::string(theirs) + field.substr(chats.size());
  }
  // A tool is flat here.
  if (field.starts_with("tools")) {
    constexpr std::string_view kParameters = ".function.parameters", kFunction = ".function";
    if (const std::size_t at = field.find(kParameters); at != std::string::npos) {
      field.replace(at, kParameters.size(), ".input_schema");
    } else if (const std::size_t nested = field.find(kFunction); nested != std::string::npos) {
      field.erase(nested, kFunction.size());
    }
  }
  return field;
}

}  // namespace lintel
