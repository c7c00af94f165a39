// SPDX-License-Identifier: Apache-2.0
// Hostile templates: each ends at a bound, in little time and memory.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/chat/template/chat_model.h"
#include "server/chat/template/request_json.h"
#include "server/chat/template/template.h"
#include "server/chat/template/traits.h"
#include "server/chat/template/values.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

std::string repeated_text(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Counts what a render holds.
struct RenderBudget final : JsonBudget {
  bool charge(std::int64_t bytes) override {
    if (bytes > 0 && held + bytes > limit) return false;
    held += bytes;
    most = std::max(most, held);
    return true;
  }
  bool cancelled() const override { return ++looked == looks; }

  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t held = 0, most = 0;  // bytes
  int looks = 0;                    // after which it is cancelled; 0: never
  mutable int looked = 0;
};

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
  // Searched text counts.
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

namespace {

// The number as a template writes it: the least integer is no literal.
std::string literal_of(std::int64_t number) {
  if (number == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807 - 1)";
  return number < 0 ? "(" + std::to_string(number) + ")" : std::to_string(number);
}

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kBounds[] = {
    kLeast, kLeast + 1, -(std::int64_t{1} << 62), -2,        -1,   0,
    1,      2,          std::int64_t{1} << 62,    kMost - 1, kMost};

// The numbers of a range; nothing: it has more than 10, or its step is 0.
std::optional<std::vector<std::int64_t>> numbers_of(std::int64_t start, std::int64_t stop,
                                                    std::int64_t step) {
  if (step == 0) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (__int128 at = start; step > 0 ? at < stop : at > stop; at += step) {
    if (numbers.size() == 10) return std::nullopt;
    numbers.push_back(static_cast<std::int64_t>(at));
  }
  return numbers;
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + ";";
  return text;
}

// The output of a template; an error's text in brackets.
std::string output_of(const std::string& source) {
  try {
    return ChatTemplate(source).render({}).text;
  } catch (const TemplateError& error) {
    return "[" + std::string(error.what()) + "]";
  }
}

}  // namespace

TEST_CASE("ranges: items, membership and slices are exact up to the bounds of 64 bits",
          "[threat-81]") {
  const std::string items = "{% for i in r %}{{ i }};{% endfor %}";
  for (const std::int64_t start : kBounds) {
    for (const std::int64_t stop : kBounds) {
      for (const std::int64_t step : kBounds) {
        const std::string range =
            literal_of(start) + ", " + literal_of(stop) + ", " + literal_of(step);
        INFO("range(" << range << ")");
        const std::string set = "{% set r = range(" + range + ") %}";
        const auto numbers = numbers_of(start, stop, step);
        if (!numbers) {
          CHECK(output_of(set).starts_with("[range"));
          continue;
        }
        CHECK(output_of(set + items) == list_of(*numbers));
        std::string wanted, tests;
        for (const std::int64_t number : kBounds) {
          wanted += std::ranges::count(*numbers, number) > 0 ? "True" : "False";
          tests += "{{ " + literal_of(number) + " in r }}";
        }
        CHECK(output_of(set + tests) == wanted);
        for (const std::int64_t place : {kLeast, std::int64_t{-1}, std::int64_t{1}, kMost}) {
          const auto size = static_cast<std::int64_t>(numbers->size());
          const std::int64_t from = place < 0 ? place + size : place;
          CHECK(output_of(set + "{{ r[" + literal_of(place) + "] }}") ==
                (from >= 0 && from < size
                     ? std::to_string((*numbers)[static_cast<std::size_t>(from)])
                     : ""));
        }
        auto reversed = *numbers;
        std::ranges::reverse(reversed);
        // Python's integers do not end: a range that would begin beyond 64 bits is refused.
        for (const std::int64_t slice : {std::int64_t{-1}, kLeast, kMost}) {
          const std::string output =
              output_of(set + "{% for i in r[::" + literal_of(slice) + "] %}{{ i }};{% endfor %}");
          const auto& whole = slice < 0 ? reversed : *numbers;
          const auto taken = slice == -1 ? whole.size() : std::min<std::size_t>(whole.size(), 1);
          if (output == "[a slice of a range goes beyond 64 bits]") continue;
          CHECK(output ==
                list_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(taken)}));
        }
      }
    }
  }
  CHECK(output_of("{{ range(5)[::-1] | list }}{{ range(0, 9, 3)[1:] | list }}") ==
        "[4, 3, 2, 1, 0][3, 6]");
  CHECK(output_of("{{ 2.0 in range(3) }}{{ 2.5 in range(3) }}{{ 1e300 in range(3) }}"
                  "{{ -9223372036854775808.0 in range(-9223372036854775807 - 1, 0, "
                  "4611686018427387904) }}") == "TrueFalseFalseTrue");
}

