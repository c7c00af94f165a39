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

TEST_CASE("golden templates: each shows a late system message where it shows one at all") {
  int refusing = 0;
  for (const Json& file : golden_files()) {
    INFO(file["name"]);
    const ChatTemplate chat_template = compiled(file);
    const TemplateTraits traits = probe(chat_template);
    refusing += !traits.late_system;
    const auto message = [](const char* role, const char* content) {
      return Json{{"role", role}, {"content", content}};
    };
    for (const char* const role : {"system", "developer"}) {
      const Json prepared =
          prepare_messages(Json::array({message("user", "a"), message("assistant", "b"),
                                        message(role, "late words"), message("user", "c")}),
                           traits, LateSystem::kUser);
      RenderInput input;
      input.messages = &prepared;
      const std::string text = chat_template.render(input).text;
      CHECK((text.find("late words") != std::string::npos || !traits.system));
    }
  }
  CHECK(refusing >= 4);
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
