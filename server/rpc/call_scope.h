// SPDX-License-Identifier: Apache-2.0
// CallScope: one RPC from its headers to its end, with its caller and request id.
#pragma once

#include <grpcpp/support/status.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/histogram.h"
#include "server/core/mutex.h"
#include "server/core/request_memory.h"
#include "server/observability/logging.h"
#include "server/rpc/rpc.h"
#include "server/security/bearer_tokens.h"
#include "server/security/identity.h"
#include "server/security/quotas.h"

namespace lintel {

// Every RPC method of the server: its name for metrics and logs, and the role it needs.

enum class Method {
  kGenerate,
  kScore,
  kRenderChat,
  kCompleteChat,
  kCreateResponse,
  kGetResponse,
  kReplayResponse,
  kDeleteResponse,
  kCancelResponse,
  kListInputItems,
  kCountInputTokens,
  kCompactResponse,
  kCreateSession,
  kGetSession,
  kListSessions,
  kDeleteSession,
  kForkSession,
  kRewindSession,
  kSnapshotSession,
  kRestoreSession,
  kReadHistory,
  kSaveState,
  kListStates,
  kDeleteState,
  kListModels,
  kGetModel,
  kStatistics,
  kTokenize,
  kDetokenize,
  kGetLogLevel,
  kSetLogLevel,
  kLoadModel,
  kUnloadModel,
  kLoadAdapter,
  kUnloadAdapter,
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kRepositoryIndex,
  kModelConfig,
  kModelStatistics,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  kModelInfer,
  kModelStreamInfer,
};

struct MethodInfo {
  Method method;
  const char* name;          // service and method, as on the wire
  std::optional<Role> role;  // needed by the caller; none: any identity will do
  bool is_health = false;    // answers without a token
};

// Indexed by Method: in the order of the enum.
inline constexpr std::array kMethods = {
    MethodInfo{Method::kGenerate, "lintel.v1.GenerationService/Generate", Role::kGenerate},
    MethodInfo{Method::kScore, "lintel.v1.GenerationService/Score", Role::kScore},
    MethodInfo{Method::kRenderChat, "lintel.v1.ChatService/Render", std::nullopt},
    MethodInfo{Method::kCompleteChat, "lintel.v1.ChatService/Complete", Role::kGenerate},
    MethodInfo{Method::kCreateResponse, "lintel.v1.ResponseService/Create", Role::kGenerate},
    MethodInfo{Method::kGetResponse, "lintel.v1.ResponseService/Get", Role::kGenerate},
    MethodInfo{Method::kReplayResponse, "lintel.v1.ResponseService/Replay", Role::kGenerate},
    MethodInfo{Method::kDeleteResponse, "lintel.v1.ResponseService/Delete", Role::kGenerate},
    MethodInfo{Method::kCancelResponse, "lintel.v1.ResponseService/Cancel", Role::kGenerate},
    MethodInfo{Method::kListInputItems, "lintel.v1.ResponseService/ListInputItems",
               Role::kGenerate},
    MethodInfo{Method::kCountInputTokens, "lintel.v1.ResponseService/CountInputTokens",
               std::nullopt},
    MethodInfo{Method::kCompactResponse, "lintel.v1.ResponseService/Compact", Role::kGenerate},
    MethodInfo{Method::kCreateSession, "lintel.v1.SessionService/Create", Role::kGenerate},
    MethodInfo{Method::kGetSession, "lintel.v1.SessionService/Get", Role::kGenerate},
    // An admin lists all sessions, others their own.
    MethodInfo{Method::kListSessions, "lintel.v1.SessionService/List", std::nullopt},
    MethodInfo{Method::kDeleteSession, "lintel.v1.SessionService/Delete", Role::kGenerate},
    MethodInfo{Method::kForkSession, "lintel.v1.SessionService/Fork", Role::kGenerate},
    MethodInfo{Method::kRewindSession, "lintel.v1.SessionService/Rewind", Role::kGenerate},
    MethodInfo{Method::kSnapshotSession, "lintel.v1.SessionService/Snapshot", Role::kGenerate},
    MethodInfo{Method::kRestoreSession, "lintel.v1.SessionService/Restore", Role::kGenerate},
    MethodInfo{Method::kReadHistory, "lintel.v1.SessionService/ReadHistory", Role::kGenerate},
    // Public states need the role admin besides.
    MethodInfo{Method::kSaveState, "lintel.v1.SessionService/SaveState", Role::kGenerate},
    MethodInfo{Method::kListStates, "lintel.v1.SessionService/ListStates", Role::kGenerate},
    MethodInfo{Method::kDeleteState, "lintel.v1.SessionService/DeleteState", Role::kGenerate},
    MethodInfo{Method::kListModels, "lintel.v1.ModelService/List", std::nullopt},
    MethodInfo{Method::kGetModel, "lintel.v1.ModelService/Get", std::nullopt},
    MethodInfo{Method::kStatistics, "lintel.v1.ModelService/Statistics", std::nullopt},
    MethodInfo{Method::kTokenize, "lintel.v1.ModelService/Tokenize", std::nullopt},
    MethodInfo{Method::kDetokenize, "lintel.v1.ModelService/Detokenize", std::nullopt},
    MethodInfo{Method::kGetLogLevel, "lintel.v1.AdminService/GetLogLevel", Role::kAdmin},
    MethodInfo{Method::kSetLogLevel, "lintel.v1.AdminService/SetLogLevel", Role::kAdmin},
    MethodInfo{Method::kLoadModel, "lintel.v1.AdminService/LoadModel", Role::kAdmin},
    MethodInfo{Method::kUnloadModel, "lintel.v1.AdminService/UnloadModel", Role::kAdmin},
    MethodInfo{Method::kLoadAdapter, "lintel.v1.AdminService/LoadAdapter", Role::kAdmin},
    MethodInfo{Method::kUnloadAdapter, "lintel.v1.AdminService/UnloadAdapter", Role::kAdmin},
    MethodInfo{Method::kServerLive, "inference.GRPCInferenceService/ServerLive", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kServerReady, "inference.GRPCInferenceService/ServerReady", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kModelReady, "inference.GRPCInferenceService/ModelReady", std::nullopt,
               /*is_health=*/true},
    MethodInfo{Method::kServerMetadata, "inference.GRPCInferenceService/ServerMetadata",
               std::nullopt},
    MethodInfo{Method::kModelMetadata, "inference.GRPCInferenceService/ModelMetadata",
               std::nullopt},
    MethodInfo{Method::kRepositoryIndex, "inference.GRPCInferenceService/RepositoryIndex",
               std::nullopt},
    MethodInfo{Method::kModelConfig, "inference.GRPCInferenceService/ModelConfig", std::nullopt},
    MethodInfo{Method::kModelStatistics, "inference.GRPCInferenceService/ModelStatistics",
               std::nullopt},
    MethodInfo{Method::kRepositoryModelLoad, "inference.GRPCInferenceService/RepositoryModelLoad",
               Role::kAdmin},
    MethodInfo{Method::kRepositoryModelUnload,
               "inference.GRPCInferenceService/RepositoryModelUnload", Role::kAdmin},
    MethodInfo{Method::kModelInfer, "inference.GRPCInferenceService/ModelInfer", Role::kGenerate},
    MethodInfo{Method::kModelStreamInfer, "inference.GRPCInferenceService/ModelStreamInfer",
               Role::kGenerate},
};

constexpr const MethodInfo& info_of(Method method) {
  return kMethods[static_cast<std::size_t>(method)];
}

// RequestCounters: how many calls of each method have ended, how, and how long they took.

inline constexpr std::size_t kNumStatusCodes = 17;  // OK .. UNAUTHENTICATED

// Thread-safe. A call is counted under the name of its model, and under "" if it concerns no model
// or was refused before the model was known. Callers pass names of models that exist, never one
// from the wire, so there are as many entries as models were ever loaded.
class RequestCounters {
 public:
  using Codes = std::array<std::uint64_t, kNumStatusCodes>;

