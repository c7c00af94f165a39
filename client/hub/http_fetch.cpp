// SPDX-License-Identifier: Apache-2.0
#include "client/hub/http_fetch.h"

#include <curl/curl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "model/core/ca_certificates.h"

namespace lintel::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kConnectSeconds = 30;
constexpr long kStalledSeconds = 60;
constexpr std::size_t kMaxHeaderBytes = std::size_t{64} << 10;
// A body that is dropped is read so far, which keeps the connection; then the connection ends.
constexpr std::size_t kMaxDroppedBytes = std::size_t{64} << 10;

struct UrlHandle {
  UrlHandle() : url(curl_url()) {}
  ~UrlHandle() { curl_url_cleanup(url); }
  UrlHandle(const UrlHandle&) = delete;
  UrlHandle& operator=(const UrlHandle&) = delete;

  // False: it is no URL.
  bool set(const std::string& text) {
    return curl_url_set(url, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  std::string part(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
    std::string result = text;
    curl_free(text);
    return result;
  }
  std::string origin() const {
    return part(CURLUPART_SCHEME) + "://" + part(CURLUPART_HOST) + ":" +
           part(CURLUPART_PORT, CURLU_DEFAULT_PORT);
  }

  CURLU* url;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxBytes = 200;
  std::string result;
  for (const char c : text.substr(0, kMaxBytes)) result += c >= 0x20 && c < 0x7F ? c : '?';
  return text.size() > kMaxBytes ? result + "..." : result;
}

std::string escape_path(std::string_view path, bool one_part) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string result;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && !one_part);
    if (plain) {
      result += c;
    } else {
      result += '%';
      result += kHex[static_cast<unsigned char>(c) >> 4];
      result += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return result;
}

const std::string& HttpReply::header(const std::string& name) const {
  static const std::string kNone;
  const auto found = headers.find(name);
  return found == headers.end() ? kNone : found->second;
}

struct HttpFetch::Curl {
  Curl() : handle(curl_easy_init()) {
    if (handle == nullptr) throw HubError("libcurl cannot be set up");
  }
  ~Curl() { curl_easy_cleanup(handle); }
  Curl(const Curl&) = delete;
  Curl& operator=(const Curl&) = delete;

  CURL* handle;
};

// One request and what comes back.
struct HttpFetch::Transfer {
  bool head = false;
  std::uint64_t from = 0;
  std::function<void(const HttpReply&)> begin;
  std::function<void(std::string_view)> add;

  const HttpFetch* fetch = nullptr;
  HttpReply reply;
  std::size_t header_bytes = 0;
  std::size_t dropped_bytes = 0;
  bool begun_body = false;
  std::exception_ptr error;  // of a callback, for C must not see it

  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view line(data, size * count);
    transfer.header_bytes += line.size();
    if (transfer.header_bytes > kMaxHeaderBytes) return 0;
    if (line.starts_with("HTTP/")) {
      transfer.reply.headers.clear();
      return line.size();
    }
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos) {
      transfer.reply.headers[lower(line.substr(0, colon))] = stripped(line.substr(colon + 1));
    }
    return line.size();
  }

  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view bytes(data, size * count);
    try {
      long status = 0;
      curl_easy_getinfo(transfer.fetch->curl_->handle, CURLINFO_RESPONSE_CODE, &status);
      transfer.reply.status = static_cast<int>(status);
      if (status != 200 && status != 206) {
        transfer.dropped_bytes += bytes.size();
        return transfer.dropped_bytes > kMaxDroppedBytes ? 0 : bytes.size();
      }
      if (!transfer.begun_body && transfer.begin) transfer.begin(transfer.reply);
      transfer.begun_body = true;
      transfer.add(bytes);
      return bytes.size();
    } catch (...) {
      transfer.error = std::current_exception();
      return bytes.size() == 0 ? 1 : 0;
    }
  }

  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const auto& cancelled = static_cast<Transfer*>(self)->fetch->cancelled_;
    return cancelled && cancelled() ? 1 : 0;
  }
};

