#include "client/channel.h"

#include <arpa/inet.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace lintel {
namespace {

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (file.empty() || !in) throw std::runtime_error("cannot read " + file);
  return std::move(text).str();
}

std::shared_ptr<grpc::ChannelCredentials> credentials(const Tls& tls) {
  if (!tls.enabled()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  if (!tls.ca.empty()) options.pem_root_certs = read(tls.ca);
  if (!tls.certificate.empty()) {
    options.pem_cert_chain = read(tls.certificate);
    options.pem_private_key = read(tls.key);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

bool is_local_address(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr ipv4{};
  return inet_pton(AF_INET, host.c_str(), &ipv4) == 1 && ntohl(ipv4.s_addr) >> 24 == 127;
}

std::string plain_text_hint(const grpc::Status& status) {
  const auto says = [text = status.error_message()](const char* what) {
    return text.find(what) != std::string::npos;
  };
  // A server that goes away later is not said to have failed to connect.
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE || !says("failed to connect") ||
      !(says("Socket closed") || says("Connection reset"))) {
    return "";
  }
  return "does the server speak TLS? This side was given no CA (--tls-ca)";
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const Tls& tls,
                                            bool sends_token, grpc::ChannelArguments arguments) {
  if (tls.certificate.empty() != tls.key.empty()) {
    throw std::invalid_argument("a client certificate and its key belong together");
  }
  if (sends_token && !tls.enabled() && !is_local_address(address)) {
    throw std::invalid_argument("the token would go to " + address +
                                " in plain text: use TLS (a CA file)");
  }
  // A chunk with the N best of many values can pass gRPC's 4 MB; the server bounds what it sends.
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, credentials(tls), arguments);
}

}  // namespace lintel
