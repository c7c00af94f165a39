// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/completion.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "model/core/utf8.h"
#include "server/api/params/generate_params.h"
#include "server/core/clock.h"
#include "server/core/token_record.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/openai/generate_object.h"
#include "server/openai/http/completion_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/json.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

void add_natural_log(std::string& list, float log2_prob) {
  const float value = natural_log(log2_prob);
  if (value == kNoProbability) {
    list += "-9999.0";
    return;
  }
  char text[32];
  list.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// The form of the text of a model's tokens.
enum class TextForm {
  kIds,    // their ids with spaces between
  kBytes,  // a token is a byte
  kText    // the service sends the bytes of each token
};

// A sample's tokens as a choice of OpenAI's API. Used by one thread at a time.
class ChoiceText {
 public:
  // first_offset: characters before the text, as counted by offsets.
  ChoiceText(TextForm form, bool logprobs, std::size_t first_offset)
      : form_(form), logprobs_(logprobs), first_offset_(first_offset) {}
  // Makes take() add the ids of tokens, and once those of the prompt.
  void keep_ids(std::vector<std::int32_t> prompt) {
    prompt_ids_ = std::move(prompt);
    ids_.emplace();
  }

  void add(const v1::Chunk& chunk) {
    written_ += chunk.source() == v1::VALUE_SOURCE_PROMPT ? 0 : chunk.tokens_size();
    if (ids_ && chunk.source() != v1::VALUE_SOURCE_PROMPT) {
      ids_->insert(ids_->end(), chunk.tokens().begin(), chunk.tokens().end());
    }
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      const std::size_t num_before = utf8_.num_characters();
      add_token(chunk, i);
      if (!logprobs_) continue;
      // The beginning of its first character: after all whole ones, unless this token completes it.
      std::size_t offset = num_before;
      if (form_ == TextForm::kBytes) {
        offset = utf8_.num_characters() - (utf8_.holds_back() ? 0 : 1);
      } else if (form_ == TextForm::kIds) {
        offset = num_characters_ - std::to_string(chunk.tokens(i)).size();
      }
      record(chunk, i, first_offset_ + offset);
    }
  }

  // Ends the text: the held part of a character comes out. The next choice that take() returns has
  // the evidence of particles, and the window.
  void end(const v1::SampleFinish& finish) {
    if (form_ != TextForm::kIds) utf8_.finish(text_);
    written_ += finish.omitted_tokens_size();
    if (ids_) {
      ids_->insert(ids_->end(), finish.omitted_tokens().begin(), finish.omitted_tokens().end());
    }
    if (finish.has_log2_evidence()) log2_evidence_ = finish.log2_evidence();
    window_ = finish.window();
    window_restarts_ = finish.window_restarts();
  }

  // The bytes held in memory.
  std::size_t bytes() const {
    const std::size_t ids = prompt_ids_.size() + (ids_ ? ids_->size() : 0);
    return text_.size() + tokens_.bytes() + offsets_.size() * sizeof(offsets_.front()) +
           ids * sizeof(std::int32_t);
  }
  std::int64_t written() const { return written_; }  // tokens, once it has ended the omitted, too
  bool is_empty() const { return text_.empty() && tokens_.empty(); }

  // Appends the text since the last call as JSON: {"text":...,"index":...,"logprobs":...,
  // "finish_reason":...}. finish_reason: empty: null, there is more.
  void take(std::uint32_t index, const std::string& finish_reason, JsonPieces& out) {
    out.raw("{\"text\":");
    out.quoted(std::exchange(text_, {}));
    std::string rest = ",\"index\":" + std::to_string(index) + ",\"logprobs\":";
    if (logprobs_) {
      out.raw(rest + "{\"tokens\":[");
      take_logprobs(out);
      rest = "]}";
    } else {
      rest += "null";
    }
    rest += ",\"finish_reason\":";
    rest += finish_reason.empty() ? "null" : '"' + finish_reason + '"';
    if (log2_evidence_) rest += ",\"log2_evidence\":" + dumped(nlohmann::json(*log2_evidence_));
    if (window_ > 0) {
      rest += ",\"window\":" + std::to_string(window_) +
              ",\"window_restarts\":" + std::to_string(window_restarts_);
    }
    if (ids_) {
      rest += ",\"token_ids\":" + dumped(nlohmann::json(std::exchange(*ids_, {})));
      if (!prompt_ids_.empty()) {
        rest += ",\"prompt_token_ids\":" + dumped(nlohmann::json(std::exchange(prompt_ids_, {})));
      }
    }
    out.raw(rest + '}');
  }
  std::string take(std::uint32_t index, const std::string& finish_reason) {
    JsonPieces out;
    take(index, finish_reason, out);
    return out.whole();
  }

 private:
  void add_token(const v1::Chunk& chunk, int i) {
    const std::int32_t token = chunk.tokens(i);
    if (form_ == TextForm::kText) {
      return i < chunk.token_bytes_size() ? utf8_.push(chunk.token_bytes(i), text_) : void();
    }
    if (form_ == TextForm::kBytes) {
      const auto byte = static_cast<char>(token);
      return utf8_.push({&byte, 1}, text_);
    }
    const std::string id = (num_characters_ > 0 ? " " : "") + std::to_string(token);
    num_characters_ += id.size();
    text_ += id;
  }

  // Adds a name of a token as JSON: bytes that are not whole characters are "bytes:\xe2\x82".
  // `bytes`: for kText.
  static void add_token_name(std::string& list, TextForm form, std::int32_t token,
                             std::string_view bytes) {
    if (form == TextForm::kIds || (form == TextForm::kText && bytes.empty())) {
      list += '"';
      list += std::to_string(token);
      list += '"';
      return;
    }
    const auto byte = static_cast<char>(token);
    if (form == TextForm::kBytes) bytes = {&byte, 1};
    if (is_whole_utf8(bytes)) {
      list += dumped(nlohmann::json(std::string(bytes)));
      return;
    }
    list += "\"bytes:";
    for (const char part : bytes) {
      char name[8];
      std::snprintf(name, sizeof name, "\\\\x%02x", static_cast<unsigned char>(part));
      list += name;
    }
    list += '"';
  }

  static bool is_whole_utf8(std::string_view bytes) {
    Utf8Stream utf8;
    std::string text;
    utf8.push(bytes, text);
    return !utf8.holds_back() && text == bytes;
  }

  void record(const v1::Chunk& chunk, int i, std::size_t offset) {
    const auto bytes_at = [](const auto& message, int at) {
      return at < message.token_bytes_size() ? std::string_view(message.token_bytes(at))
                                             : std::string_view();
    };
    offsets_.push_back(offset);
    // The first token of a sequence has no probability.
    const bool has_log2_prob = i < chunk.log2_probs_size();
    tokens_.add(chunk.tokens(i), bytes_at(chunk, i),
                has_log2_prob ? chunk.log2_probs(i) : std::numeric_limits<float>::quiet_NaN());
    if (!has_log2_prob || i >= chunk.top_size()) return;
    const v1::TopValues& top = chunk.top(i);
    for (int k = 0; k < top.tokens_size(); ++k) {
      tokens_.add_top(top.tokens(k), bytes_at(top, k), top.log2_probs(k));
    }
  }

  // Appends the lists of OpenAI's `logprobs` without the first and the last bracket.
  void take_logprobs(JsonPieces& out) {
    const std::size_t bytes = tokens_.bytes();
    const auto tokens = std::make_shared<const TokenRecord>(std::exchange(tokens_, {}));
    using Cursor = TokenRecord::Cursor;
    // `write` appends the element of one token.
    const auto list = [&](std::size_t held, auto write) {
      out.items(held, [tokens, at = Cursor(), write](std::string& text) mutable {
        if (at.token == tokens->size()) return false;
        write(*tokens, at, text);
        tokens->advance(at);
        return true;
      });
    };
    list(0, [form = form_](const TokenRecord& all, const Cursor& at, std::string& text) {
      const std::int32_t id = all.token_at(at).id;
      add_token_name(text, form, id, all.text_of(id));
    });
    out.raw("],\"token_logprobs\":[");
    list(0, [](const TokenRecord& all, const Cursor& at, std::string& text) {
      const float log2_prob = all.token_at(at).log2_prob;
      std::isnan(log2_prob) ? void(text += "null") : add_natural_log(text, log2_prob);
    });
    out.raw("],\"top_logprobs\":[");
    list(bytes, [form = form_](const TokenRecord& all, const Cursor& at, std::string& text) {
      write_top(all, at, form, text);
    });
    out.raw("],\"text_offset\":[");
    const std::size_t offset_bytes = offsets_.size() * sizeof(offsets_.front());
    out.items(offset_bytes, [offsets = std::exchange(offsets_, {}),
                             at = std::size_t{0}](std::string& text) mutable {
      if (at == offsets.size()) return false;
      text += std::to_string(offsets[at++]);
      return true;
    });
  }

  static void write_top(const TokenRecord& all, const TokenRecord::Cursor& at, TextForm form,
                        std::string& text) {
    const TokenRecord::Value own = all.token_at(at);
    if (std::isnan(own.log2_prob)) {
      text += "null";
      return;
    }
    bool has_own = false;
    text += '{';
    const auto add = [&](const TokenRecord::Value& value) {
      if (text.back() != '{') text += ',';
      add_token_name(text, form, value.id, all.text_of(value.id));
      text += ':';
      add_natural_log(text, value.log2_prob);
    };
    for (std::size_t i = 0; i < all.tops_at(at); ++i) {
      const TokenRecord::Value top = all.top_at(at, i);
      has_own |= top.id == own.id;
      add(top);
    }
    if (!has_own) add(own);
    text += '}';
  }

  TextForm form_;
  bool logprobs_;
  std::size_t first_offset_;
  Utf8Stream utf8_;
  std::size_t num_characters_ = 0;  // of ids' text
  std::string text_;
  TokenRecord tokens_;               // if there are logprobs
  std::deque<std::size_t> offsets_;  // their offsets in the text
  std::optional<double> log2_evidence_;
  std::int64_t written_ = 0;
  std::vector<std::int32_t> prompt_ids_;
  std::optional<std::vector<std::int32_t>>
      ids_;                  // since the last take(); none: they are not requested
  std::int64_t window_ = 0;  // 0: none, or not known yet
  std::int64_t window_restarts_ = 0;
};

