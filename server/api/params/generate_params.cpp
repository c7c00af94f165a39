// SPDX-License-Identifier: Apache-2.0
#include "server/api/params/generate_params.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace lintel::api {
namespace {

struct Member {
  std::string_view field;
  Param (*of)(GenerateParams& params);
};

// One for each row of the table, in its order.
constexpr Member kMembers[] = {
    {"model", [](GenerateParams& p) -> Param { return &p.model; }},
    {"session_id", [](GenerateParams& p) -> Param { return &p.session_id; }},
    {"prompt", [](GenerateParams& p) -> Param { return &p.prompt; }},
    {"max_new_tokens", [](GenerateParams& p) -> Param { return &p.max_new_tokens; }},
    {"sampling.temperature", [](GenerateParams& p) -> Param { return &p.sampling.temperature; }},
    {"sampling.top_k", [](GenerateParams& p) -> Param { return &p.sampling.top_k; }},
    {"sampling.top_p", [](GenerateParams& p) -> Param { return &p.sampling.top_p; }},
    {"sampling.min_p", [](GenerateParams& p) -> Param { return &p.sampling.min_p; }},
    {"sampling.repetition_penalty",
     [](GenerateParams& p) -> Param { return &p.sampling.repetition_penalty; }},
    {"sampling.presence_penalty",
     [](GenerateParams& p) -> Param { return &p.sampling.presence_penalty; }},
    {"sampling.frequency_penalty",
     [](GenerateParams& p) -> Param { return &p.sampling.frequency_penalty; }},
    {"sampling.penalty_window",
     [](GenerateParams& p) -> Param { return &p.sampling.penalty_window; }},
    {"sampling.logit_bias", [](GenerateParams& p) -> Param { return &p.sampling.logit_bias; }},
    {"sampling.seed", [](GenerateParams& p) -> Param { return &p.sampling.seed; }},
    {"stop.strings", [](GenerateParams& p) -> Param { return &p.stop.strings; }},
    {"stop.token_ids", [](GenerateParams& p) -> Param { return &p.stop.token_ids; }},
    {"stop.include_in_output",
     [](GenerateParams& p) -> Param { return &p.stop.include_in_output; }},
    {"stop.ignore_eos", [](GenerateParams& p) -> Param { return &p.stop.ignore_eos; }},
    {"stop.min_tokens", [](GenerateParams& p) -> Param { return &p.stop.min_tokens; }},
    {"num_samples", [](GenerateParams& p) -> Param { return &p.num_samples; }},
    {"log2_probs", [](GenerateParams& p) -> Param { return &p.log2_probs; }},
    {"top_log2_probs", [](GenerateParams& p) -> Param { return &p.top_log2_probs; }},
    {"echo_prompt", [](GenerateParams& p) -> Param { return &p.echo_prompt; }},
    {"given", [](GenerateParams& p) -> Param { return &p.given; }},
    {"particles", [](GenerateParams& p) -> Param { return &p.particles; }},
    {"window", [](GenerateParams& p) -> Param { return &p.window; }},
    {"adapter", [](GenerateParams& p) -> Param { return &p.adapter; }},
    {"initial_state", [](GenerateParams& p) -> Param { return &p.initial_state; }},
    {"cache_prefix_tokens", [](GenerateParams& p) -> Param { return &p.cache_prefix_tokens; }},
    {"parse_special", [](GenerateParams& p) -> Param { return &p.parse_special; }},
    {"add_special", [](GenerateParams& p) -> Param { return &p.add_special; }},
    {"token_bytes", [](GenerateParams& p) -> Param { return &p.token_bytes; }},
    {"max_tokens_per_message",
     [](GenerateParams& p) -> Param { return &p.max_tokens_per_message; }},
    {"time_limit", [](GenerateParams& p) -> Param { return &p.time_limit; }},
    {"call_id", [](GenerateParams& p) -> Param { return &p.call_id; }},
    {"from_position", [](GenerateParams& p) -> Param { return &p.from_position; }},
    {"expected_position", [](GenerateParams& p) -> Param { return &p.expected_position; }},
};

constexpr bool have_the_rows_of_the_table() {
  return std::equal(std::begin(kMembers), std::end(kMembers), std::begin(kRequestFields),
                    std::end(kRequestFields), [](const Member& member, const RequestField& field) {
                      return member.field == field.name;
                    });
}
static_assert(have_the_rows_of_the_table());

}  // namespace

Values text_values(std::string text) { return {Values::Form::kText, {}, std::move(text)}; }

Values token_values(std::vector<std::int32_t> ids) {
  return {Values::Form::kTokens, std::move(ids), {}};
}

std::size_t held_bytes(const Values& values) {
  return sizeof(Values) + values.ids.capacity() * sizeof(std::int32_t) + values.bytes.capacity();
}

std::size_t held_bytes(const GenerateParams& params) {
  constexpr std::size_t kNodeBytes = 64;  // of a map's entry
  std::size_t bytes = sizeof(GenerateParams) - sizeof(Values) + held_bytes(params.prompt) +
                      params.sampling.logit_bias.size() * kNodeBytes +
                      params.stop.token_ids.capacity() * sizeof(std::int32_t);
  for (const std::string& text : params.stop.strings) bytes += sizeof(text) + text.capacity();
  for (const GivenValues& given : params.given) bytes += sizeof(given) + held_bytes(given.values);
  for (const std::string* const name : {&params.model, &params.session_id, &params.adapter,
                                        &params.initial_state, &params.call_id}) {
    bytes += name->capacity();
  }
  return bytes;
}

Param param_of(GenerateParams& params, std::size_t field) { return kMembers[field].of(params); }

}  // namespace lintel::api
