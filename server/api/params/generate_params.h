// SPDX-License-Identifier: Apache-2.0
// GenerateParams: a request for tokens, as every protocol reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/fields/request_fields.h"

namespace google::protobuf {
class FieldDescriptor;
}
namespace lintel::v1 {
class GenerateRequest;
class Values;
}  // namespace lintel::v1

namespace lintel::api {

// Tokens of a sequence, as ids or as what stands for them.
struct Values {
  enum class Form { kNone, kTokens, kText, kPixels };

  Form form = Form::kNone;
  std::vector<std::int32_t> ids;  // of kTokens
  std::string bytes;              // of kText, and of kPixels: a token each

  bool has_text() const { return form == Form::kText; }
  // The number of tokens or pixels; of a text, of its bytes.
  std::int64_t size() const {
    return static_cast<std::int64_t>(form == Form::kTokens ? ids.size() : bytes.size());
  }
};

Values text_values(std::string text);
Values token_values(std::vector<std::int32_t> ids);

// Known tokens from an absolute position on.
struct GivenValues {
  std::int64_t position = 0;
  Values values;
};

// A duration as a client wrote it.
struct TimeLimit {
  std::int64_t seconds = 0;
  std::int32_t nanos = 0;
};

struct SamplingParams {
  std::optional<float> temperature;
  std::optional<std::uint32_t> top_k;
  std::optional<float> top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::uint32_t penalty_window = 0;
  std::map<std::int32_t, float> logit_bias;
  std::optional<std::uint64_t> seed;
};

struct StopParams {
  std::vector<std::string> strings;
  std::vector<std::int32_t> token_ids;
  bool include_in_output = false;
  bool ignore_eos = false;
  std::uint32_t min_tokens = 0;
};

// The members are lintel.v1's, and mean what proto/lintel/v1/generation.proto says. None is checked
// yet: request_checks.h.
struct GenerateParams {
  std::string model;
  std::string session_id;
  Values prompt;
  std::optional<std::uint32_t> max_new_tokens;
  // max_new_tokens is a default: where there is memory for fewer, the answer ends there.
  bool shortens_answer = false;
  SamplingParams sampling;
  StopParams stop;
  std::optional<std::uint32_t> num_samples;
  bool log2_probs = false;
  std::uint32_t top_log2_probs = 0;
  bool echo_prompt = false;
  std::vector<GivenValues> given;
  std::uint32_t particles = 0;
  std::optional<std::int64_t> window;
  std::string adapter;
  std::string initial_state;
  std::uint32_t cache_prefix_tokens = 0;
  bool parse_special = false;
  std::optional<bool> add_special;
  bool token_bytes = false;
  std::uint32_t max_tokens_per_message = 0;
  std::optional<TimeLimit> time_limit;
  std::string call_id;
  std::int64_t from_position = 0;
  std::optional<std::int64_t> expected_position;
};

// Bytes that these take, the object itself included.
std::size_t held_bytes(const Values& values);
std::size_t held_bytes(const GenerateParams& params);

// A pointer to the member that holds a field of the table.
using Param =
    std::variant<bool*, std::optional<bool>*, std::uint32_t*, std::optional<std::uint32_t>*,
                 std::optional<std::uint64_t>*, std::int64_t*, std::optional<std::int64_t>*,
                 std::optional<float>*, std::string*, std::vector<std::string>*,
                 std::vector<std::int32_t>*, std::map<std::int32_t, float>*,
                 std::vector<GivenValues>*, Values*, std::optional<TimeLimit>*>;

// The member of `params` that holds kRequestFields[field].
Param param_of(GenerateParams& params, std::size_t field);

// GenerateParams as messages of lintel.v1, and back: along the table of fields.

// Takes the texts of `wire`.
GenerateParams read_params(v1::GenerateRequest&& wire);
Values read_values(v1::Values wire);
void write_values(const Values& values, v1::Values& wire);

// `wire` is empty. What a parameter has by default is left out.
void write_params(const GenerateParams& params, v1::GenerateRequest& wire);

// Clears the fields whose change is no change of the answer (RequestField::changes_answer).
void clear_what_changes_no_answer(v1::GenerateRequest& wire);

// The place of kRequestFields[field] in lintel.v1.
struct WireField {
  // The message of the request that holds the field; null: the request itself.
  const google::protobuf::FieldDescriptor* message = nullptr;
  const google::protobuf::FieldDescriptor* field = nullptr;
};
WireField wire_field(std::size_t field);

}  // namespace lintel::api
