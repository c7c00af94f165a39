// SPDX-License-Identifier: Apache-2.0
#include "server/api/params/generate_params.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lintel/v1/generation.pb.h"

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

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::size_t kNumFields = std::size(kRequestFields);

WireField find_wire_field(std::string_view name) {
  const Descriptor* within = v1::GenerateRequest::descriptor();
  WireField found;
  if (const std::size_t dot = name.find('.'); dot != std::string_view::npos) {
    found.message = within->FindFieldByName(std::string(name.substr(0, dot)));
    within = found.message->message_type();
    name.remove_prefix(dot + 1);
  }
  found.field = within->FindFieldByName(std::string(name));
  return found;
}

const std::array<WireField, kNumFields>& wire_fields() {
  static const std::array<WireField, kNumFields> fields = [] {
    std::array<WireField, kNumFields> all;
    for (std::size_t i = 0; i < kNumFields; ++i) all[i] = find_wire_field(kRequestFields[i].name);
    return all;
  }();
  return fields;
}

// A field of a message that is there, read into the member of its type.

struct FieldReader {
  Message& from;
  const Reflection& reflection;
  const FieldDescriptor* field;

  void read(bool& to) const { to = reflection.GetBool(from, field); }
  void read(std::uint32_t& to) const { to = reflection.GetUInt32(from, field); }
  void read(std::uint64_t& to) const { to = reflection.GetUInt64(from, field); }
  void read(std::int64_t& to) const { to = reflection.GetInt64(from, field); }
  void read(float& to) const { to = reflection.GetFloat(from, field); }
  void read(std::string& to) const { to = reflection.GetString(from, field); }
  void read(std::vector<std::string>& to) const {
    const int size = reflection.FieldSize(from, field);
    for (int i = 0; i < size; ++i) to.push_back(reflection.GetRepeatedString(from, field, i));
  }
  void read(std::vector<std::int32_t>& to) const {
    const auto ids = reflection.GetRepeatedFieldRef<std::int32_t>(from, field);
    to.assign(ids.begin(), ids.end());
  }
  void read(std::map<std::int32_t, float>& to) const {
    const auto& biases = static_cast<v1::Sampling&>(from).logit_bias();
    to.insert(biases.begin(), biases.end());
  }
  void read(std::vector<GivenValues>& to) const {
    for (v1::GivenSpan& span : *static_cast<v1::GenerateRequest&>(from).mutable_given()) {
      to.push_back({span.position(), read_values(std::move(*span.mutable_values()))});
    }
  }
  void read(Values& to) const {
    to = read_values(std::move(static_cast<v1::Values&>(*reflection.MutableMessage(&from, field))));
  }
  void read(TimeLimit& to) const {
    const auto& wire =
        static_cast<const google::protobuf::Duration&>(reflection.GetMessage(from, field));
    to = {wire.seconds(), wire.nanos()};
  }
  template <typename T>
  void read(std::optional<T>& to) const {
    read(to.emplace());
  }
};

struct FieldWriter {
  Message& to;
  const Reflection& reflection;
  const FieldDescriptor* field;

  void write(bool from) const { reflection.SetBool(&to, field, from); }
  void write(std::uint32_t from) const { reflection.SetUInt32(&to, field, from); }
  void write(std::uint64_t from) const { reflection.SetUInt64(&to, field, from); }
  void write(std::int64_t from) const { reflection.SetInt64(&to, field, from); }
  void write(float from) const { reflection.SetFloat(&to, field, from); }
  void write(const std::string& from) const { reflection.SetString(&to, field, from); }
  void write(const std::vector<std::string>& from) const {
    for (const std::string& text : from) reflection.AddString(&to, field, text);
  }
  void write(const std::vector<std::int32_t>& from) const {
    for (const std::int32_t id : from) reflection.AddInt32(&to, field, id);
  }
  void write(const std::map<std::int32_t, float>& from) const {
    static_cast<v1::Sampling&>(to).mutable_logit_bias()->insert(from.begin(), from.end());
  }
  void write(const std::vector<GivenValues>& from) const {
    for (const GivenValues& given : from) {
      auto& span = static_cast<v1::GivenSpan&>(*reflection.AddMessage(&to, field));
      span.set_position(given.position);
      write_values(given.values, *span.mutable_values());
    }
  }
  void write(const Values& from) const {
    write_values(from, static_cast<v1::Values&>(*reflection.MutableMessage(&to, field)));
  }
  void write(const TimeLimit& from) const {
    auto& wire = static_cast<google::protobuf::Duration&>(*reflection.MutableMessage(&to, field));
    wire.set_seconds(from.seconds);
    wire.set_nanos(from.nanos);
  }
};

