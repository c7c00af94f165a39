// SPDX-License-Identifier: Apache-2.0
// DetachedCall: a call without a client.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/rpc/rpc.h"
#include "server/security/identity.h"

namespace lintel {

// The server's own call of one of its methods, for a known caller. Its answer is dropped. Owns
// itself: it is deleted with its reactor.
class DetachedCall final : public RpcCall, private RpcTransport {
 public:
  // `begin` makes the reactor, as a method does. on_end: the call's status, by any thread.
  static void run(Identity caller, std::function<void(const grpc::Status&)> on_end,
                  const std::function<RpcReactor*(RpcCall& call)>& begin);

  std::string_view header(const char*) const override { return ""; }
  std::string peer() const override { return ""; }
  std::string certificate() const override;
  std::optional<std::chrono::system_clock::time_point> deadline() const override {
    return std::nullopt;
  }
  const Identity* caller() const override { return &caller_; }
  const char* via() const override { return "restart"; }
  bool is_cancelled() const override { return false; }
  void add_header(const std::string&, const std::string&) override {}

 private:
  DetachedCall(Identity caller, std::function<void(const grpc::Status&)> on_end);
  ~DetachedCall() override = default;

  void read(RequestMessage& request) override;
  void begin() override;
  void write(const google::protobuf::Message& message) override;
  void finish(const google::protobuf::Message* last, grpc::Status status) override;

  const Identity caller_;
  const std::function<void(const grpc::Status&)> on_end_;
  RpcReactor* reactor_ = nullptr;  // constant after bind()
};

}  // namespace lintel
