// SPDX-License-Identifier: Apache-2.0
// AnswerGrammars: the grammars of answers and the vocabularies that they are masked by, which the
// services of lintel.v1 share.
#pragma once

#include <grpcpp/support/status.h>

#include "model/transformer.h"
#include "server/api/params/chat_params.h"
#include "server/chat/chat_grammar.h"
#include "server/chat/template/traits.h"
#include "server/engine/request.h"
#include "server/grammar/grammar_cache.h"
#include "server/rpc/rpc.h"

namespace lintel {

// Tokens of a grammar by their ids, <[42]>, become their texts.
grpc::Status spell_grammar_tokens(const Tokenizer& tokenizer, api::AnswerFormat& format);

// Thread-safe.
class AnswerGrammars {
 public:
  // Adds the grammar of the answer to the request that is to be submitted, and headers that name
  // what it leaves out. The stop tokens of `generation` end the text. after_reasoning: the text
  // begins after that.
  grpc::Status constrain(RpcCall& rpc, const api::ChatParams& request, const TemplateTraits& traits,
                         bool after_reasoning, const Transformer& transformer,
                         GenerationRequest& generation);

 private:
  grammar::GrammarCache grammars_;
  ChatVocabularies vocabularies_;
};

}  // namespace lintel