HttpFetch::HttpFetch(const std::string& endpoint, std::string token,
                     std::function<bool()> cancelled)
    : token_(std::move(token)), cancelled_(std::move(cancelled)) {
  static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (kReady != CURLE_OK) throw HubError("libcurl cannot be set up");
  UrlHandle url;
  if (!url.set(endpoint)) throw HubError("HF_ENDPOINT is no URL: " + printable(endpoint));
  const std::string scheme = url.part(CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") {
    throw HubError("HF_ENDPOINT is neither http nor https: " + printable(endpoint));
  }
  origin_ = url.origin();
  if (std::ranges::any_of(token_, [](char c) { return c <= 0x20 || c >= 0x7F; })) {
    throw HubError("HF_TOKEN has blanks or other characters that no token has");
  }
  curl_ = std::make_unique<Curl>();
}

HttpFetch::~HttpFetch() = default;

HttpReply HttpFetch::run_once(const std::string& url, Transfer& transfer) {
  transfer.fetch = this;
  transfer.reply = {};
  transfer.header_bytes = 0;
  transfer.dropped_bytes = 0;
  transfer.begun_body = false;
  UrlHandle parsed;
  if (!parsed.set(url)) throw HubError("no URL: " + printable(url));
  CURL* const curl = curl_->handle;
  curl_easy_reset(curl);  // connections stay
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      curl_slist_append(nullptr, "Accept-Encoding: identity"), curl_slist_free_all);
  const std::string bearer = "Authorization: Bearer " + token_;
  if (!token_.empty() && parsed.origin() == origin_) {
    curl_slist_append(headers.get(), bearer.c_str());
  }
  const std::string range = std::to_string(transfer.from) + "-";
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  const std::string authorities = ca_file();
  if (!authorities.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authorities.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "lintel/" LINTEL_VERSION);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, Transfer::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Transfer::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Transfer::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  if (transfer.head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (transfer.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  const CURLcode code = curl_easy_perform(curl);
  if (transfer.error) std::rethrow_exception(std::exchange(transfer.error, nullptr));
  if (code == CURLE_ABORTED_BY_CALLBACK) throw HubError("cancelled");
  const bool has_dropped = code == CURLE_WRITE_ERROR && transfer.dropped_bytes > kMaxDroppedBytes;
  if (code != CURLE_OK && !has_dropped) {
    const std::string why = message[0] != '\0' ? message : curl_easy_strerror(code);
    throw ConnectionError(printable(parsed.part(CURLUPART_HOST)) + ": " + printable(why));
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  transfer.reply.status = static_cast<int>(status);
  curl_off_t seconds = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &seconds);
  if (seconds > 0) transfer.reply.retry_after = std::chrono::seconds(seconds);
  return std::move(transfer.reply);
}

HttpReply HttpFetch::run(std::string url, Transfer& transfer) {
  for (int redirects = 0;; ++redirects) {
    HttpReply reply = run_once(url, transfer);
    if (!is_redirect(reply.status) || reply.header("location").empty()) return reply;
    UrlHandle from, to;
    if (!from.set(url) || !to.set(url) || !to.set(reply.header("location"))) {
      throw HubError("a redirect to no URL: " + printable(reply.header("location")));
    }
    if (transfer.head && to.origin() != from.origin()) return reply;
    const std::string scheme = to.part(CURLUPART_SCHEME);
    if ((scheme != "http" && scheme != "https") ||
        (scheme == "http" && from.part(CURLUPART_SCHEME) == "https")) {
      throw HubError("a redirect from " + from.part(CURLUPART_SCHEME) + " to " + printable(scheme) +
                     " is not followed");
    }
    if (redirects == kMaxRedirects) throw HubError("more than 10 redirects");
    url = to.part(CURLUPART_URL);
  }
}

HttpReply HttpFetch::head(const std::string& url) {
  Transfer transfer;
  transfer.head = true;
  return run(url, transfer);
}

HttpReply HttpFetch::get_text(const std::string& url, std::size_t max_bytes) {
  std::string body;
  HttpReply reply = get(
      url, 0, [&](const HttpReply&) { body.clear(); },
      [&](std::string_view bytes) {
        body += bytes;
        if (body.size() > max_bytes) {
          throw HubError("an answer of more than " + std::to_string(max_bytes) + " bytes");
        }
      });
  reply.body = std::move(body);
  return reply;
}

HttpReply HttpFetch::get(const std::string& url, std::uint64_t from,
                         const std::function<void(const HttpReply&)>& begin,
                         const std::function<void(std::string_view)>& add) {
  Transfer transfer;
  transfer.from = from;
  transfer.begin = begin;
  transfer.add = add;
  return run(url, transfer);
}

}  // namespace lintel::hub
