// SPDX-License-Identifier: Apache-2.0
// Every case of tests/golden/chat/templates: texts byte for byte, refusals, origins, probes.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/chat/template/template.h"
#include "server/chat/template/traits.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> golden_files() {
  std::vector<Json> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(LINTEL_TEST_DATA "/golden/chat/templates")) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    JsonFailure failure;
    auto file = read_request_json(text, {}, failure);
    REQUIRE(file);
    files.push_back(std::move(*file));
  }
  return files;
}

LocalTime time_of(const std::string& now) {
  LocalTime time;
  REQUIRE(std::sscanf(now.c_str(), "%d-%d-%dT%d:%d:%d", &time.year, &time.month, &time.day,
                      &time.hour, &time.minute, &time.second) == 6);
  return time;
}

ChatTemplate compiled(const Json& file) {
  SpecialTokenTexts tokens;
  for (const auto& [name, text] : file["special_tokens"].items()) {
    if (text.is_string()) tokens.emplace(name, text.get<std::string>());
  }
  return ChatTemplate(file["template"].get<std::string>(), tokens);
}

void check_origins(const RenderedText& rendered, const Json& test) {
  std::size_t end = 0;
  for (const TextSpan& span : rendered.spans) {
    CHECK(span.begin == end);
    CHECK(span.end > span.begin);
    end = span.end;
  }
  CHECK(end == rendered.text.size());
  if (!test.contains("tokens_from_content")) return;
  for (const Json& token : test["tokens_from_content"]) {
    const auto begin = token[0].get<std::size_t>();
    const auto text = token[1].get<std::string>();
    CHECK(rendered.text.substr(begin, text.size()) == text);
    for (const TextSpan& span : rendered.spans) {
      if (span.begin >= begin + text.size() || span.end <= begin) continue;
      CHECK(span.origin != TextOrigin::kTemplate);
    }
  }
}

void check_case(const ChatTemplate& chat_template, const Json& messages, const Json& test,
                const Json& expected, const LocalTime& now) {
  RenderInput input;
  input.messages = &messages;
  if (test.contains("tools") && !test["tools"].is_null()) input.tools = &test["tools"];
  if (test.contains("kwargs")) {
    input.kwargs = &test["kwargs"];
    if (test["kwargs"].contains("documents")) input.documents = &test["kwargs"]["documents"];
  }
  input.add_generation_prompt = test["add_generation_prompt"].get<bool>();
  input.now = now;
  if (expected.contains("rendered")) {
    const RenderedText rendered = chat_template.render(input);
    CHECK(rendered.text == expected["rendered"].get<std::string>());
    check_origins(rendered, expected);
  } else if (expected.contains("raised")) {
    try {
      chat_template.render(input);
      FAIL("the template did not refuse");
    } catch (const TemplateRefusal& refusal) {
      CHECK(refusal.what() == expected["raised"].get<std::string>());
    }
  } else {
    CHECK_THROWS_AS(chat_template.render(input), TemplateError);
  }
}

Json with_arguments_as_text(const Json& messages) {
  TemplateTraits traits;
  traits.arguments = TemplateTraits::CallArguments::kText;
  Json changed = messages;
  for (Json& message : changed) {
    if (!message.contains("tool_calls")) continue;
    const Json prepared = prepare_messages(Json::array({message}), traits);
    message["tool_calls"] = prepared[0]["tool_calls"];
  }
  return changed;
}

// 200 turns with 20,000 tokens of text, at four bytes a token.
Json long_conversation() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "a word or\n";
  Json messages = Json::array();
  for (int turn = 0; turn < 200; ++turn) {
    messages.push_back({{"role", turn % 2 == 0 ? "user" : "assistant"}, {"content", text}});
  }
  messages.push_back({{"role", "user"}, {"content", "the question"}});
  return messages;
}

}  // namespace

TEST_CASE("golden templates: every conversation renders byte for byte") {
  int cases = 0;
  for (const Json& file : golden_files()) {
    const ChatTemplate chat_template = compiled(file);
    const LocalTime now = time_of(file["now"].get<std::string>());
    for (const Json& test : file["cases"]) {
      INFO(file["name"] << ": " << test["name"]);
      check_case(chat_template, test["messages"], test, test, now);
      ++cases;
    }
  }
  CHECK(cases == 368);
}

