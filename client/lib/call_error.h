// SPDX-License-Identifier: Apache-2.0
// CallError: status code and the decoded google.rpc details of a call that failed.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace grpc {

// Ends calls from another thread.

class ClientContext;
}  // namespace grpc

namespace lintel {

// One Cancellation may be given to any number of calls, at the same time and one after another. It
// must outlive them. cancel() ends every call that runs with it, which then throws CallError with
// CANCELLED, and every later one at once; the server frees what they held.
//
// Threads: all methods may be called from any thread. Not from a signal handler: let a thread wait
// for the signal.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void cancel();
  bool cancelled() const;
  // Sleeps, but not past cancel(). Returns cancelled().
  bool wait_for(std::chrono::milliseconds time);

  // Keeps a context attached for as long as it lives. For Client; `cancellation` may be null.
  class Attachment {
   public:
    Attachment(Cancellation* cancellation, grpc::ClientContext& context);
    ~Attachment();
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;

   private:
    Cancellation* const cancellation_;
    grpc::ClientContext& context_;
  };

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;                   // guarded by mutex_
  std::set<grpc::ClientContext*> contexts_;  // guarded by mutex_
};

// A field of the request the server refused.
struct FieldViolation {
  std::string field;        // path in the request, e.g. "sampling.top_p" or "given[2].position"
  std::string description;  // the value and the limit
};

// A resource that was not found, or could not be used.
struct ResourceProblem {
  std::string type;  // "model" or "session"
  std::string name;
  std::string description;
};

// Thrown by every call of Client that does not end with OK. what() is one line for people: the
// status code's name, the server's message, the fields refused and when to try again.
class CallError : public std::runtime_error {
 public:
  explicit CallError(const grpc::Status& status) : CallError(status, decode(status)) {}
  CallError(grpc::StatusCode code, const std::string& message)
      : CallError(grpc::Status(code, message)) {}
  // No connection to `address` came about, for this reason.
  CallError(const grpc::Status& status, const std::string& address, const std::string& reason,
            const std::string& hint);

  grpc::StatusCode code() const { return code_; }
  // The server's words alone; of a connection that was lost, this side's.
  const std::string& message() const { return message_; }

  // Decoded from the status; empty where the server sent none of the kind.
  const std::vector<FieldViolation>& violations() const { return violations_; }
  const std::vector<ResourceProblem>& resources() const { return resources_; }
  // The reason in google.rpc.ErrorInfo, for programs: "CALL_INTERRUPTED".
  const std::string& error_reason() const { return error_reason_; }
  // After this long the same request is worth sending again.
  std::optional<std::chrono::milliseconds> retry_delay() const { return retry_delay_; }

  // Set if no server was reached: the address, the reason, for people, and a hint at the cause, if
  // any. Empty for every other failure.
  const std::string& unreached() const { return unreached_; }
  const std::string& reason() const { return reason_; }
  const std::string& hint() const { return hint_; }

 private:
  struct Details {
    std::vector<FieldViolation> violations;
    std::vector<ResourceProblem> resources;
    std::string error_reason;
    std::optional<std::chrono::milliseconds> retry_delay;
  };
  CallError(const grpc::Status& status, Details details);
  static Details decode(const grpc::Status& status);
  static std::string describe(const grpc::Status& status, const Details& details);

  grpc::StatusCode code_;
  std::string message_;
  std::vector<FieldViolation> violations_;
  std::vector<ResourceProblem> resources_;
  std::string error_reason_;
  std::optional<std::chrono::milliseconds> retry_delay_;
  std::string unreached_, reason_, hint_;
};

// "INVALID_ARGUMENT" for grpc::StatusCode::INVALID_ARGUMENT; "status 42" for an unknown code.
std::string status_code_name(grpc::StatusCode code);

}  // namespace lintel
