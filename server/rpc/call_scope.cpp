// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_scope.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "server/observability/logging.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"
#include "server/security/identity.h"

namespace lintel {

RequestCounters::Cell& RequestCounters::cell(std::string_view model, Method method,
                                             int code) noexcept {
  const std::size_t row = static_cast<std::size_t>(method);
  auto column = static_cast<std::size_t>(code);
  if (column >= kNumStatusCodes) column = 2;  // UNKNOWN
  if (model.empty()) return without_model_[row][column];
  try {
    MutexLock lock(mutex_);
    auto found = models_.find(model);
    if (found == models_.end()) {
      found = models_.emplace(std::string(model), std::make_unique<Cells>()).first;
    }
    return (*found->second)[row][column];
  } catch (const std::bad_alloc&) {
    return without_model_[row][column];
  }
}

void RequestCounters::count(Method method, std::string_view model, int code,
                            double seconds) noexcept {
  cell(model, method, code).fetch_add(1, kRelaxed);
  Durations& durations = durations_[static_cast<std::size_t>(method)];
  const auto bucket = std::ranges::lower_bound(kBounds, seconds) - kBounds.begin();
  durations.counts[static_cast<std::size_t>(bucket)].fetch_add(1, kRelaxed);
  durations.sum.fetch_add(seconds, kRelaxed);
}

std::uint64_t RequestCounters::get(Method method, std::size_t code, std::string_view model) const {
  const std::size_t row = static_cast<std::size_t>(method);
  if (model.empty()) return without_model_[row][code].load(kRelaxed);
  MutexLock lock(mutex_);
  const auto found = models_.find(model);
  return found == models_.end() ? 0 : (*found->second)[row][code].load(kRelaxed);
}

std::vector<std::pair<std::string, std::array<RequestCounters::Codes, kMethods.size()>>>
RequestCounters::by_model() const {
  std::vector<std::pair<std::string, std::array<Codes, kMethods.size()>>> all;
  const auto add = [&all](const std::string& model, const Cells& cells) {
    auto& counts = all.emplace_back(model, std::array<Codes, kMethods.size()>{}).second;
    for (std::size_t row = 0; row < cells.size(); ++row) {
      for (std::size_t code = 0; code < kNumStatusCodes; ++code) {
        counts[row][code] = cells[row][code].load(kRelaxed);
      }
    }
  };
  add("", without_model_);
  MutexLock lock(mutex_);
  for (const auto& [model, cells] : models_) add(model, *cells);
  return all;
}

HistogramSnapshot RequestCounters::durations(Method method) const {
  const Durations& durations = durations_[static_cast<std::size_t>(method)];
  HistogramSnapshot snapshot;
  snapshot.bounds.assign(kBounds.begin(), kBounds.end());
  for (const Cell& count : durations.counts) snapshot.counts.push_back(count.load(kRelaxed));
  snapshot.sum = durations.sum.load(kRelaxed);
  return snapshot;
}

std::uint64_t RequestCounters::total() const {
  std::uint64_t sum = 0;
  const auto add = [&sum](const Cells& cells) {
    for (const auto& codes : cells) {
      for (const Cell& count : codes) sum += count.load(kRelaxed);
    }
  };
  add(without_model_);
  MutexLock lock(mutex_);
  for (const auto& [model, cells] : models_) add(*cells);
  return sum;
}

void record_end(RequestCounters& counters, const CallEnd& end, const grpc::Status& status,
                LogFields& fields) noexcept {
  try {
    const int code = status.error_code();
    if (end.seconds) {
      counters.count(end.method, end.model, code, *end.seconds);
    } else {
      counters.count(end.method, code);
    }
    // Never what was sent or generated; the status's text may quote the request.
    fields.add("code", code_name(code));
    if (end.seconds) fields.add("seconds", *end.seconds);
    if (end.used.prompt + end.used.generated > 0) {
      fields.add("prompt_tokens", end.used.prompt);
      fields.add("generated_tokens", end.used.generated);
    }
    const LogScope scope(fields);
    spdlog::info("call ended");
    if (!status.ok()) spdlog::debug("because: {}", status.error_message());
  } catch (...) {
  }
}

grpc::Status identify(const BearerTokens& tokens, std::string_view token, Identity& caller) {
  if (token.empty()) return unauthenticated("a token is needed: authorization: Bearer TOKEN");
  std::optional<Identity> known = tokens.find(token);
  if (!known) return unauthenticated("the token is not known");
  caller = std::move(*known);
  return grpc::Status::OK;
}

MessageBounds bounds_of(const CallPolicy& gate, Method method) {
  return info_of(method).is_health ? kOpenMessage : MessageBounds{gate.max_message_bytes};
}

CallScope::CallScope(const CallPolicy& gate, RpcCall& call, Method method)
    : gate_(gate), method_(info_of(method)), begun_(gate.clock.now()) {
  const std::string request_id = request_id_from(call.header("x-request-id"));
  call.add_header("x-request-id", request_id);
  if (!gate_.replica_id.empty()) call.add_header("lintel-replica", gate_.replica_id);
  fields_.add("request_id", request_id);
  fields_.add("method", method_.name);
  peer_ = call.peer();
  fields_.add("peer", peer_);
  if (call.via() != nullptr) fields_.add("via", call.via());
  const TraceParent trace = parse_traceparent(call.header("traceparent"));
  if (!trace.trace_id.empty()) {
    fields_.add("trace_id", trace.trace_id);
    fields_.add("parent_span_id", trace.parent_id);
  }
  identify(call);
  if (!call.is_charged()) {
    const RequestMemory::Charge* const request = call.memory();
    memory_ =
        request != nullptr ? request->beside() : RequestMemory::Charge(gate_.memory, caller_.name);
  }
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

void CallScope::identify(const RpcCall& call) {
  if (gate_.bearer_tokens == nullptr) {
    caller_.roles = gate_.anonymous;
    if (!gate_.identify_by_certificate) return;
    const std::string name = call.certificate();
    if (name.empty()) return;
    // Names of tokens have no colon, so none equals this one.
    caller_.name = "x509:" + name;
    if (std::ranges::find(gate_.admin_certificates, name) != gate_.admin_certificates.end()) {
      caller_.roles.add(Role::kAdmin);
    }
    return;
  }
  if (call.caller() != nullptr) {
    caller_ = *call.caller();
    return;
  }
  admitted_ =
      lintel::identify(*gate_.bearer_tokens, bearer_token(call.header("authorization")), caller_);
}

void CallScope::set_model(const std::string& name) {
  if (!model_.empty()) return;
  model_ = name;
  fields_.add("model", name);
}

void CallScope::note_use(TokenUse used) noexcept {
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

grpc::Status StreamQuota::enter() {
  if (!quotas_.enter_stream(identity_)) {
    return quota_exceeded(identity_, "at most " + std::to_string(quotas_.limits().max_streams) +
                                         " streams at a time");
  }
  state_ = State::kRunning;
  return grpc::Status::OK;
}

grpc::Status StreamQuota::check_tokens() const {
  const Duration wait = quotas_.wait_to_begin(identity_);
  if (wait == Duration::zero()) return grpc::Status::OK;
  return quota_exceeded(identity_,
                        std::to_string(quotas_.limits().tokens_per_second) +
                            " tokens a second, of which its calls have used more",
                        std::chrono::ceil<std::chrono::milliseconds>(wait));
}

std::shared_ptr<TokenAllowance> StreamQuota::allowance() const {
  if (quotas_.limits().tokens_per_second == 0) return nullptr;
  return std::make_shared<QuotaAllowance>(quotas_, identity_);
}

void StreamQuota::finish() noexcept {
  if (state_ != State::kRunning) return;
  state_ = State::kFinished;
  quotas_.finish_stream(identity_);
}

void StreamQuota::leave() noexcept {
  finish();
  if (state_ != State::kFinished) return;
  state_ = State::kOutside;
  quotas_.leave_stream(identity_);
}

}  // namespace lintel
