#include "client/lib/channel.h"

#include <stdexcept>

#include "client/lib/address.h"

namespace lintel {

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Tls& tls,
                                            bool sends_token, const std::string& proxy,
                                            grpc::ChannelArguments arguments) {
  if (tls.certificate.empty() != tls.key.empty()) {
    throw std::invalid_argument("a client certificate and its key belong together");
  }
  const bool local = is_local_address(address);
  const bool through_proxy = !proxy.empty() && !local;
  if (sends_token && !tls.enabled() && (!local || through_proxy)) {
    throw std::invalid_argument("the token would go to " + (through_proxy ? proxy : address) +
                                " in plain text: use TLS (a CA file)");
  }
  // A chunk with the N best of many values can pass gRPC's 4 MB; the server bounds what it sends.
  arguments.SetMaxReceiveMessageSize(-1);
  // Left alone, gRPC would take http_proxy from the environment, for loopback addresses as well.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, through_proxy ? 1 : 0);
  if (through_proxy) arguments.SetString(GRPC_ARG_HTTP_PROXY, "http://" + proxy);
  return grpc::CreateCustomChannel(
      address, tls.enabled() ? tls_credentials(tls) : grpc::InsecureChannelCredentials(),
      arguments);
}

}  // namespace lintel
