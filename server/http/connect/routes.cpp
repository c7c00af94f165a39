// SPDX-License-Identifier: Apache-2.0
#include "server/http/connect/routes.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lintel/v1/admin.pb.h"
#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "lintel/v1/response.pb.h"
#include "lintel/v1/session.pb.h"
#include "server/http/connect/rpc_format.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/rpc/status.h"

namespace lintel {

namespace {

namespace pb = google::protobuf;

// A unary call without side effects as a GET.

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

// The fields of the query (https://connectrpc.com/docs/protocol#unary-get-request):
// connect=v1&encoding=json&message=..., in base64 with base64=1.
struct ConnectGet {
  RpcFormat format{.protocol = RpcProtocol::kUnary, .is_json = true};
  std::string message;
};

// Fails with UNIMPLEMENTED for a compressed message and INVALID_ARGUMENT for a member that makes no
// sense, each by its name; `get` has the format of the refusal.
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

// Answers made of a method's messages, in each protocol that streams.

HttpAnswer head_of(const RpcFormat& format) {
  return {200, {{"content-type", format.content_type()}, {"cache-control", "no-store"}}, {}};
}

// The common part of the streams.
class RpcStream : public StreamAnswer {
 public:
  explicit RpcStream(const RpcFormat& format) : format_(format) {}

  HttpAnswer head() final { return head_of(format_); }
  HttpAnswer refusal(const grpc::Status& status) final { return rpc_refusal(format_, status); }

 protected:
  const RpcFormat format_;
};

// Connect's streams: envelopes (https://connectrpc.com/docs/protocol#streaming-rpcs).
class ConnectStream final : public RpcStream {
 public:
  using RpcStream::RpcStream;

  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out = envelope(0, format_.is_json ? write_json(message) : message.SerializeAsString());
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status) override {
    return envelope(kEndOfStream,
                    status.ok() ? "{}" : "{\"error\":" + connect_error_json(status) + "}");
  }
};

// gRPC-Web: frames (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md).
class GrpcWebStream final : public RpcStream {
 public:
  using RpcStream::RpcStream;

  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out = coded(envelope(0, message.SerializeAsString()));
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status) override {
    std::string lines;
    for (const auto& [name, value] : grpc_trailers(status)) {
      lines.append(name).append(": ").append(value).append("\r\n");
    }
    return coded(envelope(kTrailers, lines));
  }

 private:
  std::string coded(std::string frame) const {
    return format_.is_text ? absl::Base64Escape(frame) : frame;
  }
};

// A line of JSON for each message, and one with "error" where the call failed after the first.
class PlainJsonStream final : public RpcStream {
 public:
  PlainJsonStream(const RpcFormat& format, PlainText text) : RpcStream(format), messages_(text) {}

  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out = messages_.line(message) + "\n";
    return grpc::Status::OK;
  }

  std::optional<std::string> tail(const grpc::Status& status) override {
    return status.ok() ? "" : "{\"error\":" + connect_error_json(status) + "}\n";
  }

 private:
  PlainMessages messages_;
};

grpc::Status invalid(std::string what) { return {grpc::INVALID_ARGUMENT, std::move(what)}; }

// The name that services use: "lintel.v1.ModelService/List".
std::string name_of(const pb::MethodDescriptor* method) {
  return method->service()->full_name() + "/" + method->name();
}

std::string path_of(const pb::MethodDescriptor* method) { return "/" + name_of(method); }