constexpr const char* kGenerateMethod = "lintel.v1.GenerationService/Generate";

// The numbers of characters and tokens of a prompt.
struct PromptSize {
  std::size_t characters = 0;
  std::int64_t tokens = 0;
};

// The size of a prompt. The tokens of a text that the service tokenizes are known only after it has
// read them.
PromptSize size_of(const api::Values& prompt, TextForm form) {
  const bool is_bytes = form == TextForm::kBytes;
  std::string bytes, text;
  PromptSize size;
  if (prompt.has_text()) {
    bytes = prompt.bytes;
    if (is_bytes) size.tokens = static_cast<std::int64_t>(bytes.size());
  } else {
    size.tokens = prompt.size();
    for (const std::int32_t id : prompt.ids) {
      if (is_bytes) {
        bytes.push_back(static_cast<char>(id));
      } else if (form == TextForm::kIds) {
        size.characters += std::to_string(id).size() + (size.characters > 0 ? 1 : 0);
      }
    }
  }
  if (form == TextForm::kIds) return size;
  Utf8Stream utf8;
  utf8.push(bytes, text);
  utf8.finish(text);
  size.characters = utf8.num_characters();
  return size;
}

// True if lintel.v1 has no fields for the request: its calls are of GenerateObjects.
bool has_object(const CompletionRequest& request) {
  return request.format.format != api::AnswerFormat::Format::kText || !request.skips_special;
}

