// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/template_inputs.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/chat/template/template.h"

namespace lintel::fuzz {
namespace {

using Json = nlohmann::ordered_json;

void promise(bool kept, const char* what) {
  if (!kept) throw std::logic_error(std::string("broken promise: ") + what);
}

// Small, so that an input's time is.
TemplateLimits small_limits() {
  TemplateLimits limits;
  limits.steps = 20'000;
  limits.text_bytes = 64 << 10;
  limits.output_bytes = 64 << 10;
  limits.memory_bytes = 2 << 20;
  return limits;
}

const Json& conversation() {
  static const Json messages = Json::parse(R"([
    {"role": "system", "content": "Sys <b>"}, {"role": "user", "content": "Hi \u00e9", "k": 1},
    {"role": "assistant", "content": null, "tool_calls":
      [{"id": "1", "function": {"name": "f", "arguments": {"z": 1, "a": [1.5, null, true]}}}]},
    {"role": "user", "content": [{"type": "text", "text": "T"}], "k": 2}])");
  return messages;
}

class Grammar {
 public:
  explicit Grammar(std::string_view choices) : choices_(choices) {}

  std::string run() {
    std::string source;
    do {
      source += statement(0);
    } while (!choices_.empty());
    return source;
  }

 private:
  static constexpr int kMostLevels = 6;
  static constexpr std::size_t kMostBytes = 20'000;

  std::size_t choose(std::size_t ways) {
    if (choices_.empty()) return 0;
    const auto choice = static_cast<unsigned char>(choices_[0]);
    choices_.remove_prefix(1);
    return choice % ways;
  }
  template <std::size_t size>
  std::string one_of(const char* const (&texts)[size]) {
    return texts[choose(size)];
  }

  std::string name() {
    return one_of({"m", "messages", "x", "ns", "d", "f", "loop", "k", "caller", "undefined_name"});
  }
  std::string operand() {
    switch (choose(3)) {
      case 0:
        return name();
      case 1:
        return one_of({"'a'", "\"b,c\"", "''", "'\xC3\xA9\\n'", "'%s{}'", "'  X '"});
      default:
        return one_of({"0", "1", "-7", "2.5", "1e16", "true", "none", "9223372036854775807",
                       "[3, 1, 2]", "{'k': 1, 'a': [none]}", "(1, 'b')", "range(9)",
                       "(-9223372036854775807 - 1)", "4611686018427387904", "ns.x",
                       "range(9223372036854775807, 9223372036854775800, -1)",
                       "range(-9223372036854775807, 9223372036854775807, 4611686018427387904)"});
    }
  }
  std::string expression(int level) {
    if (level >= kMostLevels || choices_.empty()) return operand();
    const auto inner = [&] { return expression(level + 1); };
    switch (choose(10)) {
      case 0:
        return operand();
      case 1: {
        const std::string left = inner();
        const std::string op = one_of({" + ", " - ", " * ", " / ", " // ", " % ", " ** ", " ~ "});
        return "(" + left + op + inner() + ")";
      }
      case 2: {
        const std::string left = inner();
        const std::string op =
            one_of({" == ", " != ", " < ", " >= ", " in ", " not in ", " and ", " or "});
        return "(" + left + op + inner() + ")";
      }
      case 3:
        return "not " + inner();
      case 4:
        return "[" + inner() + ", " + inner() + "]";
      case 5: {
        const std::string yes = inner(), test = inner();
        return "(" + yes + " if " + test + " else " + inner() + ")";
      }
      case 6:
        return operand() +
               one_of({"[0]", "[-1]", "[::-1]", "[1:]", "['k']", ".k", ".role", ".items()",
                       ".split(',')", ".strip()", ".upper()", ".replace('', 'x')", ".format(1)",
                       ".title()", ".get('k')", ".count('a')", "[::9223372036854775807]",
                       "[-9223372036854775807:]", "[9223372036854775807]"});
      case 7:
        return "(" + inner() + ") | " +
               one_of({"tojson",
                       "tojson(indent=2)",
                       "upper",
                       "trim",
                       "list",
                       "sort",
                       "join('-')",
                       "length",
                       "string",
                       "map('upper') | list",
                       "unique | list",
                       "batch(2) | list",
                       "indent(3, true)",
                       "dictsort",
                       "int",
                       "float",
                       "round(1)",
                       "default('d', true)",
                       "select | list",
                       "map(attribute='k') | list",
                       "reverse",
                       "e",
                       "safe",
                       "sum",
                       "max",
                       "title",
                       "items | list",
                       "slice(2) | list",
                       "format(1)"});
      case 8:
        return "(" + inner() + ") is " +
               one_of({"defined", "none", "string", "mapping", "sequence", "odd", "lower",
                       "in [1, 'a']", "divisibleby(2)", "sameas true", "not iterable"});
      default:
        return one_of({"f(1)", "f('a', z=2)", "namespace(a=1)", "dict(a=1)", "range(3, 0, -1)",
                       "loop.index", "loop.last", "loop.nextitem", "caller()", "m.content",
                       "raise_exception('x')", "strftime_now('%Y')"});
    }
  }
  std::string body(int level) {
    std::string source;
    for (std::size_t left = choose(3); left > 0; --left) source += statement(level + 1);
    return source;
  }
  std::string tag(const std::string& inner) {
    const std::string begin = one_of({"{% ", "{%- ", "{%+ "});
    return begin + inner + one_of({" %}", " -%}", " %}\n"});
  }
  std::string statement(int level) {
    made_ += 10;
    if (made_ > kMostBytes) choices_ = {};
    if (level >= kMostLevels) return "x";
    switch (choose(12)) {
      case 0:
        return one_of({"a", "  ", "\n", " b\n  ", "\xC3\xA9"});
      case 1:
      case 2:
        return one_of({"{{ ", "{{- "}) + expression(0) + one_of({" }}", " -}}"});
      case 3: {
        const std::string begin = tag("if " + expression(1)) + body(level);
        return begin + tag("else") + body(level) + tag("endif");
      }
      case 4: {
        const std::string begin = tag("for " + one_of({"m", "x", "k, x"}) + " in " + expression(1) +
                                      one_of({"", " if loop", " if x"})) +
                                  body(level);
        return begin + one_of({"", "{% break %}", "{% continue %}"}) + tag("endfor");
      }
      case 5:
        return tag("set " + one_of({"x", "d", "ns.a", "k, x"}) + " = " + expression(1));
      case 6: {
        const std::string begin = tag("set x" + one_of({"", " | upper"})) + body(level);
        return begin + tag("endset");
      }
      case 7: {
        const std::string begin = tag("macro f(" + one_of({"", "x", "x, z=3", "x=1, z=x"}) + ")");
        const std::string inner = body(level);
        return begin + inner + one_of({"", "{{ f(x) }}", "{{ caller() }}", "{{ varargs }}"}) +
               tag("endmacro");
      }
      case 8:
        return tag("call f(1)") + body(level) + tag("endcall");
      case 9:
        return tag("filter " + one_of({"upper", "trim", "indent"})) + body(level) +
               tag("endfilter");
      case 10:
        return tag("with x = " + expression(1)) + body(level) + tag("endwith");
      default:
        return one_of({"{# c #}", "{#- c -#}\n", "{% raw %}{{ }}{% endraw %}",
                       "{% set ns = namespace(x=1) %}",
                       "{% set ns = namespace(x=(1, 1)) %}{% for i in range(64) %}"
                       "{% set ns.x = (ns.x, ns.x) %}{% endfor %}{% set d = {ns.x: 1} %}",
                       "{% generation %}g{% endgeneration %}"});
    }
  }

