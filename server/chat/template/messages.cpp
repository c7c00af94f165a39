// SPDX-License-Identifier: Apache-2.0
// Messages made ready for a template.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/chat/template/traits.h"

namespace lintel {
namespace {

using Message = nlohmann::ordered_json;
using CallArguments = TemplateTraits::CallArguments;

constexpr const char* kReasoningMembers[] = {"reasoning_content", "reasoning", "thinking"};
constexpr int kMostArgumentDepth = 64;

std::string place_of(std::size_t message) { return "messages[" + std::to_string(message) + "]"; }

const Message* member(const Message& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool has_role(const Message& message, const char* role) {
  const Message* const found = member(message, "role");
  return found != nullptr && found->is_string() && *found == role;
}

bool is_system(const Message& message) {
  return has_role(message, "system") || has_role(message, "developer");
}

bool has_calls(const Message& message) {
  const Message* const calls = member(message, "tool_calls");
  return calls != nullptr && !calls->empty();
}

// True if the template does not show the message, which follows the first turns, in its place.
bool is_misplaced(const Message& message, const TemplateTraits& traits) {
  return (has_role(message, "system") && !traits.late_system) ||
         (has_role(message, "developer") && !traits.late_developer);
}

// Parts of text, which a model's own refusal is, too.
void read_parts(Message& parts, const std::string& place) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string at = place + ".content[" + std::to_string(i) + "]";
    if (!parts[i].is_object()) throw MessageError(at + " is no object");
    const Message* const type = member(parts[i], "type");
    if (type == nullptr || !type->is_string()) throw MessageError(at + ".type is missing");
    const bool is_refusal = *type == "refusal";
    if (*type != "text" && !is_refusal) {
      std::string name = type->get<std::string>().substr(0, 64);
      std::ranges::replace_if(
          name, [](char c) { return c < ' ' || c > '~'; }, '?');
      throw MessageError(at + ".type is \"" + name + "\", expected \"text\"");
    }
    const char* const name = is_refusal ? "refusal" : "text";
    const Message* const text = member(parts[i], name);
    if (text == nullptr || !text->is_string()) throw MessageError(at + "." + name + " is missing");
    if (is_refusal) parts[i] = {{"type", "text"}, {"text", *text}};
  }
}

std::string joined_parts(const Message& parts) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += '\n';
    joined += parts[i]["text"].get_ref<const std::string&>();
  }
  return joined;
}

// Python's separators, which models have seen.
void write_json(const Message& value, std::string& out, int depth) {
  if (depth > kMostArgumentDepth) throw MessageError("function.arguments is nested too deep");
  if (const auto digits = big_integer_digits(value)) {
    out += *digits;
  } else if (value.is_object() || value.is_array()) {
    const bool is_object = value.is_object();
    out += is_object ? '{' : '[';
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!std::exchange(is_first, false)) out += ", ";
      if (is_object) out += Message(key).dump() + ": ";
      write_json(item, out, depth + 1);
    }
    out += is_object ? '}' : ']';
  } else {
    out += value.dump();
  }
}

