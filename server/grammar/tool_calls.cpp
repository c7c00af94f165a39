// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/tool_calls.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/grammar/pattern.h"

namespace lintel::grammar {
namespace {

struct Tags {
  std::string begin, end;
  // Texts up to the start tag, without one, and in kXml up to <function= at the beginning of a
  // line; each without the others' ends.
  std::shared_ptr<const Dfa> up_to_begin, without_begin, up_to_function;
};

std::shared_ptr<const Dfa> shared(Dfa dfa) { return std::make_shared<const Dfa>(std::move(dfa)); }

Tags make_tags(std::string begin, std::string end) {
  Tags tags{std::move(begin), std::move(end), nullptr, nullptr, nullptr};
  tags.up_to_begin = shared(text_up_to(tags.begin));
  tags.without_begin = shared(text_without(tags.begin));
  return tags;
}

constexpr std::string_view kFunction = "<function=";

Tags make_xml_tags() {
  Tags tags = make_tags("<tool_call>", "</tool_call>");
  const Dfa without_function = text_without(kFunction, /*begins_line=*/true);
  tags.up_to_function =
      shared(intersection(text_up_to(kFunction, /*begins_line=*/true), *tags.without_begin));
  tags.up_to_begin = shared(intersection(*tags.up_to_begin, without_function));
  tags.without_begin = shared(intersection(*tags.without_begin, without_function));
  return tags;
}

const Tags& tags_of(ToolDialect dialect) {
  static const Tags hermes = make_tags("<tool_call>", "</tool_call>");
  static const Tags xml = make_xml_tags();
  static const Tags pythonic = make_tags("<|tool_call_start|>", "<|tool_call_end|>");
  return dialect == ToolDialect::kHermes ? hermes : dialect == ToolDialect::kXml ? xml : pythonic;
}

constexpr std::string_view kValueEnd = "\n</parameter>";
// Characters that no name of a parameter has: those that end it.
constexpr std::string_view kNotInXmlNames = ">\n\r";

// A text between the tags of a parameter: without what a reader takes for the end of it, to which
// a carriage return before the line feed belongs.
const std::shared_ptr<const Dfa>& xml_text() {
  static const std::shared_ptr<const Dfa> made =
      shared(intersection(intersection(text_without("</parameter>"), text_without("</function>")),
                          intersection(text_without("\n<parameter="),
                                       pattern_dfa("^(?:[\\s\\S]*[^\\r])?$", Spelling::kUtf8))));
  return made;
}

// True if a reader finds `text` whole as a value. A tag within it alone does not end it.
bool is_xml_text(std::string_view text) {
  const auto skip_space = [text](std::size_t at) {
    return text.substr(std::min(text.find_first_not_of(" \t\n\r", at), text.size()));
  };
  if (text.ends_with('\r')) return false;
  for (const std::string_view end : {std::string_view("\n<parameter="), kValueEnd}) {
    if (text.find(end) != std::string_view::npos) return false;
  }
  for (const std::string_view tag : {"</parameter>", "</function>"}) {
    for (std::size_t at = text.find(tag); at != std::string_view::npos;
         at = text.find(tag, at + 1)) {
      const std::string_view next = skip_space(at + tag.size());
      if (next.starts_with("</tool_call>")) return false;
      if (tag != "</parameter>") continue;
      if (next.starts_with("</function>") || next.starts_with("<parameter=")) return false;
    }
  }
  return true;
}

// The same with the end of the value.
const std::shared_ptr<const Dfa>& xml_value() {
  static const std::shared_ptr<const Dfa> made = shared(intersection(
      intersection(text_up_to("</parameter>"), text_up_to(kValueEnd)),
      intersection(intersection(text_without("</function>"), text_without("\r\n</parameter>")),
                   text_without("\n<parameter="))));
  return made;
}

// Any key of an argument, with the text after it: an automaton that accepts at its end alone needs
// no list of what may follow.
const std::shared_ptr<const Dfa>& any_key(ToolDialect dialect) {
  static const std::shared_ptr<const Dfa> xml =
      shared(pattern_dfa("^[A-Za-z0-9_.-]{1,64}>\\n$", Spelling::kUtf8));
  static const std::shared_ptr<const Dfa> pythonic =
      shared(pattern_dfa("^[A-Za-z0-9_.-]{1,64}=$", Spelling::kUtf8));
  return dialect == ToolDialect::kXml ? xml : pythonic;
}

const std::shared_ptr<const Dfa>& leading_lines() {
  static const std::shared_ptr<const Dfa> made = shared(pattern_dfa("^\\n{0,2}$", Spelling::kUtf8));
  return made;
}

MemberStyle xml_style() {
  MemberStyle style;
  style.first_prefix = "<parameter=";
  style.later_prefix = "\n<parameter=";
  style.name_end = ">\n";
  style.value_end = kValueEnd;
  style.first_end = "</function>";
  style.later_end = "\n</function>";
  style.plain_value = xml_value();
  style.plain_inside = xml_text();
  style.is_plain = is_xml_text;
  static const auto counted = shared(intersection(*xml_value(), plain_text()->dfa));
  static const auto counts = CharacterCounts::of(*counted, *plain_text());
  style.counted_value = counted;
  style.value_counts = counts;
  style.not_in_names = kNotInXmlNames;
  // Readers drop blanks and quotes around a name that no function declares.
  static const auto other_name =
      shared(pattern_dfa("^[^\\s<>\"'\\\\\\x00-\\x1f](?:[^<>\"\\\\\\x00-\\x1f]{0,62}"
                         "[^\\s<>\"'\\\\\\x00-\\x1f])?\"$",
                         Spelling::kUtf8));
  static const auto other_name_end = shared(ending(*other_name, '"', style.name_end));
  style.other_name = other_name;
  style.other_name_end = other_name_end;
  return style;
}

MemberStyle pythonic_style() {
  MemberStyle style;
  style.later_prefix = ", ";
  style.name_end = "=";
  style.first_end = style.later_end = ")";
  style.not_in_names = kNotInNames;
  static const auto other_name = shared(pattern_dfa("^[A-Za-z0-9_.-]{1,64}\"$", Spelling::kUtf8));
  style.other_name = other_name;
  style.other_name_end = any_key(ToolDialect::kPythonic);
  return style;
}

class ToolCompiler {
 public:
  ToolCompiler(Grammar& grammar, std::span<const ToolSpec> tools, const ToolGrammarOptions& options,
               std::vector<RelaxedKeyword>* relaxed)
      : tools_(tools),
        options_(options),
        relaxed_(relaxed),
        tags_(tags_of(options.dialect)),
        grammar_(&grammar) {
    const bool is_required = options.mode == ToolGrammarOptions::Mode::kRequired;
    if (is_required && options.is_forced) grammar.limit_indent();
  }