  // Counts a call that was refused by its headers, which took the server no time.
  void count(Method method, int code) noexcept { cell("", method, code).fetch_add(1, kRelaxed); }
  // Counts a finished call: under no model if there is no memory for a model's entry.
  void count(Method method, std::string_view model, int code, double seconds) noexcept;

  // The number of calls about one model, or about none.
  std::uint64_t get(Method method, std::size_t code, std::string_view model = "") const
      EXCLUDES(mutex_);
  // Each method's calls by code, in the order of kMethods: a row a model, calls about none first.
  std::vector<std::pair<std::string, std::array<Codes, kMethods.size()>>> by_model() const
      EXCLUDES(mutex_);
  // Durations of calls about any model, in seconds, from the headers to the end of the call.
  HistogramSnapshot durations(Method method) const;
  std::uint64_t total() const EXCLUDES(mutex_);

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  // A stream may run for an hour, a health check takes a fraction of a millisecond.
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 300.0};

  using Cell = std::atomic<std::uint64_t>;
  using Cells = std::array<std::array<Cell, kNumStatusCodes>, kMethods.size()>;
  // A Histogram for many writers.
  struct Durations {
    std::array<Cell, kBounds.size() + 1> counts{};
    std::atomic<double> sum{0};
  };

  Cell& cell(std::string_view model, Method method, int code) noexcept EXCLUDES(mutex_);

