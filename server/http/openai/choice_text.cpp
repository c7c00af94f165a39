#include "server/http/openai/choice_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <utility>

#include "server/http/encoding/bounded_json.h"

namespace lintel {
namespace {

// A natural logarithm, as OpenAI has them; what has no probability at all is its -9999.
void add_natural_log(std::string& list, float log2_prob) {
  const auto value = static_cast<float>(log2_prob * std::numbers::ln2);
  if (!std::isfinite(value)) {
    list += "-9999.0";
    return;
  }
  char text[32];
  list.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// Behind what a list has. Lists are written in place: they get long.
std::string& next_of(std::string& list) {
  if (!list.empty()) list += ',';
  return list;
}

}  // namespace

void ChoiceText::add(const v1::Chunk& chunk) {
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    add_value(chunk.tokens(i));
    if (!logprobs_) continue;
    // Where its character begins: after all whole ones, unless this value completes it.
    const std::size_t width =
        is_bytes_ ? (utf8_.holds_back() ? 0 : 1) : std::to_string(chunk.tokens(i)).size();
    const std::size_t num_before = is_bytes_ ? utf8_.num_characters() : num_characters_;
    add_logprobs(chunk, i, first_offset_ + num_before - width);
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

void ChoiceText::add_token_name(std::string& list, std::int32_t token) const {
  if (!is_bytes_) {
    list += '"';
    list += std::to_string(token);
    list += '"';
  } else if (token < 0x80) {
    list += dumped(nlohmann::json(std::string(1, static_cast<char>(token))));
  } else {
    char name[32];
    std::snprintf(name, sizeof name, "\"bytes:\\\\x%02x\"", static_cast<unsigned>(token));
    list += name;
  }
}

void ChoiceText::add_logprobs(const v1::Chunk& chunk, int i, std::size_t offset) {
  const std::int32_t token = chunk.tokens(i);
  add_token_name(next_of(tokens_), token);
  next_of(text_offset_) += std::to_string(offset);
  if (i >= chunk.log2_probs_size()) {  // the first value of a sequence has none
    next_of(token_logprobs_) += "null";
    next_of(top_logprobs_) += "null";
    return;
  }
  add_natural_log(next_of(token_logprobs_), chunk.log2_probs(i));
  bool has_own = false;
  std::string& top = next_of(top_logprobs_);
  top += '{';
  const auto add_top = [&](std::int32_t value, float log2_prob) {
    if (top.back() != '{') top += ',';
    add_token_name(top, value);
    top += ':';
    add_natural_log(top, log2_prob);
  };
  if (i < chunk.top_size()) {
    for (int k = 0; k < chunk.top(i).tokens_size(); ++k) {
      has_own |= chunk.top(i).tokens(k) == token;
      add_top(chunk.top(i).tokens(k), chunk.top(i).log2_probs(k));
    }
  }
  if (!has_own) add_top(token, chunk.log2_probs(i));
  top += '}';
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
  if (window_ > 0) {
    json += ",\"window\":" + std::to_string(window_) +
            ",\"window_restarts\":" + std::to_string(window_restarts_);
  }
  return json + '}';
}

std::string finish_reason_of(v1::FinishReason reason) {
  const bool stopped =
      reason == v1::FINISH_REASON_STOP_TOKEN || reason == v1::FINISH_REASON_STOP_STRING;
  return stopped ? "stop" : "length";
}

}  // namespace lintel
