#include "server/web/connect/routes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <memory>
#include <string>

#include "lintel/v1/admin.pb.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "lintel/v1/session.pb.h"
#include "server/web/http_status.h"

namespace lintel {
namespace {

namespace pb = google::protobuf;

std::unique_ptr<pb::Message> new_message(const pb::Descriptor* type) {
  return std::unique_ptr<pb::Message>(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

void answer_unary(const SharedExchange& exchange, const pb::MethodDescriptor* method,
                  InnerCalls& calls) {
  const auto request = new_message(method->input_type());
  const auto read = pb::util::JsonStringToMessage(exchange->take_body(), request.get());
  if (!read.ok()) {
    exchange->answer(plain_refusal(exchange->request(), 400,
                                   {grpc::INVALID_ARGUMENT, std::string(read.message())}));
    return;
  }
  const std::string name = "/" + method->service()->full_name() + "/" + method->name();
  calls.unary(exchange, name, bytes_of(*request),
              [exchange, method](const grpc::Status& status, grpc::ByteBuffer& bytes,
                                 const grpc::ClientContext&) {
                if (!status.ok()) {
                  exchange->answer(plain_refusal(exchange->request(),
                                                 http_status_of(status.error_code()), status));
                  return;
                }
                const auto response = new_message(method->output_type());
                parse_from(bytes, *response);
                std::string json;
                pb::util::MessageToJsonString(*response, &json);
                exchange->answer(json_answer(200, std::move(json)));
              });
}

}  // namespace

void add_connect_routes(HttpRoutes& routes, InnerCalls& calls) {
  for (const pb::FileDescriptor* const file :
       {v1::GenerateRequest::descriptor()->file(), v1::Session::descriptor()->file(),
        v1::Model::descriptor()->file(), v1::LogLevel::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const pb::ServiceDescriptor* const service = file->service(i);
      for (int k = 0; k < service->method_count(); ++k) {
        const pb::MethodDescriptor* const method = service->method(k);
        if (method->client_streaming() || method->server_streaming()) continue;
        routes.add({.method = "POST",
                    .path = "/" + service->full_name() + "/" + method->name(),
                    .handle = [method, &calls](const SharedExchange& exchange) {
                      answer_unary(exchange, method, calls);
                    }});
      }
    }
  }
}

}  // namespace lintel
