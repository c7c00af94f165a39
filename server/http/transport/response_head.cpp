// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/response_head.h"

#include <grpcpp/support/status.h>

#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <string_view>

namespace lintel {

int http_status_of(int grpc_code) {
  switch (grpc_code) {
    case grpc::StatusCode::OK:
      return 200;
    case grpc::StatusCode::CANCELLED:
      return 499;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::OUT_OF_RANGE:
      return 400;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return 504;
    case grpc::StatusCode::NOT_FOUND:
      return 404;
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::ABORTED:
      return 409;
    case grpc::StatusCode::PERMISSION_DENIED:
      return 403;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case grpc::StatusCode::UNIMPLEMENTED:
      return 501;
    case grpc::StatusCode::UNAVAILABLE:
      return 503;
    case grpc::StatusCode::UNAUTHENTICATED:
      return 401;
    default:
      return 500;
  }
}

void add_retry_header(const StatusDetails& details, HttpHeaders& headers) {
  if (!details.retry_after) return;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(*details.retry_after);
  headers.emplace_back("retry-after", std::to_string(seconds.count()));
}

HttpAnswer with_retry_if_unavailable(HttpAnswer answer) {
  if (answer.status == 503) answer.headers.emplace_back("retry-after", "1");
  return answer;
}

const char* http_reason(int http_status) {
  switch (http_status) {
    case 101:
      return "Switching Protocols";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 426:
      return "Upgrade Required";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:  // Anthropic's
      return "Overloaded";
    default:
      return "Unknown";
  }
}

namespace {

// "Mon, 23 Nov 2026 02:43:46 GMT", in any locale.
std::string http_date() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                kDays[parts.tm_wday], parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900,
                parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text.data();
}

void add_line(std::string& head, std::string_view name, std::string_view value) {
  head += name;
  head += ": ";
  // A value never ends its line, even if it quotes a line break.
  for (const char c : value) head += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  head += "\r\n";
}

}  // namespace

std::string ResponseHead::common() const {
  std::string head =
      "HTTP/1.1 " + std::to_string(answer.status) + " " + http_reason(answer.status) + "\r\n";
  add_line(head, "date", http_date());
  for (const auto& [name, value] : answer.headers) add_line(head, name, value);
  for (const auto& [name, value] : more) add_line(head, name, value);
  add_line(head, "x-request-id", request_id);
  if (!replica_id.empty()) add_line(head, "lintel-replica", replica_id);
  add_line(head, "x-content-type-options", "nosniff");
  if (!keep_alive) add_line(head, "connection", "close");
  if (keep_alive && http_10) add_line(head, "connection", "keep-alive");
  return head;
}

std::string ResponseHead::whole() const {
  std::string head = common();
  if (answer.status != 204 && answer.status != 304) {
    add_line(head, "content-length", std::to_string(answer.body.size()));
  }
  return head + "\r\n";
}

std::string ResponseHead::in_pieces() const {
  std::string head = common();
  if (!http_10) add_line(head, "transfer-encoding", "chunked");
  return head + "\r\n";
}

std::string ResponseHead::upgraded() const { return common() + "\r\n"; }

std::string chunk_size_line(std::size_t size) {
  std::array<char, 16> text{};
  const auto end = std::to_chars(text.begin(), text.end(), size, 16).ptr;
  return std::string(text.data(), end) + "\r\n";
}

}  // namespace lintel