  NodeId compile() {
    const NodeId root = add_root();
    refuse_unmet();
    return root;
  }

 private:
  NodeId add_root() {
    using Mode = ToolGrammarOptions::Mode;
    Grammar& g = *grammar_;
    const NodeId text = g.add_dfa(tags_.without_begin);
    if (options_.mode == Mode::kNone || (tools_.empty() && options_.mode == Mode::kAuto)) {
      return text;
    }
    if (tools_.empty()) throw GrammarError(GrammarError::Kind::kUnmet, "", "no tool is offered");
    const NodeId named = add_named();
    const NodeId call = add_call(named);
    if (options_.mode == Mode::kRequired) {
      const NodeId begin = g.add_text(tags_.begin);
      std::vector<NodeId> parts;
      if (options_.leading_lines) parts.push_back(g.add_dfa(leading_lines()));
      parts.insert(parts.end(), {begin, call});
      if (options_.parallel && options_.dialect != ToolDialect::kPythonic) {
        const NodeId more = g.add_sequence({space(), begin, call});
        parts.push_back(g.add_repeat(more, 0, kMaxCalls - 1));
      }
      return g.add_sequence(std::move(parts));
    }
    NodeId with_call = g.add_sequence({g.add_dfa(tags_.up_to_begin), call});
    if (tags_.up_to_function != nullptr) {
      with_call =
          g.add_choice({with_call, g.add_sequence({g.add_dfa(tags_.up_to_function), named})});
    }
    if (!options_.parallel) return g.add_choice({text, with_call});
    return g.add_sequence({g.add_repeat(with_call, 0, kMaxCalls), text});
  }

