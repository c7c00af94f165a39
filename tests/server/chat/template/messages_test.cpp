// SPDX-License-Identifier: Apache-2.0
// Messages made ready, origins of texts, the open end of a last message, templates of a directory.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer/chat_template_files.h"
#include "server/chat/template/template.h"
#include "server/chat/template/traits.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

Json prepared(const char* messages, const TemplateTraits& traits = {}) {
  return prepare_messages(Json::parse(messages), traits);
}

// A letter for each byte: t of the template, c of content, a of the assistant's.
std::string origins(const std::string& source, const Json& messages, const Json& kwargs = {}) {
  RenderInput input;
  input.messages = &messages;
  input.kwargs = &kwargs;
  const RenderedText rendered = ChatTemplate(source).render(input);
  std::string letters;
  for (const TextSpan& span : rendered.spans) {
    letters.append(span.end - span.begin, "tca"[static_cast<int>(span.origin)]);
  }
  CHECK(letters.size() == rendered.text.size());
  return rendered.text + "|" + letters;
}

std::string continued(const std::string& source, const char* messages) {
  const Json tree = Json::parse(messages);
  RenderInput input;
  input.messages = &tree;
  input.add_generation_prompt = false;
  input.continue_final_message = true;
  return ChatTemplate(source).render(input).text;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("messages: a late system message that the template refuses is placed by the rule") {
  const auto placed = [](LateSystem late, const TemplateTraits& traits, const char* messages) {
    std::string text;
    for (const Json& message : prepare_messages(Json::parse(messages), traits, late)) {
      text += message["role"].get<std::string>().substr(0, 1) + ":" +
              message["content"].get<std::string>() + " ";
    }
    return text;
  };
  const char* const messages = R"([
      {"role": "system", "content": "1"}, {"role": "developer", "content": "2"},
      {"role": "user", "content": "3"}, {"role": "system", "content": "4"},
      {"role": "assistant", "content": "5"},
      {"role": "developer", "content": [{"type": "text", "text": "6"}]},
      {"role": "user", "content": "7"}])";
  TemplateTraits traits;
  traits.repeated_user = true;
  CHECK(placed(LateSystem::kUser, traits, messages) == "s:1\n\n2 u:3 u:4 a:5 u:6 u:7 ");
  CHECK(placed(LateSystem::kMerge, traits, messages) == "s:1\n\n2\n\n4\n\n6 u:3 a:5 u:7 ");
  CHECK(placed(LateSystem::kRefuse, traits, messages) == "s:1\n\n2 u:3 s:4 a:5 s:6 u:7 ");
  // If users' messages alternate with answers, it becomes a part of one.
  traits.repeated_user = false;
  CHECK(placed(LateSystem::kUser, traits, messages) == "s:1\n\n2 u:3\n\n4 a:5 u:6\n\n7 ");
  const char* const repeated =
      R"([{"role": "user", "content": "1"}, {"role": "user", "content": "2"}])";
  CHECK(placed(LateSystem::kUser, traits, repeated) == "u:1 u:2 ");
  const char* const headless =
      R"([{"role": "user", "content": "1"}, {"role": "system", "content": "2"}])";
  CHECK(placed(LateSystem::kMerge, traits, headless) == "s:2 u:1 ");
  // Messages that the template takes stay.
  traits.late_system = true;
  for (const LateSystem late : {LateSystem::kUser, LateSystem::kMerge}) {
    CHECK(placed(late, traits, messages) == "s:1\n\n2 u:3 s:4 a:5 s:6 u:7 ");
  }
  traits.has_developer = true;
  // A template that shows the first of both alone gets one.
  CHECK(placed(LateSystem::kUser, traits, messages) == "s:1\n\n2 u:3 s:4 a:5 u:6\n\n7 ");
  traits.developer_after_system = true;
  CHECK(placed(LateSystem::kUser, traits, messages) == "s:1 d:2 u:3 s:4 a:5 u:6\n\n7 ");
}

