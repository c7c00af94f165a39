// SPDX-License-Identifier: Apache-2.0
// HttpFetch: GET and HEAD for a model hub, over libcurl.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lintel::hub {

// The pull failed; the text is one printable line.
class HubError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// No answer came, or it was cut off: another try may succeed.
class ConnectionError : public HubError {
 public:
  using HubError::HubError;
};

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::optional<std::chrono::seconds> retry_after;
  std::string body;  // of get_text

  // Empty: there is no such header.
  const std::string& header(const std::string& name) const;
};

// Follows redirects by http and https, from https to https alone. The token goes to the scheme,
// host and port of the endpoint and nowhere else. Used by one thread at a time.
class HttpFetch {
 public:
  // `cancelled` is asked about once a second, and ends a transfer with HubError. Throws HubError if
  // the endpoint is no URL or the token has characters that no header may have.
  HttpFetch(const std::string& endpoint, std::string token, std::function<bool()> cancelled);
  ~HttpFetch();
  HttpFetch(const HttpFetch&) = delete;
  HttpFetch& operator=(const HttpFetch&) = delete;

  // All of them throw ConnectionError, and HubError for redirects that are not followed.

  // Redirects to other hosts are not followed: the reply is theirs.
  HttpReply head(const std::string& url);
  // A body of more than `max_bytes` is a HubError.
  HttpReply get_text(const std::string& url, std::size_t max_bytes);
  // From byte `from` on. `begin` is called before the first byte of a reply of status 200 or 206;
  // what `begin` and `add` throw leaves the function. Of the bodies of other replies at most 64 KiB
  // are read, and dropped.
  HttpReply get(const std::string& url, std::uint64_t from,
                const std::function<void(const HttpReply&)>& begin,
                const std::function<void(std::string_view)>& add);

 private:
  struct Curl;
  struct Transfer;

  HttpReply run(std::string url, Transfer& transfer);
  HttpReply run_once(const std::string& url, Transfer& transfer);

  std::unique_ptr<Curl> curl_;
  std::string origin_;  // of the endpoint
  std::string token_;
  std::function<bool()> cancelled_;
};

// Text of others as a part of a message: at most 200 bytes, controls and what is no ASCII as '?'.
std::string printable(std::string_view text);

// A path of a URL: what is neither a letter, a digit nor one of -._~/ as %HH; also '/' if
// `one_part`.
std::string escape_path(std::string_view path, bool one_part = false);

}  // namespace lintel::hub
