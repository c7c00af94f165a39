// SPDX-License-Identifier: Apache-2.0
#include "server/api/kserve/unary_call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "server/api/refusals.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/persistence/replayed_response.h"

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

constexpr std::int32_t kNoToken = -1;
constexpr float kNoProb = std::numeric_limits<float>::quiet_NaN();

// Adds tensors to a response, each as a request's contents came: typed or raw.
class OutputTensors {
 public:
  OutputTensors(bool raw, inference::ModelInferResponse& wire) : raw_(raw), wire_(wire) {}

  template <typename Number>
  void add(const char* name, const char* datatype, std::initializer_list<std::size_t> shape,
           const std::vector<Number>& values,
           google::protobuf::RepeatedField<Number>* (inference::InferTensorContents::*contents)()) {
    auto& tensor = add_head(name, datatype, shape);
    if (raw_) {
      wire_.add_raw_output_contents(values.data(), values.size() * sizeof(Number));
    } else {
      (tensor.mutable_contents()->*contents)()->Assign(values.begin(), values.end());
    }
  }
  // One of BYTES.
  void add_texts(const char* name, std::initializer_list<std::size_t> shape,
                 std::vector<std::string> texts) {
    auto& tensor = add_head(name, "BYTES", shape);
    std::string* const raw = raw_ ? wire_.add_raw_output_contents() : nullptr;
    for (std::string& text : texts) {
      if (raw == nullptr) {
        tensor.mutable_contents()->add_bytes_contents(std::move(text));
        continue;
      }
      const auto size = static_cast<std::uint32_t>(text.size());
      raw->append(reinterpret_cast<const char*>(&size), sizeof(size));
      raw->append(text);
    }
  }
  // One of BOOL, a byte each.
  void add_flags(const char* name, std::initializer_list<std::size_t> shape,
                 const std::vector<std::uint8_t>& flags) {
    auto& tensor = add_head(name, "BOOL", shape);
    if (raw_) {
      wire_.add_raw_output_contents(flags.data(), flags.size());
    } else {
      tensor.mutable_contents()->mutable_bool_contents()->Assign(flags.begin(), flags.end());
    }
  }

 private:
  inference::ModelInferResponse::InferOutputTensor& add_head(
      const char* name, const char* datatype, std::initializer_list<std::size_t> shape) {
    auto& tensor = *wire_.add_outputs();
    tensor.set_name(name);
    tensor.set_datatype(datatype);
    for (const std::size_t size : shape) tensor.add_shape(static_cast<std::int64_t>(size));
    return tensor;
  }

  const bool raw_;
  inference::ModelInferResponse& wire_;
};

// Joins the lists of all rows, each filled up to `size`.
template <typename Value>
std::vector<Value> filled(const std::vector<RowTokens>& rows, std::vector<Value> RowTokens::*list,
                          std::size_t size, Value filler) {
  std::vector<Value> all;
  all.reserve(rows.size() * size);
  for (const RowTokens& row : rows) {
    all.insert(all.end(), (row.*list).begin(), (row.*list).end());
    all.insert(all.end(), size - (row.*list).size(), filler);
  }
  return all;
}

// The protocol's name of the end; empty: the answer continues.
const char* name_of_end(const std::optional<FinishReason>& reason) {
  if (!reason) return "";
  if (*reason == FinishReason::kStopToken) return "eos_token";
  return *reason == FinishReason::kStopString ? "stop_sequence" : "length";
}

double score_of(const RowTokens& row) {
  double sum = 0;
  for (const float log2_prob : row.log2_probs) {
    if (!std::isnan(log2_prob)) sum += log2_prob;
  }
  return sum;
}

}  // namespace

