#include "server/http/connect/rpc_errors.h"

#include <absl/strings/escaping.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/http/connect/envelope.h"
#include "server/http/transport/http_status.h"

namespace lintel {
namespace {

std::string base64_without_padding(const std::string& bytes) {
  std::string text = absl::Base64Escape(bytes);
  while (!text.empty() && text.back() == '=') text.pop_back();
  return text;
}

// A message in a header: what is no printable ASCII as %XX
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Percent-Encoded).
std::string percent_encoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += "0123456789ABCDEF"[byte >> 4];
    encoded += "0123456789ABCDEF"[byte & 15];
  }
  return encoded;
}

google::rpc::Status details_of(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

}  // namespace

std::string connect_error_json(const grpc::Status& status) {
  nlohmann::ordered_json error = {{"code", connect_code_name(status.error_code())},
                                  {"message", status.error_message()}};
  const google::rpc::Status details = details_of(status);
  for (const auto& detail : details.details()) {
    const std::string& url = detail.type_url();
    error["details"].push_back({{"type", url.substr(url.rfind('/') + 1)},
                                {"value", base64_without_padding(detail.value())}});
  }
  return error.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpHeaders grpc_trailers(const grpc::Status& status) {
  HttpHeaders trailers = {{"grpc-status", std::to_string(status.error_code())}};
  if (!status.error_message().empty()) {
    trailers.emplace_back("grpc-message", percent_encoded(status.error_message()));
  }
  if (!status.error_details().empty()) {
    trailers.emplace_back("grpc-status-details-bin",
                          base64_without_padding(status.error_details()));
  }
  return trailers;
}

HttpHeaders retry_after(const grpc::Status& status) {
  const google::rpc::Status details = details_of(status);
  for (const auto& detail : details.details()) {
    google::rpc::RetryInfo retry;
    if (!detail.UnpackTo(&retry)) continue;
    const auto& delay = retry.retry_delay();
    return {{"retry-after", std::to_string(delay.seconds() + (delay.nanos() > 0 ? 1 : 0))}};
  }
  return {};
}

HttpAnswer rpc_refusal(const RpcFormat& format, int http_status, const grpc::Status& status) {
  HttpAnswer answer{200, {{"content-type", format.content_type()}}, {}};
  switch (format.protocol) {
    case RpcProtocol::kStream:
      answer.body = envelope(kEndOfStream, "{\"error\":" + connect_error_json(status) + "}");
      return answer;
    case RpcProtocol::kGrpcWeb:
      for (auto& trailer : grpc_trailers(status)) answer.headers.push_back(std::move(trailer));
      return answer;
    default:
      answer = json_answer(http_status, connect_error_json(status) + "\n");
      for (auto& header : retry_after(status)) answer.headers.push_back(std::move(header));
      return answer;
  }
}

}  // namespace lintel