  // A tool that no text can call is an error of the request, though others can be called.
  void refuse_unmet() {
    grammar_->measure_heights();
    for (const auto& [name, node] : tool_nodes_) {
      if (grammar_->can_be_met(node)) continue;
      throw GrammarError(GrammarError::Kind::kUnmet, name,
                         "takes no arguments that a call can have");
    }
  }

  // The name of a tool and what follows it.
  NodeId add_named() {
    Grammar& g = *grammar_;
    std::vector<std::pair<std::string, NodeId>> by_name;
    for (const ToolSpec& tool : tools_) {
      const NodeId node = add_tool(tool);
      tool_nodes_.emplace_back(tool.name, node);
      by_name.emplace_back(name_text(tool.name), node);
    }
    std::ranges::sort(by_name);
    const auto same = std::ranges::unique(by_name, {}, &std::pair<std::string, NodeId>::first);
    by_name.erase(same.begin(), same.end());
    Node names;
    names.kind = Node::Kind::kTexts;
    for (auto& [text, node] : by_name) {
      names.texts.push_back(std::move(text));
      names.children.push_back(node);
    }
    return g.add(std::move(names));
  }

  // Adds the text after the start tag, with the end tag.
  NodeId add_call(NodeId named) {
    Grammar& g = *grammar_;
    switch (options_.dialect) {
      case ToolDialect::kHermes:
        return g.add_sequence({space(), g.add_text("{"), space(), g.add_text("\"name\""), space(),
                               g.add_text(":"), space(), named, space(), g.add_text("}"), space(),
                               g.add_text(tags_.end)});
      case ToolDialect::kXml:
        return g.add_sequence(
            {space(), g.add_text(std::string(kFunction)), named, space(), g.add_text(tags_.end)});
      case ToolDialect::kPythonic: {
        std::vector<NodeId> parts = {g.add_text("["), named};
        if (options_.parallel) {
          parts.push_back(
              g.add_repeat(g.add_sequence({g.add_text(", "), named}), 0, kMaxCalls - 1));
        }
        parts.push_back(g.add_text("]" + tags_.end));
        return g.add_sequence(std::move(parts));
      }
    }
    return kNoNode;
  }

  std::string name_text(const std::string& name) const {
    switch (options_.dialect) {
      case ToolDialect::kHermes:
        return '"' + json_spelling(name) + '"';
      case ToolDialect::kXml:
        return name + ">\n";
      case ToolDialect::kPythonic:
        return name + "(";
    }
    return name;
  }

  NodeId space() {
    if (space_ == kNoNode) space_ = grammar_->add_dfa(grammar_->space());
    return space_;
  }

  // Adds the text after the name of a tool.
  NodeId add_tool(const ToolSpec& tool) {
    try {
      std::vector<RelaxedKeyword> relaxed;
      const NodeId node = add_arguments(tool, &relaxed);
      for (RelaxedKeyword& keyword : relaxed) {
        if (relaxed_ == nullptr) break;
        relaxed_->push_back({tool.name + keyword.path, keyword.keyword, keyword.is_closed});
      }
      return node;
    } catch (const GrammarError& error) {
      throw GrammarError(error.kind(), tool.name + error.path(), error.reason());
    }
  }

