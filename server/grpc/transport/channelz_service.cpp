#include "server/grpc/transport/channelz_service.h"

#include <google/protobuf/util/json_util.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <memory>
#include <string>

#include "grpc/channelz/v1/channelz.grpc.pb.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {
namespace {

namespace channelz = grpc::channelz::v1;

// What gRPC says about each request, as JSON; null where there is no such thing.
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
grpc::Status tell(const Received<Request>& request, Response& response) {
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
grpc::ServerUnaryReactor* ChannelzService::answer(grpc::CallbackServerContext* call,
                                                  const Received<Request>* request,
                                                  Response* response) {
  grpc::ServerUnaryReactor* const reactor = call->DefaultReactor();
  reactor->Finish(guarded([&] { return tell(*request, *response); }));
  return reactor;
}

}  // namespace lintel
