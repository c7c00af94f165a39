#include "server/http/transport/origin_rules.h"

#include <algorithm>
#include <utility>

namespace lintel {
namespace {

// "https://host:port" as "host:port".
std::string_view authority_of(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

// Origins' authorities and other names, as HostRules takes them.
std::vector<std::string> names_of(const std::vector<std::string>& origins,
                                  std::vector<std::string> names) {
  for (const std::string& origin : origins) {
    if (origin != "*") names.emplace_back(authority_of(origin));
  }
  return names;
}

}  // namespace

OriginRules::OriginRules(std::vector<std::string> allowed, const ListenAddress& address,
                         std::vector<std::string> hosts)
    : allowed_(std::move(allowed)),
      all_(std::ranges::find(allowed_, "*") != allowed_.end()),
      hosts_(address, names_of(allowed_, std::move(hosts))) {}

bool OriginRules::is_named(std::string_view origin) const {
  return all_ || std::ranges::find(allowed_, origin) != allowed_.end();
}

bool OriginRules::takes_host(const HttpRequest& request) const {
  const std::string_view host = request.header("host");
  return all_ || host.empty() || hosts_.takes(host);
}

bool OriginRules::takes(const HttpRequest& request) const {
  const bool has_origin = std::ranges::any_of(
      request.headers, [](const auto& header) { return header.first == "origin"; });
  if (!has_origin) return true;
  const std::string_view origin = request.header("origin");
  if (is_named(origin)) return true;
  const std::string_view authority = authority_of(origin);
  return !authority.empty() && authority == request.header("host");
}

HttpHeaders OriginRules::headers_for(const HttpRequest& request) const {
  if (allowed_.empty()) return {};
  HttpHeaders headers = {{"vary", "origin"}};
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !is_named(origin)) return headers;
  headers.emplace_back("access-control-allow-origin", all_ ? "*" : std::string(origin));
  headers.emplace_back("access-control-expose-headers",
                       "grpc-status, grpc-message, grpc-status-details-bin, retry-after, "
                       "x-request-id, lintel-replica");
  return headers;
}

bool OriginRules::is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

HttpAnswer OriginRules::preflight(const HttpRequest& request) const {
  HttpAnswer answer{204, {}, {}};
  if (!is_named(request.header("origin"))) return answer;
  answer.headers.emplace_back("access-control-allow-methods", "GET, POST");
  if (const std::string_view asked = request.header("access-control-request-headers");
      !asked.empty()) {
    answer.headers.emplace_back("access-control-allow-headers", std::string(asked));
  }
  answer.headers.emplace_back("access-control-max-age", "7200");
  return answer;
}

}  // namespace lintel
