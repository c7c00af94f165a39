// SPDX-License-Identifier: Apache-2.0
#include "bench/event_stream.h"

#include <curl/curl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "model/core/ca_certificates.h"
#include "model/core/errors.h"

namespace lintel::bench {
namespace {

constexpr long kConnectMilliseconds = 10'000;
// Interval at which a transfer looks for a cancellation.
constexpr int kPollMilliseconds = 50;
// Limit on a body that on_bytes does not receive; a longer one ends the connection.
constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 20;

struct CurlListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlList = std::unique_ptr<curl_slist, CurlListDeleter>;

struct CurlUrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

std::string part_of_url(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
  std::string result = text;
  curl_free(text);
  return result;
}

void cut_end(std::string& text, std::string_view end) {
  if (text.ends_with(end)) text.resize(text.size() - end.size());
}

}  // namespace

void EventReader::add(std::string_view bytes,
                      const std::function<void(const ServerEvent&)>& on_event) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + event_.data.size() + piece.size() > kMaxBytes) {
      throw std::length_error("an event of more than " + std::to_string(kMaxBytes) + " bytes");
    }
    line_ += piece;
    if (end == std::string_view::npos) return;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(on_event);
  }
}

void EventReader::end_line(const std::function<void(const ServerEvent&)>& on_event) {
  std::string line = std::exchange(line_, {});
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (std::exchange(is_first_line_, false) && line.starts_with(kByteOrderMark)) {
    line.erase(0, kByteOrderMark.size());
  }
  if (line.empty()) {
    const ServerEvent event = std::exchange(event_, {});
    if (std::exchange(has_data_, false)) on_event(event);
    return;
  }
  const std::size_t colon = std::min(line.find(':'), line.size());
  const std::string_view field = std::string_view(line).substr(0, colon);
  std::string_view text = std::string_view(line).substr(std::min(colon + 1, line.size()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (field == "event") {
    event_.name = text;
  } else if (field == "data") {
    if (std::exchange(has_data_, true)) event_.data += '\n';
    event_.data += text;
  }
}

HttpBase HttpBase::parse(const std::string& text) {
  const bool has_scheme = text.find("://") != std::string::npos;
  const std::unique_ptr<CURLU, CurlUrlDeleter> url(curl_url());
  const std::string whole = has_scheme ? text : "http://" + text;
  const std::string expected = "expected http://HOST:PORT, https://HOST:PORT or HOST:PORT";
  if (!url || text.empty() ||
      curl_url_set(url.get(), CURLUPART_URL, whole.c_str(), 0) != CURLUE_OK) {
    throw std::invalid_argument(expected);
  }
  HttpBase base;
  const std::string scheme = part_of_url(url.get(), CURLUPART_SCHEME);
  base.encrypted = scheme == "https";
  base.address = part_of_url(url.get(), CURLUPART_HOST) + ":" +
                 part_of_url(url.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT);
  if ((scheme != "http" && scheme != "https") || base.address.starts_with(':')) {
    throw std::invalid_argument(expected);
  }
  for (const CURLUPart part : {CURLUPART_QUERY, CURLUPART_FRAGMENT, CURLUPART_USER}) {
    if (!part_of_url(url.get(), part).empty()) throw std::invalid_argument(expected);
  }
  std::string path = part_of_url(url.get(), CURLUPART_PATH);
  cut_end(path, "/");
  cut_end(path, "/v1");
  base.url = scheme + "://" + base.address + path;
  return base;
}

struct HttpStream::Handles {
  Handles() : easy(curl_easy_init()), multi(curl_multi_init()) {
    if (easy == nullptr || multi == nullptr) throw std::runtime_error("libcurl cannot be set up");
  }
  ~Handles() {
    curl_multi_cleanup(multi);
    curl_easy_cleanup(easy);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  CURL* const easy;
  CURLM* const multi;  // has the connection
};

// One request and what comes back.
struct HttpStream::Transfer {
  CURL* easy = nullptr;
  const OnBytes* on_bytes = nullptr;
  HttpAnswer answer;
  bool is_too_long = false;
  std::exception_ptr error;  // of on_bytes, for C must not see it

  void read_head() {
    if (answer.status != 0) return;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
    const char* type = nullptr;
    curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &type);
    if (type != nullptr) answer.type = one_line(shorten(type));
  }

  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view bytes(data, size * count);
    try {
      transfer.read_head();
      const HttpAnswer& head = transfer.answer;
      if (*transfer.on_bytes && head.status == 200 && head.type.starts_with("text/event-stream")) {
        (*transfer.on_bytes)(bytes);
        return bytes.size();
      }
      transfer.is_too_long = transfer.answer.body.size() + bytes.size() > kMaxKeptBytes;
      if (transfer.is_too_long) return 0;
      transfer.answer.body += bytes;
      return bytes.size();
    } catch (...) {
      transfer.error = std::current_exception();
      return bytes.empty() ? 1 : 0;
    }
  }
};

HttpStream::HttpStream(Tls tls)
    : tls_(std::move(tls)), handles_([] {
        static const CURLcode kReady = curl_global_init(CURL_GLOBAL_DEFAULT);
        if (kReady != CURLE_OK) throw std::runtime_error("libcurl cannot be set up");
        return std::make_unique<Handles>();
      }()) {}

HttpStream::~HttpStream() = default;

HttpAnswer HttpStream::send(const Request& request, const OnBytes& on_bytes,
                            Cancellation& cancellation) {
  CURL* const curl = handles_->easy;
  CURLM* const multi = handles_->multi;
  curl_easy_reset(curl);
  Transfer transfer;
  transfer.easy = curl;
  transfer.on_bytes = &on_bytes;
  // No "Expect: 100-continue": a long prompt would wait for an answer of its own.
  CurlList headers(curl_slist_append(nullptr, "Expect:"));
  for (const std::string& header : request.headers) {
    curl_slist_append(headers.get(), header.c_str());
  }
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "lintel-bench/" LINTEL_VERSION);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Transfer::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  const std::string authorities = tls_.ca.empty() ? ca_file() : tls_.ca;
  if (!authorities.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authorities.c_str());
  if (!tls_.certificate.empty()) {
    curl_easy_setopt(curl, CURLOPT_SSLCERT, tls_.certificate.c_str());
    curl_easy_setopt(curl, CURLOPT_SSLKEY, tls_.key.c_str());
  }
  if (request.body) {
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body->size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body->c_str());
  }

  curl_multi_add_handle(multi, curl);
  bool cancelled = false;
  for (int running = 1; running > 0;) {
    if (curl_multi_perform(multi, &running) != CURLM_OK || running == 0) break;
    cancelled = cancellation.cancelled();
    if (cancelled) break;
    curl_multi_poll(multi, nullptr, 0, kPollMilliseconds, nullptr);
  }
  CURLcode code = CURLE_ABORTED_BY_CALLBACK;
  int left = 0;
  while (const CURLMsg* const done = curl_multi_info_read(multi, &left)) {
    if (done->msg == CURLMSG_DONE) code = done->data.result;
  }
  transfer.read_head();
  // Closes the connection of a transfer that has not ended.
  curl_multi_remove_handle(multi, curl);

  if (cancelled) throw HttpFailure(HttpFailure::Kind::kCancelled, "cancelled");
  if (transfer.error) std::rethrow_exception(transfer.error);
  if (code == CURLE_OK || transfer.is_too_long) return std::move(transfer.answer);
  const std::string why =
      one_line(shorten(message[0] != '\0' ? message : curl_easy_strerror(code)));
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT: {
      // The connection's own limit ends a transfer with the same code.
      curl_off_t connected = 0;
      curl_easy_getinfo(curl, CURLINFO_PRETRANSFER_TIME_T, &connected);
      throw HttpFailure(connected > 0 ? HttpFailure::Kind::kTimeout : HttpFailure::Kind::kConnect,
                        why);
    }
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
      throw HttpFailure(HttpFailure::Kind::kConnect, why);
    default:
      throw HttpFailure(HttpFailure::Kind::kBroken, why);
  }
}

}  // namespace lintel::bench
