// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response_items.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "server/chat/template/request_json.h"
#include "server/openai/chat_request.h"
#include "server/openai/custom_tools.h"
#include "server/openai/response_output.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// Thrown while an item is read: the member and its error.
struct ItemError {
  std::string member;  // ".content[0].type"
  std::string what;
};

// The member of an object; null if there is none.
const Json& member_of(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

std::string text_member(const Json& item, const char* name) {
  const Json& value = member_of(item, name);
  if (!value.is_string()) throw ItemError{std::string(".") + name, "is not a text"};
  return value.get<std::string>();
}

std::string type_of(const Json& item) {
  const Json& type = member_of(item, "type");
  if (type.is_string()) return type.get<std::string>();
  if (!type.is_null()) throw ItemError{".type", "is not a text"};
  // The short forms of messages and references have no type.
  if (item.contains("role")) return "message";
  if (item.contains("id") && item.size() <= 2) return "item_reference";
  throw ItemError{".type", "is missing"};
}

void check_text_part(const Json& part, const std::string& at, const char* name = "text") {
  if (!member_of(part, name).is_string()) throw ItemError{at + "." + name, "is not a text"};
}

Json text_part(const char* type, const std::string& text) {
  Json part = {{"type", type}, {"text", text}};
  if (std::string_view(type) == "output_text") part["annotations"] = Json::array();
  return part;
}

// The text that stands for a part of a call's output that models here do not read; null: they do,
// or it is refused. The program whose tool showed a picture continues without it.
const char* left_out_text(const Json& type) {
  if (type == "input_image") return "[An image, which is left out: this model reads text.]";
  if (type == "input_file") return "[A file, which is left out: this model reads text.]";
  return nullptr;
}

// The parts of a message, or of the output of a call: none where the member is null.
Json read_parts(const Json& item, const char* member, const char* type_of_text) {
  const std::string at = std::string(".") + member;
  const bool of_output = at == ".output";
  const Json& content = member_of(item, member);
  if (content.is_null() && item.contains(member)) return Json::array();
  if (content.is_string()) {
    return Json::array({text_part(type_of_text, content.get<std::string>())});
  }
  if (!content.is_array()) throw ItemError{at, "is not a text or a list of parts"};
  Json parts = Json::array();
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string here = at + "[" + std::to_string(i) + "]";
    if (!part.is_object()) throw ItemError{here, "is not an object"};
    const Json& type = member_of(part, "type");
    if (type == "input_text" || type == "output_text" || type == "text") {
      check_text_part(part, here);
      parts.push_back(text_part(type == "text"         ? type_of_text
                                : type == "input_text" ? "input_text"
                                                       : "output_text",
                                part["text"].get<std::string>()));
    } else if (type == "refusal") {
      check_text_part(part, here, "refusal");
      parts.push_back({{"type", "refusal"}, {"refusal", part["refusal"]}});
    } else if (of_output && left_out_text(type) != nullptr) {
      parts.push_back(text_part(type_of_text, left_out_text(type)));
    } else {
      const std::string name = type.is_string() ? clip(type.get<std::string>()) : "no text";
      throw ItemError{here + ".type", "is " + name + ": models here read text (input_text)"};
    }
  }
  return parts;
}

Json read_status(const Json& item) {
  const Json& status = member_of(item, "status");
  if (status.is_null()) return "completed";
  if (status != "in_progress" && status != "completed" && status != "incomplete") {
    throw ItemError{".status", "is not in_progress, completed or incomplete"};
  }
  return status;
}

Json read_message(const Json& item) {
  const Json& role = member_of(item, "role");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    throw ItemError{".role", "is not user, assistant, system or developer"};
  }
  Json message = {{"type", "message"}, {"id", nullptr}, {"status", read_status(item)}};
  message["role"] = role;
  message["content"] =
      read_parts(item, "content", role == "assistant" ? "output_text" : "input_text");
  const Json& phase = member_of(item, "phase");
  if (!phase.is_null()) {
    if (phase != "commentary" && phase != "final_answer") {
      throw ItemError{".phase", "is not commentary or final_answer"};
    }
    message["phase"] = phase;
  }
  return message;
}