  Cells without_model_{};
  std::array<Durations, kMethods.size()> durations_{};
  mutable Mutex mutex_;
  // Cells have stable addresses and are incremented without the mutex.
  std::map<std::string, std::unique_ptr<Cells>, std::less<>> models_ GUARDED_BY(mutex_);
};

// Counts a finished call and writes its line of the log.

// Tokens that a call read and produced.
struct TokenUse {
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
};

struct CallEnd {
  Method method;
  std::string_view model = {};         // empty: no model, or refused before it was known
  std::optional<double> seconds = {};  // none: it was refused by its headers
  TokenUse used = {};
};

// `fields`: the other fields of the line. Without memory for the line it is left out: nothing that
// waits for the end of the call waits for it.
void record_end(RequestCounters& counters, const CallEnd& end, const grpc::Status& status,
                LogFields& fields) noexcept;

// ActiveCalls: counts running calls, and refuses new ones once closed.

// Thread-safe.
class ActiveCalls {
 public:
  // Counts a call in. False, and nothing counted, once closed.
  bool enter() {
    MutexLock lock(mutex_);
    if (closed_) return false;
    ++count_;
    mirror_.store(count_, std::memory_order_relaxed);
    return true;
  }

  void leave() {
    MutexLock lock(mutex_);
    if (--count_ == 0) none_left_.notify_all();
    mirror_.store(count_, std::memory_order_relaxed);
  }

  // Counts an open call that may be inactive, as a stream of requests is between them: a drain does
  // not wait for it, but the server ends only after it.
  void hold() {
    MutexLock lock(mutex_);
    ++held_;
  }

  void release() {
    MutexLock lock(mutex_);
    if (--held_ == 0) none_left_.notify_all();
  }

  // Refuses new calls from now on. Running calls continue.
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }

  // The number of running calls. Takes no lock.
  int count() const { return mirror_.load(std::memory_order_relaxed); }

  // Waits until no call is left, or for `timeout`. True if none is left. `also_held`: waits for
  // held calls, too.
  bool wait_until_none(std::chrono::nanoseconds timeout, bool also_held = false) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mutex_);
    while (count_ > 0 || (also_held && held_ > 0)) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return false;
      none_left_.wait_for(mutex_, left);
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  CondVar none_left_;
  int count_ GUARDED_BY(mutex_) = 0;
  std::atomic<int> mirror_{0};  // of count_
  int held_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Counts a call in while it lives. Move-only.
class ActiveCall {
 public:
  ActiveCall() = default;  // none
  // False, and nothing counted, once closed. `calls` outlives the object.
  explicit ActiveCall(ActiveCalls& calls) : calls_(calls.enter() ? &calls : nullptr) {}
  ActiveCall(ActiveCall&& other) noexcept : calls_(std::exchange(other.calls_, nullptr)) {}
  ActiveCall& operator=(ActiveCall&& other) noexcept {
    std::swap(calls_, other.calls_);
    other.leave();
    return *this;
  }
  ~ActiveCall() { leave(); }

  explicit operator bool() const { return calls_ != nullptr; }
  void leave() {
    if (ActiveCalls* const calls = std::exchange(calls_, nullptr)) calls->leave();
  }

 private:
  ActiveCalls* calls_ = nullptr;
};

// The server's rules for every call. Everything is borrowed; the server owns it.
struct CallPolicy {
  const BearerTokens* bearer_tokens = nullptr;  // null: no token is required
  // True in mutual TLS without tokens: callers have the names of their certificates.
  bool identify_by_certificate = false;
  std::span<const std::string> admin_certificates;  // names with the role admin, too
  Roles anonymous;  // roles of callers without a token, if none is required
  Quotas& quotas;
  RequestCounters& counters;
  const Clock& clock;
  std::size_t max_message_bytes;    // of a request
  std::string replica_id = {};      // this server's, for answers; empty: left out of them
  RequestMemory* memory = nullptr;  // null: requests are not charged
};

