// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_prompt.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "server/rpc/status.h"

namespace lintel {

namespace {

using Json = nlohmann::ordered_json;

bool has_role(const Json& message, const std::string& role) {
  const auto found = message.find("role");
  return found != message.end() && *found == role;
}

// True if a prepared content, a text, parts of text or null, is not white space alone.
bool has_words(const Json& content) {
  if (content.is_array()) {
    return std::ranges::any_of(content, [](const Json& part) { return has_words(part["text"]); });
  }
  return content.is_string() &&
         content.get_ref<const std::string&>().find_first_not_of(" \t\r\n") != std::string::npos;
}

// Makes another content of a prepared one, by characters for private use at both ends.
void mark(Json& content) {
  if (content.is_array()) {
    for (Json& part : content) mark(part["text"]);
  } else if (content.is_string()) {
    content = "\xee\x80\x80" + content.get_ref<const std::string&>() + "\xee\x80\x81";
  }
}

// Renders one request in several ways.
class Conversation {
 public:
  Conversation(const ChatTemplate& chat_template, const TemplateTraits& traits,
               api::ChatParams& request, const LocalTime& now, JsonBudget* budget,
               LateSystem late = LateSystem::kRefuse)
      : chat_template_(chat_template), traits_(traits), request_(request) {
    input_.tools = request.tools.is_null() ? nullptr : &request.tools;
    input_.documents = request.documents.is_null() ? nullptr : &request.documents;
    input_.now = now;
    input_.budget = budget;
    kwargs_ = request.kwargs.is_null() ? Json::object() : request.kwargs;
    request.messages = prepare_messages(std::move(request.messages), traits, late);
    set_effort();
    if (!request.verbosity.empty() && traits.has_variable("verbosity")) {
      set_default("verbosity", request.verbosity);
    }
  }

  // The prompt. Throws what ChatTemplate::render does.
  RenderedText prompt() {
    return render(request_.add_generation_prompt, request_.continue_final_message);
  }
  // `prompt` without what asks for an answer. Nothing: the template refuses.
  std::optional<std::string> without_generation_prompt(const RenderedText& prompt) {
    if (!request_.add_generation_prompt && !request_.continue_final_message) return prompt.text;
    std::optional<RenderedText> rendered = with(Json::array());
    if (!rendered) return std::nullopt;
    return std::move(rendered->text);
  }
  // The conversation without what asks for an answer, with `more` appended. Nothing: the template
  // refuses.
  std::optional<RenderedText> with(const Json& more) {
    Json& messages = request_.messages;  // no copy: they may be large
    const std::size_t size = messages.size();
    for (const Json& message : more) messages.push_back(message);
    std::optional<RenderedText> rendered = try_render(false, false);
    while (messages.size() > size) messages.erase(messages.size() - 1);
    return rendered;
  }
  // True if `prompt` is another one, or none, with other contents of the messages of a role:
  // templates may show a content as JSON, in capitals or cut.
  bool shows(const std::string& role, std::string_view prompt) {
    std::vector<Json> contents;
    for (Json& message : request_.messages) {
      if (!has_role(message, role)) continue;
      contents.push_back(message["content"]);
      mark(message["content"]);
    }
    const std::optional<RenderedText> marked =
        try_render(request_.add_generation_prompt, request_.continue_final_message);
    auto content = contents.begin();
    for (Json& message : request_.messages) {
      if (has_role(message, role)) message["content"] = std::move(*content++);
    }
    return !marked || marked->text != prompt;
  }

 private:
  // Nothing: the template refuses.
  std::optional<RenderedText> try_render(bool asks, bool continues) {
    try {
      return render(asks, continues);
    } catch (const TemplateError&) {
    } catch (const TemplateRefusal&) {
    }
    return std::nullopt;
  }

  RenderedText render(bool asks, bool continues) {
    input_.messages = &request_.messages;
    input_.kwargs = &kwargs_;
    input_.add_generation_prompt = asks;
    input_.continue_final_message = continues;
    return chat_template_.render(input_);
  }

  void set_default(const char* name, Json value) {
    if (!kwargs_.contains(name)) kwargs_[name] = std::move(value);
  }