Json read_reasoning(const Json& item) {
  Json reasoning = {{"type", "reasoning"}, {"id", nullptr}, {"summary", Json::array()}};
  const Json& summary = member_of(item, "summary");
  if (!summary.is_null() && !summary.is_array()) throw ItemError{".summary", "is not a list"};
  if (summary.is_array()) reasoning["summary"] = summary;
  const Json& content = member_of(item, "content");
  const Json& sealed = member_of(item, "encrypted_content");
  if (!content.is_null() && (sealed.is_null() || !content.empty())) {
    if (!content.is_array()) throw ItemError{".content", "is not a list of parts"};
    reasoning["content"] = Json::array();
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string here = ".content[" + std::to_string(i) + "]";
      if (!content[i].is_object() || member_of(content[i], "type") != "reasoning_text") {
        throw ItemError{here + ".type", "is not reasoning_text"};
      }
      check_text_part(content[i], here);
      reasoning["content"].push_back(text_part("reasoning_text", content[i]["text"]));
    }
  }
  if (!sealed.is_null()) {
    reasoning["encrypted_content"] = text_member(item, "encrypted_content");
  }
  return reasoning;
}

const char* id_prefix(const std::string& type) {
  if (type == "message") return "msg_";
  if (type == "reasoning") return "rs_";
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  if (type == "custom_tool_call") return "ctc_";
  if (type == "custom_tool_call_output") return "ctco_";
  if (type == "compaction") return "cmp_";
  return "item_";
}

// Items of tools that run elsewhere. They are kept, and no message shows them.
constexpr const char* kUnreadItems[] = {"additional_tools",
                                        "apply_patch_call",
                                        "apply_patch_call_output",
                                        "code_interpreter_call",
                                        "computer_call",
                                        "computer_call_output",
                                        "file_search_call",
                                        "image_generation_call",
                                        "mcp_approval_request",
                                        "mcp_approval_response",
                                        "mcp_call",
                                        "mcp_list_tools",
                                        "shell_call",
                                        "shell_call_output",
                                        "tool_search_call",
                                        "tool_search_output",
                                        "web_search_call"};

bool is_unread(const std::string& type) {
  return std::ranges::any_of(kUnreadItems, [&](const char* each) { return type == each; });
}

Json read_unread(const Json& item, const std::string& type) {
  Json copy = {{"type", type}, {"id", nullptr}};
  for (const auto& [name, value] : item.items()) {
    if (!value.is_null() && !copy.contains(name)) copy[name] = value;
  }
  return copy;
}

// The id of the call that an item is or answers. A local shell's may only have an id of its own.
std::string call_id_of(const Json& item) {
  const bool is_named = !member_of(item, "call_id").is_null();
  return text_member(item, is_named || !item.contains("id") ? "call_id" : "id");
}

bool is_output(const std::string& type) {
  return type == "function_call_output" || type == "custom_tool_call_output" ||
         type == "local_shell_call_output";
}

Json read_output(const Json& item, const std::string& type) {
  const bool is_shell = type == "local_shell_call_output";
  Json output = {{"type", type},
                 {"id", nullptr},
                 {"call_id", is_shell ? call_id_of(item) : text_member(item, "call_id")}};
  const Json& value = member_of(item, "output");
  output["output"] = value.is_string() ? value : read_parts(item, "output", "input_text");
  output["status"] = read_status(item);
  return output;
}

Json read_shell_call(const Json& item, const std::string& type) {
  const Json& action = member_of(item, "action");
  if (!action.is_object()) throw ItemError{".action", "is not an object"};
  return {{"type", type},
          {"id", nullptr},
          {"call_id", call_id_of(item)},
          {"action", action},
          {"status", read_status(item)}};
}

