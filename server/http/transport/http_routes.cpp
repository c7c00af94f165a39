// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/http_routes.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/rpc/ignored_members.h"
#include "server/rpc/status.h"
#include "server/security/bearer_tokens.h"

namespace lintel {
namespace {

std::vector<std::string> segments_of(std::string_view path) {
  std::vector<std::string> segments;
  while (!path.empty()) {
    path.remove_prefix(1);  // the '/'
    const std::size_t end = std::min(path.find('/'), path.size());
    segments.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return segments;
}

// The parts of the path that the wildcards of `pattern` match; nothing if the path does not match.
std::optional<std::vector<std::string>> match(const std::vector<std::string>& pattern,
                                              const std::vector<std::string>& path) {
  std::vector<std::string> parameters;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == "{*}") {
      std::string rest;
      for (std::size_t k = i; k < path.size(); ++k) rest += (k > i ? "/" : "") + path[k];
      if (rest.empty()) return std::nullopt;
      parameters.push_back(percent_decoded(rest));
      return parameters;
    }
    if (i >= path.size()) return std::nullopt;
    if (pattern[i] == "{}" && !path[i].empty()) {
      parameters.push_back(percent_decoded(path[i]));
    } else if (pattern[i] != path[i]) {
      return std::nullopt;
    }
  }
  if (path.size() != pattern.size()) return std::nullopt;
  return parameters;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void HttpRoutes::add(HttpRoute route) {
  assert(!route.path.empty() && route.path.front() == '/');
  std::vector<std::string> segments = segments_of(route.path);
  const auto same = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.route.method == route.method && entry.route.path == route.path;
  });
  if (same != entries_.end()) {
    same->route = std::move(route);
    return;
  }
  entries_.push_back({std::move(route), std::move(segments)});
}

HttpRoutes::Found HttpRoutes::find(std::string_view method, std::string_view path) const {
  Found found;
  if (path.empty() || path.front() != '/') return found;
  const std::vector<std::string> segments = segments_of(path);
  for (const Entry& entry : entries_) {
    auto parameters = match(entry.segments, segments);
    if (!parameters) continue;
    const bool serves =
        entry.route.method == method || (entry.route.method == "GET" && method == "HEAD");
    if (!serves) {
      found.allowed += (found.allowed.empty() ? "" : ", ") + entry.route.method;
      if (found.other == nullptr) found.other = &entry.route;
    } else if (found.route == nullptr || (parameters->empty() && !found.parameters.empty())) {
      found.route = &entry.route;
      found.parameters = std::move(*parameters);
    }
  }
  return found;
}

void HttpRoutes::add(const HttpProtocol& protocol) { protocols_.push_back(&protocol); }

const HttpProtocol& HttpRoutes::protocol_of(std::string_view path) const {
  static const HttpProtocol none{};
  const HttpProtocol* found = &none;
  for (const HttpProtocol* const protocol : protocols_) {
    const std::string& above = protocol->path;
    if (!path.starts_with(above) || above.size() < found->path.size()) continue;
    const bool is_below = above.empty() || path.size() == above.size() || path[above.size()] == '/';
    if (is_below) found = protocol;
  }
  return *found;
}

std::vector<const HttpRoute*> HttpRoutes::all() const {
  std::vector<const HttpRoute*> routes;
  for (const Entry& entry : entries_) routes.push_back(&entry.route);
  return routes;
}

std::string HttpRoutes::exposed_headers() const {
  std::vector<std::string> names = {"retry-after", "x-request-id", "lintel-replica",
                                    kIgnoredHeader};
  for (const HttpProtocol* const protocol : protocols_) {
    names.insert(names.end(), protocol->exposed_headers.begin(), protocol->exposed_headers.end());
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

std::string_view token_of(const HttpRequest& request, const HttpProtocol& protocol) {
  for (const std::string& name : protocol.token_headers) {
    const std::string_view value = request.header(name);
    const std::string_view token = name == "authorization" ? bearer_token(value) : value;
    if (!token.empty()) return token;
  }
  return {};
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(16 * high + low);
    i += 2;
  }
  return decoded;
}

HttpAnswer plain_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  const nlohmann::ordered_json error = {{"code", json_code_name(status.error_code())},
                                        {"message", status.error_message()}};
  return json_answer(http_status,
                     error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace lintel
