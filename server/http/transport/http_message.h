// HttpRequest and HttpAnswer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request without its body, which HttpExchange::take_body() hands over.
struct HttpRequest {
  std::string method;                   // "GET"
  std::string path;                     // as it was sent, before '?'
  std::string query;                    // as it was sent, after '?'
  std::vector<std::string> parameters;  // what stood for each {} of the route, percent-decoded
  HttpHeaders headers;                  // names in lower case
  std::string peer;                     // as gRPC writes it: "ipv4:127.0.0.1:40000"
  std::string certificate;              // the client's name in mutual TLS; empty without
  std::string request_id;               // the client's x-request-id, or one made for it

  // The value of a header that was sent once; empty when it was not, or when several make it
  // ambiguous. `name`: lower case.
  std::string_view header(std::string_view name) const {
    std::string_view found;
    int count = 0;
    for (const auto& [key, value] : headers) {
      if (key == name && ++count == 1) found = value;
    }
    return count == 1 ? found : std::string_view();
  }
};

// content-length, date, connection, x-request-id and what CORS needs are the connection's to add.
struct HttpAnswer {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

inline HttpAnswer json_answer(int status, std::string body) {
  return {status, {{"content-type", "application/json"}}, std::move(body)};
}

}  // namespace lintel