void append_token(const TensorRequest& request, std::int32_t token, std::int32_t cut_bytes,
                  std::optional<float> log2_prob, std::span<const TopToken> top, RowTokens& row) {
  row.tokens.push_back(token);
  if (request.text) row.text += text_of_token(*request.tokenizer, token, cut_bytes);
  if (request.log2_probs || request.score || request.details)
    row.log2_probs.push_back(log2_prob.value_or(kNoProb));
  if (request.details) {
    const bool is_special = request.tokenizer->is_special(token);
    row.token_texts.emplace_back(is_special ? request.tokenizer->text_of_special(token)
                                            : text_of_token(*request.tokenizer, token, cut_bytes));
    row.special.push_back(is_special);
  }
  for (std::size_t i = 0; i < request.top_log2_probs; ++i) {
    row.top_tokens.push_back(i < top.size() ? top[i].token : kNoToken);
    row.top_log2_probs.push_back(i < top.size() ? top[i].log2_prob : kNoProb);
  }
}

namespace {

// Bytes of the details of a token: id, log2-probability, flag, and its text with its length.
std::size_t detail_bytes(const TensorRequest& request) {
  constexpr std::size_t kSpecialBytes = 64;  // of a special token
  return 2 * sizeof(std::int32_t) + 3 + std::max(request.tokenizer->longest(), kSpecialBytes);
}

}  // namespace

std::size_t most_response_bytes(const TensorRequest& request, std::int64_t longest) {
  // Varints of ids below 2^21 take three bytes.
  const std::size_t token_bytes = request.raw ? sizeof(std::int32_t) : 3;
  const std::size_t bytes_each =
      (request.tokens ? token_bytes : 0) + (request.text ? request.tokenizer->longest() : 0) +
      (request.log2_probs ? sizeof(float) : 0) + (request.details ? detail_bytes(request) : 0) +
      request.top_log2_probs * (token_bytes + sizeof(float));
  return request.prompts.size() * request.num_samples * static_cast<std::size_t>(longest) *
         bytes_each;
}

void write_tensor_response(const TensorRequest& request, const std::vector<RowTokens>& rows,
                           inference::ModelInferResponse& wire) {
  using Contents = inference::InferTensorContents;
  const std::size_t n = rows.size();
  std::size_t longest = 0;
  for (const RowTokens& row : rows) longest = std::max(longest, row.tokens.size());
  if (request.tells_position) {
    (*wire.mutable_parameters())["lintel_position"].set_int64_param(rows.front().position);
  }
  if (request.window > 0) {
    std::int64_t restarts = 0;
    for (const RowTokens& row : rows) restarts = std::max(restarts, row.restarts);
    (*wire.mutable_parameters())["lintel_window"].set_int64_param(request.window);
    (*wire.mutable_parameters())["lintel_window_restarts"].set_int64_param(restarts);
  }
  OutputTensors out(request.raw, wire);
  if (request.tokens) {
    out.add("tokens", "INT32", {n, longest}, filled(rows, &RowTokens::tokens, longest, kNoToken),
            &Contents::mutable_int_contents);
  }
  if (request.log2_probs) {
    out.add("log2_probs", "FP32", {n, longest},
            filled(rows, &RowTokens::log2_probs, longest, kNoProb),
            &Contents::mutable_fp32_contents);
  }
  if (request.text) {
    std::vector<std::string> texts;
    texts.reserve(n);
    for (const RowTokens& row : rows) texts.push_back(row.text);
    out.add_texts("text_output", {n, 1}, std::move(texts));
  }
  if (const std::size_t k = request.top_log2_probs; k > 0) {
    out.add("top_tokens", "INT32", {n, longest, k},
            filled(rows, &RowTokens::top_tokens, longest * k, kNoToken),
            &Contents::mutable_int_contents);
    out.add("top_log2_probs", "FP32", {n, longest, k},
            filled(rows, &RowTokens::top_log2_probs, longest * k, kNoProb),
            &Contents::mutable_fp32_contents);
  }
  if (request.score) {
    std::vector<double> scores;
    for (const RowTokens& row : rows) scores.push_back(score_of(row));
    out.add("score", "FP64", {n, 1}, scores, &Contents::mutable_fp64_contents);
  }
  if (request.log2_evidence) {
    std::vector<double> evidence;
    for (const RowTokens& row : rows) evidence.push_back(row.log2_evidence.value_or(kNoProb));
    out.add("log2_evidence", "FP64", {n, 1}, evidence, &Contents::mutable_fp64_contents);
  }
  if (request.details) {
    (*wire.mutable_parameters())["finish_reason"].set_string_param(
        name_of_end(rows.front().reason));
    out.add("details.id", "INT32", {n, longest},
            filled(rows, &RowTokens::tokens, longest, kNoToken), &Contents::mutable_int_contents);
    out.add("details.log2_prob", "FP32", {n, longest},
            filled(rows, &RowTokens::log2_probs, longest, kNoProb),
            &Contents::mutable_fp32_contents);
    out.add_texts("details.text", {n, longest},
                  filled(rows, &RowTokens::token_texts, longest, std::string()));
    out.add_flags("details.special", {n, longest},
                  filled(rows, &RowTokens::special, longest, std::uint8_t{0}));
  }
}

