// SPDX-License-Identifier: Apache-2.0
// Models that are unloaded while the server runs.
#include <thread>

#include "tests/server/support/repository_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;

TEST_CASE("an unloaded model refuses new requests at once while a running stream continues") {
  RepositoryServer f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  RunningStream running(*f.server, request_for("second", {1}, 1));
  grpc::Status unloaded;
  std::thread unloading([&] { unloaded = f.unload("second"); });
  REQUIRE(eventually([&] {
    return f.listed(true) == std::vector<std::string>{"second 1 UNLOADING", "tokens 1 READY"};
  }));
  const grpc::Status refused = generate(*f.server, request_for("second", {1}, 1)).status;
  CHECK(refused.error_code() == Code::NOT_FOUND);
  CHECK_THAT(refused.error_message(), Contains("second is being unloaded"));
  CHECK(f.health("second") == "not serving");
  v1::GenerateResponse message;
  for (int i = 0; i < 10; ++i) REQUIRE(running.reader->Read(&message));  // it continues
  running.context.TryCancel();
  running.end();
  unloading.join();
  CHECK(unloaded.ok());
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
}

TEST_CASE("past the drain timeout the streams of an unloaded model end, and others do not") {
  RepositoryServer f([](ServerOptions& options) {
    options.models.drain_timeout_ms = std::chrono::milliseconds(20);
  });
  f.write("second");
  REQUIRE(f.load("second").ok());
  RunningStream other(*f.server, request_for("tokens", {1}, 1));
  RunningStream running(*f.server, request_for("second", {1}, 1));
  std::thread unloading([&] { CHECK(f.unload("second").ok()); });
  const grpc::Status status = running.end();
  unloading.join();
  CHECK(status.error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Contains("second was unloaded"));
  CHECK(running.last.reason() == v1::FINISH_REASON_CANCELLED);  // with its final frame
  v1::GenerateResponse message;
  for (int i = 0; i < 10; ++i) REQUIRE(other.reader->Read(&message));
  other.context.TryCancel();
  other.end();
}

TEST_CASE("a Score that runs is not cut by an unload that has time") {
  RepositoryServer f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  v1::ScoreRequest request;
  request.set_model("second");
  for (int i = 0; i < 400; ++i) {
    auto& ids = *request.add_sequences()->mutable_tokens();
    for (int k = 0; k < 40; ++k) ids.add_ids(k);
  }
  grpc::ClientContext context;
  const auto reader = f.server->generation->Score(&context, request);
  v1::ScoreResponse response;
  REQUIRE(reader->Read(&response));
  std::thread unloading([&] { CHECK(f.unload("second").ok()); });
  int count = 1;
  while (reader->Read(&response)) ++count;
  CHECK(reader->Finish().ok());
  CHECK(count == 400);
  unloading.join();
}

TEST_CASE("sessions go with their model, and say so, and those of others stay") {
  RepositoryServer f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  SessionManager& store = f.server->server().store();
  const v1::Session kept = create_session(*f.server, "tokens");
  const std::size_t bytes = store.bytes_in_use();
  const v1::Session idle = create_session(*f.server, "second");
  const v1::Session busy = create_session(*f.server, "second");
  v1::GenerateRequest request = request_for("", {1}, 5);
  request.set_session_id(busy.id());
  RunningStream running(*f.server, request);
  std::thread unloading([&] { CHECK(f.unload("second").ok()); });
  REQUIRE(eventually([&] { return store.num_sessions() == 2; }));  // the idle one is gone at once

  const auto refusal = [&](const std::string& id) {
    v1::GenerateRequest next = request_for("", {1}, 5);
    next.set_session_id(id);
    return generate(*f.server, next).status;
  };
  const grpc::Status gone = refusal(idle.id());
  CHECK(gone.error_code() == Code::NOT_FOUND);
  CHECK_THAT(gone.error_message(), Contains("closed when its model was unloaded"));
  running.context.TryCancel();
  running.end();
  unloading.join();
  CHECK_THAT(refusal(busy.id()).error_message(), Contains("closed when its model was unloaded"));
  v1::GetSessionRequest get;
  get.set_id(idle.id());
  v1::Session session;
  grpc::ClientContext context;
  CHECK_THAT(f.server->sessions->Get(&context, get, &session).error_message(),
             Contains("closed when its model was unloaded"));
  CHECK(store.bytes_in_use() == bytes);
  CHECK(refusal(kept.id()).ok());
}

TEST_CASE("a server that stops ends the streams of a model being unloaded and answers the unload") {
  RepositoryServer f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  RunningStream running(*f.server, request_for("second", {1}, 1));
  grpc::Status unloaded(Code::UNKNOWN, "");
  std::thread unloading([&] { unloaded = f.unload("second"); });
  REQUIRE(eventually([&] { return f.listed(true).front() == "second 1 UNLOADING"; }));
  std::thread stopping([&] { f.server->server().stop(); });
  CHECK(running.end().error_code() == Code::UNAVAILABLE);
  unloading.join();
  stopping.join();
  CHECK(unloaded.ok());
}

TEST_CASE("a Score that had to wait for memory does not keep its model") {
  // The state of a sequence grows with its length, and there is memory for one of 1000 tokens.
  const AttentionSpec softmax = parse_attention_spec("softmax");
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 5);
  const std::shared_ptr<const Transformer> other =
      Transformer::load(directory.path(), {.attention = softmax});
  RepositoryServer f([&](ServerOptions& options) {
    options.models.attention = softmax;
    options.models.scheduling.workers = 0;
    options.sessions.session_memory_bytes = SessionManager::admitted_bytes(*other, 999);
  });
  f.write("second");
  REQUIRE(f.load("second").ok());
  Scheduler& scheduler = f.server->scheduler("second");
  const auto ended = [&] {
    return scheduler.stats().ended[static_cast<std::size_t>(RequestOutcome::kDone)];
  };

  auto in_the_way = f.server->server().store().lease_one_shot("other", other, 2, 1).lease;
  REQUIRE(in_the_way);
  v1::ScoreRequest request;
  request.set_model("second");
  for (const int length : {2, 1000}) {
    request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(length, 1);
  }
  grpc::ClientContext context;
  const auto reader = f.server->generation->Score(&context, request);
  REQUIRE(eventually([&] {
    scheduler.run_one_step();
    return ended() == 1;
  }));
  v1::ScoreResponse response;
  REQUIRE(reader->Read(&response));
  in_the_way = SessionLease();
  REQUIRE(eventually([&] {
    scheduler.run_one_step();
    return ended() == 2;
  }));
  REQUIRE(reader->Read(&response));
  REQUIRE(reader->Finish().ok());

  grpc::ClientContext unloading;
  unloading.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::UnloadModelRequest unload;
  unload.set_name("second");
  v1::UnloadModelResponse unloaded;
  CHECK(f.admin->UnloadModel(&unloading, unload, &unloaded).ok());
}

TEST_CASE("a server starts without models and loads one later") {
  RepositoryServer f;
  REQUIRE(f.unload("tokens").ok());
  CHECK(f.listed(false).empty());
  const grpc::Status status = generate(*f.server, request_for("", {1}, 1)).status;
  CHECK(status.error_code() == Code::NOT_FOUND);
  CHECK_THAT(status.error_message(), Contains("no model is loaded"));
  f.write("second");
  REQUIRE(f.load("second").ok());
  CHECK(f.tokens("").size() == 6);  // the only one
}

}  // namespace
}  // namespace lintel::testing