  // Sets reasoning_effort as the variables that templates have for it; the request's own variables
  // win.
  void set_effort() {
    const std::string& effort = request_.reasoning_effort;
    if (effort.empty()) return;
    for (const char* const name : {"enable_thinking", "thinking"}) {
      set_default(name, effort != "none");
    }
    const bool is_named = traits_.has_variable("reasoning_effort");
    if (effort == "none" || !is_named || kwargs_.contains("reasoning_effort")) return;
    // The value, or the nearest that the template does not refuse, upward first.
    constexpr std::array kEfforts = {"minimal", "low", "medium", "high", "xhigh", "max"};
    const auto at = std::ranges::find(kEfforts, effort) - kEfforts.begin();
    const auto size = static_cast<std::ptrdiff_t>(kEfforts.size());
    for (std::ptrdiff_t distance = 0; distance < size; ++distance) {
      for (const std::ptrdiff_t near : {at + distance, at - distance}) {
        if (near < 0 || near >= size) continue;
        kwargs_["reasoning_effort"] = kEfforts[static_cast<std::size_t>(near)];
        if (with(Json::array())) return;
      }
    }
    kwargs_["reasoning_effort"] = effort;
  }

  const ChatTemplate& chat_template_;
  const TemplateTraits& traits_;
  api::ChatParams& request_;  // its messages are prepared; they grow for a rendering
  RenderInput input_;
  Json kwargs_;
};

std::vector<PlainText> plain_parts(const std::vector<TextSpan>& spans) {
  std::vector<PlainText> plain;
  for (const TextSpan& span : spans) {
    if (span.origin == TextOrigin::kTemplate) continue;
    plain.push_back({span.begin, span.end, span.origin == TextOrigin::kAssistant});
  }
  return plain;
}

std::size_t common_bytes(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Tokens of a prompt that another text begins with, too.
class CommonTokens {
 public:
  CommonTokens(const Tokenizer& tokenizer, const ChatPrompt& prompt,
               const std::vector<PlainText>& plain)
      : tokenizer_(tokenizer), prompt_(prompt), plain_(plain) {
    // The end of each token, if they are the text byte for byte (normalisation may change it).
    std::size_t end = 0;
    ends_.reserve(prompt.tokens.ids.size());
    for (const std::int32_t id : prompt.tokens.ids) {
      end += tokenizer.is_special(id) ? tokenizer.text_of_special(id).size()
                                      : tokenizer.bytes_of(id).size();
      ends_.push_back(end);
    }
    if (end != prompt.rendered.text.size()) ends_.clear();
  }

  std::int64_t with(std::string_view other) const {
    const std::string_view text = prompt_.rendered.text;
    const std::size_t common = common_bytes(text, other);
    if (common == text.size() && other.size() == text.size()) return size();
    // Text is cut at special tokens, so that what follows the last one before the difference is
    // encoded alone.
    std::size_t first = 0;
    for (std::size_t i = 0; i < ends_.size() && ends_[i] <= common; ++i) {
      if (tokenizer_.is_special(prompt_.tokens.ids[i])) first = i + 1;
    }
    const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
    const std::vector<std::int32_t> ids = encode(other, begin, common);
    const auto ours = std::span(prompt_.tokens.ids).subspan(first);
    const auto same = std::ranges::mismatch(ours, ids).in1 - ours.begin();
    return static_cast<std::int64_t>(first) + same;
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(prompt_.tokens.ids.size()); }

  // The part of another text from `begin` on, as the prompt would have it: up to `common` the plain
  // parts are the same, after it nothing is compared that matters.
  std::vector<std::int32_t> encode(std::string_view other, std::size_t begin,
                                   std::size_t common) const {
    std::vector<PlainText> plain;
    for (const PlainText& part : plain_) {
      const std::size_t end = std::min(part.end, common);
      if (end <= begin || part.begin >= end) continue;
      plain.push_back({std::max(part.begin, begin) - begin, end - begin, part.special_only});
    }
    // Long enough for every token that could end at the difference.
    const std::size_t most = common - begin + 4 * std::max<std::size_t>(tokenizer_.longest(), 64);
    return tokenizer_.encode(
        other.substr(begin).substr(0, most),
        {.add_special = false, .parse_special = true, .continues = begin > 0, .plain = plain});
  }

  const Tokenizer& tokenizer_;
  const ChatPrompt& prompt_;
  const std::vector<PlainText>& plain_;
  std::vector<std::size_t> ends_;
};

ThinkingStart thinking_of(std::string_view generation_prompt) {
  constexpr std::string_view kOpen = "<think>", kHalf = "<think", kClose = "</think>";
  const std::size_t open = generation_prompt.rfind(kOpen);
  if (open != std::string_view::npos) {
    const bool is_closed = generation_prompt.find(kClose, open) != std::string_view::npos;
    return is_closed ? ThinkingStart::kClosed : ThinkingStart::kOpened;
  }
  return generation_prompt.ends_with(kHalf) ? ThinkingStart::kOpenedHalf : ThinkingStart::kClosed;
}

// A turn that may be the next one. No other text has these characters, which are for private use:
// where it stands in the place of something else, the texts differ.
const Json& assumed_turn() {
  static const Json turn = {{{"role", "assistant"}, {"content", "\xee\x80\x80"}},
                            {{"role", "user"}, {"content", "\xee\x80\x81"}}};
  return turn;
}

void find_boundaries(Conversation& conversation, const Tokenizer& tokenizer,
                     const std::vector<PlainText>& plain, PromptUse use, ChatPrompt& prompt) {
  const CommonTokens common(tokenizer, prompt, plain);
  const auto last = static_cast<std::int64_t>(prompt.tokens.ids.size()) - 1;
  const std::string_view text = prompt.rendered.text;
  std::size_t generation_prompt = 0;
  prompt.before_generation_prompt = last;
  if (const auto off = conversation.without_generation_prompt(prompt.rendered)) {
    generation_prompt = common_bytes(text, *off);
    prompt.before_generation_prompt = common.with(*off);
  }
  prompt.thinking = thinking_of(text.substr(generation_prompt));
  prompt.turn_boundary = prompt.before_generation_prompt;
  if (use == PromptUse::kNextTurn) {
    const auto next = conversation.with(assumed_turn());
    if (next) prompt.turn_boundary = common.with(next->text);
  }
  prompt.turn_boundary = std::clamp<std::int64_t>(prompt.turn_boundary, 0, last);
}

// Refuses roles that are none of those of every API and whose contents the prompt does not depend
// on. Templates may show roles of their own, and leave others out without a word.
grpc::Status check_roles(Conversation& conversation, const Json& messages,
                         std::string_view prompt) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  constexpr std::size_t kMostOwnRoles = 16;  // each is a rendering
  std::set<std::string> own;
  for (const Json& message : messages) {
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string() || !has_words(message["content"])) continue;
    const auto& name = role->get_ref<const std::string&>();
    if (std::ranges::find(kRoles, name) == std::end(kRoles)) own.insert(name);
    if (own.size() > kMostOwnRoles) {
      return invalid_argument(
          {{"messages", "have more than " + std::to_string(kMostOwnRoles) +
                            " roles beside system, developer, user, assistant and tool"}});
    }
  }
  for (const std::string& role : own) {
    if (conversation.shows(role, prompt)) continue;
    return invalid_argument(
        {{"messages", "have the role " + clip(role) +
                          ", which the model's chat template does not show; expected system, "
                          "developer, user, assistant or tool"}});
  }
  return grpc::Status::OK;
}

}  // namespace

