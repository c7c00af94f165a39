// SPDX-License-Identifier: Apache-2.0
// GenerateParams as messages of lintel.v1, and back: along the table of fields.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstddef>

#include "lintel/v1/generation.pb.h"
#include "server/api/params/generate_params.h"

namespace lintel::api {

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
