#include "server/web/port/request_head.h"

#include <algorithm>

namespace lintel {
namespace {

// "http://host/path" names a path, too: clients that believe to speak to a proxy write so.
std::string_view without_authority(std::string_view target) {
  if (!target.starts_with("http://") && !target.starts_with("https://")) return target;
  const std::size_t path = target.find('/', target.find("://") + 3);
  return path == std::string_view::npos ? std::string_view("/") : target.substr(path);
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

HttpRequest request_of_head(
    const boost::beast::http::request<boost::beast::http::string_body>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target =
      without_authority(std::string_view(message.target().data(), message.target().size()));
  const std::size_t question = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, question));
  if (question < target.size()) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value().data(), field.value().size()));
  }
  return request;
}

}  // namespace lintel
