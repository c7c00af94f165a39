#include "server/api/call_checks.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <span>
#include <string>

#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

// Of all that makes the values but the seed, which a repeat need not know. When a repeat is sent,
// where it stands and how long it may take are its own.
Digest digest_of_call(v1::GenerateRequest wire, const std::vector<std::int32_t>* prompt) {
  if (prompt != nullptr) {
    wire.mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(prompt->begin(), prompt->end());
  }
  wire.clear_from_position();
  wire.clear_expected_position();
  wire.clear_time_limit();
  wire.clear_max_tokens_per_message();
  wire.mutable_sampling()->clear_seed();
  if (wire.window() == 0) wire.clear_window();  // 0 and absent have one digest
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    wire.SerializeToCodedStream(&coded);
  }
  return digest_of(std::as_bytes(std::span(bytes)));
}

}  // namespace

CallTerms check_call_terms(const v1::GenerateRequest& wire, const std::vector<std::int32_t>* prompt,
                           const SessionLease& lease, Violations& violations) {
  CallTerms terms;
  const std::string& id = wire.call_id();
  const bool is_durable = lease && lease.durability() != Durability::kNone;
  if (!id.empty()) {
    const bool is_printable = std::ranges::all_of(id, [](char c) { return c >= ' ' && c <= '~'; });
    if (!lease) {
      violations.add("call_id", "is for calls on sessions: this one cannot be repeated");
    } else if (!is_durable) {
      violations.add("call_id", "is for sessions that outlive the server, which session " +
                                    clip(lease.session_id()) + " does not (durability)");
    } else if (id.size() > kMostCallIdBytes || !is_printable) {
      violations.add("call_id", "'" + clip(id) + "' is not at most " +
                                    std::to_string(kMostCallIdBytes) +
                                    " printable ASCII characters");
    }
  }
  if (wire.from_position() < 0) {
    violations.add("from_position", std::to_string(wire.from_position()) + " is less than 0");
  } else if (wire.from_position() > 0 && id.empty()) {
    violations.add("from_position", "is for repeats, which have a call_id");
  }
  if (wire.has_expected_position()) {
    if (!lease) {
      violations.add("expected_position", "is for calls on sessions");
    } else if (wire.expected_position() < 0) {
      violations.add("expected_position",
                     std::to_string(wire.expected_position()) + " is less than 0");
    }
    terms.expected_position = wire.expected_position();
  }
  terms.id = id;
  if (wire.sampling().has_seed()) terms.seed = wire.sampling().seed();
  terms.from_position = wire.from_position();
  terms.log2_probs = wire.log2_probs() || wire.top_log2_probs() > 0;
  terms.echo_prompt = wire.echo_prompt();
  if (is_durable && violations.empty()) terms.request = digest_of_call(wire, prompt);
  return terms;
}

SessionRefusal check_expected_position(const CallTerms& terms, std::int64_t num_values) {
  if (!terms.expected_position || *terms.expected_position == num_values) return {};
  return {SessionError::kPositionMismatch, 0, 0, -1, num_values, *terms.expected_position};
}

}  // namespace lintel