grpc::Status chat_refusal(const char* reason, const std::string& param,
                          const std::string& message) {
  return invalid_argument({{param, message}}, reason);
}

grpc::Status make_chat_prompt(const ChatModel& model, const Tokenizer& tokenizer,
                              api::ChatParams& request, const LocalTime& now, ChatPrompt& prompt,
                              JsonBudget* budget, PromptUse use, LateSystem late) {
  const bool has_tools = !request.tools.is_null();
  const ChatTemplate* const chat_template = model.find(has_tools);
  if (chat_template == nullptr) {
    return chat_refusal("NO_CHAT_TEMPLATE", "model", model.failure());
  }
  prompt.traits = model.traits(*chat_template);
  // A template that failed in the probe says by its own error what is wrong with this request.
  if (has_tools && !prompt.traits.tools && !prompt.traits.tools_failed) {
    return chat_refusal("TOOLS_NOT_SUPPORTED", "tools",
                        "are not served: the model's chat template does not show them");
  }
  try {
    Conversation conversation(*chat_template, prompt.traits, request, now, budget, late);
    prompt.rendered = conversation.prompt();
    // Refused by the template in its own words, unless it leaves the message out or moves it.
    if (late == LateSystem::kRefuse && has_late_system(request.messages, prompt.traits)) {
      return chat_refusal("TEMPLATE_REFUSED", "messages",
                          "have a system message after the first turns, which the model's chat "
                          "template does not show there");
    }
    grpc::Status status = check_roles(conversation, request.messages, prompt.rendered.text);
    if (!status.ok()) return status;
    const std::vector<PlainText> plain = plain_parts(prompt.rendered.spans);
    prompt.tokens = api::token_values(tokenizer.encode(
        prompt.rendered.text, {.add_special = false, .parse_special = true, .plain = plain}));
    if (prompt.tokens.ids.empty()) {
      return chat_refusal("TEMPLATE_FAILED", "messages", "make an empty prompt");
    }
    if (use != PromptUse::kCount) {
      find_boundaries(conversation, tokenizer, plain, use, prompt);
    }
  } catch (const MessageError& error) {
    // "messages[0].content is ..."
    const std::string what = error.what();
    const std::size_t blank = what.find(' ');
    if (!what.starts_with("messages") || blank == std::string::npos) {
      return invalid_argument({{"messages", what}});
    }
    return invalid_argument({{what.substr(0, blank), what.substr(blank + 1)}});
  } catch (const RenderCancelled&) {
    return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled while its prompt was made");
  } catch (const TemplateRefusal& refusal) {
    return chat_refusal("TEMPLATE_REFUSED", "messages", refusal.what());
  } catch (const TemplateError& error) {
    std::string what = "the chat template failed in line " + std::to_string(error.line()) + ": ";
    if (!error.bound().empty()) what += "beyond " + error.bound() + ": ";
    return chat_refusal("TEMPLATE_FAILED", "messages", what + error.what());
  }
  return grpc::Status::OK;
}

