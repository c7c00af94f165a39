// SPDX-License-Identifier: Apache-2.0
// Hostile templates: each ends at a bound, in little time and memory.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/chat/template/template.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

std::string repeated_text(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// The bound that a template reaches; empty: it fails otherwise, "rendered" if it does not.
std::string bound_of(const std::string& source, const TemplateLimits& limits = {}) {
  try {
    const ChatTemplate chat_template(source, {}, limits);
    const Json messages = Json::array();
    RenderInput input;
    input.messages = &messages;
    chat_template.render(input);
  } catch (const TemplateError& error) {
    UNSCOPED_INFO(error.what());
    CHECK((error.kind() == TemplateError::Kind::kBound) == !error.bound().empty());
    return error.bound();
  }
  return "rendered";
}

}  // namespace

TEST_CASE("parser: source, nesting and nodes are bounded", "[threat-81]") {
  TemplateLimits limits;
  limits.source_bytes = 10;
  CHECK(bound_of("0123456789", limits) == "rendered");
  CHECK(bound_of("0123456789a", limits) == "source_bytes");
  limits = {};
  limits.nodes = 3;
  CHECK(bound_of("{{ [1] }}", limits) == "rendered");
  CHECK(bound_of("{{ [1, 2] }}", limits) == "nodes");

  CHECK(bound_of("{{ " + repeated_text("(", 60) + "1" + repeated_text(")", 60) + " }}") ==
        "rendered");
  for (const char* const open : {"(", "[", "{1: ", "not ", "- ", "f(", "a[", "1 if 1 else "}) {
    INFO(open);
    CHECK(bound_of("{{ " + repeated_text(open, 50'000)) == "nesting");
  }
  CHECK(bound_of(repeated_text("{% if 1 %}", 65)) == "nesting");
  CHECK(bound_of(repeated_text("{% for i in [1] %}", 65)) == "nesting");
  CHECK(bound_of("{% set " + repeated_text("(", 100'000) + " = 1 %}") == "nesting");
  // Chains are no nesting.
  CHECK(bound_of("{{ 0" + repeated_text(" + 1", 20'000) + " }}") == "rendered");
  CHECK(bound_of("{{ 'a'" + repeated_text(" | upper", 20'000) + " }}") == "rendered");
  CHECK(bound_of("{{ x" + repeated_text(" or x", 20'000) + " }}") == "rendered");
  CHECK(bound_of("{{ 1" + repeated_text(" < 2", 2) + repeated_text(" == 2", 20'000) + " }}") ==
        "rendered");
  CHECK(bound_of("{% if 0 %}" + repeated_text("{% elif 0 %}", 20'000) + "{% endif %}") ==
        "rendered");
}

TEST_CASE("render: steps are bounded") {
  const std::string range = "range(100000)";
  CHECK(bound_of("{% for a in " + range + " %}{% for b in " + range +
                 " %}{% endfor %}{% endfor %}") == "steps");
  CHECK(bound_of("{% for a in range(100001) %}{% endfor %}") == "range");
  CHECK(bound_of("{{ range(0, 9223372036854775807) }}") == "range");
  CHECK(bound_of("{% for a in range(100000) if false %}{% endfor %}") == "rendered");
  TemplateLimits limits;
  limits.steps = 100;
  CHECK(bound_of("{% for a in range(1000) %}{% endfor %}", limits) == "steps");
  // What is looked through counts.
  CHECK(bound_of("{% set x = 'a' * 1000000 %}{% for a in " + range +
                 " %}{{ 'ab' in x }}{% endfor %}") == "steps");
  CHECK(bound_of("{% set x = 'a' * 1000000 %}{% for a in " + range +
                 " %}{{ x.count('aab') }}{% endfor %}") == "steps");
  CHECK(bound_of("{% set x = ' ' * 1000000 %}{% for a in " + range +
                 " %}{{ x | trim }}{% endfor %}") == "steps");
  CHECK(bound_of("{% set x = range(100000) | list %}{% for a in x %}{{ a in x }}{% endfor %}") ==
        "steps");
  CHECK(bound_of("{{ range(100000) | map('string') | unique | list | length }}") == "steps");
}

TEST_CASE("render: texts, output and memory are bounded") {
  CHECK(bound_of("{{ 'x' * 10 ** 9 }}") == "text_bytes");
  CHECK(bound_of("{{ 'x' * 9223372036854775807 }}") == "text_bytes");
  CHECK(bound_of("{{ [0] * 10 ** 12 }}") == "memory_bytes");
  CHECK(bound_of("{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
                 "{% endfor %}") == "text_bytes");
  CHECK(bound_of("{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
                 "{% endfor %}") != "rendered");
  CHECK(bound_of("{% set x = 'x' * 9000000 %}{{ x }}{{ x }}") == "output_bytes");
  CHECK(bound_of("{{ '%1000000000d' % 1 }}") == "text_bytes");
  CHECK(bound_of("{{ '%*d' % (1000000000, 1) }}") == "text_bytes");
  CHECK(bound_of("{{ '%.1000000000f' % 1.0 }}") == "digits of a number");
  CHECK(bound_of("{{ '{:99999999999999999999}'.format(1) }}") == "text_bytes");
  CHECK(bound_of("{{ 'a' | indent(1000000000) }}") == "text_bytes");
  CHECK(bound_of("{{ [1] | tojson(indent=1000000000) }}") == "text_bytes");
  CHECK(bound_of("{{ [1] | batch(1000000000, 0) | list }}") != "rendered");
  CHECK(bound_of("{{ [1] | slice(1000000000) | list }}") == "steps");
  CHECK(bound_of("{{ ('x' * 4000).replace('', 'y' * 5000) }}") == "text_bytes");
  CHECK(bound_of("{{ ('y' * 5000).join('x' * 4000) }}") == "text_bytes");
  TemplateLimits limits;
  limits.memory_bytes = 1 << 20;
  CHECK(bound_of("{{ range(100000) | list | length }}", limits) == "memory_bytes");
  limits = {};
  limits.output_bytes = 3;
  CHECK(bound_of("abc", limits) == "rendered");
  CHECK(bound_of("abcd", limits) == "output_bytes");
}

TEST_CASE("render: macros and values within each other are bounded") {
  CHECK(bound_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}") == "macro_depth");
  CHECK(bound_of("{% macro m(a=m()) %}{% endmacro %}{{ m() }}") == "macro_depth");
  CHECK(bound_of("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(31) }}") ==
        "rendered");
  // Through as many blocks as there may be.
  const std::string deep =
      repeated_text("{% if 1 %}", 50) + "{{ m() }}" + repeated_text("{% endif %}", 50);
  CHECK(bound_of("{% macro m() %}" + deep + "{% endmacro %}{{ m() }}") != "rendered");
  const std::string nested =
      "{% set n = namespace(x=[]) %}{% for i in range(10000) %}{% set n.x = [n.x] %}{% endfor %}";
  for (const char* const use :
       {"{{ n.x }}", "{{ n.x | tojson }}", "{{ n.x == [n.x] }}", "{{ n.x < [n.x] }}"}) {
    INFO(use);
    CHECK(bound_of(nested + use) == "value depth");
  }
  CHECK(bound_of("{% set n = namespace() %}{% set n.x = n %}{{ n }}") == "value depth");
  std::string maps = "'string'";
  for (int i = 0; i < 1000; ++i) maps = "'map', " + maps;
  CHECK(bound_of("{{ ['a'] | map(" + maps + ") | list }}") == "depth of filters");
}

TEST_CASE("integers: a result beyond 64 bits is an error") {
  for (const char* const source :
       {"{{ 9223372036854775807 + 1 }}", "{{ 2 ** 63 }}", "{{ 3037000500 * 3037000500 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ - (-9223372036854775807 - 1) }}",
        "{{ 9223372036854775808 }}", "{{ 1e19 | int }}", "{{ ('9' * 30) | int }}", "{{ 1 // 0 }}",
        "{{ 1 % 0 }}", "{{ 1.0 / 0 }}"}) {
    INFO(source);
    CHECK(bound_of(source).empty());
  }
  CHECK(
      bound_of(
          "{{ (-9223372036854775807 - 1) % -1 }}{{ 2 ** 62 }}{{ 'ab'[::-9223372036854775807] }}") ==
      "rendered");
}

TEST_CASE("a compiled template: threads render it at once") {
  const ChatTemplate chat_template("{% for m in messages %}{{ m.content }};{% endfor %}");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Json messages =
          Json::array({{{"role", "user"}, {"content", std::to_string(i)}}, {{"content", "x"}}});
      RenderInput input;
      input.messages = &messages;
      for (int n = 0; n < 100; ++n)
        texts[static_cast<std::size_t>(i)] = chat_template.render(input).text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i)
    CHECK(texts[static_cast<std::size_t>(i)] == std::to_string(i) + ";x;");
}

}  // namespace lintel
