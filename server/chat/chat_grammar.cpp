// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_grammar.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/grammar/gbnf.h"
#include "server/grammar/schema.h"
#include "server/grammar/token_matcher.h"
#include "server/grammar/tool_calls.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

grammar::ToolDialect dialect_of(ToolDialect dialect) {
  switch (dialect) {
    case ToolDialect::kXml:
      return grammar::ToolDialect::kXml;
    case ToolDialect::kPythonic:
      return grammar::ToolDialect::kPythonic;
    default:
      return grammar::ToolDialect::kHermes;
  }
}

// The tools that may be called. forced: calls have to come.
std::vector<grammar::ToolSpec> specs_of(const ChatRequest& request, bool forced) {
  using Arguments = grammar::ToolSpec::Arguments;
  std::vector<grammar::ToolSpec> specs;
  for (const Json& tool : request.tools) {
    const Json& function = tool["function"];
    const std::string name = function["name"];
    const auto& offered = request.offered_tools;
    if (!offered.empty() && std::ranges::find(offered, name) == offered.end()) continue;
    grammar::ToolSpec spec{.name = name};
    const Json strict = function.value("strict", Json());
    const Json parameters = function.value("parameters", Json());
    if (!parameters.is_null()) spec.parameters = request_text(parameters);
    spec.arguments = strict == true ? Arguments::kStrict
                     : forced       ? Arguments::kRelaxed
                                    : Arguments::kAny;
    specs.push_back(std::move(spec));
  }
  return specs;
}

// Names kind, options and text of what is compiled.
std::string source_of(const std::vector<grammar::ToolSpec>& specs,
                      const grammar::ToolGrammarOptions& options) {
  Json source = {"tools", static_cast<int>(options.dialect), static_cast<int>(options.mode),
                 options.parallel};
  for (const grammar::ToolSpec& spec : specs) {
    source.push_back({spec.name, spec.parameters, static_cast<int>(spec.arguments)});
  }
  return request_text(source);
}

std::string relaxed_text(const std::vector<grammar::RelaxedKeyword>& relaxed) {
  constexpr std::size_t kMostBytes = 2048;  // for a header, of which clients take few KiB
  std::string text;
  for (const grammar::RelaxedKeyword& keyword : relaxed) {
    if (!text.empty()) text += ", ";
    if (text.size() + keyword.path.size() + keyword.keyword.size() > kMostBytes) {
      text += "...";
      break;
    }
    text += (keyword.path.empty() ? "/" : keyword.path) + " " + keyword.keyword;
  }
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

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
  if (dialect != ToolDialect::kNone) tags = grammar::tool_call_tags(dialect_of(dialect));
  const auto vocabulary = grammar::make_vocabulary(*tokenizer, num_ids, tags);
  if (dialect != ToolDialect::kNone) {
    grammar::warm_masks(*vocabulary, grammar::tool_call_automata(dialect_of(dialect)));
  }
  entries_.push_back({tokenizer, num_ids, dialect, vocabulary});
  return vocabulary;
}

grpc::Status make_chat_grammar(const ChatRequest& request, const TemplateTraits& traits,
                               grammar::GrammarCache& cache, ChatGrammar& made) {
  using Format = ChatRequest::Format;
  using Mode = grammar::ToolGrammarOptions::Mode;
  const bool forced = request.tool_choice == ChatRequest::ToolChoice::kRequired;
  std::string source, field;
  std::function<grammar::CompiledGrammar()> compile;
  if (request.format == Format::kJsonSchema || request.format == Format::kJsonObject) {
    const grammar::SchemaOptions options{.relaxed = !request.strict_schema,
                                         .objects_only = request.format == Format::kJsonObject};
    source = request_text({"schema", options.relaxed, options.objects_only, request.format_text});
    field = request.format == Format::kJsonSchema ? "response_format.json_schema.schema"
                                                  : "response_format";
    compile = [&request, options] {
      grammar::CompiledGrammar compiled;
      compiled.grammar = grammar::compile_schema(request.format_text, options, &compiled.relaxed);
      return compiled;
    };
  } else if (request.format == Format::kGrammar) {
    source = request_text({"gbnf", request.format_text});
    field = "grammar";
    compile = [&request] {
      return grammar::CompiledGrammar{grammar::compile_gbnf(request.format_text), {}};
    };
  } else if (!request.tools.is_null() && traits.dialect != ToolDialect::kNone &&
             request.tool_choice != ChatRequest::ToolChoice::kNone &&
             (forced || request.tool_grammar)) {
    const grammar::ToolGrammarOptions options{.dialect = dialect_of(traits.dialect),
                                              .mode = forced ? Mode::kRequired : Mode::kAuto,
                                              .parallel = request.parallel_tool_calls};
    std::vector<grammar::ToolSpec> specs = specs_of(request, forced);
    source = source_of(specs, options);
    field = "tools";
    compile = [specs = std::move(specs), options] {
      grammar::CompiledGrammar compiled;
      compiled.grammar = grammar::compile_tools(specs, options, &compiled.relaxed);
      return compiled;
    };
  } else if (forced) {
    return chat_refusal("TOOLS_NOT_SUPPORTED", "tool_choice",
                        "cannot force calls: how the model writes them is not known "
                        "(--tool-dialect)");
  } else {
    return grpc::Status::OK;
  }
  try {
    const grammar::CompiledGrammar compiled = cache.get(source, compile);
    made.grammar = compiled.grammar;
    made.relaxed = relaxed_text(compiled.relaxed);
  } catch (const grammar::GrammarError& error) {
    const std::string path = error.path().starts_with('/') ? error.path() : "";
    const std::string place = path.empty() && !error.path().empty() ? error.path() + ": " : "";
    return chat_refusal("UNSUPPORTED_SCHEMA", field + path, place + error.reason());
  }
  return grpc::Status::OK;
}

}  // namespace lintel
