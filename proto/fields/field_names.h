// SPDX-License-Identifier: Apache-2.0
// The names of an API for the fields of the table.
#pragma once

#include <string>
#include <string_view>

#include "proto/fields/request_fields.h"

namespace lintel {

// True if `field` is `whole` or a part of it: "stop.strings[1]" is of "stop.strings".
bool is_of_field(std::string_view field, std::string_view whole);

// A field of lintel.v1 as the API calls it, "sampling.logit_bias[3]" as "logit_bias[3]". Others,
// and those without a name in the API, stay. api: the column of the table.
std::string api_field(FieldName RequestField::*api, std::string_view field);

}  // namespace lintel