Json read_item(const Json& item) {
  if (!item.is_object()) throw ItemError{"", "is not an object"};
  const std::string type = type_of(item);
  if (type == "message") return read_message(item);
  if (type == "reasoning") return read_reasoning(item);
  if (type == "function_call") {
    Json call = {{"type", type}, {"id", nullptr}, {"call_id", text_member(item, "call_id")}};
    call["name"] = text_member(item, "name");
    const bool has_arguments = !member_of(item, "arguments").is_null();
    call["arguments"] = has_arguments ? text_member(item, "arguments") : "{}";
    call["status"] = read_status(item);
    return call;
  }
  if (type == "custom_tool_call") {
    return {{"type", type},
            {"id", nullptr},
            {"call_id", text_member(item, "call_id")},
            {"name", text_member(item, "name")},
            {"input", member_of(item, "input").is_null() ? "" : text_member(item, "input")},
            {"status", read_status(item)}};
  }
  if (is_output(type)) return read_output(item, type);
  if (type == "local_shell_call") return read_shell_call(item, type);
  if (type == "compaction") {
    return {{"type", type},
            {"id", nullptr},
            {"encrypted_content", text_member(item, "encrypted_content")}};
  }
  if (type == "item_reference") return {{"type", type}, {"id", text_member(item, "id")}};
  if (is_unread(type)) return read_unread(item, type);
  throw ItemError{".type", "is " + clip(type) +
                               ", which is not served: message, function_call, custom_tool_call, "
                               "their outputs, reasoning, compaction, item_reference are"};
}

// The content of parts in a chat: a text, or parts.
Json chat_content(const Json& parts) {
  if (parts.is_string()) return parts;
  const auto text_of = [](const Json& part) {
    return part["type"] == "refusal" ? part["refusal"] : part["text"];
  };
  if (parts.empty()) return "";
  if (parts.size() == 1) return text_of(parts[0]);
  Json content = Json::array();
  for (const Json& part : parts) content.push_back({{"type", "text"}, {"text", text_of(part)}});
  return content;
}

std::string reasoning_text(const Json& item) {
  std::string text;
  for (const Json& part : member_of(item, "content")) {
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Items as messages, one after the other.
class Messages {
 public:
  explicit Messages(Json& messages) : messages_(messages) {}

  void add_message(const Json& item) {
    if (item["role"] != "assistant") {
      is_open_ = false;
      messages_.push_back({{"role", item["role"]}, {"content", chat_content(item["content"])}});
      return;
    }
    if (is_open_ && !last()["content"].is_null()) is_open_ = false;
    open();
    last()["content"] = chat_content(item["content"]);
  }
  void add_reasoning(const Json& item) {
    std::string text = reasoning_text(item);
    if (text.empty()) return;
    // Reasoning comes before the content of its message.
    if (is_open_ && (!last()["content"].is_null() || last().contains("tool_calls"))) {
      is_open_ = false;
    }
    open();
    // Appended in place: there may be thousands in a row.
    Json& all = last()["reasoning_content"];
    if (all.is_null()) {
      all = std::move(text);
    } else {
      all.get_ref<std::string&>().append(1, '\n').append(text);
    }
  }
  // Adds a call of a function, a custom tool or the local shell.
  void add_call(const Json& item) {
    Json function;
    if (item["type"] == "function_call") {
      function = {{"name", item["name"]}, {"arguments", item["arguments"]}};
    } else if (item["type"] == "custom_tool_call") {
      function = {{"name", item["name"]}, {"arguments", custom_tool_arguments(item["input"])}};
    } else {
      function = {{"name", "local_shell"}, {"arguments", json_text(item["action"])}};
    }
    open();
    last()["tool_calls"].push_back(
        {{"id", item["call_id"]}, {"type", "function"}, {"function", std::move(function)}});
    calls_.insert(item["call_id"].get<std::string>());
  }
  // Adds an output. False: no call has its id.
  bool add_output(const Json& item) {
    is_open_ = false;
    messages_.push_back({{"role", "tool"},
                         {"tool_call_id", item["call_id"]},
                         {"content", chat_content(item["output"])}});
    return calls_.contains(item["call_id"].get<std::string>());
  }

 private:
  Json& last() { return messages_.back(); }
  // Makes the last message an assistant's that more can be added to.
  void open() {
    if (is_open_) return;
    messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    is_open_ = true;
  }

  Json& messages_;
  bool is_open_ = false;
  std::set<std::string> calls_;
};

}  // namespace

void name_unread_items(const Json& input, IgnoredMembers& ignored) {
  if (!input.is_array()) return;
  for (const Json& item : input) {
    if (!item.is_object() || !member_of(item, "type").is_string()) continue;
    const std::string type = item["type"];
    if (is_unread(type)) ignored.add("input=" + type);
    const Json& output = member_of(item, "output");
    if (!is_output(type) || !output.is_array()) continue;
    for (const Json& part : output) {
      if (!part.is_object()) continue;
      const Json& kind = member_of(part, "type");
      if (left_out_text(kind) != nullptr) ignored.add("output=" + kind.get<std::string>());
    }
  }
}

grpc::Status read_items(const Json& input, const std::string& suffix, Json& items) {
  Json list;
  if (input.is_string()) {
    list = Json::array({{{"role", "user"}, {"content", input}}});
  } else if (!input.is_array()) {
    return invalid_argument({{"input", "is not a text or a list of items"}});
  }
  const Json& all = input.is_array() ? input : list;
  items = Json::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    try {
      Json item = read_item(all[i]);
      if (item["id"].is_null()) {
        const Json& id = member_of(all[i], "id");
        item["id"] =
            id.is_string() ? id : Json(id_prefix(item["type"]) + suffix + std::to_string(i));
      }
      items.push_back(std::move(item));
    } catch (const ItemError& error) {
      return invalid_argument({{"input[" + std::to_string(i) + "]" + error.member, error.what}});
    }
  }
  return grpc::Status::OK;
}