// A request's body as the message. `text`: set where it gives its prompt as text, in plain
// JSON: then it asks for the bytes of tokens. `budget`: null: none.
grpc::Status read_message(const RpcFormat& format, const pb::Descriptor* type,
                          const std::string& body, JsonBudget* budget, RequestMessage& request,
                          PlainText& text) {
  std::string decoded;
  std::string_view message = body;
  if (format.is_text) {
    if (!decode_base64(body, &decoded)) return invalid("the body is no base64");
    message = decoded;
  }
  if (format.protocol == RpcProtocol::kStream || format.protocol == RpcProtocol::kGrpcWeb) {
    std::string why;
    const std::string_view whole = message;
    if (!open_envelope(whole, &message, &why)) return invalid(why);
  }
  if (!format.is_json) {
    request = message_of_bytes(message);
    return grpc::Status::OK;
  }
  const bool is_plain = format.protocol == RpcProtocol::kPlainJson;
  std::unique_ptr<pb::Message> object(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
  grpc::Status read =
      is_plain ? read_plain_json(message, budget, *object) : read_json(message, budget, *object);
  if (!read.ok()) return read;
  auto* const generate = is_plain ? dynamic_cast<v1::GenerateRequest*>(object.get()) : nullptr;
  if (generate != nullptr && generate->prompt().has_text()) {
    text = generate->token_bytes() ? PlainText::kWithBytes : PlainText::kAlone;
    generate->set_token_bytes(true);
  }
  request = RequestMessage(std::move(object));
  return grpc::Status::OK;
}

// A method of one request and one response, in Connect's way: the body is the message.
void answer_unary(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                  const RpcFormat& format, RequestMessage request, HttpCalls::Timeout timeout,
                  HttpCalls& calls) {
  calls.unary(
      exchange, name_of(method), std::move(request),
      [exchange, format](const grpc::Status& status, const pb::Message& response) {
        if (!status.ok()) return exchange->answer(rpc_refusal(format, status));
        HttpAnswer answer = head_of(format);
        answer.body = format.is_json ? write_json(response) : response.SerializeAsString();
        exchange->answer(std::move(answer));
      },
      timeout);
}

// The call that a request asks for, answered in the request's format.
void begin_call(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                const RpcFormat& format, RequestMessage message, PlainText text,
                HttpCalls::Timeout timeout, HttpCalls& calls) {
  const std::string name = name_of(method);
  switch (format.protocol) {
    case RpcProtocol::kStream:
      return calls.stream(exchange, name, std::move(message),
                          std::make_unique<ConnectStream>(format), timeout);
    case RpcProtocol::kGrpcWeb:
      return calls.stream(exchange, name, std::move(message),
                          std::make_unique<GrpcWebStream>(format), timeout);
    case RpcProtocol::kPlainJson:
      return calls.stream(exchange, name, std::move(message),
                          std::make_unique<PlainJsonStream>(format, text), timeout);
    default:
      return answer_unary(exchange, method, format, std::move(message), timeout, calls);
  }
}

// The timeout of a call whose headers make sense.
grpc::Status read_headers(const HttpRequest& request, const RpcFormat& format,
                          HttpCalls::Timeout& timeout) {
  if (std::string what = unsupported_header(request, format); !what.empty()) {
    return {grpc::UNIMPLEMENTED, std::move(what)};
  }
  bool valid = false;
  timeout = rpc_timeout(request, format, &valid);
  return valid ? grpc::Status::OK : invalid("the call's timeout makes no sense");
}

void answer_call(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                 HttpCalls& calls, BodyWork& bodies) {
  const HttpRequest& request = exchange->request();
  const RpcFormat format = rpc_format(request, method->server_streaming());
  const std::string path = path_of(method);
  if (method->client_streaming()) {
    return exchange->answer(rpc_refusal(
        format, {grpc::UNIMPLEMENTED,
                 path + " takes a stream of requests, which HTTP/1.1 has not: use gRPC"}));
  }
  const bool is_stream_of_unary =
      format.protocol == RpcProtocol::kStream && !method->server_streaming();
  if (format.protocol == RpcProtocol::kUnknown || is_stream_of_unary) {
    const std::string types = method->server_streaming()
                                  ? "application/json, application/connect+json or +proto"
                                  : "application/json, application/proto";
    return exchange->answer(rpc_refusal(
        {}, 415,
        invalid("content-type: " + clip(request.header("content-type")) + " is not taken by " +
                path + ", which takes " + types + " and application/grpc-web")));
  }
  HttpCalls::Timeout timeout;
  if (const grpc::Status read = read_headers(request, format, timeout); !read.ok()) {
    return exchange->answer(rpc_refusal(format, read));
  }
  bodies.read(
      exchange,
      [exchange, method, format, timeout, &calls](const std::string& body, JsonBudget& budget) {
        RequestMessage message;
        PlainText text = PlainText::kNone;
        grpc::Status read =
            read_message(format, method->input_type(), body, &budget, message, text);
        if (read.ok()) {
          begin_call(exchange, method, format, std::move(message), text, timeout, calls);
        }
        return read;
      },
      [exchange, format](const grpc::Status& status) {
        exchange->answer(rpc_refusal(format, status));
      });
}

// Answers a GET of a method that changes nothing: the request stands in the query.
void answer_get(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                HttpCalls& calls) {
  const HttpRequest& request = exchange->request();
  ConnectGet get;
  grpc::Status read = read_connect_get(request, get);
  HttpCalls::Timeout timeout;
  if (read.ok()) read = read_headers(request, get.format, timeout);
  RequestMessage message;
  PlainText text = PlainText::kNone;
  if (read.ok()) {
    // No budget is needed: the text is no longer than a request's first line may be.
    read = read_message(get.format, method->input_type(), get.message, /*budget=*/nullptr, message,
                        text);
  }
  if (!read.ok()) return exchange->answer(rpc_refusal(get.format, read));
  answer_unary(exchange, method, get.format, std::move(message), timeout, calls);
}

void add_method(HttpRoutes& routes, const pb::MethodDescriptor* method, HttpCalls& calls,
                BodyWork& bodies) {
  routes.add(
      {.method = "POST",
       .path = path_of(method),
       .handle =
           [method, &calls, &bodies](const SharedExchange& exchange) {
             answer_call(exchange, method, calls, bodies);
           },
       .refuse =
           [method](const HttpRequest& request, int http_status, const grpc::Status& status) {
             return rpc_refusal(rpc_format(request, method->server_streaming()), http_status,
                                status);
           }});
  if (method->options().idempotency_level() != pb::MethodOptions::NO_SIDE_EFFECTS) return;
  routes.add({.method = "GET",
              .path = path_of(method),
              .handle = [method, &calls](const SharedExchange& exchange) {
                answer_get(exchange, method, calls);
              }});
}

// The protocol of every path that no other has: a method's routes are below no path of their own,
// and refuse in the shape of each format.
const HttpProtocol& connect_protocol() {
  static const HttpProtocol protocol{
      .exposed_headers = {"grpc-status", "grpc-message", "grpc-status-details-bin"}};
  return protocol;
}

}  // namespace

void add_connect_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  routes.add(connect_protocol());
  for (const pb::FileDescriptor* const file :
       {v1::GenerateRequest::descriptor()->file(), v1::ChatRequest::descriptor()->file(),
        v1::ResponseEvents::descriptor()->file(), v1::Session::descriptor()->file(),
        v1::Model::descriptor()->file(), v1::LogLevel::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const pb::ServiceDescriptor* const service = file->service(i);
      for (int k = 0; k < service->method_count(); ++k) {
        add_method(routes, service->method(k), calls, bodies);
      }
    }
  }
}

}  // namespace lintel
