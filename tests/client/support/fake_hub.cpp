// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/fake_hub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace lintel::testing {
namespace {

std::string digest_of(const std::string& bytes, const EVP_MD* kind) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &length, kind, nullptr);
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    text += "0123456789abcdef"[digest[i] >> 4];
    text += "0123456789abcdef"[digest[i] & 15];
  }
  return text;
}

HubRequest read_hub_request(int connection) {
  std::string head;
  char c = 0;
  while (!head.ends_with("\r\n\r\n") && recv(connection, &c, 1, 0) == 1) head += c;
  HubRequest request;
  const std::size_t line_end = std::min(head.find("\r\n"), head.size());
  const std::string line = head.substr(0, line_end);
  request.method = line.substr(0, line.find(' '));
  request.target = line.substr(std::min(line.find(' ') + 1, line.size()));
  request.target = request.target.substr(0, request.target.find(' '));
  for (std::size_t at = line_end + 2; at < head.size();) {
    const std::size_t end = std::min(head.find("\r\n", at), head.size());
    const std::size_t colon = std::min(head.find(": ", at), end);
    std::string name = head.substr(at, colon - at);
    std::ranges::transform(name, name.begin(), [](char x) {
      return x >= 'A' && x <= 'Z' ? static_cast<char>(x + 32) : x;
    });
    if (colon < end) request.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  return request;
}

std::string with_length(const std::string& status_and_headers, const std::string& body) {
  return "HTTP/1.1 " + status_and_headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + body;
}

}  // namespace

FakeHub::FakeHub() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port for a hub");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

FakeHub::~FakeHub() {
  ending_ = true;
  held = false;
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  for (std::thread& answer : answers_) answer.join();
  close(listener_);
}

void FakeHub::add_file(const std::string& path, const std::string& content, bool large) {
  const std::string blob =
      "blob " + std::to_string(content.size()) + std::string(1, '\0') + content;
  files_[path] = {content, large ? digest_of(content, EVP_sha256()) : digest_of(blob, EVP_sha1()),
                  large};
}

void FakeHub::list_name(const std::string& name) {
  const nlohmann::json list = {{"sha", kCommit}, {"siblings", {{{"rfilename", name}}}}};
  list_ = name.empty() ? "" : list.dump();
}

void FakeHub::add_fault(const HubFault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

std::vector<HubRequest> FakeHub::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::size_t FakeHub::count(const std::string& method, const std::string& target_part) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(requests_, [&](const HubRequest& request) {
    return request.method == method && request.target.find(target_part) != std::string::npos;
  }));
}

void FakeHub::serve() {
  while (!ending_) {
    const int connection = accept(listener_, nullptr, nullptr);
    if (connection < 0) continue;
    answers_.emplace_back([this, connection] { answer(connection); });
  }
}

void FakeHub::answer(int connection) {
  const HubRequest request = read_hub_request(connection);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  std::optional<std::size_t> cut_after;
  bool is_endless = false;
  std::string text = reply(request, cut_after, is_endless);
  const std::size_t body = text.find("\r\n\r\n") + 4;
  if (request.method == "HEAD") text.resize(body);
  if (cut_after) text.resize(std::min(text.size(), body + *cut_after));
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t sent = send(connection, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) break;
    at += static_cast<std::size_t>(sent);
  }
  const std::string piece(std::size_t{16} << 10, 'e');
  while (is_endless && !ending_) {
    const ssize_t sent = send(connection, piece.data(), piece.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    endless_bytes += static_cast<std::size_t>(sent);
  }
  close(connection);
}

std::string FakeHub::reply(const HubRequest& request, std::optional<std::size_t>& cut_after,
                           bool& is_endless) {
  if (request.target.starts_with("/api/models/")) {
    if (!list_.empty()) return with_length("200 OK\r\n", list_);
    nlohmann::json list = {{"sha", kCommit}, {"siblings", nlohmann::json::array()}};
    for (const auto& [path, file] : files_) list["siblings"].push_back({{"rfilename", path}});
    return with_length("200 OK\r\n", list.dump());
  }
  const std::string resolve = std::string("/resolve/") + kCommit + "/";
  const std::size_t at = request.target.find(resolve);
  const auto found = at == std::string::npos
                         ? files_.end()
                         : files_.find(request.target.substr(at + resolve.size()));
  if (found == files_.end())
    return with_length("404 Not Found\r\nX-Error-Message: no\x01thing\r\n", "");
  const File& file = found->second;
  const std::string size =
      claimed_size_.empty() ? std::to_string(file.content.size()) : claimed_size_;
  std::string headers = std::string("X-Repo-Commit: ") + kCommit + "\r\n";
  if (file.large) {
    headers += "ETag: \"other\"\r\nX-Linked-Etag: \"" + file.etag + "\"\r\nX-Linked-Size: " + size +
               "\r\n";
  } else {
    headers += "ETag: W/\"" + file.etag + "\"\r\n";
  }
  if (file.large && !elsewhere_.empty()) {
    return with_length(
        "302 Found\r\n" + headers + "Location: " + elsewhere_ + request.target + "\r\n", "");
  }
  if (request.method == "HEAD") return with_length("200 OK\r\n" + headers, file.content);
  while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HubFault fault;
  {
    const std::lock_guard lock(mutex_);
    if (!faults_.empty()) {
      fault = faults_.front();
      faults_.pop_front();
    }
  }
  is_endless = fault.endless;
  if (is_endless) return "HTTP/1.1 " + std::to_string(fault.status) + " Fault\r\n\r\n";
  if (fault.status != 0)
    return with_length(std::to_string(fault.status) + " Fault\r\n" + fault.header, "");
  cut_after = fault.cut_after;
  std::string content = file.content;
  if (fault.wrong_content) content[0] ^= 1;
  const auto range = request.headers.find("range");
  if (range == request.headers.end() || fault.ignores_range) {
    return with_length("200 OK\r\n" + headers, content);
  }
  const std::size_t from =
      std::strtoull(range->second.c_str() + std::string("bytes=").size(), nullptr, 10);
  if (from >= content.size()) return with_length("416 Range Not Satisfiable\r\n", "");
  return with_length("206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) + "-" +
                         std::to_string(content.size() - 1) + "/" + std::to_string(content.size()) +
                         "\r\n",
                     content.substr(from));
}

}  // namespace lintel::testing