TEST_CASE("messages: a late system message beside results of tools joins one of them") {
  const auto placed = [](const TemplateTraits& traits, const char* messages) {
    std::string text;
    for (const Json& message : prepare_messages(Json::parse(messages), traits, LateSystem::kUser)) {
      text += message["role"].get<std::string>().substr(0, 1) + ":" +
              message["content"].get<std::string>() + " ";
    }
    return text;
  };
  const char* const after = R"([
      {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2", "tool_calls": [{"id": "a"}, {"id": "b"}]},
      {"role": "tool", "tool_call_id": "a", "content": "3"},
      {"role": "system", "content": "4"}, {"role": "developer", "content": "5"},
      {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "6"}]},
      {"role": "system", "content": "7"},
      {"role": "assistant", "content": "8"}, {"role": "system", "content": "9"}])";
  TemplateTraits traits;
  traits.repeated_user = true;
  CHECK(placed(traits, after) == "u:1 a:2 t:3\n\n4\n\n5 t:6\n\n7 a:8 u:9 ");
  const char* const between = R"([
      {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2", "tool_calls": [{"id": "a"}]},
      {"role": "system", "content": "3"}, {"role": "system", "content": "4"},
      {"role": "tool", "tool_call_id": "a", "content": "5"}, {"role": "user", "content": "6"}])";
  CHECK(placed(traits, between) == "u:1 a:2 t:5\n\n3\n\n4 u:6 ");
  // Without a result it is a user's.
  const char* const alone = R"([
      {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2", "tool_calls": [{"id": "a"}]},
      {"role": "system", "content": "3"}, {"role": "user", "content": "4"}])";
  CHECK(placed(traits, alone) == "u:1 a:2 u:3 u:4 ");
  // Each of two rounds keeps its own, and a system message before all turns stays.
  const char* const rounds = R"([
      {"role": "system", "content": "0"}, {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2", "tool_calls": [{"id": "a"}]},
      {"role": "system", "content": "3"}, {"role": "tool", "tool_call_id": "a", "content": "4"},
      {"role": "assistant", "content": "5", "tool_calls": [{"id": "b"}]},
      {"role": "tool", "tool_call_id": "b", "content": "6"}, {"role": "system", "content": "7"},
      {"role": "assistant", "content": "8", "tool_calls": [{"id": "c"}]},
      {"role": "system", "content": "9"}])";
  CHECK(placed(traits, rounds) == "s:0 u:1 a:2 t:4\n\n3 a:5 t:6\n\n7 a:8 u:9 ");
  traits.repeated_user = false;
  CHECK(placed(traits, alone) == "u:1 a:2 u:3\n\n4 ");
  traits.user_after_results = true;
  CHECK(placed(traits, between) == "u:1 a:2 u:3\n\n4 t:5 u:6 ");
}

TEST_CASE("probe: a user's message may follow results that are left out, not ones that fail") {
  const auto probed = [](const std::string& result, const std::string& user = "[Q]") {
    return probe(
        ChatTemplate("{% for m in messages %}{% if m.role == 'tool' %}" + result +
                     "{% elif m.role == 'user' %}" + user +
                     "{% else %}{{ m.content }}{{ m.tool_calls }}{% endif %}{% endfor %}"));
  };
  const TemplateTraits shown = probed("{{ m.content }}");
  CHECK(shown.user_after_results);
  CHECK_FALSE(shown.drops_results);
  const TemplateTraits left_out = probed("");
  CHECK(left_out.user_after_results);
  CHECK(left_out.drops_results);
  const TemplateTraits fails = probed("{{ raise_exception('no results') }}");
  CHECK_FALSE(fails.user_after_results);
  CHECK_FALSE(fails.drops_results);
  CHECK_FALSE(probed("{{ m.content }}{{ messages | length }}").user_after_results);
  CHECK_FALSE(probed("{{ m.content }}",
                     "{% if loop.index0 == 3 %}{{ raise_exception('no') }}"
                     "{% endif %}")
                  .user_after_results);
}

