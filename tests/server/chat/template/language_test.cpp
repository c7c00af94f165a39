// SPDX-License-Identifier: Apache-2.0
// Constructs of templates. What is expected here is what jinja2 3.1.6 prints.
#include <nlohmann/json.hpp>
#include <string>

#include "server/chat/template/request_json.h"
#include "server/chat/template/template.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

std::string render(const std::string& source, const std::string& kwargs = "{}") {
  JsonFailure failure;
  const auto tree = read_request_json(kwargs, {}, failure);
  REQUIRE(tree);
  RenderInput input;
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  input.messages = &messages;
  input.kwargs = &*tree;
  input.now = {2026, 3, 5, 13, 4, 9, "CET"};
  return ChatTemplate(source, {{"bos_token", "<s>"}}).render(input).text;
}

std::size_t line_of_error(const std::string& source) {
  try {
    render(source);
  } catch (const TemplateError& error) {
    return error.line();
  }
  return 0;
}

struct Example {
  const char* source;
  const char* text;
};

}  // namespace

TEST_CASE("white space: tags cut it as trim_blocks and lstrip_blocks have it") {
  const Example examples[] = {
      {"a\r\nb\rc\n", "a\nb\nc"},
      {"a\n\n", "a\n"},
      {"{% if 1 %}\nx\n{% endif %}\n\ny", "x\n\ny"},
      {"  {% if 1 %}x{% endif %}  {# c #}\n y", "x   y"},
      {"  {{ 1 }}\n  {{- 2 -}}\n  z", "  12z"},
      {"  {%+ if 1 %}x{% endif +%}\ny", "  x\ny"},
      {" a {%- if 1 -%} b {%- endif -%} c", " abc"},
      {"{% raw %}\n{{ x }}{% endraw %}\ny", "\n{{ x }}y"},
      {"{#- a -#}  b  {#- c #}\n", "b"},
      {"x {\n{ y }", "x {\n{ y }"},
  };
  for (const Example& example : examples) {
    INFO(example.source);
    CHECK(render(example.source) == example.text);
  }
}