TEST_CASE("golden templates: arguments as texts render byte for byte") {
  int cases = 0;
  for (const Json& file : golden_files()) {
    const ChatTemplate chat_template = compiled(file);
    const LocalTime now = time_of(file["now"].get<std::string>());
    for (const Json& test : file["cases"]) {
      if (!test.contains("arguments_as_text")) continue;
      INFO(file["name"] << ": " << test["name"]);
      const Json messages = with_arguments_as_text(test["messages"]);
      check_case(chat_template, messages, test, test["arguments_as_text"], now);
      ++cases;
    }
  }
  CHECK(cases > 20);
}

TEST_CASE("golden templates: probes find what a template takes") {
  for (const Json& file : golden_files()) {
    INFO(file["name"]);
    const TemplateTraits traits = probe(compiled(file));
    const Json& expected = file["probes"];
    using Arguments = TemplateTraits::CallArguments;
    CHECK((traits.arguments == Arguments::kNone     ? Json()
           : traits.arguments == Arguments::kObject ? Json("object")
                                                    : Json("text")) == expected["arguments"]);
    CHECK((traits.dialect == ToolDialect::kNone ? Json() : Json(name_of(traits.dialect))) ==
          expected["dialect"]);
    CHECK(traits.null_content == expected["null_content"]);
    CHECK(traits.parts == expected["parts"]);
    CHECK(traits.tools == expected["tools"]);
    CHECK(traits.system == expected["system"]);
    CHECK(traits.opens_thinking == expected["opens_thinking"]["default"]);
    CHECK(traits.opens_thinking_on == expected["opens_thinking"]["on"]);
    CHECK(traits.opens_thinking_off == expected["opens_thinking"]["off"]);
  }
}

TEST_CASE("golden templates: a message without content fails only where one with text does") {
  const Json call = {{"id", "abc123DEF"},
                     {"type", "function"},
                     {"function", {{"name", "probe_tool"}, {"arguments", {{"a", 1}}}}}};
  for (const Json& file : golden_files()) {
    const ChatTemplate chat_template = compiled(file);
    const TemplateTraits traits = probe(chat_template);
    const auto renders = [&](const Json& answer) {
      const Json user = {{"role", "user"}, {"content", "a"}};
      const Json prepared = prepare_messages(Json::array({user, answer, user}), traits);
      RenderInput input;
      input.messages = &prepared;
      try {
        chat_template.render(input);
      } catch (const TemplateError&) {
        return false;
      } catch (const TemplateRefusal&) {
        return false;
      }
      return true;
    };
    for (const bool has_reasoning : {false, true}) {
      for (const bool has_call : {false, true}) {
        INFO(file["name"] << ", reasoning " << has_reasoning << ", call " << has_call);
        Json answer = {{"role", "assistant"}, {"content", "text"}};
        if (has_reasoning) answer["reasoning_content"] = "thought";
        if (has_call) answer["tool_calls"] = Json::array({call});
        const bool expected = renders(answer);
        answer["content"] = nullptr;
        CHECK((renders(answer) || !expected));
      }
    }
  }
}

namespace {

Json said(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

Json round_of(int number, const std::string& result) {
  const std::string text = std::to_string(number);
  const Json call = {{"id", "abc123DE" + text},
                     {"type", "function"},
                     {"function", {{"name", "look"}, {"arguments", {{"key", "value " + text}}}}}};
  return Json::array({{{"role", "assistant"},
                       {"content", ""},
                       {"reasoning_content", "thought " + text},
                       {"tool_calls", Json::array({call})}},
                      {{"role", "tool"},
                       {"tool_call_id", "abc123DE" + text},
                       {"name", "look"},
                       {"content", result}}});
}

std::string text_of(const ChatTemplate& chat_template, const TemplateTraits& traits,
                    const Json& messages, LateSystem late, const Json* tools = nullptr) {
  const Json prepared = prepare_messages(messages, traits, late);
  RenderInput input;
  input.messages = &prepared;
  input.tools = tools;
  input.add_generation_prompt = false;
  return chat_template.render(input).text;
}

// The words in the order of the text, with a bar after each; each as often as the text has it.
std::string order_of(const std::string& text, const std::vector<std::string>& words) {
  std::string order;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const std::string& word : words) {
      if (text.compare(at, word.size(), word) == 0) order += word + "|";
    }
  }
  return order;
}

}  // namespace

