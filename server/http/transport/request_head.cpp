#include "server/http/transport/request_head.h"

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <vector>

namespace lintel {
namespace {

namespace http = boost::beast::http;

std::string text_of(boost::beast::string_view text) { return {text.data(), text.size()}; }

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The values of all headers of a name.
std::vector<std::string_view> values_of(const HttpRequest& request, std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : request.headers) {
    if (key == name) values.push_back(value);
  }
  return values;
}

// Whether a header's value continues on the next line, which is obsolete: Beast joins the parts, so
// that the value does not directly follow its name.
bool is_folded(boost::beast::string_view name, boost::beast::string_view value) {
  const char* at = name.data() + name.size() + 1;  // after the ':'
  while (*at == ' ' || *at == '\t') ++at;          // its line ends with CR
  return at != value.data();
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

bool announces_body(const HttpRequest& request) {
  return std::ranges::any_of(request.headers, [](const auto& header) {
    const auto& [name, value] = header;
    return name == "transfer-encoding" ||
           (name == "content-length" && value.find_first_not_of('0') != std::string::npos);
  });
}

RequestParser::RequestParser(std::size_t max_header_bytes, std::size_t max_body_bytes)
    : max_header_bytes_(max_header_bytes), max_body_bytes_(max_body_bytes) {
  header_limit(static_cast<std::uint32_t>(max_header_bytes));
  body_limit(std::numeric_limits<std::uint64_t>::max());  // the bound is kept here
}

bool RequestParser::is_too_long() const { return content_length().value_or(0) > max_body_bytes_; }

void RequestParser::on_request_impl(http::verb, BeastView method, BeastView target, int version,
                                    ErrorCode& error) {
  error = {};
  version_ = version;
  header_bytes_ = method.size() + target.size();
  head_.method = text_of(method);
  std::string_view path(target.data(), target.size());
  // "http://host/path" names a path, too: clients that believe to speak to a proxy write so.
  if (path.starts_with("http://") || path.starts_with("https://")) {
    path.remove_prefix(path.find("://") + 3);
    authority_ = std::string(path.substr(0, path.find_first_of("/?")));
    path.remove_prefix(authority_.size());
    if (!path.starts_with('/')) path = "/";
  }
  const std::size_t question = std::min(path.find('?'), path.size());
  head_.path = std::string(path.substr(0, question));
  if (question < path.size()) head_.query = std::string(path.substr(question + 1));
}

void RequestParser::on_field_impl(http::field, BeastView name, BeastView value, ErrorCode& error) {
  error = {};
  header_bytes_ += name.size() + value.size() + std::string_view(": \r\n").size();
  if (++headers_ > kMaxHeaders) {
    problem_ = in_trailers_ ? "more than 100 trailers" : "more than 100 headers";
    error = http::error::header_limit;
  } else if (header_bytes_ > max_header_bytes_) {
    error = http::error::header_limit;
  } else if (is_folded(name, value)) {
    problem_ = "a header's value continues on another line";
    error = http::error::bad_value;
  }
  if (error || in_trailers_) return;
  head_.headers.emplace_back(lower({name.data(), name.size()}), text_of(value));
}

void RequestParser::on_header_impl(ErrorCode& error) {
  error = {};
  check_framing(error);
  // A host in the address takes precedence over the header (RFC 9112, 3.2.2).
  if (!authority_.empty()) {
    for (auto& [name, value] : head_.headers) {
      if (name == "host") value = authority_;
    }
  }
  in_trailers_ = true;
  headers_ = 0;
  header_bytes_ = 0;
}

// Proxies and this server must agree where a body ends: what a proxy takes for a body and this
// server for the next request is a request that the proxy never saw.
void RequestParser::check_framing(ErrorCode& error) {
  const std::vector<std::string_view> codings = values_of(head_, "transfer-encoding");
  const std::vector<std::string_view> lengths = values_of(head_, "content-length");
  if (!codings.empty()) {
    if (is_http_10()) {
      problem_ = "HTTP/1.0 has no transfer-encoding";
    } else if (!lengths.empty()) {
      problem_ = "transfer-encoding and content-length exclude each other";
    } else if (codings.size() != 1 || lower(codings.front()) != "chunked") {
      problem_ = "transfer-encoding is not chunked, once and alone";
    }
    if (!problem_.empty()) error = http::error::bad_transfer_encoding;
  } else if (lengths.size() > 1 || (lengths.size() == 1 && !is_number(lengths.front()))) {
    problem_ = "content-length is not one number";
    error = http::error::bad_content_length;
  }
}

void RequestParser::on_body_init_impl(const boost::optional<std::uint64_t>& length,
                                      ErrorCode& error) {
  error = {};
  // A length that was only announced takes no memory beyond this: the body grows as it is read.
  constexpr std::uint64_t kReservedBytes = 64 << 10;
  if (length) body_.reserve(static_cast<std::size_t>(std::min(*length, kReservedBytes)));
}

std::size_t RequestParser::on_body_impl(BeastView piece, ErrorCode& error) {
  error = {};
  if (piece.size() > max_body_bytes_ - body_.size()) {
    error = http::error::body_limit;
    return 0;
  }
  body_.append(piece.data(), piece.size());
  return piece.size();
}

void RequestParser::on_chunk_header_impl(std::uint64_t size, BeastView extension,
                                         ErrorCode& error) {
  error = {};
  if (size > max_body_bytes_ - body_.size()) {
    error = http::error::body_limit;
  } else if (extension.find('\n') != BeastView::npos || extension.find('\r') != BeastView::npos) {
    problem_ = "a chunk extension has a line of its own";
    error = http::error::bad_chunk_extension;
  }
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t, BeastView piece, ErrorCode& error) {
  return on_body_impl(piece, error);
}

}  // namespace lintel