TEST_CASE("integers at the bounds of 64 bits: filters, methods and formats end", "[threat-81]") {
  for (const std::int64_t a : kBounds) {
    for (const std::int64_t b : kBounds) {
      const std::string x = literal_of(a), y = literal_of(b);
      for (const std::string& use : {"(" + x + ") | abs",
                                     "(" + x + ") | round(" + y + ")",
                                     "1.5 | round(" + x + ", 'ceil')",
                                     "[1, 2] | batch(" + x + ", 0) | list",
                                     "[1, 2] | slice(" + x + ") | list",
                                     "'a\nb' | indent(" + x + ")",
                                     "'aaa' | replace('a', 'b', " + x + ")",
                                     "'a a a'.split(' ', " + x + ")",
                                     "'a a a'.rsplit(' ', " + x + ")",
                                     "'abc'[" + x + ":" + y + ":" + x + "]",
                                     "[1, 2, 3][" + x + ":" + y + ":" + y + "]",
                                     "'aXa'.find('a', " + x + ", " + y + ")",
                                     "'aXa'.count('a', " + x + ", " + y + ")",
                                     "'a'.startswith('a', " + x + ", " + y + ")",
                                     "[1] | tojson(indent=" + x + ")",
                                     "'%*.*d' % (" + x + ", " + y + ", 1)",
                                     "'%c' % " + x,
                                     "'{:" + std::to_string(a) + "}'.format(1)",
                                     "'7' | int(base=" + x + ")",
                                     x + " is divisibleby(" + y + ")",
                                     x + " // " + y,
                                     x + " % " + y,
                                     x + " ** " + y,
                                     "'a' * " + x,
                                     "[1] * " + x}) {
        INFO(use);
        CHECK_NOTHROW(output_of("{{ " + use + " }}"));
      }
    }
  }
  CHECK(output_of("{{ 9223372036854775807 | round(-1) }}") ==
        "[round: the result is beyond 64 bits]");
  CHECK(output_of("{{ 9223372036854775807 | round(-2) }}") == "9223372036854775800");
  CHECK(output_of("{{ (-9223372036854775807 - 1) | round(-18) }}") == "-9000000000000000000");
}

