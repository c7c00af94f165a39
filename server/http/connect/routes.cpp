#include "server/http/connect/routes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lintel/v1/admin.pb.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "lintel/v1/session.pb.h"
#include "server/grpc/transport/status.h"
#include "server/http/connect/connect_get.h"
#include "server/http/connect/envelope.h"
#include "server/http/connect/rpc_errors.h"
#include "server/http/connect/rpc_format.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/connect/stream_answers.h"
#include "server/http/transport/http_status.h"

namespace lintel {
namespace {

namespace pb = google::protobuf;

grpc::Status invalid(std::string what) { return {grpc::INVALID_ARGUMENT, std::move(what)}; }

std::string path_of(const pb::MethodDescriptor* method) {
  return "/" + method->service()->full_name() + "/" + method->name();
}

// A request's body as the message's bytes. `with_text`: set where it gives its prompt as text, in
// plain JSON. `budget`: null: none.
grpc::Status read_message(const RpcFormat& format, const pb::Descriptor* type,
                          const std::string& body, JsonBudget* budget, grpc::ByteBuffer& bytes,
                          bool& with_text) {
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
    bytes = bytes_of(message);
    return grpc::Status::OK;
  }
  const bool is_plain = format.protocol == RpcProtocol::kPlainJson;
  std::string binary;
  grpc::Status read = is_plain ? plain_json_to_bytes(message, type, budget, binary)
                               : json_to_bytes(message, type, budget, binary);
  if (!read.ok()) return read;
  if (is_plain && type == v1::GenerateRequest::descriptor()) {
    v1::GenerateRequest generate;
    with_text =
        generate.ParseFromString(binary) && generate.prompt().form_case() == v1::Values::kText;
  }
  bytes = bytes_of(binary);
  return grpc::Status::OK;
}

// A method of one request and one response, in Connect's way: the body is the message.
void answer_unary(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                  const std::string& path, const RpcFormat& format, grpc::ByteBuffer request,
                  InnerCalls::Timeout timeout, InnerCalls& calls) {
  calls.unary(
      exchange, path, std::move(request),
      [exchange, method, format](const grpc::Status& status, grpc::ByteBuffer& bytes,
                                 const grpc::ClientContext&) {
        if (!status.ok()) {
          exchange->answer(rpc_refusal(format, http_status_of(status.error_code()), status));
          return;
        }
        HttpAnswer answer{200, {{"content-type", format.content_type()}}, {}};
        answer.headers.emplace_back("cache-control", "no-store");
        if (format.is_json) {
          const auto response = new_message(method->output_type());
          parse_from(bytes, *response);
          answer.body = write_json(*response);
        } else {
          append_to(answer.body, bytes);
        }
        exchange->answer(std::move(answer));
      },
      timeout);
}

// The call that a request asks for, answered in the request's format.
void begin_call(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                const RpcFormat& format, grpc::ByteBuffer bytes, bool with_text,
                InnerCalls::Timeout timeout, InnerCalls& calls) {
  const std::string path = path_of(method);
  switch (format.protocol) {
    case RpcProtocol::kStream:
      return calls.stream(exchange, path, std::move(bytes),
                          connect_stream(format, method->output_type()), timeout);
    case RpcProtocol::kGrpcWeb:
      return calls.stream(exchange, path, std::move(bytes), grpc_web_stream(format), timeout);
    case RpcProtocol::kPlainJson:
      return calls.stream(exchange, path, std::move(bytes),
                          plain_json_stream(method->output_type(), with_text), timeout);
    default:
      return answer_unary(exchange, method, path, format, std::move(bytes), timeout, calls);
  }
}

void answer_call(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                 InnerCalls& calls, BodyWork& bodies) {
  const HttpRequest& request = exchange->request();
  const RpcFormat format = rpc_format(request, method->server_streaming());
  const std::string path = path_of(method);
  const auto refuse = [&](int http_status, const grpc::Status& status) {
    exchange->answer(rpc_refusal(format, http_status, status));
  };
  if (method->client_streaming()) {
    return refuse(501, {grpc::UNIMPLEMENTED,
                        path + " takes a stream of requests, which HTTP/1.1 has not: use gRPC"});
  }
  const bool is_stream_of_unary =
      format.protocol == RpcProtocol::kStream && !method->server_streaming();
  if (format.protocol == RpcProtocol::kUnknown || is_stream_of_unary) {
    const std::string types = method->server_streaming()
                                  ? "application/json, application/connect+json or +proto"
                                  : "application/json, application/proto";
    exchange->answer(rpc_refusal(
        {}, 415,
        invalid("content-type: " + clip(request.header("content-type")) + " is not taken by " +
                path + ", which takes " + types + " and application/grpc-web")));
    return;
  }
  if (const std::string what = unsupported_header(request, format); !what.empty()) {
    return refuse(501, {grpc::UNIMPLEMENTED, what});
  }
  bool valid = false;
  const auto timeout = rpc_timeout(request, format, &valid);
  if (!valid) return refuse(400, invalid("the call's timeout makes no sense"));
  bodies.read(
      exchange,
      [exchange, method, format, timeout, &calls](const std::string& body, JsonBudget& budget) {
        grpc::ByteBuffer bytes;
        bool with_text = false;
        grpc::Status read =
            read_message(format, method->input_type(), body, &budget, bytes, with_text);
        if (read.ok()) {
          begin_call(exchange, method, format, std::move(bytes), with_text, timeout, calls);
        }
        return read;
      },
      [exchange, format](const grpc::Status& status) {
        exchange->answer(rpc_refusal(format, http_status_of(status.error_code()), status));
      });
}

// Of a method that changes nothing: the request stands in the query.
void answer_get(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                InnerCalls& calls) {
  const HttpRequest& request = exchange->request();
  ConnectGet get;
  grpc::Status read = read_connect_get(request, get);
  if (read.ok()) {
    if (std::string what = unsupported_header(request, get.format); !what.empty()) {
      read = {grpc::UNIMPLEMENTED, std::move(what)};
    }
  }
  bool valid = false;
  const auto timeout = rpc_timeout(request, get.format, &valid);
  if (read.ok() && !valid) read = invalid("the call's timeout makes no sense");
  grpc::ByteBuffer bytes;
  bool with_text = false;
  if (read.ok()) {
    // Not longer than a request's first line may be.
    read = read_message(get.format, method->input_type(), get.message, /*budget=*/nullptr, bytes,
                        with_text);
  }
  if (!read.ok()) {
    exchange->answer(rpc_refusal(get.format, http_status_of(read.error_code()), read));
    return;
  }
  answer_unary(exchange, method, path_of(method), get.format, std::move(bytes), timeout, calls);
}

void add_get(HttpRoutes& routes, const pb::MethodDescriptor* method, InnerCalls& calls) {
  routes.add({.method = "GET",
              .path = path_of(method),
              .handle = [method, &calls](const SharedExchange& exchange) {
                answer_get(exchange, method, calls);
              }});
}

}  // namespace

void add_connect_routes(HttpRoutes& routes, InnerCalls& calls, BodyWork& bodies) {
  for (const pb::FileDescriptor* const file :
       {v1::GenerateRequest::descriptor()->file(), v1::Session::descriptor()->file(),
        v1::Model::descriptor()->file(), v1::LogLevel::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const pb::ServiceDescriptor* const service = file->service(i);
      for (int k = 0; k < service->method_count(); ++k) {
        const pb::MethodDescriptor* const method = service->method(k);
        routes.add(
            {.method = "POST",
             .path = path_of(method),
             .handle =
                 [method, &calls, &bodies](const SharedExchange& exchange) {
                   answer_call(exchange, method, calls, bodies);
                 },
             .refuse =
                 [method](const HttpRequest& request, int http_status, const grpc::Status& status) {
                   const RpcFormat format = rpc_format(request, method->server_streaming());
                   return rpc_refusal(format, http_status, status);
                 }});
        if (method->options().idempotency_level() == pb::MethodOptions::NO_SIDE_EFFECTS) {
          add_get(routes, method, calls);
        }
      }
    }
  }
}

}  // namespace lintel
