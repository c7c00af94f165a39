// SPDX-License-Identifier: Apache-2.0
// Anthropic's protocol beside its messages, and its errors as answers:
// {"type": "error", "error": {"type", "message"}, "request_id"}.
#pragma once

#include <grpcpp/support/status.h>

#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// The protocol of /v1/messages.
const HttpProtocol& messages_protocol();
// The protocol of paths that OpenAI's API has, too. Requests with the header anthropic-version come
// from Anthropic's clients.
const HttpProtocol& shared_models_protocol();
bool is_of_anthropic_client(const HttpRequest& request);

// The status of a call, with the fields named as in Anthropic's request. is_of_body: the error is
// of the body, and names its members as they were sent.
HttpAnswer anthropic_answer(const HttpRequest& request, const grpc::Status& status,
                            bool is_of_body = false);

}  // namespace lintel