// The most bytes that the call of one prompt holds: its request, as read and as a message, its
// tokens, and the answer.
std::size_t bytes_of_call(const CompletionRequest& request, const api::Values& prompt) {
  constexpr std::size_t kCallBytes = std::size_t{128} << 10;
  constexpr std::size_t kCopies = 3;
  const std::size_t message = api::held_bytes(request.settings) + api::held_bytes(prompt) +
                              request.format.format_text.size();
  return kCallBytes + kCopies * message + prompt.bytes.size() * sizeof(std::int32_t);
}

// Gets the model, then generates: a Generate call for each prompt, one after the other, so that it
// has one stream of its caller's quota at a time. All are charged before the first: a later one is
// not refused because others hold memory. Held by its calls; used by one thread at a time.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  // `calls` outlives it.
  Completion(SharedExchange exchange, HttpCalls& calls, CompletionRequest request,
             RequestMemory::Charge memory)
      : exchange_(std::move(exchange)),
        calls_(calls),
        request_(std::move(request)),
        memory_(std::move(memory)),
        head_{completion_id(exchange_->request().request_id), unix_seconds(), {}} {
    kept_->answers = static_cast<int>(request_.prompts.size());
    for (std::size_t i = 1; i < request_.prompts.size(); ++i) {
      kept_->prompt_tokens =
          std::max(kept_->prompt_tokens, static_cast<std::size_t>(request_.prompts[i].size()));
    }
  }

  void start() {
    v1::GetModelRequest get;
    get.set_name(request_.settings.model);
    calls_.unary(exchange_, "lintel.v1.ModelService/Get", RequestMessage::of(std::move(get)),
                 [self = shared_from_this()](const grpc::Status& status,
                                             const google::protobuf::Message& model) {
                   if (!status.ok()) return self->exchange_->answer(self->error(status));
                   const grpc::Status fits = self->take_model(static_cast<const v1::Model&>(model));
                   if (!fits.ok()) return self->exchange_->answer(openai_answer(fits));
                   self->tokenize();
                 });
  }

 private:
  class PromptExchange;
  class PromptAnswer;

  // Tokenizes texts whose ids the request needs, one after the other; then runs the first prompt.
  void tokenize() {
    v1::TokenizeRequest asked;
    asked.set_model(request_.settings.model);
    const bool is_bias = next_bias_ < request_.text_biases.size();
    if (is_bias) {
      asked.set_text(request_.text_biases[next_bias_].first);
    } else {
      request_.settings.sampling.logit_bias.merge(text_biases_);
      const bool needs_ids = request_.token_ids || request_.continuous_usage;
      while (needs_ids && prompt_ids_.size() < request_.prompts.size() &&
             !(form_ == TextForm::kText && request_.prompts[prompt_ids_.size()].has_text())) {
        prompt_ids_.push_back(ids_of(request_.prompts[prompt_ids_.size()]));
      }
      if (!needs_ids || prompt_ids_.size() == request_.prompts.size()) return next_prompt();
      asked.set_text(request_.prompts[prompt_ids_.size()].bytes);
      asked.set_add_special(true);
    }
    calls_.unary(exchange_, "lintel.v1.ModelService/Tokenize", RequestMessage::of(std::move(asked)),
                 [self = shared_from_this(), is_bias](const grpc::Status& status,
                                                      const google::protobuf::Message& answer) {
                   if (!status.ok()) return self->exchange_->answer(self->error(status));
                   const auto& ids = static_cast<const v1::TokenizeResponse&>(answer).ids();
                   if (is_bias) {
                     const float bias = self->request_.text_biases[self->next_bias_++].second;
                     for (const std::int32_t id : ids) self->text_biases_[id] = bias;
                   } else {
                     self->prompt_ids_.emplace_back(ids.begin(), ids.end());
                   }
                   self->tokenize();
                 });
  }

  // The ids of a prompt whose tokens are known without the service.
  static std::vector<std::int32_t> ids_of(const api::Values& prompt) {
    if (!prompt.has_text()) return prompt.ids;
    std::vector<std::int32_t> ids;
    for (const char byte : prompt.bytes) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }

  // Takes the model; a request without a name means the only one. The answer has the name that was
  // sent.
  grpc::Status take_model(const v1::Model& model) {
    head_.model = request_.settings.model.empty() ? model.name() : request_.settings.model;
    request_.settings.model = model.name();
    head_.fingerprint = model.fingerprint();
    if (model.modality() == "bytes") {
      form_ = TextForm::kBytes;
    } else if (!model.tokenizer().empty()) {
      form_ = TextForm::kText;
    }
    if (model.modality() != "image") return grpc::Status::OK;
    return invalid_argument(
        {{"model", "'" + clip(model.name()) +
                       "' is of images, and completions are of text: "
                       "lintel.v1.GenerationService/Generate completes images"}});
  }

  void next_prompt();
  RequestMessage request_of_prompt() const;

  HttpAnswer error(const grpc::Status& status) const {
    MemberNames names;
    const bool has_best_of = request_.num_samples > request_.num_choices;
    if (has_best_of) names = {&RequestField::completions, "num_samples", "best_of"};
    return openai_answer(status, names);
  }

  HttpCalls::NextPiece end_gathered(const grpc::Status& status) {
    if (!status.ok()) {
      exchange_->answer(error(status));
      return nullptr;
    }
    choose();
    if (++prompt_ < request_.prompts.size()) {
      next_prompt();
      return nullptr;
    }
    JsonPieces body;
    body.raw(before_choices());
    const char* separator = "";
    for (std::uint32_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i]) continue;
      body.raw(std::exchange(separator, ","));
      choices_[i]->text.take(i, choices_[i]->finish_reason, body);
      choices_[i].reset();
    }
    body.raw(text_after_choices(usage(), timings()));
    return answer_with(*exchange_, std::move(body), kept_);
  }

  // Begins the choices of the running prompt.
  void begin_choices() {
    const PromptSize size = size_of(request_.prompts[prompt_], form_);
    prompt_tokens_ += size.tokens;
    counts_prompt_ = form_ == TextForm::kText && request_.prompts[prompt_].has_text();
    cached_of_prompt_ = 0;
    earlier_prompt_ms_ += std::exchange(timings_.prompt_ms, 0);
    earlier_predicted_ms_ += std::exchange(timings_.predicted_ms, 0);
    texts_.clear();
    // The service refuses more samples than it allows before there is one.
    constexpr std::uint32_t kMostChoices = 65'536;
    const std::uint32_t count = std::min(request_.num_samples, kMostChoices);
    candidates_.clear();
    if (request_.num_samples > request_.num_choices) candidates_.resize(count);
    texts_.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      texts_.emplace_back(form_, request_.logprobs,
                          request_.settings.echo_prompt ? 0 : size.characters);
      if (request_.token_ids) texts_.back().keep_ids(prompt_ids_[prompt_]);
    }
    if (!request_.streams) {
      choices_.resize(choices_.size() + std::min(request_.num_choices, kMostChoices));
    }
  }

  // Takes a message; returns the events of its choices if they stream.
  std::vector<std::string> take_message(const v1::GenerateResponse& message) {
    std::vector<std::string> pieces;
    for (const v1::Chunk& chunk : message.chunks()) {
      ChoiceText& text = texts_.at(chunk.sample());
      text.add(chunk);
      if (!candidates_.empty() && chunk.source() != v1::VALUE_SOURCE_PROMPT) {
        Candidate& candidate = candidates_.at(chunk.sample());
        for (const float log2_prob : chunk.log2_probs()) candidate.log2_prob += log2_prob;
        candidate.tokens += chunk.tokens_size();
      }
      if (request_.streams && !text.is_empty()) {
        pieces.push_back(event(text.take(choice_index(chunk.sample()), ""), text));
      }
    }
    for (const v1::SampleFinish& finish : message.finished()) take_finish(finish, pieces);
    return pieces;
  }

  // Adds the end of a sample to the choices of a stream, `pieces`, or of an answer that is sent
  // whole.
  void take_finish(const v1::SampleFinish& finish, std::vector<std::string>& pieces) {
    ChoiceText& text = texts_.at(finish.sample());
    text.end(finish);
    completion_tokens_ += finish.generated_tokens();
    add_timings(finish.timings(), timings_);
    if (std::exchange(counts_prompt_, false)) {
      prompt_tokens_ += finish.prompt_tokens() + finish.cached_tokens() + finish.skipped_tokens();
    }
    // All samples of a prompt share its reading.
    const std::int64_t cached = std::max(cached_of_prompt_, finish.cached_tokens());
    cached_tokens_ += cached - std::exchange(cached_of_prompt_, cached);
    if (!candidates_.empty()) {
      candidates_.at(finish.sample()).finish_reason = finish_reason_name(finish.reason());
      return;
    }
    const std::uint32_t index = choice_index(finish.sample());
    if (request_.streams) {
      // A sample that the server cuts has no reason: an error follows.
      const bool is_cut = finish.reason() == v1::FINISH_REASON_CANCELLED;
      const char* const reason = is_cut ? "" : finish_reason_name(finish.reason());
      pieces.push_back(event(text.take(index, reason), text));
    } else {
      keep(index, text, finish_reason_name(finish.reason()));
    }
  }

  // Selects the choices of the finished prompt, if there are more samples.
  void choose() {
    std::vector<std::uint32_t> samples(candidates_.size());
    std::iota(samples.begin(), samples.end(), 0);
    // The first of equally likely ones wins.
    std::ranges::stable_sort(samples, std::greater<>(),
                             [this](std::uint32_t sample) { return candidates_[sample].mean(); });
    for (std::uint32_t i = 0; i < std::min<std::size_t>(samples.size(), request_.num_choices);
         ++i) {
      const std::uint32_t sample = samples[i];
      keep(choice_index(i), texts_[sample], candidates_[sample].finish_reason);
    }
    texts_.clear();
  }

  // Keeps an ended choice of an answer that is sent whole. Takes the text.
  void keep(std::uint32_t index, ChoiceText& text, std::string finish_reason) {
    gathered_bytes_ += text.bytes();
    EndedChoice& ended = choices_[index].emplace(
        EndedChoice{ChoiceText(form_, request_.logprobs, 0), std::move(finish_reason)});
    std::swap(ended.text, text);
  }

  std::uint32_t choice_index(std::uint32_t sample) const {
    return static_cast<std::uint32_t>(prompt_) * request_.num_choices + sample;
  }

  std::string before_choices() const { return text_before_choices(head_, "text_completion"); }

  // The event of a choice in a stream.
  std::string event(const std::string& choice, const ChoiceText& text) const {
    std::string usage = request_.include_usage ? "null" : "";
    if (request_.continuous_usage) {
      const auto prompt = static_cast<std::int64_t>(prompt_ids_[prompt_].size());
      usage = dumped(nlohmann::ordered_json{{"prompt_tokens", prompt},
                                            {"completion_tokens", text.written()},
                                            {"total_tokens", prompt + text.written()}});
    }
    return server_sent_event(before_choices() + choice + text_after_choices(usage));
  }

  std::string timings() const {
    if (!request_.timings) return "";
    AnswerTimings timings = timings_;
    timings.prompt_ms += earlier_prompt_ms_;
    timings.predicted_ms += earlier_predicted_ms_;
    timings.cached = cached_tokens_;
    timings.prompt = prompt_tokens_ - cached_tokens_;
    timings.predicted = completion_tokens_;
    return ",\"timings\":" + dumped(timings_json(timings));
  }

  std::string usage() const {
    v1::ChatUsage usage;
    usage.set_prompt_tokens(prompt_tokens_);
    usage.set_completion_tokens(completion_tokens_);
    usage.set_cached_tokens(cached_tokens_);
    return dumped(usage_json(usage, UsageForm::kCompletion));
  }

  const SharedExchange exchange_;
  HttpCalls& calls_;
  CompletionRequest request_;
  const RequestMemory::Charge memory_;  // of this, and of calls of prompts after the first
  AnswerHead head_;
  TextForm form_ = TextForm::kIds;
  std::size_t prompt_ = 0;                             // the running one
  std::map<std::int32_t, float> text_biases_;          // by token: the last one counts
  std::size_t next_bias_ = 0;                          // in text_biases
  std::vector<std::vector<std::int32_t>> prompt_ids_;  // if they are needed
  AnswerTimings timings_;                              // of the running prompt
  double earlier_prompt_ms_ = 0, earlier_predicted_ms_ = 0;
  std::vector<ChoiceText> texts_;
  // A sample to select choices from, by its mean log2-probability.
  struct Candidate {
    std::string finish_reason;
    double log2_prob = 0;
    std::int64_t tokens = 0;
    double mean() const { return tokens == 0 ? 0 : log2_prob / static_cast<double>(tokens); }
  };
  std::vector<Candidate> candidates_;
  struct EndedChoice {
    ChoiceText text;
    std::string finish_reason;
  };
  std::vector<std::optional<EndedChoice>> choices_;  // of an answer that is sent whole
  std::size_t gathered_bytes_ = 0;                   // of these
  const std::shared_ptr<KeptAnswer> kept_ = std::make_shared<KeptAnswer>();

  std::int64_t prompt_tokens_ = 0;
  bool counts_prompt_ = false;  // true until the first sample that ends adds the prompt's tokens
  std::int64_t cached_tokens_ = 0;
  std::int64_t cached_of_prompt_ = 0;
  std::int64_t completion_tokens_ = 0;
  bool has_begun_ = false;  // the head of an answer in pieces was sent
};

