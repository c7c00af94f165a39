// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/chat/template/traits.h"
#include "server/chat/template/values.h"

namespace lintel {
namespace {

using ProbeJson = nlohmann::ordered_json;

constexpr const char* kUserWords = "probe_user";
constexpr std::string_view kKwargNames[] = {"enable_thinking", "thinking", "reasoning_effort",
                                            "preserve_thinking", "verbosity"};
constexpr std::string_view kReasoningNames[] = {"reasoning_content", "reasoning", "thinking"};

ProbeJson user_message() { return {{"role", "user"}, {"content", kUserWords}}; }

ProbeJson call_message(const ProbeJson& arguments, const ProbeJson& content) {
  const ProbeJson function = {{"name", "probe_tool"}, {"arguments", arguments}};
  return {
      {"role", "assistant"},
      {"content", content},
      {"tool_calls",
       ProbeJson::array({{{"id", "abc123DEF"}, {"type", "function"}, {"function", function}}})}};
}

ProbeJson probe_tools() {
  const ProbeJson parameters = {{"type", "object"},
                                {"properties", {{"probe_key", {{"type", "string"}}}}},
                                {"required", ProbeJson::array({"probe_key"})}};
  const ProbeJson function = {
      {"name", "probe_tool"}, {"description", "A tool."}, {"parameters", parameters}};
  return ProbeJson::array({{{"type", "function"}, {"function", function}}});
}

// The time of all probes of a template, which a load waits for: that of one render.
class ProbeTime final : public JsonBudget {
 public:
  explicit ProbeTime(const TemplateLimits& limits) : seconds_(limits.cpu_seconds) {}

  bool charge(std::int64_t /*bytes*/) override { return true; }
  bool cancelled() const override { return jinja::cpu_seconds_of_thread() - begin_ > seconds_; }

