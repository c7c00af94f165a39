// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_grammar.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/chat/reader/tool_types.h"
#include "server/chat/template/request_json.h"
#include "server/grammar/gbnf.h"
#include "server/grammar/pattern.h"
#include "server/grammar/schema.h"
#include "server/grammar/token_matcher.h"
#include "server/grammar/tool_calls.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

bool is_forced(const api::ChatParams& request) {
  return request.tool_choice == api::ChatParams::ToolChoice::kRequired;
}

// The tools that may be called.
std::vector<grammar::ToolSpec> specs_of(const api::ChatParams& request) {
  using Arguments = grammar::ToolSpec::Arguments;
  const bool forced = is_forced(request);
  std::vector<grammar::ToolSpec> specs;
  for (const Json& tool : request.tools) {
    const Json& function = tool["function"];
    const std::string name = function["name"];
    const auto& offered = request.offered_tools;
    if (!offered.empty() && std::ranges::find(offered, name) == offered.end()) continue;
    grammar::ToolSpec spec{.name = name};
    const Json strict = function.value("strict", Json());
    const Json parameters = function.value("parameters", Json());
    if (!parameters.is_null()) spec.parameters = json_text(parameters);
    spec.arguments = strict == true && (forced || request.tool_grammar) ? Arguments::kStrict
                     : forced                                           ? Arguments::kRelaxed
                                                                        : Arguments::kAny;
    specs.push_back(std::move(spec));
  }
  return specs;
}

// Names kind, options and text of what is compiled.
std::string source_of(const std::vector<grammar::ToolSpec>& specs,
                      const grammar::ToolGrammarOptions& options) {
  Json source = {"tools",
                 static_cast<int>(options.dialect),
                 static_cast<int>(options.mode),
                 options.parallel,
                 options.leading_lines,
                 options.is_forced};
  for (const grammar::ToolSpec& spec : specs) {
    source.push_back({spec.name, spec.parameters, static_cast<int>(spec.arguments)});
  }
  return json_text(source);
}

// The keywords that were left out, or the objects that were closed.
std::string relaxed_text(const std::vector<grammar::RelaxedKeyword>& relaxed, bool is_closed) {
  constexpr std::size_t kMostBytes = 2048;  // for a header, of which clients take few KiB
  std::string text;
  bool is_cut = false;
  for (const grammar::RelaxedKeyword& keyword : relaxed) {
    if (keyword.is_closed != is_closed) continue;
    if (keyword.keyword == grammar::kMoreRelaxed) {
      is_cut = true;
      continue;  // another tool's may follow
    }
    if (text.size() + keyword.path.size() + keyword.keyword.size() > kMostBytes) {
      is_cut = true;
      break;
    }
    if (!text.empty()) text += ", ";
    text += keyword.path.empty() ? "/" : keyword.path;
    if (!is_closed) text += " " + keyword.keyword;
  }
  if (is_cut) text += text.empty() ? "..." : ", ...";
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void name_relaxed(const grammar::CompiledGrammar& compiled, ChatGrammar& made) {
  made.relaxed = relaxed_text(compiled.relaxed, /*is_closed=*/false);
  made.closed = relaxed_text(compiled.relaxed, /*is_closed=*/true);
}

// The names that readers of calls find, for arguments that no schema describes.
void declare_parameters(const api::ChatParams& request, std::vector<grammar::ToolSpec>& specs) {
  const ToolTypes types(request.tools);
  for (grammar::ToolSpec& spec : specs) {
    const ToolTypes::Parameters* const parameters = types.find(spec.name);
    if (parameters == nullptr || spec.arguments != grammar::ToolSpec::Arguments::kAny) continue;
    for (const auto& [name, type] : *parameters) spec.declared.push_back(name);
  }
}

// The grammar of one part of a request: its name in the cache, and the function that adds it.
struct Part {
  std::string source;
  std::string field;  // of the request
  std::function<grammar::NodeId(grammar::Grammar& grammar,
                                std::vector<grammar::RelaxedKeyword>* relaxed)>
      add;
};

Part calls_part(const api::ChatParams& request, grammar::ToolDialect dialect) {
  using Mode = grammar::ToolGrammarOptions::Mode;
  const bool has_format = request.format != api::ChatParams::Format::kText;
  const grammar::ToolGrammarOptions options{
      .dialect = dialect,
      .mode = is_forced(request) || has_format ? Mode::kRequired : Mode::kAuto,
      .parallel = request.parallel_tool_calls,
      // The constraint allows white space before a document, which is no text then.
      .leading_lines = !has_format,
      .is_forced = is_forced(request)};
  std::vector<grammar::ToolSpec> specs = specs_of(request);
  Part part{source_of(specs, options), "tools", nullptr};
  part.add = [&request, specs = std::move(specs), options](grammar::Grammar& grammar,
                                                           auto* relaxed) mutable {
    declare_parameters(request, specs);
    return grammar::add_tool_calls(grammar, specs, options, relaxed);
  };
  return part;
}

Part format_part(const api::ChatParams& request) {
  using Format = api::ChatParams::Format;
  if (request.format == Format::kGrammar) {
    return {json_text({"gbnf", request.format_text}), request.format_member,
            [&request](grammar::Grammar& grammar, auto*) {
              return grammar::add_gbnf(grammar, request.format_text);
            }};
  }
  if (request.format == Format::kPattern) {
    return {json_text({"pattern", request.format_text}), request.format_member,
            [&request](grammar::Grammar& grammar, auto*) {
              return grammar.add_dfa(std::make_shared<const grammar::Dfa>(grammar::pattern_dfa(
                  grammar::whole_pattern(request.format_text), grammar::Spelling::kUtf8)));
            }};
  }
  const grammar::SchemaOptions options{.relaxed = !request.strict_schema,
                                       .objects_only = request.format == Format::kJsonObject};
  return {json_text({"schema", options.relaxed, options.objects_only, request.format_text}),
          request.format_member, [&request, options](grammar::Grammar& grammar, auto* relaxed) {
            return grammar::add_schema(grammar, grammar::parse_json(request.format_text), options,
                                       relaxed);
          }};
}

// The texts of either part; null: there is no such part. REQUIRES: one of them.
grammar::CompiledGrammar compile(const Part* format, const Part* calls, std::uint32_t max_depth) {
  grammar::CompiledGrammar compiled;
  const auto grammar = std::make_shared<grammar::Grammar>(max_depth);
  std::vector<grammar::NodeId> roots;
  for (const Part* const part : {format, calls}) {
    if (part != nullptr) roots.push_back(part->add(*grammar, &compiled.relaxed));
  }
  grammar->finish(grammar->add_choice(std::move(roots)));
  compiled.grammar = grammar;
  return compiled;
}

grpc::Status refusal_of(const grammar::GrammarError& error, const std::string& field) {
  const std::string path = error.path().starts_with('/') ? error.path() : "";
  const std::string place = path.empty() && !error.path().empty() ? error.path() + ": " : "";
  using Kind = grammar::GrammarError::Kind;
  const char* const what = error.kind() == Kind::kUnsupported ? " is not served"
                           : error.kind() == Kind::kMalformed ? " is not valid"
                                                              : "";
  return chat_refusal("UNSUPPORTED_SCHEMA", field + path, place + error.reason() + what);
}

}  // namespace

