#include "client/lib/connect_failure.h"

#include <algorithm>
#include <string_view>

namespace lintel {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool drop_start(std::string& text, std::string_view start) {
  if (text.compare(0, start.size(), start) != 0) return false;
  text.erase(0, start.size());
  return true;
}

// "Connection refused" of "failed to connect to all addresses; last error: UNKNOWN:
// ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused".
std::string reason_of(std::string text) {
  if (has(text, "DNS resolution failed")) return "this host name is not known";
  drop_start(text, "failed to connect to all addresses");
  drop_start(text, "; last error: ");
  for (const char* code : {"UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: "}) drop_start(text, code);
  for (const char* family : {"ipv4:", "ipv6:", "unix:"}) {
    if (text.compare(0, 5, family) != 0) continue;
    const std::size_t end = text.find(": ");  // of the address, in which colons have no space
    if (end != std::string::npos) text.erase(0, end + 2);
  }
  drop_start(text, "Failed to connect to remote host: ");
  return text.empty() ? "no connection" : text;
}

// What connect() and the handshakes after it do fail with.
bool is_plain(std::string_view text) {
  static constexpr std::string_view kReasons[] = {"Connection refused",
                                                  "onnection reset",
                                                  "Socket closed",
                                                  "timed out",
                                                  "imeout",
                                                  "unreachable",
                                                  "No route to host",
                                                  "andshake",
                                                  "Ssl",
                                                  "SSL",
                                                  "TLS",
                                                  "HTTP",
                                                  "ermission denied",
                                                  "recvmsg",
                                                  "FD shutdown",
                                                  "DNS",
                                                  "not permitted"};
  return std::any_of(std::begin(kReasons), std::end(kReasons),
                     [text](std::string_view reason) { return has(text, reason); });
}

}  // namespace

bool is_lost_connection(const grpc::Status& status) {
  static constexpr std::string_view kTexts[] = {
      "recvmsg",    "sendmsg",          "Socket closed",    "onnection reset",
      "roken pipe", "GOAWAY",           "keepalive",        "ransport closed",
      "RST_STREAM", "Endpoint closing", "onnection closed", "FD shutdown"};
  const std::string text = status.error_message();
  return status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty() &&
         std::any_of(std::begin(kTexts), std::end(kTexts),
                     [&text](std::string_view known) { return has(text, known); });
}

std::optional<ConnectFailure> connect_failure(const grpc::Status& status, bool encrypted) {
  const std::string text = status.error_message();
  // A server that goes away later is not said to have failed to connect.
  const bool unresolved = has(text, "DNS resolution failed");
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
      !(has(text, "failed to connect to all addresses") || unresolved)) {
    return std::nullopt;
  }
  ConnectFailure failure;
  failure.reason = reason_of(text);
  if (!encrypted && (has(text, "Socket closed") || has(text, "onnection reset"))) {
    // A server that speaks TLS closes the connection without a word.
    failure.hint = "does the server speak TLS? This side was given no CA (--tls-ca)";
  } else if (encrypted && has(text, "CERTIFICATE_VERIFY_FAILED")) {
    failure.reason = "the certificate it shows cannot be trusted";
    failure.hint = "is it signed by the authorities that were given (--tls-ca), and valid?";
  } else if (encrypted && has(text, "WRONG_VERSION_NUMBER")) {
    failure.reason = "it does not speak TLS";
    failure.hint = "a CA or a certificate (--tls-ca, --tls-cert) is for servers that do";
  }
  // The path of a unix socket may well not be there.
  failure.odd = !unresolved && !is_plain(text) && !has(text, "unix:");
  return failure;
}

}  // namespace lintel
