// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/introspection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "grpc/channelz/v1/channelz.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"

namespace lintel {
namespace {

namespace channelz = grpc::channelz::v1;

// gRPC's answer to each request, as JSON; null if there is no such object.
char* json_of(const channelz::GetTopChannelsRequest& wire) {
  return grpc_channelz_get_top_channels(wire.start_channel_id());
}
char* json_of(const channelz::GetServersRequest& wire) {
  return grpc_channelz_get_servers(wire.start_server_id());
}
char* json_of(const channelz::GetServerRequest& wire) {
  return grpc_channelz_get_server(wire.server_id());
}
char* json_of(const channelz::GetServerSocketsRequest& wire) {
  return grpc_channelz_get_server_sockets(wire.server_id(), wire.start_socket_id(),
                                          wire.max_results());
}
char* json_of(const channelz::GetChannelRequest& wire) {
  return grpc_channelz_get_channel(wire.channel_id());
}
char* json_of(const channelz::GetSubchannelRequest& wire) {
  return grpc_channelz_get_subchannel(wire.subchannel_id());
}
char* json_of(const channelz::GetSocketRequest& wire) {
  return grpc_channelz_get_socket(wire.socket_id());
}

template <typename Request, typename Response>
grpc::Status tell(const LazyMessage<Request>& request, Response& response) {
  Request wire;
  if (grpc::Status read = request.read(kOpenMessage, wire); !read.ok()) return read;
  const std::unique_ptr<char, decltype(&gpr_free)> json(json_of(wire), &gpr_free);
  if (json == nullptr) return {grpc::StatusCode::NOT_FOUND, "there is none of that number"};
  const auto parsed = google::protobuf::util::JsonStringToMessage(json.get(), &response);
  if (parsed.ok()) return grpc::Status::OK;
  return {grpc::StatusCode::INTERNAL, "gRPC's answer cannot be read: " + parsed.ToString()};
}

}  // namespace

ChannelzService::ChannelzService() {
  serve(
      "grpc.channelz.v1.Channelz/GetTopChannels", this,
      &ChannelzService::answer<channelz::GetTopChannelsRequest, channelz::GetTopChannelsResponse>);
  serve("grpc.channelz.v1.Channelz/GetServers", this,
        &ChannelzService::answer<channelz::GetServersRequest, channelz::GetServersResponse>);
  serve("grpc.channelz.v1.Channelz/GetServer", this,
        &ChannelzService::answer<channelz::GetServerRequest, channelz::GetServerResponse>);
  serve("grpc.channelz.v1.Channelz/GetServerSockets", this,
        &ChannelzService::answer<channelz::GetServerSocketsRequest,
                                 channelz::GetServerSocketsResponse>);
  serve("grpc.channelz.v1.Channelz/GetChannel", this,
        &ChannelzService::answer<channelz::GetChannelRequest, channelz::GetChannelResponse>);
  serve("grpc.channelz.v1.Channelz/GetSubchannel", this,
        &ChannelzService::answer<channelz::GetSubchannelRequest, channelz::GetSubchannelResponse>);
  serve("grpc.channelz.v1.Channelz/GetSocket", this,
        &ChannelzService::answer<channelz::GetSocketRequest, channelz::GetSocketResponse>);
}

template <typename Request, typename Response>
RpcReactor* ChannelzService::answer(RpcCall* call, const LazyMessage<Request>* request,
                                    Response* response) {
  RpcReactor* const reactor = call->default_reactor();
  reactor->Finish(catch_exceptions([&] { return tell(*request, *response); }));
  return reactor;
}

namespace {

namespace v1alpha = grpc::reflection::v1alpha;

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// The file and all that it needs, each once.
template <typename Response>
void write_files(const FileDescriptor& file, std::unordered_set<std::string>& seen,
                 Response& response) {
  if (!seen.insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto text;
  file.CopyTo(&text);
  text.SerializeToString(response.add_file_descriptor_proto());
  for (int i = 0; i < file.dependency_count(); ++i) {
    write_files(*file.dependency(i), seen, response);
  }
}

template <typename Response>
void write_file_of(const FileDescriptor* file, Response& response) {
  if (file == nullptr) {
    response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response.mutable_error_response()->set_error_message("there is none of that name");
    return;
  }
  std::unordered_set<std::string> seen;
  write_files(*file, seen, *response.mutable_file_descriptor_response());
}

template <typename Response>
void write_extension_numbers(const std::string& type, Response& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return write_file_of(nullptr, response);
  auto& numbers = *response.mutable_all_extension_numbers_response();
  numbers.set_base_type_name(type);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  for (const FieldDescriptor* each : extensions) numbers.add_extension_number(each->number());
}

template <typename Request, typename Response>
void write_answer(const Request& request, const std::vector<std::string>& services,
                  Response& response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return write_file_of(pool.FindFileByName(request.file_by_filename()), response);
    case Request::kFileContainingSymbol:
      return write_file_of(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                           response);
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const Descriptor* const type = pool.FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* const extension =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      return write_file_of(extension == nullptr ? nullptr : extension->file(), response);
    }
    case Request::kAllExtensionNumbersOfType:
      return write_extension_numbers(request.all_extension_numbers_of_type(), response);
    case Request::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      return;
    case Request::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
  response.mutable_error_response()->set_error_message("the request asks for nothing");
}

// One stream: reads a question, writes its answer, reads the next. Lives until gRPC has done with
// it.
template <typename Request, typename Response>
class Talk final : public RpcReactor {
 public:
  explicit Talk(const std::vector<std::string>& services) : services_(services) {
    this->StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    const grpc::Status status = catch_exceptions([&] {
      Request wire;
      grpc::Status read = request_.read(kOpenMessage, wire);
      if (read.ok()) write_answer(wire, services_, response_);
      return read;
    });
    status.ok() ? this->StartWrite(&response_) : this->Finish(status);
  }
  void OnWriteDone(bool ok) override {
    response_ = {};  // clearing it would keep its memory
    ok ? this->StartRead(&request_) : this->Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  RequestMessage request_;
  Response response_;
};

}  // namespace

ReflectionService::ReflectionService(std::vector<std::string> services)
    : services_(std::move(services)) {
  serve_bidi_stream<grpc::reflection::v1::ServerReflectionResponse>(
      "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", this,
      &ReflectionService::talk<grpc::reflection::v1::ServerReflectionRequest,
                               grpc::reflection::v1::ServerReflectionResponse>);
  serve_bidi_stream<v1alpha::ServerReflectionResponse>(
      "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", this,
      &ReflectionService::talk<v1alpha::ServerReflectionRequest,
                               v1alpha::ServerReflectionResponse>);
}

template <typename Request, typename Response>
RpcReactor* ReflectionService::talk(RpcCall*) {
  return new Talk<Request, Response>(services_);
}

}  // namespace lintel