// True where a member has a value that is not its default.
bool is_set(const Values& values) { return values.form != Values::Form::kNone; }
template <typename T>
bool is_set(const T& member) {
  if constexpr (requires { member.has_value(); }) {
    return member.has_value();
  } else if constexpr (requires { member.empty(); }) {
    return !member.empty();
  } else {
    return member != T();
  }
}

}  // namespace

WireField wire_field(std::size_t field) { return wire_fields()[field]; }

Values read_values(v1::Values wire) {
  switch (wire.form_case()) {
    case v1::Values::kTokens: {
      const auto& ids = wire.tokens().ids();
      return token_values({ids.begin(), ids.end()});
    }
    case v1::Values::kText:
      return text_values(std::move(*wire.mutable_text()));
    case v1::Values::kPixels:
      return {Values::Form::kPixels, {}, std::move(*wire.mutable_pixels())};
    case v1::Values::FORM_NOT_SET:
      return {};
  }
  return {};
}

void write_values(const Values& values, v1::Values& wire) {
  switch (values.form) {
    case Values::Form::kNone:
      return;
    case Values::Form::kTokens:
      wire.mutable_tokens()->mutable_ids()->Add(values.ids.begin(), values.ids.end());
      return;
    case Values::Form::kText:
      wire.set_text(values.bytes);
      return;
    case Values::Form::kPixels:
      wire.set_pixels(values.bytes);
      return;
  }
}

GenerateParams read_params(v1::GenerateRequest&& wire) {
  GenerateParams params;
  for (std::size_t i = 0; i < kNumFields; ++i) {
    const auto [message, field] = wire_fields()[i];
    Message* from = &wire;
    if (message != nullptr) {
      if (!wire.GetReflection()->HasField(wire, message)) continue;
      from = wire.GetReflection()->MutableMessage(&wire, message);
    }
    const Reflection& reflection = *from->GetReflection();
    const bool is_there = field->is_repeated() ? reflection.FieldSize(*from, field) > 0
                                               : reflection.HasField(*from, field);
    if (!is_there) continue;
    const FieldReader reader{*from, reflection, field};
    std::visit([&](auto* member) { reader.read(*member); }, param_of(params, i));
  }
  return params;
}

void clear_what_changes_no_answer(v1::GenerateRequest& wire) {
  for (std::size_t i = 0; i < kNumFields; ++i) {
    if (kRequestFields[i].changes_answer) continue;
    const auto [message, field] = wire_fields()[i];
    Message* within = &wire;
    if (message != nullptr) {
      if (!wire.GetReflection()->HasField(wire, message)) continue;
      within = wire.GetReflection()->MutableMessage(&wire, message);
    }
    within->GetReflection()->ClearField(within, field);
  }
}

void write_params(const GenerateParams& params, v1::GenerateRequest& wire) {
  for (std::size_t i = 0; i < kNumFields; ++i) {
    const auto [message, field] = wire_fields()[i];
    // Members are not changed.
    const Param param = param_of(const_cast<GenerateParams&>(params), i);
    std::visit(
        [&, within = message, which = field](const auto* member) {
          if (!is_set(*member)) return;
          Message* to = &wire;
          if (within != nullptr) to = wire.GetReflection()->MutableMessage(&wire, within);
          const FieldWriter writer{*to, *to->GetReflection(), which};
          if constexpr (requires { member->has_value(); }) {
            writer.write(**member);
          } else {
            writer.write(*member);
          }
        },
        param);
  }
}

}  // namespace lintel::api