  std::string_view choices_;
  std::size_t made_ = 0;
};

}  // namespace

bool try_template(std::string_view source) {
  const Json kwargs = {{"d", {{"k", 1}, {"Z", "y"}}}, {"x", "abcab"}};
  RenderInput input;
  input.messages = &conversation();
  input.kwargs = &kwargs;
  const TemplateLimits limits = small_limits();
  try {
    const ChatTemplate chat_template(std::string(source), {{"bos_token", "<s>"}}, limits);
    const RenderedText rendered = chat_template.render(input);
    promise(rendered.text.size() <= limits.output_bytes, "the output is within its limit");
    std::size_t end = 0;
    for (const TextSpan& span : rendered.spans) {
      promise(span.begin == end && span.end > span.begin, "spans cover the text");
      end = span.end;
    }
    promise(end == rendered.text.size(), "spans cover the text");
    promise(chat_template.render(input).text == rendered.text, "a render is repeatable");
    return true;
  } catch (const TemplateError& error) {
    promise(std::string_view(error.what()).size() < 2000, "an error is short");
    return false;
  } catch (const TemplateRefusal&) {
    return false;
  }
}

std::string template_of(std::string_view choices) { return Grammar(choices).run(); }

std::vector<std::string> template_seeds() {
  return {
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | string | trim }}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      "{%- macro f(x, z=none) -%}[{{ x ~ z }}{{ caller() if caller }}]{%- endmacro -%}"
      "{% call f(1) %}b{% endcall %}{{ f('a', z=[1.5, {'k': none}]) }}",
      "{% set ns = namespace(n=0) %}{% for m in messages[::-1] if m.k is defined %}"
      "{% set ns.n = ns.n + m.k %}{{ loop.index }}{{ loop.last }}{% endfor %}{{ ns.n }}",
      "{{ messages | map(attribute='role') | join(', ') }}{{ messages | tojson(indent=2) }}"
      "{{ '%-5s|%05.1f' % ('a', 2.5) }}{{ '{:>5}'.format(1) }}{{ x.split('a') | sort }}",
      "{# c #}{% raw %}{{ x }}{% endraw %}\n  {%- if 1 < 2 < 3 and not d.zz -%} y {% else %}n{% "
      "endif %}",
      "{{ -1 in range(9223372036854775807, 9223372036854775800, -1) }}{{ range(9)[::-1] | list }}"
      "{{ 9223372036854775807 | round(-2) }}",
  };
}

}  // namespace lintel::fuzz
