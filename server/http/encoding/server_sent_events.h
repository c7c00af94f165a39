// SPDX-License-Identifier: Apache-2.0
// Server-sent events: a stream of texts over HTTP that browsers and others read.
// https://html.spec.whatwg.org/multipage/server-sent-events.html
#pragma once

#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// REQUIRES: `data` is one line.
inline std::string server_sent_event(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

// A line that begins with a colon is a comment, which clients skip: HttpProtocol::keep_alive.
inline constexpr std::string_view kServerSentComment = ": waiting\n\n";

inline HttpAnswer server_sent_head(const HttpProtocol& protocol) {
  return {200,
          {{"content-type", "text/event-stream"}, {"cache-control", "no-cache"}},
          "",
          /*heartbeat=*/protocol.keep_alive};
}

}  // namespace lintel