// The exchange for one prompt of several: the answer begins with the first, and ends with the last.
class Completion::PromptExchange final : public HttpExchange {
 public:
  explicit PromptExchange(std::shared_ptr<Completion> completion)
      : completion_(std::move(completion)), exchange_(*completion_->exchange_) {}

  const HttpRequest& request() const override { return exchange_.request(); }
  std::string take_body() override { return exchange_.take_body(); }
  void add_header(std::string name, std::string value) override {
    if (!completion_->has_begun_) exchange_.add_header(std::move(name), std::move(value));
  }
  void answer(HttpAnswer answer) override {
    if (!completion_->has_begun_) return exchange_.answer(std::move(answer));
    exchange_.end(server_sent_event(answer.body));
  }
  void begin(HttpAnswer head) override {
    if (!std::exchange(completion_->has_begun_, true)) exchange_.begin(std::move(head));
  }
  void write(std::string piece, std::function<void(bool)> taken) override {
    exchange_.write(std::move(piece), std::move(taken));
  }
  void end(std::string last_piece) override {
    // The successful end of a prompt before the last one is not sent.
    if (!last_piece.empty()) return exchange_.end(std::move(last_piece));
    completion_->next_prompt();
  }
  void abort() override { exchange_.abort(); }
  void when_gone(std::function<void()> gone) override { exchange_.when_gone(std::move(gone)); }