TEST_CASE("expressions: values are as Python's") {
  const Example examples[] = {
      {"{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ -3 | abs }}", "64 4 3"},
      {"{{ 'a' ~ 'b' | upper }} {{ 2 ~ 3 * 2 }}", "aB 26"},
      {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 // 2 }} {{ true + 1 }}", "-4 2 -2 -4.0 2"},
      {"{{ 1 < 2 < 3 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }}", "True True True"},
      {"{{ 1e16 }} {{ 1e15 }} {{ 0.00001 }} {{ 1 / 3 }} {{ 1e400 }}",
       "1e+16 1000000000000000.0 1e-05 0.3333333333333333 inf"},
      {"{{ [1, 'a', none, {'k': (1,)}] }}", "[1, 'a', None, {'k': (1,)}]"},
      {"{{ [\"it's\", 'say \"x\"', '\\u200b\\x00\\n'] }}",
       "[\"it's\", 'say \"x\"', '\\u200b\\x00\\n']"},
      {"{{ 'abcdef'[1:-1:2] }}{{ 'äöü'[::-1] }}{{ [1, 2, 3][-2:] }}", "bdüöä[2, 3]"},
      {"{{ {'items': 1}.items is callable }}{{ {'items': 1}['items'] }}", "True1"},
      {"{{ (x.y is defined) if false }}|{{ x }}|{{ x ~ 'a' }}|{{ x | length }}", "||a|0"},
      {"{{ 'a' 'b' }}{{ 1_000 }}{{ 0x1F }}{{ '\\101\\q' }}", "ab100031A\\q"},
      {"{{ 'x' if false }}{{ 1 if 0 else 2 if 0 else 3 }}", "3"},
      {"{{ 'a' in 'cat' }}{{ 2 not in [1] }}{{ 'k' in {'k': 0} }}", "TrueTrueTrue"},
      {"{{ {1: 'a', true: 'b'} }}{{ {'a': 1, 'a': 2} }}", "{1: 'b'}{'a': 2}"},
      {"{{ '%s-%05.1f-%x-%%' % ('a', 2.25, 255) }}", "a-002.2-ff-%"},
      {"{{ '{0:>5}|{1:,}|{k!r}'.format('a', 1234567, k='q') }}", "    a|1,234,567|'q'"},
      {"{{ ('<' | safe) + '<' }}{{ '<' | e }}", "<&lt;&lt;"},
  };
  for (const Example& example : examples) {
    INFO(example.source);
    CHECK(render(example.source) == example.text);
  }
}

TEST_CASE("statements: scopes are as jinja2's") {
  const Example examples[] = {
      {"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 2 %}{% endfor %}{{ x }}", "111"},
      {"{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x "
       "}}",
       "4"},
      {"{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
      {"{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}", ""},
      {"{% macro m(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, "
       "z=4) }}",
       "12(3,){'z': 4}"},
      {"{% macro m() %}[{{ caller(5) }}]{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
       "[5]"},
      {"{% macro m() %}{{ late }}{% endmacro %}{% set late = 7 %}{{ m() }}{{ m.name }}", "7m"},
      {"{% for k, (a, b) in [(1, (2, 3))] %}{{ k }}{{ a }}{{ b }}{% endfor %}", "123"},
      {"{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% "
       "endfor %}",
       "12False22True"},
      {"{% for x in [] %}a{% else %}b{% endfor %}", "b"},
      {"{% for x in [1, 2] %}{% break %}{% else %}b{% endfor %}", "b"},
      {"{% for x in 'ab' %}{{ loop.cycle('o', 'e') }}{{ loop.previtem }}{{ loop.nextitem }}{% "
       "endfor %}",
       "obea"},
      {"{% set x | upper %}a{{ 1 }}{% endset %}{{ x }}{% filter trim %} b {% endfilter %}", "A1b"},
      {"{% generation %}{% set x = 1 %}g{% endgeneration %}{{ x }}", "g"},
      {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
      {"{% set s = [1, none] | select | list %}{% set g = [1] | map('string') %}{{ s }}{{ g | list "
       "}}{{ g | list }}",
       "[1]['1'][]"},
      {"{{ bos_token }}{{ eos_token is defined }}{{ messages[0].role }}", "<s>Falseuser"},
  };
  for (const Example& example : examples) {
    INFO(example.source);
    CHECK(render(example.source) == example.text);
  }
  // A block before an assignment at the top does not see the variable of the request.
  CHECK(render("{% for i in [1] %}{{ v }}{% endfor %}{% set v = 2 %}{{ v }}", R"({"v": 1})") ==
        "2");
  CHECK(render("{{ v }}{% for i in [1] %}{{ v }}{% endfor %}{% set v = 2 %}", R"({"v": 1})") ==
        "11");
}

TEST_CASE("filters and tests: results are as jinja2's") {
  const Example examples[] = {
      {"{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A'] | sort }}{{ [none, none] | sort }}",
       "[3, 2, 1]['A', 'b'][None, None]"},
      {"{{ 2.5 | round }} {{ 2.675 | round(2) }} {{ 25 | round(-1) }} {{ 2.1 | round(0, 'ceil') }}",
       "2.0 2.67 20 3.0"},
      {"{{ '0x1f' | int(0, 16) }} {{ ' 7 ' | int }} {{ '1e3' | int }} {{ 'x' | int(5) }}",
       "31 7 1000 5"},
      {"{{ 'straße' | upper }} {{ 'ΑΣ' | lower }} {{ \"they're-ok (x)\" | title }} {{ "
       "\"a'b\".title() }}",
       "STRASSE ας They're-Ok (X) A'B"},
      {"{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a' | indent('> ', true) }}", "a\n  b\n\n  c|> a"},
      {"{{ [1, 2, 3, 4, 5] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}",
       "[[1, 2], [3, 4], [5, 0]][[1, 2], [3]]"},
      {"{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 2, 'a': 1} | dictsort(by='value') }}",
       "[('a', 2), ('b', 1)][('a', 1), ('b', 2)]"},
      {"{{ {'b': [], 'a': '\\u001f<é\\u2028'} | tojson }}",
       "{\"b\": [], \"a\": \"\\u001f<é\xE2\x80\xA8\"}"},
      {"{{ {'a': [1]} | tojson(indent=1) }}", "{\n \"a\": [\n  1\n ]\n}"},
      {"{{ none | default('d') }}{{ x | default('d') }}{{ '' | default('e', true) }}", "Nonede"},
      {"{{ 'a b' | wordcount }}{{ [1, 2] | sum }}{{ [4, 9] | max }}{{ [] | min }}", "239"},
      {"{{ [1, 2] is sequence }}{{ {} is mapping }}{{ 1.0 is integer }}{{ x is callable }}",
       "TrueTrueFalseTrue"},
      {"{{ 3 is divisibleby 3 }}{{ 2 is gt 1 }}{{ 'a' is in ['a'] }}{{ none is not none }}",
       "TrueTrueTrueFalse"},
      {"{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ ['x'] | map('upper') | join }}",
       "[1]X"},
      {"{{ strftime_now('%Y-%m-%d %I:%M:%S %p %a %A %b %B %j %y %Z %%') }}",
       "2026-03-05 01:04:09 PM Thu Thursday Mar March 064 26 CET %"},
      {"{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.rsplit(' ', 1) }}",
       "['a', 'b', '', 'c']['a', 'b']['a b', 'c']"},
      {"{{ 'xaxbx'.strip('x') }}{{ 'abcb'.rfind('b') }}{{ 'aaa'.count('a') }}{{ 'a.b'.replace('.', "
       "'', 1) }}",
       "axb33ab"},
  };
  for (const Example& example : examples) {
    INFO(example.source);
    CHECK(render(example.source) == example.text);
  }
}

TEST_CASE("JSON of a request: order and digits are kept") {
  CHECK(render("{{ v | tojson }}", R"({"v": {"z": 1, "a": 2.0, "z": 3, "n": null}})") ==
        R"({"z": 3, "a": 2.0, "n": null})");
  CHECK(render("{{ v }}{{ v is integer }}", R"({"v": 123456789012345678901234567890})") ==
        "123456789012345678901234567890True");
  CHECK(render("{{ v | tojson }}", R"({"v": [18446744073709551615, -1, 1e2]})") ==
        "[18446744073709551615, -1, 100.0]");
  std::string many = "{\"v\": {";
  for (int i = 0; i < 3000; ++i) many += "\"" + std::to_string(i) + "\": 0, ";
  CHECK(render("{{ v | length }}", many + "\"7\": 1}}") == "3000");
}

TEST_CASE("parser: an error has its line") {
  CHECK(line_of_error("a\n{% if %}") == 2);
  CHECK(line_of_error("a\n\n{{ 1 +\n }}") == 4);
  CHECK(line_of_error("{% for x in y recursive %}{% endfor %}") == 1);
  CHECK(line_of_error("\n{% include 'x' %}") == 2);
  CHECK(line_of_error("\n\n{{ f(*a) }}") == 3);
  CHECK(line_of_error("{{ 'a }}\n") == 1);
  CHECK(line_of_error("{% if 1 %}\n") == 1);
  CHECK(line_of_error("{# a") == 1);
  CHECK(line_of_error("{% break %}") == 1);
  CHECK(line_of_error("a\n{{ undefined_name.x }}") == 2);
  CHECK_THROWS_AS(ChatTemplate("\xFF"), TemplateError);
}

TEST_CASE("an unknown filter, test or function: an error only when it is reached") {
  CHECK(render("{% if false %}{{ 1 | nosuch }}{{ 1 is nosuch }}{{ nosuch() }}{% endif %}x") == "x");
  CHECK_THROWS_AS(render("{{ 1 | nosuch }}"), TemplateError);
  CHECK_THROWS_AS(render("{{ 1 is nosuch }}"), TemplateError);
  CHECK_THROWS_AS(render("{{ nosuch() }}"), TemplateError);
}

TEST_CASE("a method that changes a value: an error") {
  for (const char* const source :
       {"{{ [].append(1) }}", "{{ {}.update({'a': 1}) }}", "{{ {'a': 1}.pop('a') }}",
        "{% set d = {} %}{% set d.a = 1 %}"}) {
    INFO(source);
    CHECK_THROWS_AS(render(source), TemplateError);
  }
}

TEST_CASE("raise_exception: the refusal has the template's words") {
  CHECK_THROWS_WITH(render("{{ raise_exception('No ' ~ 1) }}"), "No 1");
  CHECK_THROWS_AS(render("{{ raise_exception('x') }}"), TemplateRefusal);
}

}  // namespace lintel