// True if a call of the history has no arguments, in any form of clients: null, an empty list, or
// either as a text, or a text of white space alone.
bool is_empty(const Message& arguments) {
  if (arguments.is_null()) return true;
  if (arguments.is_array()) return arguments.empty();
  if (!arguments.is_string()) return false;
  std::string text = arguments.get<std::string>();
  std::erase_if(text, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
  return text.empty() || text == "null" || text == "[]";
}

Message argument_object(const Message& arguments) {
  if (arguments.is_object()) return arguments;
  if (arguments.is_string()) {
    JsonBounds bounds;
    bounds.max_depth = kMostArgumentDepth;
    JsonFailure failure;
    auto parsed = read_request_json(arguments.get_ref<const std::string&>(), bounds, failure);
    if (parsed && parsed->is_object()) return std::move(*parsed);
  }
  return {{"arguments", arguments}};
}

class MessagePreparation {
 public:
  MessagePreparation(const TemplateTraits& traits, LateSystem late)
      : traits_(traits), late_(late) {}

  Message run(Message messages) {
    if (!messages.is_array()) throw MessageError("messages is no list");
    Message prepared = Message::array();
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].is_object()) throw MessageError(place_of(i) + " is no object");
      add(std::move(messages[i]), place_of(i), prepared);
    }
    if (late_ == LateSystem::kRefuse || !has_late_system(prepared, traits_)) return prepared;
    return late_ == LateSystem::kUser ? with_late_as_user(std::move(prepared))
                                      : with_late_merged(std::move(prepared));
  }

 private:
  void add(Message message, const std::string& place, Message& prepared) {
    if (has_role(message, "developer") && !traits_.has_developer) message["role"] = "system";
    prepare_content(message, place);
    is_begun_ = is_begun_ || !is_system(message);
    const bool joins =
        !is_begun_ && !prepared.empty() &&
        (message["role"] == prepared.back()["role"] || !traits_.developer_after_system);
    if (joins) return join(message, prepared.back());
    prepare_calls(message, place);
    name_reasoning(message);
    name_tool(message);
    prepared.push_back(std::move(message));
  }

  Message with_late_as_user(Message messages) const {
    if (!traits_.user_after_results) messages = with_late_in_results(std::move(messages));
    // Others that are misplaced become the user's, one message with those of the user beside it
    // where the template refuses to have both.
    Message placed = Message::array();
    bool is_begun = false;  // the first turns are
    bool is_after = false;  // the last message was misplaced
    for (Message& message : messages) {
      is_begun = is_begun || !is_system(message);
      const bool is_late = is_begun && is_misplaced(message, traits_);
      if (is_late) message["role"] = "user";
      const bool joins = !traits_.repeated_user && (is_late || is_after) &&
                         has_role(message, "user") && !placed.empty() &&
                         has_role(placed.back(), "user");
      if (joins) {
        join(message, placed.back());
      } else {
        placed.push_back(std::move(message));
      }
      is_after = is_late;
    }
    return placed;
  }

  // Joins misplaced messages to the result of a tool before them; those between calls and their
  // first result to that one.
  Message with_late_in_results(Message messages) const {
    Message placed = Message::array();
    for (std::size_t at = 0; at < messages.size();) {
      if (!is_misplaced(messages[at], traits_)) {
        placed.push_back(std::move(messages[at++]));
        continue;
      }
      std::size_t end = at;  // of the misplaced messages that stand together
      while (end < messages.size() && is_misplaced(messages[end], traits_)) ++end;
      const bool is_between = !placed.empty() && has_calls(placed.back()) &&
                              end < messages.size() && has_role(messages[end], "tool");
      if (is_between) placed.push_back(std::move(messages[end]));
      const bool joins = !placed.empty() && has_role(placed.back(), "tool");
      for (; at < end; ++at) {
        if (joins) {
          join(messages[at], placed.back());
        } else {
          placed.push_back(std::move(messages[at]));
        }
      }
      if (is_between) ++at;
    }
    return placed;
  }

  Message with_late_merged(Message messages) const {
    Message placed = Message::array();
    if (!is_system(messages[0])) placed.push_back({{"role", "system"}, {"content", ""}});
    bool is_begun = false;
    for (Message& message : messages) {
      is_begun = is_begun || !is_system(message);
      if (is_begun && is_misplaced(message, traits_)) {
        join(message, placed[0]);
      } else {
        placed.push_back(std::move(message));
      }
    }
    return placed;
  }

  // Adds the text of a message to that of another, with an empty line between them.
  static void join(const Message& message, Message& to) {
    Message& content = to["content"];
    if (!content.is_string()) content = text_of(content);
    std::string& text = content.get_ref<std::string&>();
    if (!text.empty()) text += "\n\n";
    text += text_of(message["content"]);
  }

  static std::string text_of(const Message& content) {
    if (content.is_array()) return joined_parts(content);
    return content.is_string() ? content.get<std::string>() : std::string();
  }

  void prepare_content(Message& message, const std::string& place) const {
    const Message* const refusal = member(message, "refusal");
    if (member(message, "content") == nullptr && refusal != nullptr && refusal->is_string()) {
      Message said = *refusal;  // in place of a content
      message["content"] = std::move(said);
      return;
    }
    if (member(message, "content") == nullptr) {
      // Null where the probe has seen it taken: in a message that has calls.
      const bool takes_null = traits_.null_content && has_calls(message);
      message["content"] = takes_null ? Message(nullptr) : Message("");
      return;
    }
    Message& content = message["content"];
    if (content.is_array()) {
      read_parts(content, place);
      if (!traits_.parts) content = joined_parts(content);
    } else if (!content.is_string()) {
      throw MessageError(place + ".content is no text and no list of parts");
    }
  }

  void prepare_calls(Message& message, const std::string& place) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || calls->is_null()) return;
    if (!calls->is_array()) throw MessageError(place + ".tool_calls is no list");
    for (Message& call : *calls) {
      if (!call.is_object())
        throw MessageError(place + ".tool_calls has an item that is no object");
      const auto function = call.find("function");
      if (function == call.end() || !function->is_object()) continue;
      const Message* const id = member(call, "id");
      const Message* const name = member(*function, "name");
      if (id != nullptr && id->is_string() && name != nullptr && name->is_string()) {
        names_[id->get<std::string>()] = name->get<std::string>();
      }
      Message& arguments = (*function)["arguments"];
      if (is_empty(arguments)) arguments = Message::object();
      if (traits_.arguments == CallArguments::kObject) arguments = argument_object(arguments);
      if (traits_.arguments == CallArguments::kText && !arguments.is_string()) {
        std::string text;
        write_json(arguments, text, 0);
        arguments = text;
      }
    }
  }

  void name_reasoning(Message& message) const {
    Message reasoning;
    for (const char* const name : kReasoningMembers) {
      if (const Message* const found = member(message, name)) {
        reasoning = *found;
        break;
      }
    }
    if (reasoning.is_null() || traits_.reasoning_names.empty()) return;
    for (const char* const name : kReasoningMembers) message.erase(name);
    for (const std::string& name : traits_.reasoning_names) message[name] = reasoning;
  }

  void name_tool(Message& message) const {
    if (!has_role(message, "tool") || member(message, "name") != nullptr) return;
    const Message* const id = member(message, "tool_call_id");
    if (id == nullptr || !id->is_string()) return;
    const auto found = names_.find(id->get_ref<const std::string&>());
    if (found != names_.end()) message["name"] = found->second;
  }

  const TemplateTraits& traits_;
  const LateSystem late_;
  bool is_begun_ = false;  // a message that is no system message was added
  std::map<std::string, std::string, std::less<>> names_;  // of tools, by the id of a call
};

}  // namespace

Message prepare_messages(Message messages, const TemplateTraits& traits, LateSystem late) {
  return MessagePreparation(traits, late).run(std::move(messages));
}

bool has_late_system(const Message& prepared, const TemplateTraits& traits) {
  const auto first = std::ranges::find_if_not(prepared, is_system);
  return std::any_of(first, prepared.end(),
                     [&traits](const Message& message) { return is_misplaced(message, traits); });
}

}  // namespace lintel