TEST_CASE("golden templates: each shows a late system message in its place, and keeps the first") {
  const std::vector<std::string> words = {"first w", "question w", "answer w", "late w", "next w"};
  int replaced = 0;
  for (const Json& file : golden_files()) {
    const ChatTemplate chat_template = compiled(file);
    const TemplateTraits traits = probe(chat_template);
    replaced += !traits.late_system;
    for (const char* const role : {"system", "developer"}) {
      INFO(file["name"] << ": " << role);
      const Json messages = Json::array({said(role, "first w"), said("user", "question w"),
                                         said("assistant", "answer w"), said(role, "late w"),
                                         said("user", "next w")});
      const std::string text = text_of(chat_template, traits, messages, LateSystem::kUser);
      const std::string order = order_of(text, words);
      // Mistral's templates show the first one before the last question.
      const bool is_mistral = file["name"].get<std::string>().starts_with("mistral_nemo");
      CHECK(order == (is_mistral ? "question w|answer w|first w|late w|next w|"
                                 : "first w|question w|answer w|late w|next w|"));
      const std::string merged =
          order_of(text_of(chat_template, traits, messages, LateSystem::kMerge), words);
      if (is_mistral) {
        CHECK(merged == "question w|answer w|first w|late w|next w|");
      } else if (has_late_system(prepare_messages(messages, traits), traits)) {
        CHECK(merged == "first w|late w|question w|answer w|next w|");
      } else {
        CHECK(merged == order);
      }
    }
  }
  CHECK(replaced >= 9);  // refused, left out, or moved
}

TEST_CASE("golden templates: what a late message follows stays as it was, tool rounds among it") {
  const Json parameters = {{"type", "object"}, {"properties", {{"key", {{"type", "string"}}}}}};
  const Json tools = Json::array(
      {{{"type", "function"},
        {"function", {{"name", "look"}, {"description", "Looks."}, {"parameters", parameters}}}}});
  int shows_tools = 0, joins = 0;
  for (const Json& file : golden_files()) {
    if (!file["probes"]["tools"].get<bool>()) continue;
    ++shows_tools;
    const ChatTemplate chat_template = compiled(file);
    const TemplateTraits traits = probe(chat_template);
    joins += !traits.late_system && !traits.user_after_results;
    const auto rendered = [&](const Json& messages, LateSystem late) {
      return text_of(chat_template, traits, messages, late, &tools);
    };
    for (const LateSystem late : {LateSystem::kUser, LateSystem::kMerge, LateSystem::kRefuse}) {
      for (const char* const role : {"system", "developer"}) {
        INFO(file["name"] << ": " << role << ", rule " << static_cast<int>(late));
        Json messages = Json::array({said("system", "first w"), said("user", "question w")});
        for (const Json& message : round_of(1, "result 1")) messages.push_back(message);
        const std::string before = rendered(messages, late);
        for (const Json& message : round_of(2, "result 2")) messages.push_back(message);
        messages.push_back(said(role, "late w"));
        const bool is_placed = !has_late_system(prepare_messages(messages, traits), traits);
        // The template or the server refuses it.
        if (late == LateSystem::kRefuse && !is_placed) continue;
        const std::string after = rendered(messages, late);
        // Shows the system text before a question alone that is the last message.
        if (late == LateSystem::kMerge && file["name"] == "mistral_nemo") continue;
        CHECK(after.find("late w") != std::string::npos);
        CHECK((after.find("thought 2") == std::string::npos) ==
              (before.find("thought 1") == std::string::npos));
        // The first system message changes.
        CHECK(after.starts_with(before) == (late != LateSystem::kMerge || is_placed));
        // Later rounds leave it where it is.
        for (const Json& message : round_of(3, "result 3")) messages.push_back(message);
        CHECK(rendered(messages, late).starts_with(after));
      }
    }
  }
  CHECK(shows_tools >= 12);
  CHECK(joins >= 5);
}

TEST_CASE("rwkv-world: the built-in template is that of the vectors") {
  for (const Json& file : golden_files()) {
    if (file["name"] == "rwkv_world") CHECK(file["template"] == std::string(kRwkvWorldTemplate));
  }
}

TEST_CASE("speed: a conversation of 20,000 tokens renders in less than 5 ms", "[speed]") {
  const Json messages = long_conversation();
  for (const Json& file : golden_files()) {
    const ChatTemplate chat_template = compiled(file);
    RenderInput input;
    input.messages = &messages;
    input.now = time_of(file["now"].get<std::string>());
    double best = 1;
    std::size_t bytes = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
      best = std::min(
          best, testing::cpu_seconds_of([&] { bytes = chat_template.render(input).text.size(); }));
    }
    INFO(file["name"] << ": " << bytes << " bytes in " << best * 1000 << " ms");
    CHECK(bytes > 80'000);
    CHECK(best < 0.005);
  }
}

}  // namespace lintel
