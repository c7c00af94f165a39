#include "server/http/connect/connect_get.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "server/grpc/transport/status.h"
#include "server/http/connect/envelope.h"
#include "server/http/transport/http_routes.h"

namespace lintel {
namespace {

grpc::Status wrong_query(std::string what) {
  return {grpc::StatusCode::INVALID_ARGUMENT, "the query: " + std::move(what)};
}

// Names and values, decoded as a form's; of a name that is there twice the first.
std::map<std::string, std::string> query_members(std::string_view query) {
  std::map<std::string, std::string> members;
  while (!query.empty()) {
    std::string member(query.substr(0, query.find('&')));
    query.remove_prefix(std::min(member.size() + 1, query.size()));
    std::ranges::replace(member, '+', ' ');
    const std::size_t name = std::min(member.find('='), member.size());
    members.emplace(percent_decoded(member.substr(0, name)),
                    percent_decoded(member.substr(std::min(name + 1, member.size()))));
  }
  return members;
}

// The alphabet that may stand in a query, with or without padding.
bool decode_url_base64(std::string text, std::string* bytes) {
  std::ranges::replace(text, '-', '+');
  std::ranges::replace(text, '_', '/');
  while (text.size() % 4 != 0) text += '=';
  return decode_base64(text, bytes);
}

}  // namespace

grpc::Status read_connect_get(const HttpRequest& request, ConnectGet& get) {
  std::map<std::string, std::string> members = query_members(request.query);
  const auto value_of = [&](const char* name) {
    const auto found = members.find(name);
    return found == members.end() ? std::string() : found->second;
  };
  const std::string encoding = value_of("encoding");
  get.format.is_json = encoding != "proto";
  if (encoding != "proto" && encoding != "json") {
    return wrong_query("encoding=" + clip(encoding) + " is not json or proto");
  }
  const std::string compression = value_of("compression");
  if (!compression.empty() && compression != "identity") {
    return {grpc::StatusCode::UNIMPLEMENTED,
            "compression=" + clip(compression) + " is not supported, send identity"};
  }
  const std::string version = value_of("connect");
  if (!version.empty() && version != "v1") {
    return wrong_query("connect=" + clip(version) + " is not supported, send v1");
  }
  if (!members.contains("message")) return wrong_query("message is missing");
  get.message = value_of("message");
  const std::string base64 = value_of("base64");
  if (base64.empty() || base64 == "0") return grpc::Status::OK;
  if (base64 != "1") return wrong_query("base64=" + clip(base64) + " is not 1");
  std::string bytes;
  if (!decode_url_base64(get.message, &bytes)) return wrong_query("message is no base64");
  get.message = std::move(bytes);
  return grpc::Status::OK;
}

}  // namespace lintel
