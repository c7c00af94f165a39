// SPDX-License-Identifier: Apache-2.0
// ResponseHead: an answer's status line and headers as they go over the wire.
#pragma once

#include <cstddef>
#include <string>

#include "server/http/transport/http_message.h"
#include "server/rpc/status.h"

namespace lintel {

// HTTP status codes of gRPC's codes.

// The HTTP status of a gRPC code.
int http_status_of(int grpc_code);
// "Not Found" for 404.
const char* http_reason(int http_status);

// Adds retry-after where the status has a time to try again.
void add_retry_header(const StatusDetails& details, HttpHeaders& headers);
// The answer, with retry-after: 1 if it is a 503, for what may soon be served.
HttpAnswer with_retry_if_unavailable(HttpAnswer answer);

struct ResponseHead {
  const HttpAnswer& answer;
  HttpHeaders more;  // the connection's own
  std::string request_id;
  bool keep_alive = true;
  bool http_10 = false;         // the client's version: it knows no chunks
  std::string replica_id = {};  // of this server; empty: not said

  std::string whole() const;      // of an answer whose length is known
  std::string in_pieces() const;  // of one that comes in chunks
  std::string upgraded() const;   // after which the connection speaks another protocol

 private:
  std::string common() const;
};

// The line before a chunk: "1a\r\n".
std::string chunk_size_line(std::size_t size);

}  // namespace lintel
