// How Client calls: its servers, and one call with its deadline and what happens when it fails.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "client/lib/affinity.h"
#include "client/lib/client.h"
#include "client/lib/connect_failure.h"
#include "client/lib/repeat.h"
#include "client/lib/servers.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace lintel {

// One server.
struct Client::Stubs {
  Stubs(const std::shared_ptr<grpc::ChannelInterface>& c, std::string at)
      : channel(c),
        address(std::move(at)),
        generation(c),
        sessions(c),
        models(c),
        admin(c),
        health(c) {}
  const std::shared_ptr<grpc::ChannelInterface> channel;
  const std::string address;  // empty over the caller's own channel
  v1::GenerationService::Stub generation;
  v1::SessionService::Stub sessions;
  v1::ModelService::Stub models;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
};

struct Client::Known {
  Known(std::vector<std::shared_ptr<Stubs>> all, Servers<Stubs>::Spread spread)
      : servers(std::move(all), std::move(spread)) {}
  Servers<Stubs> servers;
  KnownDurability durability;  // of sessions that were answered with
};

// When a call is sent again by Client::Call, each time to another server.
enum class Client::Again {
  kUnsent,  // where not a byte of it was sent
  kSafe,    // and where the server may have had it: it changes nothing, or leaves what expires
  kNever,   // its caller sees to that
};

// One call: its deadline, and what happens when it fails.
class Client::Call {
 public:
  // session_id: that the call is about; empty: none.
  Call(const Client& client, Cancellation* cancellation, const std::string& session_id = "")
      : client_(client),
        cancellation_(cancellation),
        affinity_(session_id.empty() ? "" : affinity_key(session_id)) {
    // Longer ones overflow gRPC's clock and would have passed already.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    deadline_ = std::chrono::system_clock::now() + std::min(client.deadline_, kLongest);
  }

  // `method(server, context)` calls and returns the status. A session that a server holds which may
  // be gone is waited for.
  template <typename Method>
  void unary(const Method& method, Again again = Again::kUnsent) {
    Failures failures;
    RepeatPauses pauses(client_.retry_);
    moves_ = 0;
    for (;;) {
      Try once(*this);
      const grpc::Status status = method(*once.server, &once.context);
      if (waits_for_session(status, pauses)) continue;
      if (check(status, once, failures, again)) return;
    }
  }

  // `open(server, context)` starts a server stream, which is read to its end; it is not sent again
  // once something has come. If `on_message` throws, the call is cancelled on the server and its
  // status awaited before the exception propagates: a call is never left half read.
  template <typename Message, typename Open, typename OnMessage>
  void stream(const Open& open, const OnMessage& on_message, Again again) {
    Failures failures;
    if (again != Again::kNever) moves_ = 0;
    for (;;) {
      Try once(*this);
      const auto reader = open(*once.server, &once.context);
      Message message;
      try {
        while (reader->Read(&message)) {
          again = Again::kNever;
          on_message(message);
        }
      } catch (...) {
        once.context.TryCancel();
        while (reader->Read(&message)) {
        }
        reader->Finish();
        throw;
      }
      if (check(reader->Finish(), once, failures, again)) return;
    }
  }

  // `open(server, context)` starts a client stream, into which `produce(writer)` writes for as long
  // as the server reads. The response is there when this returns. If `produce` throws, the call is
  // cancelled on the server and its status awaited before the exception propagates.
  template <typename Open, typename Produce>
  void upload(const Open& open, const Produce& produce) {
    Failures failures;
    moves_ = 0;
    for (;;) {
      Try once(*this);
      const auto writer = open(*once.server, &once.context);
      try {
        produce(*writer);
      } catch (...) {
        once.context.TryCancel();
        writer->Finish();
        throw;
      }
      if (check(writer->Finish(), once, failures, Again::kUnsent)) return;
    }
  }

  // Away from the server that the last try failed at. Returns whether the next try goes to one that
  // was not tried since try_all_again().
  bool go_on() {
    const std::size_t count = client_.known_->servers.count();
    const bool others = client_.known_->servers.leave(last_, last_peer_);
    return others && ++moves_ < std::max(count, client_.known_->servers.count());
  }
  void try_all_again() { moves_ = 0; }

