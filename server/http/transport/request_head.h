// A request as it is read from a connection, from bytes to what routes get.
#pragma once

#include <boost/beast/http/basic_parser.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/transport/http_message.h"

namespace lintel {

// ASCII's letters; all else as it is.
std::string lower(std::string_view text);

// Whether a request's head announces a body that is not empty.
bool announces_body(const HttpRequest& request);

// Reads one request: Beast finds first line, headers and chunks, and this keeps what is of use and
// refuses what two readers could understand in two ways. Of trailers and chunk extensions nothing
// is kept. One thread.
class RequestParser final : public boost::beast::http::basic_parser<true> {
 public:
  using ErrorCode = boost::system::error_code;
  using BeastView = boost::beast::string_view;

  static constexpr int kMaxHeaders = 100;  // likewise of trailers

  // `max_header_bytes`: of the first line and all headers; more is http::error::header_limit, as
  // are more than kMaxHeaders headers. `max_body_bytes`: more is http::error::body_limit.
  RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes);

  // Method, path, query and headers as far as they came, their names in lower case. Without what
  // the connection knows: peer, certificate and the request's id. Once.
  HttpRequest take_head() { return std::move(head_); }
  bool is_http_10() const { return version_ < 11; }
  // Whether the head announces more than max_body_bytes. REQUIRES: is_header_done().
  bool is_too_long() const;
  // What came of the body so far.
  std::string& body() { return body_; }
  // What is wrong where put() failed; empty: its error code says all.
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

}  // namespace lintel