namespace {

// The tokens of the conversation with the answer and a next turn that says `content`; none where
// the template refuses.
std::vector<std::int32_t> next_turn(const ChatModel& model, const Tokenizer& tokenizer,
                                    api::ChatParams& request, const LocalTime& now,
                                    const Json& answer, const char* content, JsonBudget* budget) {
  const ChatTemplate* const chat_template = model.find(!request.tools.is_null());
  if (chat_template == nullptr) return {};
  const TemplateTraits traits = model.traits(*chat_template);
  Json more = Json::array({answer});
  for (const Json& call : answer.value("tool_calls", Json::array())) {
    more.push_back({{"role", "tool"},
                    {"tool_call_id", call["id"]},
                    {"name", call["function"]["name"]},
                    {"content", content}});
  }
  if (more.size() == 1) more.push_back({{"role", "user"}, {"content", content}});
  Conversation conversation(*chat_template, traits, request, now, budget);
  const std::optional<RenderedText> next = conversation.with(prepare_messages(more, traits));
  if (!next) return {};
  const std::vector<PlainText> plain = plain_parts(next->spans);
  return tokenizer.encode(next->text,
                          {.add_special = false, .parse_special = true, .plain = plain});
}

}  // namespace

bool next_turn_begins_with(const ChatModel& model, const Tokenizer& tokenizer,
                           api::ChatParams& request, const LocalTime& now, const Json& answer,
                           std::span<const std::int32_t> tokens, JsonBudget* budget) {
  const std::vector<std::int32_t> ids =
      next_turn(model, tokenizer, request, now, answer, "A", budget);
  return ids.size() > tokens.size() &&
         std::ranges::equal(std::span(ids).first(tokens.size()), tokens);
}

std::vector<std::int32_t> next_turn_beginning(const ChatModel& model, const Tokenizer& tokenizer,
                                              api::ChatParams& request, const LocalTime& now,
                                              const Json& answer, JsonBudget* budget) {
  std::vector<std::int32_t> ids = next_turn(model, tokenizer, request, now, answer, "A", budget);
  const std::vector<std::int32_t> other =
      next_turn(model, tokenizer, request, now, answer, "x", budget);
  ids.erase(std::ranges::mismatch(ids, other).in1, ids.end());
  return ids;
}

bool sends_reasoning_back(const api::ChatParams& request) {
  bool is_first = true;
  for (const Json& message : request.messages) {
    if (message.value("role", "") != "assistant") continue;
    is_first = false;
    for (const char* const name : {"reasoning_content", "reasoning", "thinking"}) {
      const auto found = message.find(name);
      if (found != message.end() && found->is_string() && !found->get<std::string>().empty()) {
        return true;
      }
    }
  }
  return is_first;
}

}  // namespace lintel
