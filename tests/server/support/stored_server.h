// SPDX-License-Identifier: Apache-2.0
// A server with durable sessions that can be restarted on the same directory.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/support/session_calls.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

struct StoredServer {
  explicit StoredServer(
      const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {},
      std::vector<std::string> models = {"tokens"})
      : names(std::move(models)) {
    options.durable.store = files.path() / "store";
    change(options);
    begin();
  }

  void begin() { server = std::make_unique<TestServer>(names, options, clock); }
  // Ends as with SIGTERM, and starts again.
  void restart() {
    server.reset();
    begin();
  }
  // A server on the files of a machine that lost its power now: the files as they are. The log that
  // grows is copied last, after the files that refer to it.
  std::unique_ptr<TestServer> crashed() {
    ServerOptions copy = options;
    copy.durable.store = files.path() / ("crash-" + std::to_string(++crashes));
    std::filesystem::create_directory(copy.durable.store);
    const auto take = [&](bool log) {
      for (const auto& file : std::filesystem::directory_iterator(options.durable.store)) {
        const std::filesystem::path name = file.path().filename();
        if (log == (name == "sessions.db-wal")) {
          std::filesystem::copy_file(file.path(), copy.durable.store / name);
        }
      }
    };
    take(false);
    take(true);
    return std::make_unique<TestServer>(names, copy, clock);
  }

  TestServer& operator*() const { return *server; }
  TestServer* operator->() const { return server.get(); }

  const TemporaryDirectory files;
  const std::vector<std::string> names;
  SteadyClock clock;
  ServerOptions options = test_options();
  int crashes = 0;
  std::unique_ptr<TestServer> server;
};

inline grpc::Status create_durable(TestServer& server, v1::Durability durability,
                                   v1::Session* session, const std::string& who = "") {
  v1::CreateSessionRequest request;
  request.set_model("tokens");
  request.set_durability(durability);
  grpc::ClientContext context;
  set_token(context, who);
  return server.sessions->Create(&context, request, session);
}

inline v1::Session created(TestServer& server, v1::Durability durability) {
  v1::Session session;
  const grpc::Status status = create_durable(server, durability, &session);
  if (!status.ok()) throw std::runtime_error("Create: " + status.error_message());
  return session;
}

// A call on a session, with a name.
inline v1::GenerateRequest call_on(const std::string& id, const std::string& call_id,
                                   const std::vector<int>& prompt, unsigned max_new_tokens) {
  v1::GenerateRequest request = request_for("", prompt, max_new_tokens);
  request.set_session_id(id);
  request.set_call_id(call_id);
  request.set_log2_probs(true);
  return request;
}

inline std::string reason_of(const grpc::Status& status) {
  const auto info = detail_of<google::rpc::ErrorInfo>(status);
  return info ? info->reason() : "";
}

}  // namespace lintel::testing
