// How Client calls: its stubs, and one call with its deadline and what happens when it fails.
#pragma once

#include <algorithm>
#include <memory>
#include <thread>

#include "client/lib/client.h"
#include "client/lib/connect_failure.h"
#include "client/lib/repeat.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace lintel {

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::ChannelInterface>& c)
      : channel(c), generation(c), sessions(c), models(c), admin(c), health(c) {}
  const std::shared_ptr<grpc::ChannelInterface> channel;
  v1::GenerationService::Stub generation;
  v1::SessionService::Stub sessions;
  v1::ModelService::Stub models;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
  KnownDurability durability;  // of sessions that were answered with
};

// One call: its deadline, and what happens when it fails.
class Client::Call {
 public:
  Call(const Client& client, Cancellation* cancellation)
      : client_(client), cancellation_(cancellation) {
    // Longer ones overflow gRPC's clock and would have passed already.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    deadline_ = std::chrono::system_clock::now() + std::min(client.deadline_, kLongest);
  }

  // `method(context)` calls and returns the status.
  template <typename Method>
  void unary(const Method& method) {
    for (bool again = false;; again = true) {
      Try once(*this);
      if (check(method(&once.context), again)) return;
    }
  }

  // `open(context)` starts a server stream, which is read to its end. If `on_message` throws, the
  // call is cancelled on the server and its status awaited before the exception goes on: a call is
  // never left half read.
  template <typename Message, typename Open, typename OnMessage>
  void stream(const Open& open, const OnMessage& on_message) {
    for (bool again = false;; again = true) {
      Try once(*this);
      const auto reader = open(&once.context);
      Message message;
      try {
        while (reader->Read(&message)) on_message(message);
      } catch (...) {
        once.context.TryCancel();
        while (reader->Read(&message)) {
        }
        reader->Finish();
        throw;
      }
      if (check(reader->Finish(), again)) return;
    }
  }

  // `open(context)` starts a client stream, into which `produce(writer)` writes for as long as the
  // server reads. The response is there when this returns. If `produce` throws, the call is
  // cancelled on the server and its status awaited before the exception goes on.
  template <typename Open, typename Produce>
  void upload(const Open& open, const Produce& produce) {
    for (bool again = false;; again = true) {
      Try once(*this);
      const auto writer = open(&once.context);
      try {
        produce(*writer);
      } catch (...) {
        once.context.TryCancel();
        writer->Finish();
        throw;
      }
      if (check(writer->Finish(), again)) return;
    }
  }

  // Tries to connect, if there is no connection, without gRPC's pause of a second after a failure.
  void connect_again(std::chrono::milliseconds at_most) const {
    grpc::ChannelInterface& channel = *client_.stubs_->channel;
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
    explicit Try(const Call& call) : attachment(call.cancellation_, context) {
      context.set_deadline(call.deadline_);
      const std::string& token = call.client_.token_;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    }
    grpc::ClientContext context;
    Cancellation::Attachment attachment;  // after context: it goes first
  };

  // True: done. False: to be tried again, which is safe because not a byte was sent.
  bool check(const grpc::Status& status, bool tried_again) const {
    if (status.ok()) return true;
    const auto failure = connect_failure(status, client_.encrypted_);
    if (!failure) throw CallError(status);
    const bool cancelled = cancellation_ != nullptr && cancellation_->cancelled();
    if (failure->odd && !tried_again && !cancelled) {
      connect_again(std::chrono::seconds(1));
      return false;
    }
    if (client_.address_.empty()) throw CallError(status);
    throw CallError(status, client_.address_, failure->reason, failure->hint);
  }

  const Client& client_;
  Cancellation* const cancellation_;
  std::chrono::system_clock::time_point deadline_;
};

}  // namespace lintel
