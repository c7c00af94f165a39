// SPDX-License-Identifier: Apache-2.0
// The table of fields, lintel.v1 and GenerateParams have the same fields.
#include "server/api/params/generate_params.h"

#include <google/protobuf/descriptor.h>

#include <set>
#include <string>

#include "lintel/v1/generation.pb.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using google::protobuf::FieldDescriptor;

// The fields of a message with their paths; those of sampling and stop one by one.
void add_fields(const google::protobuf::Descriptor& message, const std::string& path,
                std::set<std::string>& names) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string name = path + std::string(field.name());
    const bool is_group = field.message_type() == v1::Sampling::descriptor() ||
                          field.message_type() == v1::Stop::descriptor();
    if (is_group) {
      add_fields(*field.message_type(), name + ".", names);
    } else {
      names.insert(name);
    }
  }
}

FieldType type_of(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return FieldType::kFlag;
    case FieldDescriptor::CPPTYPE_UINT32:
      return FieldType::kCount;
    case FieldDescriptor::CPPTYPE_UINT64:
      return FieldType::kSeed;
    case FieldDescriptor::CPPTYPE_INT64:
      return FieldType::kPosition;
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FieldType::kNumber;
    case FieldDescriptor::CPPTYPE_STRING:
      return field.is_repeated() ? FieldType::kTexts : FieldType::kText;
    case FieldDescriptor::CPPTYPE_INT32:
      return FieldType::kTokens;
    default:
      break;
  }
  if (field.is_map()) return FieldType::kBiases;
  if (field.message_type() == v1::GivenSpan::descriptor()) return FieldType::kSpans;
  return field.message_type() == v1::Values::descriptor() ? FieldType::kValues
                                                          : FieldType::kSeconds;
}

v1::GenerateRequest full_request() {
  v1::GenerateRequest wire;
  wire.set_model("m");
  wire.set_session_id("s");
  wire.mutable_prompt()->set_text("Hi \xff");
  wire.set_max_new_tokens(0);
  v1::Sampling& sampling = *wire.mutable_sampling();
  sampling.set_temperature(0.0f);
  sampling.set_top_k(0);
  sampling.set_top_p(0.5f);
  sampling.set_min_p(0.25f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-2);
  sampling.set_frequency_penalty(3);
  sampling.set_penalty_window(7);
  (*sampling.mutable_logit_bias())[5] = -1;
  (*sampling.mutable_logit_bias())[3] = 2;
  sampling.set_seed(~std::uint64_t{0});
  wire.mutable_stop()->add_strings("a");
  wire.mutable_stop()->add_strings("");
  wire.mutable_stop()->add_token_ids(-1);
  wire.mutable_stop()->set_include_in_output(true);
  wire.mutable_stop()->set_ignore_eos(true);
  wire.mutable_stop()->set_min_tokens(2);
  wire.set_num_samples(2);
  wire.set_log2_probs(true);
  wire.set_top_log2_probs(4);
  wire.set_echo_prompt(true);
  v1::GivenSpan& span = *wire.add_given();
  span.set_position(-9);
  span.mutable_values()->mutable_tokens()->add_ids(8);
  wire.add_given()->mutable_values()->set_pixels("pq");
  wire.set_particles(3);
  wire.set_window(0);
  wire.set_adapter("a");
  wire.set_initial_state("i");
  wire.set_cache_prefix_tokens(6);
  wire.set_parse_special(true);
  wire.set_add_special(false);
  wire.set_token_bytes(true);
  wire.set_max_tokens_per_message(1);
  wire.mutable_time_limit()->set_seconds(-1);
  wire.mutable_time_limit()->set_nanos(5);
  wire.set_call_id("c");
  wire.set_from_position(-3);
  wire.set_expected_position(0);
  return wire;
}

TEST_CASE("the table of fields has those of lintel.v1, with their types") {
  std::set<std::string> wanted;
  add_fields(*v1::GenerateRequest::descriptor(), "", wanted);
  std::set<std::string> listed;
  for (std::size_t i = 0; i < std::size(kRequestFields); ++i) {
    CAPTURE(kRequestFields[i].name);
    CHECK(listed.insert(std::string(kRequestFields[i].name)).second);
    REQUIRE(api::wire_field(i).field != nullptr);
    CHECK(type_of(*api::wire_field(i).field) == kRequestFields[i].type);
  }
  CHECK(listed == wanted);
}

TEST_CASE("the names of each API are different") {
  for (const auto api :
       {&RequestField::completions, &RequestField::chat, &RequestField::responses,
        &RequestField::kserve, &RequestField::cli, &RequestField::python, &RequestField::page}) {
    std::set<std::string_view> names;
    for (const RequestField& field : kRequestFields) {
      const FieldName name = field.*api;
      CAPTURE(name.text);
      if (!name.is_read_by_table()) {
        CHECK_FALSE(find_field(api, name.text));
        continue;
      }
      CHECK(names.insert(name.text).second);
      CHECK(kRequestFields[find_field(api, name.text).value()].name == field.name);
    }
    CHECK_FALSE(find_field(api, ""));
    CHECK_FALSE(find_field(api, "no such field"));
  }
}

TEST_CASE("a request becomes parameters and a message again without a change") {
  const v1::GenerateRequest wire = full_request();
  for (std::size_t i = 0; i < std::size(kRequestFields); ++i) {
    CAPTURE(kRequestFields[i].name);
    const auto [message, field] = api::wire_field(i);
    const google::protobuf::Message* from = &wire;
    if (message != nullptr) from = &wire.GetReflection()->GetMessage(wire, message);
    // Each is there, so that none is forgotten here.
    CHECK((field->is_repeated() ? from->GetReflection()->FieldSize(*from, field) > 0
                                : from->GetReflection()->HasField(*from, field)));
  }
  v1::GenerateRequest again;
  api::write_params(api::read_params(v1::GenerateRequest(wire)), again);
  CHECK(again.DebugString() == wire.DebugString());

  v1::GenerateRequest empty;
  api::write_params({}, empty);
  CHECK(empty.ByteSizeLong() == 0);
  v1::GenerateRequest no_ids;
  no_ids.mutable_prompt()->mutable_tokens();
  api::write_params(api::read_params(v1::GenerateRequest(no_ids)), empty);
  CHECK(empty.prompt().has_tokens());
}

TEST_CASE("fields that change no answer are cleared, and no others") {
  v1::GenerateRequest wire = full_request();
  api::clear_what_changes_no_answer(wire);
  v1::GenerateRequest expected = full_request();
  expected.clear_max_tokens_per_message();
  expected.clear_time_limit();
  expected.clear_from_position();
  expected.clear_expected_position();
  CHECK(wire.DebugString() == expected.DebugString());
}

}  // namespace
}  // namespace lintel::testing