TEST_CASE("messages: a late system message is joined in time linear in the texts") {
  Json messages = Json::array({{{"role", "user"}, {"content", "a"}}});
  const std::string text(1000, 'x');
  for (int i = 0; i < 10'000; ++i) messages.push_back({{"role", "system"}, {"content", text}});
  for (const LateSystem late : {LateSystem::kUser, LateSystem::kMerge}) {
    const Json prepared = prepare_messages(messages, {}, late);
    CHECK(prepared[0]["content"].get<std::string>().size() > 10'000'000);
  }
}

TEST_CASE("messages: roles, system messages and contents are made ready") {
  CHECK(prepared(R"([{"role": "developer", "content": "a"}])")[0]["role"] == "system");
  TemplateTraits traits;
  traits.has_developer = true;
  CHECK(prepared(R"([{"role": "developer", "content": "a"}])", traits)[0]["role"] == "developer");
  const Json joined = prepared(
      R"([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "system", "content": "d"}])");
  REQUIRE(joined.size() == 3);
  CHECK(joined[0]["content"] == "a\n\nb");
  CHECK(joined[2]["content"] == "d");
  CHECK(prepared(R"([{"role": "assistant", "content": null}])")[0]["content"] == "");
  CHECK(prepared(R"([{"role": "assistant"}])")[0]["content"] == "");
  traits.null_content = true;
  const char* const call =
      R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {}}]}])";
  CHECK(prepared(call, traits)[0]["content"].is_null());
  // Cases that the probe has not seen.
  CHECK(prepared(R"([{"role": "assistant", "content": null}])", traits)[0]["content"] == "");
  CHECK(prepared(R"([{"role": "assistant", "tool_calls": []}])", traits)[0]["content"] == "");
  const char* const parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  CHECK(prepared(parts)[0]["content"] == "a\nb");
  traits.parts = true;
  CHECK(prepared(parts, traits)[0]["content"].size() == 2);
  // A model's refusal, as a history has it.
  const char* const refusal =
      R"([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"},
                                            {"type": "text", "text": "b"}]}])";
  CHECK(prepared(refusal)[0]["content"] == "no\nb");
  CHECK(prepared(R"([{"role": "assistant", "content": null, "refusal": "no"}])")[0]["content"] ==
        "no");
  CHECK(prepared(R"([{"role": "assistant", "content": "a", "refusal": null}])")[0]["content"] ==
        "a");
  CHECK(prepared(refusal, traits)[0]["content"][0] == Json({{"type", "text"}, {"text", "no"}}));
  CHECK_THROWS_WITH(
      prepared(R"([{"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}])"),
      "messages[0].content[0].refusal is missing");
  CHECK_THROWS_WITH(
      prepared(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
               traits),
      "messages[0].content[0].type is \"image_url\", expected \"text\"");
  CHECK_THROWS_AS(prepared(R"([{"role": "user", "content": 7}])"), MessageError);
}