  NodeId add_arguments(const ToolSpec& tool, std::vector<RelaxedKeyword>* relaxed) {
    Grammar& g = *grammar_;
    const bool any = tool.parameters.empty() || tool.arguments == ToolSpec::Arguments::kAny;
    SchemaOptions options;
    options.relaxed = options.closed_objects = tool.arguments == ToolSpec::Arguments::kRelaxed;
    options.python_literals = options_.dialect == ToolDialect::kPythonic;
    if (options_.dialect == ToolDialect::kHermes) {
      options.objects_only = true;
      const JsonValue schema = parse_json(any ? "true" : tool.parameters);
      const NodeId object = add_schema(g, schema, options, relaxed);
      return g.add_sequence({space(), g.add_text(","), space(), g.add_text("\"arguments\""),
                             space(), g.add_text(":"), space(), object});
    }
    const bool is_xml = options_.dialect == ToolDialect::kXml;
    if (!any) {
      return add_schema_members(g, parse_json(tool.parameters),
                                is_xml ? xml_style() : pythonic_style(), options, relaxed);
    }
    const NodeId key = add_key(tool.declared);
    if (is_xml) {
      const NodeId value = g.add_dfa(xml_value());
      const NodeId member =
          g.add_sequence({g.add_text("<parameter="), key, value, g.add_text("\n")});
      return g.add_sequence({g.add_repeat(member, 0, kUnbounded), g.add_text("</function>")});
    }
    const NodeId value = add_schema(g, parse_json("true"), options, relaxed);
    const NodeId member = g.add_sequence({key, value});
    const NodeId more = g.add_repeat(g.add_sequence({g.add_text(", "), member}), 0, kUnbounded);
    const NodeId end = g.add_text(")");
    return g.add_choice({end, g.add_sequence({member, more, end})});
  }

  // A key of any arguments.
  NodeId add_key(const std::vector<std::string>& declared) {
    const bool is_xml = options_.dialect == ToolDialect::kXml;
    const std::shared_ptr<const Dfa>& any = any_key(options_.dialect);
    const std::string_view refused = is_xml ? kNotInXmlNames : kNotInNames;
    Node names;
    names.kind = Node::Kind::kTexts;
    for (const std::string& name : declared) {
      if (name.empty() || name.find_first_of(refused) != std::string::npos) continue;
      std::string text = name + (is_xml ? ">\n" : "=");
      if (!any->matches(text)) names.texts.push_back(std::move(text));
    }
    const NodeId key = grammar_->add_dfa(any);
    if (names.texts.empty()) return key;
    std::ranges::sort(names.texts);
    const auto same = std::ranges::unique(names.texts);
    names.texts.erase(same.begin(), same.end());
    return grammar_->add_choice({key, grammar_->add(std::move(names))});
  }

  std::span<const ToolSpec> tools_;
  const ToolGrammarOptions options_;
  std::vector<RelaxedKeyword>* relaxed_;
  const Tags& tags_;
  Grammar* grammar_;
  std::vector<std::pair<std::string, NodeId>> tool_nodes_;
  NodeId space_ = kNoNode;
};

}  // namespace

std::shared_ptr<const Grammar> compile_tools(std::span<const ToolSpec> tools,
                                             const ToolGrammarOptions& options,
                                             std::vector<RelaxedKeyword>* relaxed) {
  auto grammar = std::make_shared<Grammar>(kMaxJsonDepth);
  grammar->finish(add_tool_calls(*grammar, tools, options, relaxed));
  return grammar;
}

NodeId add_tool_calls(Grammar& grammar, std::span<const ToolSpec> tools,
                      const ToolGrammarOptions& options, std::vector<RelaxedKeyword>* relaxed) {
  return ToolCompiler(grammar, tools, options, relaxed).compile();
}

std::vector<std::string> tool_call_tags(ToolDialect dialect) {
  return {tags_of(dialect).begin, tags_of(dialect).end};
}

std::vector<std::shared_ptr<const Dfa>> tool_call_automata(ToolDialect dialect) {
  const Tags& tags = tags_of(dialect);
  std::vector<std::shared_ptr<const Dfa>> automata = {tags.up_to_begin, tags.without_begin};
  if (tags.up_to_function != nullptr) automata.push_back(tags.up_to_function);
  if (dialect == ToolDialect::kXml) automata.push_back(xml_value());
  return automata;
}

}  // namespace lintel::grammar