  // Tries to connect, if there is no connection, without gRPC's pause of a second after a failure.
  void connect_again(std::chrono::milliseconds at_most) const {
    const auto server = client_.known_->servers.current();
    grpc::ChannelInterface& channel = *server->channel;
    if (auto* const real = dynamic_cast<grpc::Channel*>(&channel)) {
      grpc::experimental::ChannelResetConnectionBackoff(real);
    }
    channel.WaitForConnected(std::min(deadline_, std::chrono::system_clock::now() + at_most));
  }

  // Between two tries, but not past the deadline. Throws CallError with CANCELLED.
  void wait(std::chrono::milliseconds time) const {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::system_clock::now());
    time = std::min(time, std::max(left, std::chrono::milliseconds(0)));
    if (cancellation_ == nullptr) {
      std::this_thread::sleep_for(time);
    } else if (cancellation_->wait_for(time)) {
      throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
    }
  }

 private:
  // The context of a try: deadline and token set, cancellation attached.
  struct Try {
    explicit Try(const Call& call)
        : server(call.client_.known_->servers.current()), attachment(call.cancellation_, context) {
      context.set_deadline(call.deadline_);
      const std::string& token = call.client_.token_;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
      if (!call.affinity_.empty()) context.AddMetadata(kAffinityHeader, call.affinity_);
    }
    const std::shared_ptr<Stubs> server;
    grpc::ClientContext context;
    Cancellation::Attachment attachment;  // after context: it goes first
  };
  struct Failures {
    bool odd = false;               // there was one that is tried again at the same server
    std::optional<CallError> said;  // what the first server said that was reached
  };

  // Waits until the session may be free; false: that is not why the call failed, or it was for
  // long.
  bool waits_for_session(const grpc::Status& status, RepeatPauses& pauses) const {
    if (status.error_code() != grpc::StatusCode::ABORTED || client_.retry_.count() <= 0) {
      return false;
    }
    const CallError error(status);
    if (error.error_reason() != "SESSION_HELD") return false;
    const auto pause = pauses.next(error);
    if (pause) wait(*pause);
    return pause.has_value();
  }

  // True: done. False: to be tried again, which is safe. Throws CallError.
  bool check(const grpc::Status& status, const Try& once, Failures& failures, Again again) {
    if (status.ok()) return true;
    const auto failure = connect_failure(status, client_.encrypted_);
    last_ = once.server;
    last_peer_ = failure ? "" : once.context.peer();
    const bool cancelled = cancellation_ != nullptr && cancellation_->cancelled();
    if (failure && failure->odd && !failures.odd && !cancelled) {
      failures.odd = true;
      connect_again(std::chrono::seconds(1));
      return false;
    }
    const CallError error =
        failure && !client_.address_.empty()
            ? CallError(status, client_.address_, failure->reason, failure->hint)
        : is_lost_connection(status)
            ? CallError(status.error_code(), "the connection to the server was lost")
            : CallError(status);
    const bool is_safe = failure ? again != Again::kNever : again == Again::kSafe;
    if (!failure && !failures.said) failures.said = error;
    if (is_safe && !cancelled && names_a_lost_server(error) && go_on()) {
      connect_again(kConnectPatience);
      return false;
    }
    // A server's own error says more than that another one was unreachable.
    throw failure && failures.said ? *failures.said : error;
  }

  // For a connection between two tries: one that is slower is there for the next.
  static constexpr std::chrono::milliseconds kConnectPatience{200};

  const Client& client_;
  Cancellation* const cancellation_;
  const std::string affinity_;
  std::chrono::system_clock::time_point deadline_;
  std::size_t moves_ = 0;        // to other servers, since all may be tried
  std::shared_ptr<Stubs> last_;  // that the last try failed at
  std::string last_peer_;        // where it was reached; empty: it was not
};

}  // namespace lintel
