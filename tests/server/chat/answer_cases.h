// SPDX-License-Identifier: Apache-2.0
// The cases of golden/chat/responses/streams.json as what a model wrote.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/chat/chat_output.h"

namespace lintel::testing {

// Tokens that are the pieces of an output.
class PiecesTokenizer final : public Tokenizer {
 public:
  explicit PiecesTokenizer(const std::vector<std::string>& pieces) : Tokenizer(parts_of(pieces)) {}
  std::vector<std::int32_t> encode(std::string_view, const EncodeOptions&) const override {
    return {};
  }

 private:
  static Parts parts_of(const std::vector<std::string>& pieces) {
    Parts parts{.kind = "pieces", .texts = TokenTexts(pieces.size()), .named = {}};
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!pieces[i].empty()) parts.texts.set(static_cast<std::int32_t>(i), pieces[i]);
    }
    return parts;
  }
};

inline ChatOutput output_of_case(const nlohmann::ordered_json& file,
                                 const nlohmann::ordered_json& item) {
  const std::vector<std::string> pieces = item["pieces"];
  api::ChatParams request;
  request.tools = item["dialect"] == "none" ? nlohmann::ordered_json() : file["tools"];
  request.parallel_tool_calls = item["parallel"];
  ChatPrompt prompt;
  for (const ToolDialect dialect :
       {ToolDialect::kHermes, ToolDialect::kXml, ToolDialect::kPythonic}) {
    if (item["dialect"] == name_of(dialect)) prompt.traits.dialect = dialect;
  }
  if (item["reasoning"] == "opened") prompt.thinking = ThinkingStart::kOpened;
  return chat_output(request, prompt, std::make_shared<PiecesTokenizer>(pieces));
}

// The usage that the goldens have.
inline void set_golden_usage(v1::ChatUsage& usage) {
  usage.set_prompt_tokens(10);
  usage.set_cached_tokens(4);
  usage.set_completion_tokens(20);
  usage.set_reasoning_tokens(5);
}

}  // namespace lintel::testing