TEST_CASE("render: every walk over values and variables is charged", "[threat-81]") {
  TemplateLimits limits;  // a fifth of the usual work, as each of these does all of it
  limits.steps = 1'000'000;
  const std::string doubled =
      "{% set ns = namespace(x=(1, 1)) %}{% for i in range(64) %}{% set ns.x = (ns.x, ns.x) %}"
      "{% endfor %}";
  for (const char* const use : {"{% set d = {ns.x: 1} %}", "{{ ns.x in {1: 2} }}",
                                "{{ {1: 2}.get(ns.x) }}", "{{ [ns.x] | unique | list }}",
                                "{{ dict([(ns.x, 1)]) }}", "{{ ns.x == (ns.x[0], ns.x[0]) }}",
                                "{{ ns.x | string | length }}", "{{ ns.x | tojson | length }}"}) {
    INFO(use);
    const std::string bound = bound_of(doubled + use, limits);
    CHECK((bound == "steps" || bound == "text_bytes" || bound == "memory_bytes" || bound.empty()));
  }
  CHECK(bound_of(doubled + "{% set d = {ns.x: 1} %}", limits) == "steps");
  // A name is looked for among all variables of its block.
  std::string many = "{% for i in [1] %}";
  for (int i = 0; i < 20'000; ++i) many += "{% set a" + std::to_string(i) + " = 1 %}";
  many += "{% for j in range(100000) %}{{ '' if a19999 }}{% endfor %}{% endfor %}";
  CHECK(bound_of(many, limits) == "steps");
  // An integer of many digits is read wherever it is compared.
  const Json kwargs = {{"n", big_integer(std::string(100'000, '9'))}};
  const ChatTemplate compares("{% for i in range(100000) %}{{ '' if n < 1.5 }}{% endfor %}");
  RenderInput input;
  input.kwargs = &kwargs;
  CHECK_THROWS_WITH(compares.render(input), Catch::Contains("steps"));
}

TEST_CASE("render: seconds of CPU are bounded, and a cancelled render ends", "[threat-81]") {
  const std::string loop =
      "{% for a in range(100000) %}{% for b in range(40) %}{% endfor %}{% endfor %}";
  TemplateLimits limits;
  limits.steps = 1'000'000'000;
  limits.cpu_seconds = 0.02;
  CHECK(bound_of(loop, limits) == "cpu_seconds");
  limits.cpu_seconds = 10;
  const ChatTemplate chat_template(loop, {}, limits);
  RenderBudget budget;
  budget.looks = 3;
  RenderInput input;
  input.budget = &budget;
  CHECK_THROWS_AS(chat_template.render(input), RenderCancelled);
  CHECK(budget.looked == 3);
  CHECK(budget.held == 0);
}

TEST_CASE("probes: a template's have the time of one render together", "[threat-81]") {
  TemplateLimits limits;
  limits.steps = 1'000'000'000;
  limits.cpu_seconds = 0.2;
  const ChatTemplate chat_template(
      "{% for a in range(100000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", {}, limits);
  const double begin = jinja::cpu_seconds_of_thread();
  CHECK_FALSE(probe(chat_template).tools);
  CHECK(jinja::cpu_seconds_of_thread() - begin < 2 * limits.cpu_seconds);
}

TEST_CASE("render: its memory is charged to the budget and released", "[threat-81]") {
  const ChatTemplate chat_template("{% for m in messages %}{{ m.content }}{% endfor %}");
  const Json messages = Json::array({{{"role", "user"},
                                      {"content", "hi"},
                                      {"x", Json(std::vector<Json>(100'000, Json::array()))}}});
  RenderBudget budget;
  RenderInput input;
  input.messages = &messages;
  input.budget = &budget;
  CHECK(chat_template.render(input).text == "hi");
  CHECK(budget.most > 100'000 * 32);  // a value and a list each
  CHECK(budget.held == 0);
  budget.limit = budget.most - 1;
  CHECK_THROWS_AS(chat_template.render(input), RenderCancelled);
  CHECK(budget.held == 0);
  // Texts in the making count, too.
  const ChatTemplate grows("{% set t = 'aaaaaaaa' * 100000 %}{{ t ~ t ~ t }}");
  budget = {};
  CHECK(grows.render(RenderInput{.budget = &budget}).text.size() == 2'400'000);
  CHECK(budget.most > 3'200'000);
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

TEST_CASE("generation_config.json recommends within bounds", "[threat-110]") {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "generation_config.json";
  const auto stops_of = [&](const nlohmann::json& stops, std::size_t blanks = 0) {
    std::ofstream(file) << nlohmann::json{{"stop_strings", stops}} << std::string(blanks, ' ');
    return load_sampling_defaults(directory.path()).stop_strings;
  };
  CHECK(stops_of("a") == std::vector<std::string>{"a"});
  CHECK(stops_of({std::string(256, 'a'), std::string(257, 'a'), "", 3, nullptr, "b"}) ==
        std::vector<std::string>{std::string(256, 'a'), "b"});
  CHECK(stops_of(std::vector<std::string>(10'000, "a")).size() == 16);
  CHECK(stops_of(nlohmann::json::object({{"a", "b"}})).empty());
  CHECK(stops_of("a", 1'000'000).size() == 1);
  CHECK(stops_of("a", std::size_t{1} << 20).empty());
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  CHECK(load_sampling_defaults(directory.path()).stop_strings.empty());
}

}  // namespace lintel
