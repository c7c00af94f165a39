// SPDX-License-Identifier: Apache-2.0
// OpenAI's protocol except its messages, and its errors as answers: {"error": {"message", "type",
// "param", "code"}}.
#pragma once

#include <grpcpp/support/status.h>

#include <string_view>

#include "model/core/json_reader.h"
#include "proto/fields/request_fields.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/openai/json.h"

namespace lintel {

const HttpProtocol& openai_protocol();

// The names of fields in a request.
struct MemberNames {
  // Null: errors have the names that were sent already.
  FieldName RequestField::*column = &RequestField::completions;
  // A field for which the API has several names, and the one that the request has; empty: that of
  // the column.
  std::string_view field = {}, name = {};
};

// Names of errors of a body, which name its members, and of calls whose errors do.
inline constexpr MemberNames kNamesAsSent{nullptr};

// The answer for an error of the request itself.
HttpAnswer openai_answer(const OpenAiError& error);
// The status of a call, with the fields named as in OpenAI's request.
HttpAnswer openai_answer(const grpc::Status& status, const MemberNames& names = {});
// The same, with the HTTP status that the listener found.
HttpAnswer openai_refusal(const HttpRequest& request, int http_status, const grpc::Status& status);
// The refusal of a body that is not JSON, or whose client is gone. OK: its call answers.
grpc::Status body_refusal(const JsonFailure& failure);

}  // namespace lintel