// The bounds of a request of this method.
MessageBounds bounds_of(const CallPolicy& gate, Method method);

// The identity of a call's token; UNAUTHENTICATED where it is empty or unknown.
grpc::Status identify(const BearerTokens& tokens, std::string_view token, Identity& caller);

// Constructed first in every method; counts and logs the call when it ends. Callers are identified
// here only.
//
// Used by one thread at a time.
class CallScope {
 public:
  // Answers the call's headers with x-request-id and lintel-replica. `call` is used during the
  // constructor only.
  CallScope(const CallPolicy& gate, RpcCall& call, Method method);
  ~CallScope();  // ends a call that was not ended: an exception kept it from beginning
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // The caller's admission. Not OK: the caller is unknown (UNAUTHENTICATED) or lacks the role for
  // the method (PERMISSION_DENIED).
  const grpc::Status& admitted() const { return admitted_; }
  const Identity& caller() const { return caller_; }
  // An empty charge of this call's request.
  RequestMemory::Charge charge() const { return memory_.beside(); }
  // The key for fair turns of requests (GenerationRequest::caller): the name of the identity, or
  // the address of the client's connection if it has none.
  const std::string& turn_name() const { return caller_.name.empty() ? peer_ : caller_.name; }
  const LogFields& log_fields() const { return fields_; }

  // Sets the model of the call for the log line and the counters, as soon as it is known to exist.
  // A stream of requests has that of its first one.
  void set_model(const std::string& name);

  // Adds the tokens read and produced since the last call, for the log.
  void note_use(TokenUse used) noexcept;

  // Counts and logs the end of the call. Idempotent.
  void end(const grpc::Status& status) noexcept;

 private:
  void identify(const RpcCall& call);

  const CallPolicy& gate_;
  const MethodInfo& method_;
  const TimePoint begun_;
  std::string peer_;
  Identity caller_;
  RequestMemory::Charge memory_;  // empty: the charges beside it are used
  grpc::Status admitted_;
  LogFields fields_;
  std::string model_;  // empty: none, or not yet known
  TokenUse used_;      // the sum of all that was noted
  bool ended_ = false;
};

// StreamQuota: the share of one stream in the quotas of its identity.

// A stream's place among the streams of its identity, from enter() until the object is destroyed,
// and the allowance its requests pay from. Used by one thread at a time.
class StreamQuota {
 public:
  // Holds nothing yet. The quotas outlive the object.
  StreamQuota(Quotas& quotas, std::string identity)
      : quotas_(quotas), identity_(std::move(identity)) {}
  ~StreamQuota() { leave(); }
  StreamQuota(const StreamQuota&) = delete;
  StreamQuota& operator=(const StreamQuota&) = delete;

  // Takes a place. Not OK: RESOURCE_EXHAUSTED, and nothing is held. Called once.
  grpc::Status enter();
  // OK if a call that reads or produces tokens may begin, else RESOURCE_EXHAUSTED.
  grpc::Status check_tokens() const;
  // The allowance that the call's requests pay from; null if tokens are not limited. REQUIRES:
  // entered for as long as they run.
  std::shared_ptr<TokenAllowance> allowance() const;

  // Frees the place: the stream runs no more. To be called before the client can know that the call
  // is over; otherwise its next call is counted together with this one. Idempotent, as leave() is.
  void finish() noexcept;
  // Releases the stream when its call is gone. Calls finish(), too.
  void leave() noexcept;

 private:
  enum class State { kOutside, kRunning, kFinished };

  Quotas& quotas_;
  const std::string identity_;
  State state_ = State::kOutside;
};

// StreamCall: the CallScope and the StreamQuota of a streaming call.

// Scope and quota of a call that reads and produces tokens, from its headers to its end. Used by
// one thread at a time.
struct StreamCall {
  StreamCall(const CallPolicy& gate, RpcCall& context, Method method)
      : scope(gate, context, method), quota(gate.quotas, scope.caller().name) {}

  // Frees the call's place when it does nothing more, before its client knows.
  void finish(TokenUse used) noexcept {
    scope.note_use(used);
    quota.finish();
  }
  // Ends the scope of a call that is gone.
  void end(const grpc::Status& status) noexcept {
    quota.leave();
    scope.end(status);
  }

  CallScope scope;
  StreamQuota quota;
};

}  // namespace lintel
