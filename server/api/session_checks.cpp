// SPDX-License-Identifier: Apache-2.0
#include "server/api/session_checks.h"

#include "server/rpc/status.h"

namespace lintel {
namespace {

constexpr std::int64_t kFarthestPosition = std::int64_t{1} << 53;
constexpr std::uint32_t kMostForks = 64;
constexpr std::uint32_t kDefaultChunkBytes = 256 << 10;
constexpr std::uint32_t kMostChunkBytes = 1 << 20;
constexpr std::uint32_t kMostCheckpoints = 64;
constexpr std::int64_t kLongestExpiry = 3650 * 24 * 3600;  // seconds

std::optional<Digest> digest_from(const std::string& hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0) return std::nullopt;
    digest.bytes[i / 2] = (digest.bytes[i / 2] << 4) | static_cast<std::byte>(value);
  }
  return digest;
}

}  // namespace

CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations) {
  CheckedList out;
  constexpr int kMaxPage = 1000;
  if (wire.page_size() < 0 || wire.page_size() > kMaxPage) {
    violations.add("page_size", std::to_string(wire.page_size()) + " is not from 0 to " +
                                    std::to_string(kMaxPage));
  } else if (wire.page_size() > 0) {
    out.page_size = static_cast<std::size_t>(wire.page_size());
  }
  const std::string& token = wire.page_token();
  // Ids of sessions that have names are twice as long (SessionOptions::id_prefix).
  const bool is_id = (token.size() == 32 || token.size() == 64) &&
                     token.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!token.empty() && !is_id) {
    violations.add("page_token", "'" + clip(token) + "' is not a next_page_token of this server");
  }
  out.after_id = token;
  return out;
}

void check_session_id(const std::string& id, Violations& violations) {
  if (id.empty()) violations.add("id", "is empty");
}

void check_session_length(std::int64_t max_tokens, const std::string& field, std::int64_t most,
                          Violations& violations) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  if (max_tokens >= 0 && max_tokens <= (most == 0 ? kFarthest : most)) return;
  violations.add(field, std::to_string(max_tokens) + " is not from 0 to " +
                            (most == 0 ? std::string("2^53") : std::to_string(most)));
}

void check_position(std::int64_t position, const std::string& field, Violations& violations) {
  if (position >= 0 && position <= kFarthestPosition) return;
  violations.add(field, std::to_string(position) + " is not from 0 to 2^53");
}

CheckedFork check_fork(const v1::ForkSessionRequest& wire, Violations& violations) {
  CheckedFork out;
  check_session_id(wire.id(), violations);
  if (wire.has_position()) {
    check_position(wire.position(), "position", violations);
    out.position = wire.position();
  }
  if (wire.count() > kMostForks) {
    violations.add("count", std::to_string(wire.count()) + " forks are more than " +
                                std::to_string(kMostForks));
  } else if (wire.count() > 0) {
    out.count = static_cast<int>(wire.count());
  }
  return out;
}

CheckedRewind check_rewind(const v1::RewindSessionRequest& wire, Violations& violations) {
  CheckedRewind out;
  check_session_id(wire.id(), violations);
  check_position(wire.position(), "position", violations);
  out.position = wire.position();
  if (wire.has_expected_digest()) {
    out.expected = digest_from(wire.expected_digest());
    if (!out.expected) {
      violations.add("expected_digest", "'" + clip(wire.expected_digest()) +
                                            "' is not 32 hexadecimal digits, as Session.digest");
    }
  }
  return out;
}

CheckedSnapshot check_snapshot(const v1::SnapshotSessionRequest& wire, Violations& violations) {
  CheckedSnapshot out;
  check_session_id(wire.id(), violations);
  if (wire.has_position()) {
    check_position(wire.position(), "position", violations);
    out.position = wire.position();
  }
  if (wire.without_history() && wire.without_state()) {
    violations.add("without_state", "nothing is left without history and state");
  }
  if (wire.chunk_bytes() > kMostChunkBytes) {
    violations.add("chunk_bytes", std::to_string(wire.chunk_bytes()) + " is more than " +
                                      std::to_string(kMostChunkBytes));
  }
  out.chunk_bytes = wire.chunk_bytes() == 0 ? kDefaultChunkBytes : wire.chunk_bytes();
  return out;
}

CheckedHistory check_history(const v1::ReadHistoryRequest& wire, Violations& violations) {
  CheckedHistory out;
  check_session_id(wire.id(), violations);
  check_position(wire.from_position(), "from_position", violations);
  out.from = wire.from_position();
  if (!wire.has_to_position()) return out;
  check_position(wire.to_position(), "to_position", violations);
  if (wire.to_position() < wire.from_position()) {
    violations.add("to_position", std::to_string(wire.to_position()) + " is before " +
                                      std::to_string(wire.from_position()));
  }
  out.to = wire.to_position();
  return out;
}

Durability default_durability(const PersistentSessions* store) {
  return store == nullptr ? Durability::kNone : store->options().durability;
}

grpc::Status check_durability(v1::Durability wire, const std::string& field,
                              const PersistentSessions* store, Durability otherwise,
                              Durability* durability) {
  *durability = otherwise;
  if (wire == v1::DURABILITY_UNSPECIFIED) return grpc::Status::OK;
  if (!v1::Durability_IsValid(wire)) {
    return invalid_argument({{field, std::to_string(wire) + " is no durability"}});
  }
  *durability = static_cast<Durability>(wire - v1::DURABILITY_NONE);
  if (*durability == Durability::kNone || store != nullptr) return grpc::Status::OK;
  return wrong_state("NO_SESSION_STORE",
                     "no session outlives this server: it was started without --session-store", {});
}

std::chrono::seconds check_expiry(const google::protobuf::Duration& expire_after,
                                  Durability durability, Violations& violations) {
  const std::int64_t seconds = expire_after.seconds() + (expire_after.nanos() > 0 ? 1 : 0);
  if (durability == Durability::kNone) {
    violations.add("expire_after", "is for sessions that outlive the server");
  } else if (expire_after.seconds() < 0 || seconds < 1 || seconds > kLongestExpiry) {
    violations.add("expire_after", std::to_string(expire_after.seconds()) +
                                       " s is not above 0 and at most " +
                                       std::to_string(kLongestExpiry) + " s");
  }
  return std::chrono::seconds(seconds);
}

void check_session_options(const v1::CreateSessionRequest& wire, SessionOptions& options,
                           Violations& violations) {
  const v1::CheckpointPolicy& policy = wire.checkpoints();
  if (policy.keep() > kMostCheckpoints) {
    violations.add("checkpoints.keep", std::to_string(policy.keep()) + " is more than " +
                                           std::to_string(kMostCheckpoints));
  }
  if ((policy.keep() == 0) != (policy.every_tokens() == 0)) {
    violations.add(policy.keep() == 0 ? "checkpoints.keep" : "checkpoints.every_tokens",
                   "is 0, so that none is kept: give both or neither");
  }
  options.checkpoint_every = policy.every_tokens();
  options.checkpoint_keep = policy.keep();
  check_position(wire.history_tokens(), "history_tokens", violations);
  options.history_tokens = wire.history_tokens();
}

}  // namespace lintel
