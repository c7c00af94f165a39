#include "server/grpc/kserve/output_tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

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
  // One of BYTES, [n, 1].
  void add_texts(const char* name, std::vector<std::string> texts) {
    auto& tensor = add_head(name, "BYTES", {texts.size(), 1});
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

// What `value_of(row)` gives of each row, filled up to `size`.
template <typename Value, typename ValuesOf>
std::vector<Value> filled(const std::vector<RowValues>& rows, std::size_t size, Value filler,
                          const ValuesOf& values_of) {
  std::vector<Value> all;
  all.reserve(rows.size() * size);
  for (const RowValues& row : rows) {
    const auto& values = values_of(row);
    all.insert(all.end(), values.begin(), values.end());
    all.insert(all.end(), size - values.size(), filler);
  }
  return all;
}

std::string text_of(const RowValues& row) {
  std::string text;
  text.reserve(row.tokens.size());
  for (const std::int32_t token : row.tokens) text.push_back(static_cast<char>(token));
  return text;
}

double score_of(const RowValues& row) {
  double sum = 0;
  for (const float log2_prob : row.log2_probs) {
    if (!std::isnan(log2_prob)) sum += log2_prob;
  }
  return sum;
}

}  // namespace

void append_value(const TensorRequest& request, std::int32_t token, std::optional<float> log2_prob,
                  std::span<const TopValue> top, RowValues& row) {
  row.tokens.push_back(token);
  if (request.log2_probs || request.score) row.log2_probs.push_back(log2_prob.value_or(kNoProb));
  for (std::size_t i = 0; i < request.top_log2_probs; ++i) {
    row.top_tokens.push_back(i < top.size() ? top[i].token : kNoToken);
    row.top_log2_probs.push_back(i < top.size() ? top[i].log2_prob : kNoProb);
  }
}

std::size_t most_response_bytes(const TensorRequest& request, std::int64_t longest) {
  // As varints, ids below 2^21 take three bytes.
  const std::size_t token_bytes = request.raw ? sizeof(std::int32_t) : 3;
  const std::size_t bytes_each = (request.tokens ? token_bytes : 0) + (request.text ? 1 : 0) +
                                 (request.log2_probs ? sizeof(float) : 0) +
                                 request.top_log2_probs * (token_bytes + sizeof(float));
  return request.prompts.size() * request.num_samples * static_cast<std::size_t>(longest) *
         bytes_each;
}

void write_tensor_response(const TensorRequest& request, const std::vector<RowValues>& rows,
                           inference::ModelInferResponse& wire) {
  using Contents = inference::InferTensorContents;
  const std::size_t n = rows.size();
  std::size_t longest = 0;
  for (const RowValues& row : rows) longest = std::max(longest, row.tokens.size());
  if (request.tells_position) {
    (*wire.mutable_parameters())["lintel_position"].set_int64_param(rows.front().position);
  }
  if (request.window > 0) {
    std::int64_t restarts = 0;
    for (const RowValues& row : rows) restarts = std::max(restarts, row.restarts);
    (*wire.mutable_parameters())["lintel_window"].set_int64_param(request.window);
    (*wire.mutable_parameters())["lintel_window_restarts"].set_int64_param(restarts);
  }
  OutputTensors out(request.raw, wire);
  if (request.tokens) {
    out.add("tokens", "INT32", {n, longest},
            filled(
                rows, longest, kNoToken, [](const auto& row) -> const auto& { return row.tokens; }),
            &Contents::mutable_int_contents);
  }
  if (request.log2_probs) {
    out.add(
        "log2_probs", "FP32", {n, longest},
        filled(
            rows, longest, kNoProb, [](const auto& row) -> const auto& { return row.log2_probs; }),
        &Contents::mutable_fp32_contents);
  }
  if (request.text) {
    std::vector<std::string> texts;
    texts.reserve(n);
    for (const RowValues& row : rows) texts.push_back(text_of(row));
    out.add_texts("text_output", std::move(texts));
  }
  if (const std::size_t k = request.top_log2_probs; k > 0) {
    out.add("top_tokens", "INT32", {n, longest, k},
            filled(
                rows, longest * k, kNoToken,
                [](const auto& row) -> const auto& { return row.top_tokens; }),
            &Contents::mutable_int_contents);
    out.add("top_log2_probs", "FP32", {n, longest, k},
            filled(
                rows, longest * k, kNoProb,
                [](const auto& row) -> const auto& { return row.top_log2_probs; }),
            &Contents::mutable_fp32_contents);
  }
  if (request.score) {
    std::vector<double> scores;
    for (const RowValues& row : rows) scores.push_back(score_of(row));
    out.add("score", "FP64", {n, 1}, scores, &Contents::mutable_fp64_contents);
  }
  if (request.log2_evidence) {
    std::vector<double> evidence;
    for (const RowValues& row : rows) evidence.push_back(row.log2_evidence.value_or(kNoProb));
    out.add("log2_evidence", "FP64", {n, 1}, evidence, &Contents::mutable_fp64_contents);
  }
}

}  // namespace lintel