 private:
  const std::shared_ptr<Completion> completion_;
  HttpExchange& exchange_;
};

class Completion::PromptAnswer final : public StreamAnswer {
 public:
  explicit PromptAnswer(std::shared_ptr<Completion> completion)
      : completion_(std::move(completion)) {}

  HttpAnswer head() override { return server_sent_head(openai_protocol()); }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    Completion& completion = *completion_;
    for (const std::string& event :
         completion.take_message(static_cast<const v1::GenerateResponse&>(message))) {
      out += event;
    }
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    Completion& completion = *completion_;
    if (!status.ok()) return server_sent_event(completion.error(status).body);
    if (++completion.prompt_ < completion.request_.prompts.size()) return "";
    std::string last;
    const bool has_usage = completion.request_.include_usage;
    if (has_usage || completion.request_.timings) {
      last = server_sent_event(
          completion.before_choices() +
          text_after_choices(has_usage ? completion.usage() : "", completion.timings()));
    }
    return last + server_sent_event("[DONE]");
  }
  HttpAnswer refusal(const grpc::Status& status) override { return completion_->error(status); }

 private:
  const std::shared_ptr<Completion> completion_;
};

RequestMessage Completion::request_of_prompt() const {
  v1::GenerateRequest generate = generate_request(request_, prompt_);
  generate.set_token_bytes(form_ == TextForm::kText);
  if (!has_object(request_)) return RequestMessage::of(std::move(generate));
  auto object = std::make_unique<GenerateObject>();
  object->charge = memory_.beside();  // which has the object's bytes
  object->params = api::read_params(std::move(generate));
  object->format = request_.format;
  object->spells_special = !request_.skips_special;
  return RequestMessage(std::move(object));
}