 private:
  const double seconds_;
  const double begin_ = jinja::cpu_seconds_of_thread();
};

struct ProbedTemplate {
  const ChatTemplate& chat_template;
  ProbeTime time;
};

// The text of a render; nothing: it fails.
std::optional<std::string> rendered(ProbedTemplate& probed, const ProbeJson& messages,
                                    bool add_generation_prompt, const ProbeJson& kwargs,
                                    const ProbeJson* tools) {
  RenderInput input;
  input.messages = &messages;
  input.tools = tools;
  input.kwargs = &kwargs;
  input.add_generation_prompt = add_generation_prompt;
  input.budget = &probed.time;
  try {
    return probed.chat_template.render(input).text;
  } catch (const TemplateError&) {
  } catch (const TemplateRefusal&) {
  } catch (const RenderCancelled&) {
  }
  return std::nullopt;
}

std::optional<std::string> rendered(ProbedTemplate& probed, const ProbeJson& messages,
                                    const ProbeJson* tools = nullptr) {
  return rendered(probed, messages, false, ProbeJson::object(), tools);
}

bool has(const std::optional<std::string>& text, std::string_view words) {
  return text && text->find(words) != std::string::npos;
}

// True if the words of the call stand after the user's.
bool shows_call(const std::optional<std::string>& text) {
  if (!text) return false;
  const std::size_t user = text->find(kUserWords);
  const std::size_t from = user == std::string::npos ? 0 : user;
  return text->find("probe_key", from) != std::string::npos &&
         text->find("probe_value", from) != std::string::npos;
}

// True if the text has each of the words once, in this order.
bool has_in_order(const std::optional<std::string>& text,
                  std::initializer_list<std::string_view> words) {
  if (!text) return false;
  std::size_t end = 0;
  for (const std::string_view word : words) {
    const std::size_t at = text->find(word);
    if (at == std::string::npos || at < end || text->find(word, at + 1) != std::string::npos) {
      return false;
    }
    end = at + word.size();
  }
  return true;
}

// True if a message of the role that follows the first turns is shown in its place, and takes
// nothing from the one at the beginning. Templates that collect such messages show it before the
// question; others show the last one alone.
bool takes_late(ProbedTemplate& probed, const char* role) {
  const auto message = [](const char* of, const char* content) {
    return ProbeJson{{"role", of}, {"content", content}};
  };
  return has_in_order(
      rendered(probed,
               ProbeJson::array({message(role, "probe_first"), user_message(),
                                 message("assistant", "probe_answer"), message(role, "probe_late"),
                                 message("user", "probe_next")})),
      {"probe_first", kUserWords, "probe_answer", "probe_late", "probe_next"});
}

// Finds what the template makes of results of tools. `call`: a message with a call, as the template
// takes it.
void probe_results(ProbedTemplate& probed, const ProbeJson& tools, ProbeJson call,
                   TemplateTraits& traits) {
  constexpr std::string_view kResult = "probe_result";
  for (const std::string_view name : kReasoningNames) call[std::string(name)] = "probe_thought";
  ProbeJson messages = ProbeJson::array({user_message(),
                                         std::move(call),
                                         {{"role", "tool"},
                                          {"tool_call_id", "abc123DEF"},
                                          {"name", "probe_tool"},
                                          {"content", kResult}}});
  const auto before = rendered(probed, messages, &tools);
  traits.drops_results = before && !has(before, kResult);
  messages.push_back(user_message());
  const auto after = rendered(probed, messages, &tools);
  traits.user_after_results =
      traits.drops_results || (before && after && after->starts_with(*before));
}

ToolDialect dialect_of(const std::optional<std::string>& text) {
  if (has(text, "<tool_call>\n<function=probe_tool>")) return ToolDialect::kXml;
  if (has(text, "<|tool_call_start|>")) return ToolDialect::kPythonic;
  const bool is_hermes = has(text, "<tool_call>") && has(text, "\"probe_tool\"");
  return is_hermes ? ToolDialect::kHermes : ToolDialect::kNone;
}

bool opens_thinking_with(ProbedTemplate& probed, const ProbeJson& kwargs) {
  const ProbeJson messages = ProbeJson::array({user_message()});
  const auto with = rendered(probed, messages, true, kwargs, nullptr);
  const auto without = rendered(probed, messages, false, kwargs, nullptr);
  if (!with || !without) return false;
  const auto differs = std::ranges::mismatch(*with, *without).in1;
  const std::string added(differs, with->end());
  const std::size_t begin = added.rfind("<think>");
  return begin != std::string::npos && added.find("</think>", begin) == std::string::npos;
}

// The text between the reasoning and the content of an answer. The one of Qwen's templates, if this
// template shows no reasoning, or other words there.
std::string reasoning_end_of(ProbedTemplate& probed) {
  constexpr std::string_view kThought = "probe_thought", kAnswer = "probe_answer";
  ProbeJson answer = {{"role", "assistant"}, {"content", kAnswer}};
  for (const std::string_view name : kReasoningNames) answer[std::string(name)] = kThought;
  const auto text = rendered(probed, ProbeJson::array({user_message(), answer}));
  const std::size_t thought = text ? text->find(kThought) : std::string::npos;
  const std::size_t end = thought == std::string::npos ? thought : text->find(kAnswer, thought);
  if (end != std::string::npos) {
    const std::size_t begin = thought + kThought.size();
    const std::string between = text->substr(begin, end - begin);
    std::string words = between;
    std::erase_if(words, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; });
    if (words == "</think>") return between;
  }
  return "\n</think>\n\n";
}

}  // namespace

std::string_view name_of(ToolDialect dialect) {
  switch (dialect) {
    case ToolDialect::kHermes:
      return "hermes";
    case ToolDialect::kXml:
      return "xml";
    case ToolDialect::kPythonic:
      return "pythonic";
    case ToolDialect::kNone:
      break;
  }
  return "none";
}

bool TemplateTraits::has_variable(std::string_view name) const {
  return std::ranges::find(variables, name) != variables.end();
}

