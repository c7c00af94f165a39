// SPDX-License-Identifier: Apache-2.0
// One request of /v1/chat/completions, from its body to its last byte.
#pragma once

#include <string>

#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// What of a body the answer's form depends on. The service reads the rest.
struct ChatForm {
  std::string model;
  bool streams = false;
  bool include_usage = false;
  bool logprobs = false;
};

// Answers the exchange. `calls` outlives its answer.
void complete_chat(SharedExchange exchange, HttpCalls& calls, const std::string& body,
                   ChatForm form);

}  // namespace lintel
