#include "server/grpc/transport/call_scope.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "server/grpc/transport/status.h"
#include "server/observability/request_id.h"
#include "server/security/inner_call.h"

namespace lintel {
namespace {

// Of a header that was sent once; empty when it was not, or when several make it ambiguous.
std::string_view header(const grpc::CallbackServerContext& call, const char* name) {
  const auto [first, last] = call.client_metadata().equal_range(name);
  if (first == last || std::next(first) != last) return {};
  return {first->second.data(), first->second.size()};
}

// The call was made by this process itself, so what it says of its client is true.
bool is_inner(const CallGate& gate, const grpc::CallbackServerContext& call) {
  return !gate.inner_key.empty() && header(call, kInnerKey) == gate.inner_key;
}

// The first name in the certificate that the client showed to gRPC's port; empty without one.
std::string peer_name(const grpc::CallbackServerContext& call) {
  const auto names = call.auth_context()->GetPeerIdentity();
  return names.empty() ? std::string() : std::string(names[0].data(), names[0].size());
}

}  // namespace

grpc::Status identify(const BearerTokens& tokens, std::string_view token, Identity& caller) {
  if (token.empty()) return unauthenticated("a token is needed: authorization: Bearer TOKEN");
  std::optional<Identity> known = tokens.find(token);
  if (!known) return unauthenticated("the token is not known");
  caller = std::move(*known);
  return grpc::Status::OK;
}

MessageBounds bounds_of(const CallGate& gate, Method method) {
  return info_of(method).is_health ? kOpenMessage : MessageBounds{gate.max_message_bytes};
}

CallScope::CallScope(const CallGate& gate, grpc::CallbackServerContext& call, Method method)
    : gate_(gate), method_(info_of(method)), begun_(gate.clock.now()) {
  const std::string request_id = request_id_from(header(call, "x-request-id"));
  call.AddInitialMetadata("x-request-id", request_id);
  if (!gate_.replica_id.empty()) call.AddInitialMetadata("lintel-replica", gate_.replica_id);
  fields_.add("request_id", request_id);
  fields_.add("method", method_.name);
  const bool inner = is_inner(gate_, call);
  peer_ = inner ? std::string(header(call, kInnerPeer)) : call.peer();
  fields_.add("peer", peer_);
  if (inner) fields_.add("via", "http");
  const TraceParent trace = parse_traceparent(header(call, "traceparent"));
  if (!trace.trace_id.empty()) {
    fields_.add("trace_id", trace.trace_id);
    fields_.add("parent_span_id", trace.parent_id);
  }
  identify(call, inner);
  if (method_.is_health) admitted_ = grpc::Status::OK;
  if (!caller_.name.empty()) fields_.add("identity", caller_.name);
  if (admitted_.ok() && method_.role && !caller_.roles.has(*method_.role)) {
    std::string what = std::string("this needs the role ") + to_string(*method_.role);
    if (gate_.bearer_tokens == nullptr) {
      what += gate_.identify_by_certificate
                  ? ", which a server without --auth-tokens gives to certificates by "
                    "--admin-certificate"
                  : ", which a server without --auth-tokens gives only in plain text on a loopback "
                    "address or a unix socket";
    }
    admitted_ = permission_denied(what);
  }
}

CallScope::~CallScope() {
  if (!ended_) end(out_of_memory());
}

void CallScope::identify(const grpc::CallbackServerContext& call, bool inner) {
  if (gate_.bearer_tokens == nullptr) {
    caller_.roles = gate_.anonymous;
    if (!gate_.identify_by_certificate) return;
    const std::string name = inner ? std::string(header(call, kInnerCertificate)) : peer_name(call);
    if (name.empty()) return;
    // No token is named so: names of tokens have no colon.
    caller_.name = "x509:" + name;
    if (std::ranges::find(gate_.admin_certificates, name) != gate_.admin_certificates.end()) {
      caller_.roles.add(Role::kAdmin);
    }
    return;
  }
  admitted_ =
      lintel::identify(*gate_.bearer_tokens, bearer_token(header(call, "authorization")), caller_);
}

void CallScope::set_model(const std::string& name) {
  if (!model_.empty()) return;
  model_ = name;
  fields_.add("model", name);
}

void CallScope::note_use(ValueUse used) noexcept {
  used_.prompt += used.prompt;
  used_.generated += used.generated;
}

void CallScope::end(const grpc::Status& status) noexcept {
  if (ended_) return;
  ended_ = true;
  const double seconds = std::chrono::duration<double>(gate_.clock.now() - begun_).count();
  record_end(gate_.counters,
             {.method = method_.method, .model = model_, .seconds = seconds, .used = used_}, status,
             fields_);
}

}  // namespace lintel
