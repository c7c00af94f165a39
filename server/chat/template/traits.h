// SPDX-License-Identifier: Apache-2.0
// Traits of a template, found by rendering it, and messages made ready by them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/reader/tool_dialect.h"
#include "server/chat/template/template.h"

namespace lintel {

std::string_view name_of(ToolDialect dialect);  // "hermes"

// A system or developer message after the first turns, where the template does not show it in its
// place.
enum class LateSystem : std::uint8_t {
  kUser,   // becomes a user's message in its place, or a part of a tool's result
  kMerge,  // joins the system message at the beginning
  kRefuse  // stays: has_late_system()
};

struct TemplateTraits {
  enum class CallArguments : std::uint8_t {
    kNone,  // calls are not shown
    kObject,
    kText,
  };
  CallArguments arguments = CallArguments::kNone;  // what function.arguments has to be
  ToolDialect dialect = ToolDialect::kNone;
  bool null_content = false;  // content may be null
  bool parts = false;         // content may be a list of parts
  bool tools = false;         // tools are shown
  bool tools_failed = false;  // a render with tools failed: whether they are shown is not known
  bool system = false;        // system messages are shown
  // True if messages of these roles that follow the first turns are shown in their place, and those
  // at the beginning are shown as well.
  bool late_system = false;
  bool late_developer = false;
  bool developer_after_system = false;  // at the beginning: both are shown
  bool repeated_user = false;           // a user's message may follow another
  bool drops_results = false;           // results of tools are not shown
  // True if a user's message may follow results of tools and changes nothing before them. Some
  // templates leave out the reasoning before the last question, or refuse one there.
  bool user_after_results = false;
  // True if the generation prompt leaves the reasoning open: without arguments, and with
  // enable_thinking and thinking true or false.
  bool opens_thinking = false;
  bool opens_thinking_on = false;
  bool opens_thinking_off = false;
  // Variables of the template among enable_thinking, thinking, reasoning_effort, preserve_thinking
  // and verbosity.
  std::vector<std::string> variables;
  // Names in the source among reasoning_content, reasoning and thinking.
  std::vector<std::string> reasoning_names;
  // The text that the template writes between reasoning and content: white space and </think>.
  std::string reasoning_end;
  bool has_developer = false;  // the source names the role, and its messages are shown

  bool has_variable(std::string_view name) const;
};

// Some twenty renders of short conversations. A render that fails counts as no. Throws nothing else
// than std::bad_alloc.
TemplateTraits probe(const ChatTemplate& chat_template);

// A message that no template of text can take. what() names the field.
class MessageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Messages of a request as the template takes them:
// - role developer is system, unless the template has it;
// - system messages at the beginning are one, with an empty line between them; developer messages
//   among them, too, unless the template shows both;
// - content in parts is joined by line ends, unless the template takes parts; a refusal is text;
// - content null or missing is "", unless the template takes null;
// - function.arguments is an object or a text, as the template takes it. A text that is no object
//   of JSON becomes {"arguments": TEXT}: a wrong call of the model must not end a conversation;
// - reasoning has the names under which the template looks for it;
// - a message of a tool has the name of its call;
// - system messages after the first turns, where the template does not show them in their place,
//   are as `late` says. kUser: two messages of the user that this makes are one where the template
//   refuses to have both; beside results of tools after which no user's message may stand
//   (user_after_results) the text joins the result before it, or the next one, after an empty line.
// Other members stay. Idempotent. Throws MessageError.
nlohmann::ordered_json prepare_messages(nlohmann::ordered_json messages,
                                        const TemplateTraits& traits,
                                        LateSystem late = LateSystem::kRefuse);

// True if a prepared message follows the first turns and is not shown in its place.
bool has_late_system(const nlohmann::ordered_json& prepared, const TemplateTraits& traits);

// The templates of a model, by name.
struct ChatTemplates {
  std::map<std::string, ChatTemplate, std::less<>> templates;
  // Errors of templates that cannot be parsed, with the line.
  std::map<std::string, TemplateError, std::less<>> failures;

  // Returns "tool_use" for tools if there is one, else "default"; null: there is none.
  const ChatTemplate* find(bool has_tools) const;
};

// `sources` by name. A text that is kRwkvWorldTemplateName stands for kRwkvWorldTemplate. A
// template that cannot be parsed is among the failures.
ChatTemplates compile_chat_templates(const std::map<std::string, std::string>& sources,
                                     const SpecialTokenTexts& special_tokens,
                                     const TemplateLimits& limits = {});

}  // namespace lintel