std::optional<grammar::ToolDialect> grammar_dialect(ToolDialect dialect) {
  switch (dialect) {
    case ToolDialect::kNone:
      return std::nullopt;
    case ToolDialect::kHermes:
      return grammar::ToolDialect::kHermes;
    case ToolDialect::kXml:
      return grammar::ToolDialect::kXml;
    case ToolDialect::kPythonic:
      return grammar::ToolDialect::kPythonic;
  }
  return std::nullopt;
}

std::shared_ptr<const grammar::Vocabulary> ChatVocabularies::of(
    const std::shared_ptr<const Tokenizer>& tokenizer, std::size_t num_ids, ToolDialect dialect) {
  MutexLock lock(mutex_);  // who comes meanwhile waits, as it would have to make the same
  std::erase_if(entries_, [](const Entry& entry) { return entry.tokenizer.expired(); });
  for (const Entry& entry : entries_) {
    if (entry.tokenizer.lock() == tokenizer && entry.num_ids == num_ids &&
        entry.dialect == dialect) {
      return entry.vocabulary;
    }
  }
  std::vector<std::string> tags;
  const std::optional<grammar::ToolDialect> calls = grammar_dialect(dialect);
  if (calls) tags = grammar::tool_call_tags(*calls);
  const auto vocabulary = grammar::make_vocabulary(*tokenizer, num_ids, tags);
  if (calls) grammar::warm_masks(*vocabulary, grammar::tool_call_automata(*calls));
  entries_.push_back({tokenizer, num_ids, dialect, vocabulary});
  return vocabulary;
}

grpc::Status make_chat_grammar(const api::ChatParams& request, const TemplateTraits& traits,
                               grammar::GrammarCache& cache, ChatGrammar& made) {
  using Format = api::ChatParams::Format;
  const bool has_format = request.format != Format::kText;
  const std::optional<grammar::ToolDialect> dialect = grammar_dialect(traits.dialect);
  const bool has_calls = !request.tools.is_null() && dialect.has_value() &&
                         request.tool_choice != api::ChatParams::ToolChoice::kNone &&
                         (is_forced(request) || request.tool_grammar || has_format);
  if (is_forced(request) && !has_calls) {
    return chat_refusal("TOOLS_NOT_SUPPORTED", "tool_choice",
                        "cannot force calls: how the model writes them is not known "
                        "(--tool-dialect)");
  }
  std::optional<Part> calls, format;
  if (has_calls) {
    calls = calls_part(request, *dialect);
    try {
      const auto compiled = cache.get(
          calls->source, [&] { return compile(nullptr, &*calls, grammar::kMaxJsonDepth); });
      made.calls = made.grammar = compiled.grammar;
      name_relaxed(compiled, made);
    } catch (const grammar::GrammarError& error) {
      return refusal_of(error, calls->field);
    }
  }
  if (!has_format) return grpc::Status::OK;
  format = format_part(request);
  try {
    const auto compiled =
        cache.get(calls ? json_text({format->source, calls->source}) : format->source, [&] {
          return compile(
              &*format, calls ? &*calls : nullptr,
              request.format == Format::kGrammar ? grammar::kMaxGbnfDepth : grammar::kMaxJsonDepth);
        });
    made.grammar = compiled.grammar;
    name_relaxed(compiled, made);
  } catch (const grammar::GrammarError& error) {
    return refusal_of(error, format->field);
  }
  return grpc::Status::OK;
}

}  // namespace lintel