JsonFailure::Kind read_written_json(std::string_view text, JsonBudget* budget, Json& tree) {
  JsonBounds bounds;
  bounds.max_depth *= 2;  // of a body, within the stored record
  bounds.max_bytes = std::numeric_limits<std::int64_t>::max();
  bounds.budget = budget;
  JsonFailure failure;
  std::optional<Json> read = read_request_json(text, bounds, failure);
  if (read) tree = *std::move(read);
  const bool has_space = read || failure.kind != JsonFailure::Kind::kNoSpace;
  return read ? JsonFailure::Kind::kNone
              : (has_space ? JsonFailure::Kind::kNotJson : JsonFailure::Kind::kNoSpace);
}

References references_of(const Json& items) {
  References references;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i]["type"] != "item_reference") continue;
    // Ids are "msg_", the digits of the response, the place.
    const std::string id = items[i]["id"];
    const std::size_t begin = id.find('_') + 1;
    references[id.substr(begin, id.find('_', begin) - begin)][id].push_back(i);
  }
  return references;
}

bool put_in_place(const Json& found, std::map<std::string, std::vector<std::size_t>>& wanted,
                  Json& items, std::size_t& bytes, JsonBudget* budget) {
  for (const Json& item : found) {
    const Json& id = member_of(item, "id");
    const auto named = id.is_string() ? wanted.find(id.get<std::string>()) : wanted.end();
    if (named == wanted.end()) continue;
    const std::size_t each = tree_memory(item);
    if (bytes > kMostItemBytes || named->second.size() > (kMostItemBytes - bytes) / each) {
      return false;
    }
    const std::size_t more = each * named->second.size();
    if (budget != nullptr && !budget->charge(static_cast<std::int64_t>(more))) return false;
    bytes += more;
    for (const std::size_t place : named->second) items[place] = item;
    wanted.erase(named);
  }
  return true;
}

void join_reasoning(Json& items) {
  for (Json& item : items) {
    if (member_of(item, "type") != "reasoning" || member_of(item, "content").size() < 2) continue;
    item["content"] = Json::array({text_part("reasoning_text", reasoning_text(item))});
  }
}

