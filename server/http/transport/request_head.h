// SPDX-License-Identifier: Apache-2.0
// The head of a request, from bytes to what routes get, and what it alone is refused for.
#pragma once

#include <grpcpp/support/status.h>

#include <boost/beast/http/basic_parser.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/listen_address.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

struct HttpServerState;

// OriginRules: which web pages may call, and by which names.

// Browsers name by Origin the page that a request comes from. The server's own pages are always
// accepted, others where they are listed: without this any page in a user's browser could use a
// server on the user's machine. Requests without Origin come from no page. Constant after
// construction.
class OriginRules {
 public:
  // `allowed`: "https://example.org:8443", or "*" for every page. `address`: where the server
  // listens. `hosts`: by which names it may be called besides those of this machine and of the
  // allowed origins, see HostRules.
  OriginRules(std::vector<std::string> allowed, const ListenAddress& address,
              std::vector<std::string> hosts = {});

  // True if the server may be called by the name in the request's Host. Requests without Host come
  // from no browser.
  bool takes_host(const HttpRequest& request) const;
  // True if the page that the request comes from may call. REQUIRES: takes_host(request).
  bool takes(const HttpRequest& request) const;
  // Headers of the answer that let a browser show it to the page, with the headers named in
  // `exposed`; none if no flag names the page.
  HttpHeaders headers_for(const HttpRequest& request, const std::string& exposed) const;
  // The answer to a preflight request; REQUIRES: takes(request).
  HttpAnswer preflight(const HttpRequest& request) const;
  static bool is_preflight(const HttpRequest& request);

 private:
  bool is_named(std::string_view origin) const;

  const std::vector<std::string> allowed_;
  const bool all_;
  const HostRules hosts_;
};

// Lowers ASCII's letters; all else stays as it is.
std::string lower(std::string_view text);

// True if a request's head announces a body that is not empty.
bool announces_body(const HttpRequest& request);

// Reads one request: Beast finds first line, headers and chunks, and this keeps what is of use and
// refuses what two readers could understand in two ways. Drops trailers and chunk extensions. One
// thread.
class RequestParser final : public boost::beast::http::basic_parser<true> {
 public:
  using ErrorCode = boost::system::error_code;
  using BeastView = boost::beast::string_view;

  static constexpr int kMaxHeaders = 100;  // likewise of trailers

  // `max_header_bytes`: of the first line and all headers; more is http::error::header_limit, as
  // are more than kMaxHeaders headers. `max_body_bytes`: more is http::error::body_limit.
  RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes);

  // Method, path, query and headers as far as they came, their names in lower case. The connection
  // adds peer, certificate and the request's id. REQUIRES: called once.
  HttpRequest take_head() { return std::move(head_); }
  bool is_http_10() const { return version_ < 11; }
  // True if the head announces more than max_body_bytes. REQUIRES: is_header_done().
  bool is_too_long() const;
  // The part of the body that has come so far.
  std::string& body() { return body_; }
  // The problem that made put() fail; empty: its error code says all.
  std::string_view problem() const { return problem_; }

 private:
  void on_request_impl(boost::beast::http::verb verb, BeastView method, BeastView target,
                       int version, ErrorCode& error) override;
  void on_response_impl(int, BeastView, int, ErrorCode&) override {}
  void on_field_impl(boost::beast::http::field field, BeastView name, BeastView value,
                     ErrorCode& error) override;
  void on_header_impl(ErrorCode& error) override;
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, ErrorCode& error) override;
  std::size_t on_body_impl(BeastView piece, ErrorCode& error) override;
  void on_chunk_header_impl(std::uint64_t size, BeastView extension, ErrorCode& error) override;
  std::size_t on_chunk_body_impl(std::uint64_t left, BeastView piece, ErrorCode& error) override;
  void on_finish_impl(ErrorCode&) override {}

  void check_framing(ErrorCode& error);

  const std::size_t max_header_bytes_, max_body_bytes_;
  HttpRequest head_;
  std::string authority_;  // of a request for "http://AUTHORITY/path"; empty: of none
  std::string body_;
  std::string_view problem_;
  std::size_t header_bytes_ = 0;
  int version_ = 11;
  int headers_ = 0;  // then trailers
  bool in_trailers_ = false;
};

// Refusals of requests by their first line and headers, before their bodies are read.

// A refusal in the shape of the route, or of the request's path if there is no route (null).
HttpAnswer refusal(const HttpRoutes& routes, const HttpRequest& request, const HttpRoute* route,
                   int http_status, const grpc::Status& status);

// Returns an answer if the request needs no body: a refusal, or the answer to a browser that asks
// whether a page may call. Nothing: the request goes to `route`, and has its parameters. If a route
// was found, `route` is set even with a refusal. `is_http_10`: no host is needed.
std::optional<HttpAnswer> answer_head(const HttpServerState& state, HttpRequest& request,
                                      bool is_http_10, const HttpRoute*& route);

// Sets the caller that the request's token names. OK also where no token is asked for.
grpc::Status identify_caller(const HttpServerState& server, const HttpRoute& route,
                             HttpRequest& request);

// A line of the log: what no call's line will tell of.
void log_refusal(const HttpRequest& request, const std::string& peer, int http_status);
// Logs the exception that is being handled, likewise.
void log_exception(const std::string& peer) noexcept;

// The refusal of HTTP/2 clients, such as gRPC's, at a port that speaks HTTP/1.1 only.

// The first bytes of every HTTP/2 client (RFC 9113, 3.4).
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// The server's first frames, with the reply to its client's settings: gRPC sends no call before.
std::string http2_settings();

struct Http2Frames {
  std::size_t size = 0;      // bytes of the whole frames, up to the one that opens a stream
  std::uint32_t stream = 0;  // that a client opened; 0: none yet
};
// Looks through frames; what they say is not read. `bytes`: without the preface.
Http2Frames http2_frames(std::string_view bytes);

// The answer to a call on `stream`: UNIMPLEMENTED with `message`, then the connection's end.
std::string http2_refusal(std::uint32_t stream, std::string_view message);

}  // namespace lintel