void Completion::next_prompt() {
  begin_choices();
  RequestMessage request = request_of_prompt();
  const std::shared_ptr<Completion> self = shared_from_this();
  if (request_.streams) {
    calls_.stream(std::make_shared<PromptExchange>(self), kGenerateMethod, std::move(request),
                  std::make_unique<PromptAnswer>(self), /*timeout=*/{}, /*headers=*/{},
                  /*is_charged=*/prompt_ > 0);
    return;
  }
  calls_.gather(
      exchange_, kGenerateMethod, std::move(request),
      [self](const google::protobuf::Message& message) {
        self->take_message(static_cast<const v1::GenerateResponse&>(message));
        std::size_t gathered = self->gathered_bytes_;
        for (const ChoiceText& text : self->texts_) gathered += text.bytes();
        if (gathered <= kMaxMessageBytes) return grpc::Status(grpc::Status::OK);
        return invalid_argument(
            {{"max_new_tokens", "the answer is larger than " + std::to_string(kMaxMessageBytes) +
                                    " bytes: stream it"}});
      },
      [self](const grpc::Status& status) { return self->end_gathered(status); },
      // The answer of the first prompt is charged with those of the others.
      prompt_ == 0 ? kept_ : nullptr, /*timeout=*/{}, /*is_charged=*/prompt_ > 0);
}

}  // namespace

void complete(SharedExchange exchange, HttpCalls& calls, CompletionRequest request) {
  RequestMemory::Charge memory = calls.charge_of(*exchange);
  std::size_t bytes = api::held_bytes(request.settings) + request.format.format_text.size();
  std::size_t call = 0;
  for (const api::Values& prompt : request.prompts) {
    // The call of the first prompt is charged by itself, unless it is one of an object.
    if (has_object(request) || &prompt != &request.prompts.front())
      call = std::max(call, bytes_of_call(request, prompt));
    bytes += api::held_bytes(prompt);
    if (request.token_ids || request.continuous_usage) {
      bytes += (1 + request.num_samples) * static_cast<std::size_t>(prompt.size()) *
               sizeof(std::int32_t);
    }
  }
  bytes += call;
  if (const RequestRefusal refusal = memory.add(bytes)) {
    exchange->answer(
        openai_answer(request_memory_refusal(refusal, calls.caller_of(*exchange), "prompt")));
    return;
  }
  std::make_shared<Completion>(std::move(exchange), calls, std::move(request), std::move(memory))
      ->start();
}

}  // namespace lintel
