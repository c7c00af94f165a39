// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/answer_grammars.h"

#include <cstddef>
#include <memory>

#include "server/chat/chat_prompt.h"
#include "server/grammar/gbnf.h"
#include "server/grammar/grammar.h"
#include "server/rpc/status.h"

namespace lintel {

grpc::Status spell_grammar_tokens(const Tokenizer& tokenizer, api::AnswerFormat& format) {
  if (format.format != api::AnswerFormat::Format::kGrammar) return grpc::Status::OK;
  try {
    format.format_text = grammar::spell_tokens(format.format_text, tokenizer);
    return grpc::Status::OK;
  } catch (const grammar::GrammarError& error) {
    return chat_refusal("UNSUPPORTED_SCHEMA", format.format_member, error.what());
  }
}

grpc::Status AnswerGrammars::constrain(RpcCall& rpc, const api::ChatParams& request,
                                       const TemplateTraits& traits, bool after_reasoning,
                                       const Transformer& transformer,
                                       GenerationRequest& generation) {
  const bool has_format = request.format != api::AnswerFormat::Format::kText;
  const bool is_asked_for =
      has_format || request.tool_choice == api::ChatParams::ToolChoice::kRequired;
  // A grammar ends with the model's end tokens.
  if (request.base.stop.ignore_eos && !is_asked_for) return grpc::Status::OK;
  ChatGrammar made;
  grpc::Status status = make_chat_grammar(request, traits, grammars_, made);
  if (!status.ok() || made.grammar == nullptr) return status;
  if (!made.relaxed.empty()) rpc.add_header("lintel-schema-relaxed", made.relaxed);
  if (!made.closed.empty()) rpc.add_header("lintel-schema-closed", made.closed);
  if (generation.stop.tokens.empty()) {
    // Calls that the model begins by itself are read all the same.
    if (!is_asked_for) return status;
    return invalid_argument({{has_format ? request.format_member : "tool_choice",
                              "needs a model with a token that ends a text"}});
  }
  const ToolDialect dialect = request.tools.is_null() ? ToolDialect::kNone : traits.dialect;
  const auto vocabulary = vocabularies_.of(
      transformer.tokenizer(), static_cast<std::size_t>(transformer.config().vocab_size), dialect);
  const auto spelt = [&](const std::shared_ptr<const grammar::Grammar>& texts) {
    return grammar::spelt_by(texts, vocabulary->spelt_bytes());
  };
  generation.constraint = GrammarConstraint{
      .grammar = spelt(made.grammar), .vocabulary = vocabulary, .after_reasoning = after_reasoning};
  if (made.calls != nullptr) {
    generation.constraint->calls = {*grammar_dialect(dialect), spelt(made.calls)};
  }
  return status;
}

}  // namespace lintel