void mark_final(inference::ModelInferResponse& response, bool is_final) {
  (*response.mutable_parameters())[std::string("triton_final_response")].set_bool_param(is_final);
}

StreamedResponse::StreamedResponse(std::shared_ptr<const TensorRequest> request,
                                   inference::ModelInferResponse head)
    : request_(std::move(request)) {
  inference::ModelInferResponse& response = *message_.mutable_infer_response();
  response = std::move(head);
  mark_final(response, false);
  auto& parameters = *response.mutable_parameters();
  if (request_->details) parameters[std::string("finish_reason")];
  if (request_->tells_position) parameters[std::string("lintel_position")];
  if (request_->window > 0) {
    parameters[std::string("lintel_window")];
    parameters[std::string("lintel_window_restarts")];
  }
}

// Keeps the head that every message begins with, and the mark in it: protobuf's maps do not survive
// that memory is refused while something is put into them.
void StreamedResponse::clear() {
  message_.clear_error_message();
  message_.mutable_infer_response()->clear_outputs();
  message_.mutable_infer_response()->clear_raw_output_contents();
}

void StreamedResponse::fill(std::span<const OutboxEntry> entries, bool is_last) {
  clear();
  RowTokens& row = rows_.front();
  row.tokens.clear();
  row.text.clear();
  row.log2_probs.clear();
  row.top_tokens.clear();
  row.top_log2_probs.clear();
  row.token_texts.clear();
  row.special.clear();
  for (const OutboxEntry& entry : entries) {
    if (entry.finished != nullptr) {
      row.reason = entry.finished->reason;
      row.log2_evidence = entry.finished->log2_evidence;
      row.position = entry.finished->position;
      row.restarts = entry.finished->restarts;
      continue;
    }
    append_token(*request_, entry.token, entry.cut_bytes,
                 entry.has_log2_prob ? std::optional(entry.log2_prob) : std::nullopt, entry.top,
                 row);
    row.position = entry.position + 1;
  }
  write_tensor_response(*request_, rows_, *message_.mutable_infer_response());
  mark_final(*message_.mutable_infer_response(), is_last);
}

void StreamedResponse::fill(const grpc::Status& error) {
  clear();
  message_.set_error_message(error.error_message());
  mark_final(*message_.mutable_infer_response(), true);
}

// Gathers the rows of one prompt, its samples.
class RowGatherer::RowSink final : public TokenSink {
 public:
  // stored_session: that the row is of, if it outlives the server; else empty.
  RowSink(std::shared_ptr<RowGatherer> run, std::size_t index, SharedModel model,
          std::string stored_session)
      : run_(std::move(run)),
        index_(index),
        model_(std::move(model)),
        stored_session_(std::move(stored_session)),
        rows_(run_->request_->num_samples) {}