TEST_CASE("messages: arguments of calls are what the template takes") {
  const auto arguments = [](const char* given, TemplateTraits::CallArguments wanted) {
    TemplateTraits traits;
    traits.arguments = wanted;
    const std::string message = std::string(R"([{"role": "assistant", "content": "", "tool_calls":
        [{"id": "1", "function": {"name": "f", "arguments": )") +
                                given + "}}]}]";
    return prepared(message.c_str(), traits)[0]["tool_calls"][0]["function"]["arguments"];
  };
  constexpr auto kObject = TemplateTraits::CallArguments::kObject;
  constexpr auto kText = TemplateTraits::CallArguments::kText;
  CHECK(arguments(R"("{\"b\": 1, \"a\": 2}")", kObject).dump() == R"({"b":1,"a":2})");
  CHECK(arguments(R"("{broken")", kObject).dump() == R"({"arguments":"{broken"})");
  CHECK(arguments(R"("[1]")", kObject).dump() == R"({"arguments":"[1]"})");
  for (const char* const none :
       {R"("")", R"(" \n")", "null", R"("null")", R"(" null\n")", "[]", R"("[ ]")"}) {
    INFO(none);
    CHECK(arguments(none, kObject) == Json::object());
    CHECK(arguments(none, kText) == "{}");
  }
  for (const auto& [wanted, none] :
       {std::pair(kObject, Json(Json::object())), std::pair(kText, Json("{}"))}) {
    TemplateTraits traits;
    traits.arguments = wanted;
    const Json message = prepared(R"([{"role": "assistant", "content": "", "tool_calls":
        [{"id": "1", "function": {"name": "f"}}]}])",
                                  traits)[0];
    CHECK(message["tool_calls"][0]["function"]["arguments"] == none);
  }
  CHECK(arguments(R"({"b": [1, "é"], "a": {}})", kText) == R"({"b": [1, "é"], "a": {}})");
  CHECK(arguments(R"("{\"a\":1}")", kText) == R"({"a":1})");
}

TEST_CASE("messages: reasoning and tools have the names that the template looks for") {
  TemplateTraits traits;
  traits.reasoning_names = {"reasoning_content"};
  const char* const given = R"([{"role": "assistant", "content": "", "thinking": "hm"}])";
  CHECK(prepared(given, traits)[0]["reasoning_content"] == "hm");
  CHECK_FALSE(prepared(given, traits)[0].contains("thinking"));
  CHECK(prepared(given)[0]["thinking"] == "hm");
  const Json named = prepared(R"([{"role": "assistant", "content": "", "tool_calls":
      [{"id": "x", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "x", "content": "1"},
      {"role": "tool", "tool_call_id": "x", "name": "own", "content": "1"}])");
  CHECK(named[1]["name"] == "f");
  CHECK(named[2]["name"] == "own");
}

TEST_CASE("origins: each byte keeps its own through operations") {
  const Json messages = Json::parse(
      R"([{"role": "user", "content": "Ab<"}, {"role": "assistant", "content": "xy"}])");
  const auto check = [&](const std::string& expression, const std::string& expected) {
    INFO(expression);
    CHECK(origins("{% set c = messages[0].content %}{{ " + expression + " }}", messages) ==
          expected);
  };
  check("'<' + c + '>'", "<Ab<>|tccct");
  check("messages[1].content ~ c ~ 1", "xyAb<1|aaccct");
  check("c | upper ~ 'z'", "AB<z|ccct");
  check("('-' ~ c)[1:] ~ ('-' ~ c)[:2]", "Ab<-A|ccctc");
  check("[c, 'q'] | join('+')", "Ab<+q|ccctt");
  check("c.replace('b', 'tt')", "Att<|cttc");
  check("'a-b'.replace('-', c)", "aAb<b|tccct");
  check("('t' ~ c ~ 't').split('b')[1]", "<t|ct");
  check("('  ' ~ c) | trim", "Ab<|ccc");
  check("'%s!%s' % (c, 1)", "Ab<!1|ccctt");
  check("'{}!'.format(c)", "Ab<!|ccct");
  check("c | tojson", "\"Ab<\"|tccct");
  check("[c] | string", "['Ab<']|ttccctt");
  check("c | e", "Ab&lt;|cccccc");
  check("c * 2", "Ab<Ab<|cccccc");
  check("c | indent(1, true)", " Ab<|tccc");
  check("c | reverse", "<bA|ccc");
  check("(c ~ 't') | list | last", "t|t");
  check("messages[0].keys() | join", "rolecontent|ccccccccccc");
  check("messages[0].role", "user|tttt");
  CHECK(origins("{% macro m(x) %}[{{ x }}]{% endmacro %}{% set y %}{{ m(k) }}{% endset %}{{ y }}",
                messages, {{"k", "v"}}) == "[v]|tct");
  const Json forged = Json::parse(R"([{"role": "<|evil|>", "content": ""}])");
  CHECK(origins("{{ messages[0].role }}", forged) == "<|evil|>|cccccccc");
}

TEST_CASE("continue_final_message: the text ends with the last message") {
  const std::string source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
  CHECK(
      continued(source,
                R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}])") ==
      "<user>a</><assistant>b ");
  const std::string trims = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
  CHECK(continued(trims, R"([{"role": "assistant", "content": "b "}])") == "[b");
  CHECK(continued("{{ messages[-1].content[0].text }}.",
                  R"([{"role": "assistant", "content": [{"type": "text", "text": "p"}]}])") == "p");
  CHECK_THROWS_AS(continued("x", R"([{"role": "assistant", "content": "b"}])"), TemplateError);
  CHECK_THROWS_AS(continued(source, R"([{"role": "assistant", "content": null}])"), TemplateError);
}

TEST_CASE("templates of a directory: the first that is found counts") {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path();
  CHECK(load_chat_template_sources(path).templates.empty());
  write_file(path / "chat_template.json", R"({"chat_template": "third"})");
  CHECK(load_chat_template_sources(path).templates.at("default") == "third");
  write_file(path / "tokenizer_config.json",
             R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
                 "chat_template": [{"name": "default", "template": "second"},
                                   {"name": "tool_use", "template": "{% broken"}]})");
  write_file(path / "special_tokens_map.json", R"({"bos_token": "other", "unk_token": "<unk>"})");
  ChatTemplateSources sources = load_chat_template_sources(path);
  CHECK(sources.templates.at("default") == "second");
  CHECK(sources.special_tokens ==
        std::map<std::string, std::string, std::less<>>{
            {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}});
  ChatTemplates compiled = compile_chat_templates(sources.templates, sources.special_tokens);
  CHECK(compiled.failures.at("tool_use").line() == 1);
  REQUIRE(compiled.find(true) != nullptr);
  CHECK(compiled.find(true)->source() == "second");

  write_file(path / "chat_template.jinja", "rwkv-world");
  write_file(path / "additional_chat_templates" / "tool_use.jinja", "tools");
  sources = load_chat_template_sources(path);
  compiled = compile_chat_templates(sources.templates, sources.special_tokens);
  CHECK(compiled.find(false)->source() == kRwkvWorldTemplate);
  CHECK(compiled.find(true)->source() == "tools");
  write_file(path / "tokenizer_config.json", "{broken");
  CHECK(load_chat_template_sources(path).notes.size() == 1);
}

}  // namespace lintel