grpc::Status messages_of(const Json& instructions, const Json& items, std::ptrdiff_t first_input,
                         Json& messages) {
  messages = Json::array();
  if (!instructions.is_null()) {
    messages.push_back({{"role", "system"}, {"content", instructions}});
  }
  Messages made(messages);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Json& item = items[i];
    const std::string type = item["type"];
    if (type == "message") {
      made.add_message(item);
    } else if (type == "reasoning") {
      made.add_reasoning(item);
    } else if (type == "function_call" || type == "custom_tool_call" ||
               type == "local_shell_call") {
      made.add_call(item);
    } else if (!is_unread(type) && !made.add_output(item)) {
      const auto place = static_cast<std::ptrdiff_t>(i) - first_input;
      const std::string at = place < 0 ? "" : "[" + std::to_string(place) + "]";
      return invalid_argument(
          {{"input" + at + ".call_id",
            "is " + clip(item["call_id"].get<std::string>()) + ", which no call before it has"}});
    }
  }
  return grpc::Status::OK;
}

namespace {

constexpr const char* kReasoningPurpose = "reasoning";
constexpr const char* kCompactionPurpose = "compaction";

bool is_sealed_reasoning(const Json& item) {
  return item["type"] == "reasoning" && item.contains("encrypted_content") &&
         !item.contains("content");
}

}  // namespace

std::string seal_reasoning(const Sealer& sealer, const std::string& text) {
  return sealer.seal(kReasoningPurpose, text);
}

grpc::Status compact_items(const Json& items, const Sealer& sealer, const std::string& id,
                           Json& item) {
  const std::string text = json_text(items);
  if (text.size() > kMostItemBytes) {
    return invalid_argument(
        {{"input", "has " + std::to_string(text.size()) + " bytes as JSON, at most " +
                       std::to_string(kMostItemBytes) + " are compacted"}});
  }
  item = {{"type", "compaction"},
          {"id", id},
          {"encrypted_content", sealer.seal(kCompactionPurpose, text)}};
  return grpc::Status::OK;
}

bool has_sealed_items(const Json& items) {
  return std::ranges::any_of(items, [](const Json& item) {
    return item["type"] == "compaction" || is_sealed_reasoning(item);
  });
}

grpc::Status open_items(const Sealer& sealer, Json& items, std::ptrdiff_t& first_input,
                        JsonBudget* budget) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    Json& item = items[i];
    const bool is_compaction = item["type"] == "compaction";
    if (!is_compaction && !is_sealed_reasoning(item)) continue;
    const std::optional<std::string> text =
        sealer.open(is_compaction ? kCompactionPurpose : kReasoningPurpose,
                    item["encrypted_content"].get<std::string>());
    if (!text) {
      const auto place = static_cast<std::ptrdiff_t>(i) - first_input;
      const std::string at = place < 0 ? "" : "[" + std::to_string(place) + "]";
      return invalid_argument({{"input" + at + ".encrypted_content",
                                "was not sealed by this store for this caller, or was changed"}},
                              "INVALID_ENCRYPTED_CONTENT");
    }
    if (budget != nullptr && !budget->charge(static_cast<std::int64_t>(text->size()))) {
      return out_of_memory();
    }
    if (!is_compaction) {
      item["content"] = Json::array({{{"type", "reasoning_text"}, {"text", *text}}});
      continue;
    }
    Json opened;  // made by compact_items()
    if (read_written_json(*text, budget, opened) != JsonFailure::Kind::kNone) {
      return out_of_memory();
    }
    const std::size_t count = opened.size();
    for (std::size_t rest = i + 1; rest < items.size(); ++rest) {
      opened.push_back(std::move(items[rest]));
    }
    first_input += static_cast<std::ptrdiff_t>(count) - static_cast<std::ptrdiff_t>(i) - 1;
    items = std::move(opened);
    i = count - 1;  // the items that it stands for are open
  }
  return grpc::Status::OK;
}

}  // namespace lintel