TemplateTraits probe(const ChatTemplate& chat_template) {
  ProbedTemplate probed{chat_template, ProbeTime(chat_template.limits())};
  TemplateTraits traits;
  const ProbeJson arguments = {{"probe_key", "probe_value"}};
  const ProbeJson tools = probe_tools();
  const auto call = [&](const ProbeJson& given, const ProbeJson& content) {
    return rendered(probed, ProbeJson::array({user_message(), call_message(given, content)}),
                    &tools);
  };
  std::optional<std::string> shown = call(arguments, "");
  if (shows_call(shown)) {
    traits.arguments = TemplateTraits::CallArguments::kObject;
  } else {
    shown = call(arguments.dump(), "");
    if (shows_call(shown)) traits.arguments = TemplateTraits::CallArguments::kText;
  }
  traits.dialect = dialect_of(shown);
  const bool wants_text = traits.arguments == TemplateTraits::CallArguments::kText;
  ProbeJson without_text =
      call_message(wants_text ? ProbeJson(arguments.dump()) : arguments, nullptr);
  const auto is_rendered = [&] {
    return rendered(probed, ProbeJson::array({user_message(), without_text}), &tools).has_value();
  };
  traits.null_content = is_rendered();
  probe_results(probed, tools,
                call_message(wants_text ? ProbeJson(arguments.dump()) : arguments, ""), traits);
  for (const std::string_view name : kReasoningNames) without_text[std::string(name)] = "thought";
  traits.null_content = traits.null_content && is_rendered();
  const ProbeJson parts = ProbeJson::array({{{"type", "text"}, {"text", "probe_part"}}});
  const auto in_parts =
      rendered(probed, ProbeJson::array({{{"role", "user"}, {"content", parts}}}));
  traits.parts =
      has(in_parts, "probe_part") && !has(in_parts, "'type'") && !has(in_parts, "\"type\"");
  const auto with_tools = rendered(probed, ProbeJson::array({user_message()}), &tools);
  traits.tools = has(with_tools, "probe_tool");
  traits.tools_failed = !with_tools;
  traits.system =
      has(rendered(probed, ProbeJson::array({{{"role", "system"}, {"content", "probe_system"}},
                                             user_message()})),
          "probe_system");
  traits.late_system = takes_late(probed, "system");
  traits.late_developer = takes_late(probed, "developer");
  traits.repeated_user =
      rendered(probed, ProbeJson::array({user_message(), user_message()})).has_value();
  const auto thinking = [](bool on) {
    return ProbeJson{{"enable_thinking", on}, {"thinking", on}};
  };
  traits.opens_thinking = opens_thinking_with(probed, ProbeJson::object());
  traits.opens_thinking_on = opens_thinking_with(probed, thinking(true));
  traits.opens_thinking_off = opens_thinking_with(probed, thinking(false));
  for (const std::string_view name : kKwargNames) {
    if (chat_template.has_variable(name)) traits.variables.emplace_back(name);
  }
  for (const std::string_view name : kReasoningNames) {
    if (chat_template.source().find(name) != std::string::npos) {
      traits.reasoning_names.emplace_back(name);
    }
  }
  traits.reasoning_end = reasoning_end_of(probed);
  const ProbeJson developer = {{"role", "developer"}, {"content", "probe_developer"}};
  traits.has_developer =
      chat_template.source().find("developer") != std::string::npos &&
      has(rendered(probed, ProbeJson::array({developer, user_message()})), "probe_developer");
  traits.developer_after_system =
      traits.has_developer &&
      has_in_order(
          rendered(probed, ProbeJson::array({{{"role", "system"}, {"content", "probe_system"}},
                                             developer,
                                             user_message()})),
          {"probe_system", "probe_developer", kUserWords});
  return traits;
}

const ChatTemplate* ChatTemplates::find(bool has_tools) const {
  const auto by_name = [&](std::string_view name) {
    const auto found = templates.find(name);
    return found == templates.end() ? nullptr : &found->second;
  };
  if (has_tools) {
    if (const ChatTemplate* const found = by_name("tool_use")) return found;
  }
  return by_name("default");
}

ChatTemplates compile_chat_templates(const std::map<std::string, std::string>& sources,
                                     const SpecialTokenTexts& special_tokens,
                                     const TemplateLimits& limits) {
  ChatTemplates compiled;
  for (const auto& [name, source] : sources) {
    const bool is_named = source == kRwkvWorldTemplateName;
    try {
      compiled.templates.emplace(
          name, ChatTemplate(is_named ? std::string(kRwkvWorldTemplate) : source, special_tokens,
                             limits));
    } catch (const TemplateError& error) {
      compiled.failures.emplace(name, error);
    }
  }
  return compiled;
}

}  // namespace lintel
