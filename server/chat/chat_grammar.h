// SPDX-License-Identifier: Apache-2.0
// Grammars of a chat's answers: response_format, grammar, tool_choice.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/chat/chat_prompt.h"
#include "server/core/mutex.h"
#include "server/grammar/grammar.h"
#include "server/grammar/grammar_cache.h"
#include "server/grammar/tool_dialect.h"
#include "server/grammar/vocabulary.h"

namespace lintel {

struct ChatGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;  // null: the answer is free
  // The grammar of answers that begin with a call, at least; null: there are none.
  std::shared_ptr<const grammar::Grammar> calls;
  // Keywords of schemas that were left out, "PATH KEYWORD, ..."; empty: none.
  std::string relaxed;
  // Objects of forced calls that take no members but those of `properties`, "PATH, ..."; empty:
  // none.
  std::string closed;
};

// The grammar's name of the dialect; nothing: calls are not read.
std::optional<grammar::ToolDialect> grammar_dialect(ToolDialect dialect);

// The vocabularies of models, with the masks of what is often inside of texts. Made when one is
// first needed, which takes some 0.2 s for 250,000 tokens. Thread-safe.
class ChatVocabularies {
 public:
  // num_ids: rows of the model.
  std::shared_ptr<const grammar::Vocabulary> of(const std::shared_ptr<const Tokenizer>& tokenizer,
                                                std::size_t num_ids, ToolDialect dialect)
      EXCLUDES(mutex_);

 private:
  struct Entry {
    std::weak_ptr<const Tokenizer> tokenizer;
    std::size_t num_ids = 0;
    ToolDialect dialect = ToolDialect::kNone;
    std::shared_ptr<const grammar::Vocabulary> vocabulary;
  };

  Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
};

// A format binds the text alone: with tools that may be called an answer is calls, or a document.
// INVALID_ARGUMENT with the reason UNSUPPORTED_SCHEMA: the field is the path of the keyword, the
// description names it. Compiles on the caller's thread, within bounds, what the cache does not
// have.
grpc::Status make_chat_grammar(const api::ChatParams& request, const TemplateTraits& traits,
                               grammar::GrammarCache& cache, ChatGrammar& made);

}  // namespace lintel
