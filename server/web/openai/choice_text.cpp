#include "server/web/openai/choice_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <utility>

#include "server/web/forms/bounded_json.h"

namespace lintel {
namespace {

// A natural logarithm, as OpenAI has them; what has no probability at all is its -9999.
std::string natural_log(float log2_prob) {
  const auto value = static_cast<float>(log2_prob * std::numbers::ln2);
  if (!std::isfinite(value)) return "-9999.0";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

void add_element(std::string& list, const std::string& element) {
  if (!list.empty()) list += ',';
  list += element;
}

}  // namespace

void ChoiceText::add(const v1::Chunk& chunk) {
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    add_value(chunk.tokens(i));
    if (!logprobs_) continue;
    // Where its character begins: behind all that are whole, unless it is whole with this value.
    const std::size_t width =
        is_bytes_ ? (utf8_.holds_back() ? 0 : 1) : std::to_string(chunk.tokens(i)).size();
    const std::size_t behind = is_bytes_ ? utf8_.num_characters() : num_characters_;
    add_logprobs(chunk, i, first_offset_ + behind - width);
  }
}

void ChoiceText::end() {
  if (is_bytes_) utf8_.end(text_);
}

std::size_t ChoiceText::size() const {
  return text_.size() + tokens_.size() + token_logprobs_.size() + top_logprobs_.size() +
         text_offset_.size();
}

void ChoiceText::add_value(std::int32_t token) {
  if (is_bytes_) {
    const auto byte = static_cast<char>(token);
    return utf8_.add({&byte, 1}, text_);
  }
  const std::string id = (num_characters_ > 0 ? " " : "") + std::to_string(token);
  num_characters_ += id.size();
  text_ += id;
}

std::string ChoiceText::token_name(std::int32_t token) const {
  if (!is_bytes_) return '"' + std::to_string(token) + '"';
  if (token < 0x80) return dumped(nlohmann::json(std::string(1, static_cast<char>(token))));
  char name[32];
  std::snprintf(name, sizeof name, "\"bytes:\\\\x%02x\"", static_cast<unsigned>(token));
  return name;
}

void ChoiceText::add_logprobs(const v1::Chunk& chunk, int i, std::size_t offset) {
  const std::int32_t token = chunk.tokens(i);
  const std::string name = token_name(token);
  add_element(tokens_, name);
  add_element(text_offset_, std::to_string(offset));
  if (i >= chunk.log2_probs_size()) {  // the first value of a sequence has none
    add_element(token_logprobs_, "null");
    add_element(top_logprobs_, "null");
    return;
  }
  const std::string own = natural_log(chunk.log2_probs(i));
  add_element(token_logprobs_, own);
  std::string top;
  bool has_own = false;
  if (i < chunk.top_size()) {
    for (int k = 0; k < chunk.top(i).tokens_size(); ++k) {
      has_own |= chunk.top(i).tokens(k) == token;
      add_element(
          top, token_name(chunk.top(i).tokens(k)) + ':' + natural_log(chunk.top(i).log2_probs(k)));
    }
  }
  if (!has_own) add_element(top, name + ':' + own);
  add_element(top_logprobs_, '{' + top + '}');
}

std::string ChoiceText::take(std::uint32_t index, const std::string& finish_reason) {
  std::string json = "{\"text\":" + dumped(nlohmann::json(std::exchange(text_, {})));
  json += ",\"index\":" + std::to_string(index) + ",\"logprobs\":";
  if (logprobs_) {
    json += "{\"tokens\":[" + std::exchange(tokens_, {});
    json += "],\"token_logprobs\":[" + std::exchange(token_logprobs_, {});
    json += "],\"top_logprobs\":[" + std::exchange(top_logprobs_, {});
    json += "],\"text_offset\":[" + std::exchange(text_offset_, {}) + "]}";
  } else {
    json += "null";
  }
  json += ",\"finish_reason\":";
  json += finish_reason.empty() ? "null" : '"' + finish_reason + '"';
  if (log2_evidence_) json += ",\"log2_evidence\":" + dumped(nlohmann::json(*log2_evidence_));
  return json + '}';
}

std::string finish_reason_of(v1::FinishReason reason) {
  const bool stopped =
      reason == v1::FINISH_REASON_STOP_TOKEN || reason == v1::FINISH_REASON_STOP_STRING;
  return stopped ? "stop" : "length";
}

}  // namespace lintel
