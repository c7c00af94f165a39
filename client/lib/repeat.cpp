// SPDX-License-Identifier: Apache-2.0
#include "client/lib/repeat.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

namespace lintel {

std::string affinity_key(const std::string& session_id) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  EVP_Digest(session_id.data(), session_id.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  std::string key;
  for (int i = 0; i < 8; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    key += kDigits[digest[i] >> 4];
    key += kDigits[digest[i] & 15];
  }
  return key;
}

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

// True for errors with which connect() and the handshakes after it do fail.
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
  } else if (encrypted && has(text, "is not in peer certificate")) {
    failure.reason = "its certificate is for other names than the one in --address";
    failure.hint = "use a name that the certificate has (openssl x509 -noout -ext subjectAltName)";
  } else if (encrypted && has(text, "WRONG_VERSION_NUMBER")) {
    failure.reason = "it does not speak TLS";
    failure.hint = "a CA or a certificate (--tls-ca, --tls-cert) is for servers that do";
  }
  // The path of a unix socket may well not be there.
  failure.odd = !unresolved && !is_plain(text) && !has(text, "unix:");
  return failure;
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{2000};

// Cuts off the first `count`; where there is nothing parallel to the tokens there is nothing to
// cut.
template <typename Fields>
void drop_first(Fields& fields, int count) {
  fields.erase(fields.begin(), fields.begin() + std::min(count, fields.size()));
}

template <typename Element>
void drop_first(google::protobuf::RepeatedPtrField<Element>& elements, int count) {
  elements.DeleteSubrange(0, std::min(count, elements.size()));
}

}  // namespace

std::string random_call_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    char word[9];
    std::snprintf(word, sizeof word, "%08x", static_cast<unsigned>(random()));
    id += word;
  }
  return id;
}

bool names_a_lost_server(const CallError& error) {
  return error.code() == grpc::StatusCode::UNAVAILABLE ||
         error.code() == grpc::StatusCode::CANCELLED;
}

bool worth_repeating(const CallError& error, bool sent) {
  if (names_a_lost_server(error)) return true;
  switch (error.code()) {
    case grpc::StatusCode::ABORTED:
      // A first try found the session held by another call, here or on another server, and only the
      // latter is known to let go of it.
      return sent || error.error_reason().rfind("SESSION_", 0) == 0;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return sent && error.retry_delay().has_value();
    default:
      return false;
  }
}

void RepeatPauses::something_came() {
  give_up_.reset();
  pause_ = milliseconds(0);
}

std::optional<milliseconds> RepeatPauses::next(const CallError& error, Clock::time_point now) {
  // Longer ones overflow the clock.
  if (!give_up_) give_up_ = now + std::min<milliseconds>(patience_, std::chrono::hours(24 * 365));
  if (now >= *give_up_) return std::nullopt;
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  std::uniform_real_distribution<double> jitter(0.8, 1.2);
  const milliseconds pause(
      static_cast<std::int64_t>(static_cast<double>(pause_.count()) * jitter(random_)));
  // The last try is at the end of patience, however long the server would like it to be.
  return std::min(std::max(pause, error.retry_delay().value_or(milliseconds(0))), left(now));
}

milliseconds RepeatPauses::left(Clock::time_point now) const {
  // Rounded up: the try after the last pause is the last.
  return std::chrono::ceil<milliseconds>(*give_up_ - now);
}

const v1::Chunk* SeenPositions::new_part(const v1::Chunk& chunk) {
  const std::int64_t first = chunk.first_position();
  const std::int64_t end = first + chunk.tokens_size();
  if (any_ && first > next_) {
    throw CallError(grpc::StatusCode::INTERNAL, "the server left out the tokens from position " +
                                                    std::to_string(next_) + " to " +
                                                    std::to_string(first - 1));
  }
  if (end <= next_) return nullptr;
  const std::int64_t seen = std::max<std::int64_t>(next_ - first, 0);
  next_ = end;
  any_ = true;
  if (seen == 0) return &chunk;
  cut_ = chunk;
  drop_first(*cut_.mutable_tokens(), static_cast<int>(seen));
  drop_first(*cut_.mutable_log2_probs(), static_cast<int>(seen));
  drop_first(*cut_.mutable_top(), static_cast<int>(seen));
  drop_first(*cut_.mutable_token_bytes(), static_cast<int>(seen));
  cut_.set_first_position(first + seen);
  return &cut_;
}

void KnownDurability::note(const v1::Session& session) {
  constexpr std::size_t kMost = 4096;  // of which the server is asked once more beyond that
  const std::lock_guard lock(mutex_);
  if (durable_.size() >= kMost) durable_.clear();
  durable_[session.id()] = session.durability() > v1::DURABILITY_NONE;
}

std::optional<bool> KnownDurability::of(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = durable_.find(id);
  if (found == durable_.end()) return std::nullopt;
  return found->second;
}

}  // namespace lintel