  bool on_token(const TokenEvent& event) override {
    append_token(*run_->request_, event.token, event.cut_bytes, event.log2_prob, event.top,
                 row_of(event.sample));
    return true;  // bounded by max_new_tokens
  }
  void on_sample_finish(const SampleResult& result) override {
    // The samples' one prompt was read once.
    used_.prompt = std::max(used_.prompt, result.prompt_tokens);
    used_.generated += result.generated_tokens;
    RowTokens& row = row_of(result.sample);
    row.position = result.position;
    row.restarts = result.restarts;
    row.log2_evidence = result.log2_evidence;
    row.reason = result.reason;
  }
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    run_->row_done(index_, std::move(rows_), used_, catch_exceptions([&] {
                     return outcome_status(outcome, *model_, stored_session_,
                                           /*is_stored=*/!stored_session_.empty());
                   }));
  }

 private:
  RowTokens& row_of(int sample) { return rows_[static_cast<std::size_t>(sample)]; }

  const std::shared_ptr<RowGatherer> run_;
  const std::size_t index_;
  const SharedModel model_;
  const std::string stored_session_;
  std::vector<RowTokens> rows_;
  TokenUse used_;
};

void RowGatherer::begin(std::vector<PreparedGeneration> prepared) noexcept {
  // Made before the rows run. From here on the end of the call ends them, too.
  grpc::Status room = catch_exceptions([&] {
    MutexLock lock(mutex_);
    rows_left_ = prepared.size();
    rows_.resize(prepared.size() * request_->num_samples);
    running_.resize(prepared.size());
    for (std::size_t i = 0; i < prepared.size(); ++i) running_[i].model = prepared[i].model;
    return status_;  // cancelled already: none is submitted
  });
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    grpc::Status status = room.ok() ? submit(i, prepared[i]) : copy_of(room);
    if (status.ok()) continue;
    prepared[i].lease = SessionLease();  // before the client receives its answer
    row_done(i, {}, {}, std::move(status));
  }
}

grpc::Status RowGatherer::submit(std::size_t index, PreparedGeneration& row) noexcept {
  return catch_exceptions([&] {
    const auto sink = std::make_shared<RowSink>(
        shared_from_this(), index, row.model, row.durable == nullptr ? "" : row.lease.session_id());
    const RequestHandle handle = [&] {
      MutexLock lock(mutex_);
      running_[index].past = row.past;
      return running_[index].handle;
    }();
    if (row.past) {  // it has been run
      row.past->tell(sink);
      return grpc::Status::OK;
    }
    GenerationRequest request = std::move(row.checked.request);
    return submit_status(
        row.durable == nullptr
            ? row.model->scheduler->submit(std::move(request), std::move(row.lease), sink, handle)
            : row.durable->submit(std::move(request), std::move(row.lease), sink, handle),
        *row.model);
  });
}

void RowGatherer::cancel() noexcept { fail(cancelled()); }

void RowGatherer::fail(grpc::Status status) noexcept {
  {
    MutexLock lock(mutex_);
    if (!status_.ok() || on_done_ == nullptr) return;
    status_ = std::move(status);
  }
  // One by one, without a list of them: it may be the want of memory that ends the call.
  for (std::size_t i = 0;; ++i) {
    std::optional<Running> row;
    {
      MutexLock lock(mutex_);
      if (i >= running_.size()) return;
      row = running_[i];
    }
    if (row->past != nullptr) row->past->cancel();
    if (row->model != nullptr) row->model->scheduler->cancel(row->handle);
  }
}

void RowGatherer::row_done(std::size_t index, std::vector<RowTokens> samples, TokenUse used,
                           grpc::Status status) noexcept {
  if (!status.ok()) fail(std::move(status));
  SharedModel over;  // released without the mutex
  OnDone on_done;
  std::vector<RowTokens> rows;
  grpc::Status result;
  TokenUse all;
  {
    MutexLock lock(mutex_);
    if (index < running_.size()) std::swap(over, running_[index].model);
    const std::size_t first = index * request_->num_samples;
    if (first + samples.size() <= rows_.size()) {
      std::ranges::move(samples, rows_.begin() + static_cast<std::ptrdiff_t>(first));
    }
    used_.prompt += used.prompt;
    used_.generated += used.generated;
    if (--rows_left_ > 0) return;
    on_done = std::exchange(on_done_, nullptr);
    rows = std::move(rows_);
    result = std::move(status_);
    all = used_;
    running_.clear();
  }
  on_done(result, std::move(rows), all);
}

}  // namespace lintel
