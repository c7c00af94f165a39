// SPDX-License-Identifier: Apache-2.0
// Models that are loaded while the server runs.
#include <filesystem>
#include <fstream>
#include <thread>

#include "model/fastest_type.h"
#include "tests/server/support/repository_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;
namespace fs = std::filesystem;

TEST_CASE("a context that is lowered ends sequences, and is said of the model") {
  RepositoryServer f([](ServerOptions& options) { options.models.context = 10; });
  f.write("second");
  v1::Model model;
  REQUIRE(f.load("second", "", &model).ok());
  CHECK(model.max_length() == 9);  // the last token is never fed
  v1::GenerateRequest request = request_for("second", {1, 2, 3, 4}, 1);
  request.clear_max_new_tokens();
  const Generated whole = generate(*f.server, request);
  REQUIRE(whole.status.ok());
  CHECK(whole.only().tokens.size() == 6);
  const grpc::Status refused =
      generate(*f.server, request_for("second", std::vector<int>(11, 1), 1)).status;
  CHECK(violated_fields(refused) == std::vector<std::string>{"prompt"});
}

TEST_CASE("a model of the repository is loaded, serves and is unloaded while another runs") {
  RepositoryServer f;
  f.write("second");
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
  CHECK(f.listed(true) == std::vector<std::string>{"second 1 UNAVAILABLE", "tokens 1 READY"});
  CHECK(f.health("second") == "unknown");
  RunningStream other(*f.server, request_for("tokens", {1}, 1));
  const std::vector<int> before = f.tokens("tokens");

  v1::Model model;
  REQUIRE(f.load("second", "", &model).ok());
  CHECK(model.name() == "second");
  CHECK(model.version() == "1");
  CHECK(model.state() == v1::MODEL_STATE_READY);
  CHECK(model.parameters() > 0);
  CHECK(f.listed(false) == std::vector<std::string>{"second 1 READY", "tokens 1 READY"});
  CHECK(f.health("second") == "serving");
  CHECK(f.health("tokens") == "serving");
  CHECK(f.tokens("second") != before);  // other weights
  CHECK(f.tokens("tokens") == before);

  REQUIRE(f.unload("second").ok());
  CHECK(f.listed(true) == std::vector<std::string>{"second 1 UNAVAILABLE", "tokens 1 READY"});
  CHECK(f.reason("second") == "unloaded");
  CHECK(f.health("second") == "not serving");
  const Generated refused = generate(*f.server, request_for("second", {1}, 1));
  CHECK(refused.status.error_code() == Code::NOT_FOUND);
  CHECK(f.unload("second").error_code() == Code::NOT_FOUND);
  CHECK(f.tokens("tokens") == before);
  other.context.TryCancel();
  CHECK(other.end().error_code() == Code::CANCELLED);

  REQUIRE(f.load("second").ok());  // and again
  CHECK(f.tokens("second") != before);
}

TEST_CASE("an unloaded model is not kept by a call that waits for memory") {
  RepositoryServer f([](ServerOptions& options) {
    options.sessions.session_memory_bytes = std::size_t{1} << 20;
    options.sessions.max_queue_wait = std::chrono::minutes(10);
  });
  f.write("second");
  REQUIRE(f.load("second").ok());
  SessionManager& store = f.server->server().store();
  const std::shared_ptr<const Transformer> other = tiny_models({"tokens"}).at("tokens");
  std::vector<SessionLease> held;
  while (SessionLease lease = store.lease_one_shot("other", other, 1, 1).lease) {
    held.push_back(std::move(lease));
  }
  grpc::ClientContext context;
  const auto reader = f.server->generation->Generate(&context, request_for("second", {1}, 1));
  REQUIRE(eventually([&] { return store.waiting().waiting == 1; }));
  CHECK(f.unload("second").ok());  // before the drain timeout of 10 minutes
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status ended = reader->Finish();
  CHECK(ended.error_code() == Code::UNAVAILABLE);
  CHECK_THAT(ended.error_message(), Contains("was unloaded"));
  CHECK(store.waiting().waiting == 0);
}

TEST_CASE("reloading a model serves with the old one until the new one is ready") {
  RepositoryServer f;
  f.write("second/1", TinyModel::kTokens, 5);
  v1::Model model;
  REQUIRE(f.load("second", "", &model).ok());
  CHECK(model.version() == "1");
  const std::vector<int> old_tokens = f.tokens("second");
  const v1::Session session = create_session(*f.server, "second");
  RunningStream running(*f.server, request_for("second", {1}, 1));

  f.write("second/10", TinyModel::kTokens, 6);
  f.write("second/9", TinyModel::kTokens, 7);
  REQUIRE(f.load("second", "", &model).ok());  // does not wait for the stream on the old one
  CHECK(model.version() == "10");              // by number, not by letter
  const std::vector<int> new_tokens = f.tokens("second");
  CHECK(new_tokens != old_tokens);
  CHECK(f.listed(true) == std::vector<std::string>{"second 1 UNLOADING", "second 9 UNAVAILABLE",
                                                   "second 10 READY", "tokens 1 READY"});
  v1::GenerateResponse message;
  for (int i = 0; i < 10; ++i) REQUIRE(running.reader->Read(&message));
  running.context.TryCancel();
  running.end();
  REQUIRE(eventually([&] { return f.listed(true).front() == "second 1 UNAVAILABLE"; }));
  v1::GenerateRequest next = request_for("", {1}, 5);
  next.set_session_id(session.id());
  CHECK_THAT(generate(*f.server, next).status.error_message(),
             Contains("another version took its place"));

  // The same version again, with other files: what is on the disk counts.
  fs::remove_all(f.directory.path() / "second/10");
  f.write("second/10", TinyModel::kTokens, 5);
  REQUIRE(f.load("second").ok());
  CHECK(f.tokens("second") == old_tokens);
}

TEST_CASE("a load that names a version keeps the other versions") {
  RepositoryServer f;
  f.write("second/1", TinyModel::kTokens, 5);
  f.write("second/2", TinyModel::kTokens, 6);
  REQUIRE(f.load("second").ok());
  const std::vector<int> newest = f.tokens("second");
  REQUIRE(f.load("second", "1").ok());
  CHECK(f.listed(false) ==
        std::vector<std::string>{"second 1 READY", "second 2 READY", "tokens 1 READY"});
  CHECK(f.tokens("second") == newest);  // the highest is the default
  REQUIRE(f.unload("second", "2").ok());
  CHECK(f.tokens("second") != newest);
  CHECK(f.health("second") == "serving");
  CHECK(f.load("second", "3").error_code() == Code::NOT_FOUND);
  CHECK(f.unload("second", "2").error_code() == Code::NOT_FOUND);
  REQUIRE(f.load("second", "2").ok());
  REQUIRE(f.unload("second").ok());  // all of it
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
}

TEST_CASE("a load that fails leaves the others serving, and says why without a path",
          "[threat-73]") {
  RepositoryServer f;
  f.write("good");
  REQUIRE(f.load("good").ok());
  const std::vector<int> before = f.tokens("good");
  f.write("cut");
  f.spoil("cut/model.safetensors", 700);
  f.write("headless");
  f.spoil("headless/model.safetensors", 4);
  f.write("noconfig");
  fs::remove(f.directory.path() / "noconfig/config.json");
  f.write("mismatch");
  fs::copy_file(f.directory.path() / "mismatch/config.json", f.directory.path() / "kept");
  f.write("mismatch", TinyModel::kBytes);
  fs::remove(f.directory.path() / "mismatch/config.json");
  fs::rename(f.directory.path() / "kept", f.directory.path() / "mismatch/config.json");
  f.write("garbage");
  std::ofstream(f.directory.path() / "garbage/config.json") << "{\"n_layers\": [[[[";
  fs::create_directories(f.directory.path() / "empty");
  for (const char* name : {"cut", "headless", "noconfig", "mismatch", "garbage", "empty"}) {
    INFO(name);
    const grpc::Status status = f.load(name);
    INFO(status.error_message());
    CHECK(status.error_code() == Code::FAILED_PRECONDITION);
    CHECK_THAT(status.error_message(), Contains(name));
    CHECK_THAT(status.error_message(), !Contains(f.directory.path().string()));
    CHECK(f.reason(name) == status.error_message());
    CHECK(f.health(name) != "serving");
    CHECK(f.tokens("good") == before);
  }
  // Reloading fails: the old one stays.
  f.spoil("good/model.safetensors", 700);
  const grpc::Status not_anew = f.load("good");
  CHECK(not_anew.error_code() == Code::FAILED_PRECONDITION);
  CHECK(f.reason("good") == not_anew.error_message());
  CHECK(f.tokens("good") == before);
  CHECK(f.health("good") == "serving");
  // The broken model is repaired.
  fs::remove_all(f.directory.path() / "cut");
  f.write("cut");
  CHECK(f.load("cut").ok());
}

TEST_CASE("no name from the wire leaves the repository", "[threat-58]") {
  RepositoryServer f;
  const TemporaryDirectory outside;
  write_random_model(outside.path() / "secret", tiny_config(TinyModel::kTokens), 5);
  const std::string beside = "../" + outside.path().filename().string() + "/secret";
  f.write("second");
  for (const std::string& name :
       {beside, (outside.path() / "secret").string(), std::string(".."), std::string("."),
        std::string(""), std::string("second/"), std::string("./second"), std::string("second/.."),
        std::string("second/1/x"), std::string("second\\1"), std::string("second\0x", 8),
        std::string(".hidden"), std::string("a b"), std::string(129, 'a'),
        std::string("\xff\xfe")}) {
    INFO(name);
    // Protobuf refuses text that is not UTF-8 before we see it.
    const grpc::Status status = f.load(name);
    if (name != "\xff\xfe") CHECK(violated_fields(status) == std::vector<std::string>{"name"});
    CHECK_FALSE(status.ok());
    CHECK_FALSE(f.unload(name).ok());
  }
  for (const char* version : {"0", "-1", "01", "x", "1/..", "99999999999999999999"}) {
    INFO(version);
    CHECK(violated_fields(f.load("second", version)) == std::vector<std::string>{"version"});
    CHECK(violated_fields(f.unload("second", version)) == std::vector<std::string>{"version"});
  }
  CHECK(f.load("nosuch").error_code() == Code::NOT_FOUND);
  // A name of a hub's cache, not a path.
  CHECK(f.load("second/1").error_code() == Code::NOT_FOUND);
  CHECK(f.load("tokens").error_code() == Code::NOT_FOUND);  // served, but not of the repository
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
}

TEST_CASE("the list of loadable models has directories of models and no others") {
  RepositoryServer f;
  f.write("whole");
  f.write("versions/3");
  fs::create_directory(f.directory.path() / "empty");
  fs::create_directories(f.directory.path() / "notes/old");
  CHECK(f.listed(true) == std::vector<std::string>{"tokens 1 READY", "versions 3 UNAVAILABLE",
                                                   "whole 1 UNAVAILABLE"});
  // A load by its name still looks at it, and reports the missing file.
  CHECK_THAT(f.load("empty").error_message(), Contains("config.json"));
}

TEST_CASE("without a repository a load is refused and names the flag") {
  const RepositoryServer f([](ServerOptions& options) { options.models.repository.clear(); });
  const grpc::Status status = f.load("second");
  CHECK(status.error_code() == Code::NOT_FOUND);
  CHECK_THAT(status.error_message(), Contains("without --model-repository"));
}

TEST_CASE("a model's memory is admitted before it is loaded, and released", "[threat-73]") {
  const TemporaryDirectory measured;
  write_random_model(measured.path(), tiny_config(TinyModel::kTokens), 5);
  const ModelSize size = measure_model(ModelFiles(measured.path()), {});
  // One that is loaded and another that is being loaded fit, a third does not.
  const std::size_t limit = size.resident_bytes + size.peak_bytes();
  RepositoryServer f([&](ServerOptions& options) { options.models.memory_bytes = limit; });
  for (const char* name : {"a", "b", "c"}) f.write(name);
  REQUIRE(f.load("a").ok());
  REQUIRE(f.load("b").ok());
  const grpc::Status refused = f.load("c");
  CHECK(refused.error_code() == Code::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused));
  CHECK_THAT(refused.error_message(), Contains(std::to_string(size.peak_bytes())));
  CHECK_THAT(refused.error_message(),
             Contains(std::to_string(limit - 2 * size.resident_bytes) + " of"));
  CHECK(f.tokens("a") == f.tokens("b"));
  // Also for a reload: both models are there for a while.
  CHECK(f.load("a").error_code() == Code::RESOURCE_EXHAUSTED);
  CHECK(f.health("a") == "serving");
  REQUIRE(f.unload("b").ok());
  CHECK(f.load("c").ok());
  REQUIRE(f.unload("a").ok());
  REQUIRE(f.unload("c").ok());
  for (int i = 0; i < 20; ++i) {  // nothing is lost on the way
    REQUIRE(f.load("a").ok());
    REQUIRE(f.load("b").ok());
    REQUIRE(f.unload("a").ok());
    REQUIRE(f.unload("b").ok());
  }
}

TEST_CASE("unloading and loading under load from several threads answers every call") {
  RepositoryServer f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  const std::vector<int> expected = f.tokens("second", 20);
  std::atomic<bool> stop{false};
  std::atomic<int> done{0}, refused{0}, wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {
        v1::GenerateRequest request = request_for("second", {1, 2, 3}, 20);
        if (i == 3) {
          v1::CreateSessionRequest create;
          create.set_model("second");
          v1::Session session;
          grpc::ClientContext context;
          if (!f.server->sessions->Create(&context, create, &session).ok()) continue;
          request.clear_model();
          request.set_session_id(session.id());
        }
        const Generated out = generate(*f.server, request);
        const Code code = out.status.error_code();
        if (out.status.ok()) {
          const auto& tokens = out.only().tokens;
          if (std::vector<int>(tokens.begin(), tokens.end()) != expected) ++wrong;
          ++done;
        } else if (code == Code::NOT_FOUND || code == Code::UNAVAILABLE) {
          ++refused;
        } else {
          ++wrong;
        }
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    const int before = done;
    CHECK(eventually([&] { return done > before + 4; }));
    CHECK(f.unload("second").ok());
    const int refused_before = refused;
    CHECK(eventually([&] { return refused > refused_before; }));
    CHECK(f.load("second").ok());
    CHECK(f.load("second").ok());  // and in place of itself
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  CHECK(wrong == 0);
  CHECK(f.unload("second").ok());
  CHECK(eventually([&] { return f.server->server().store().num_sessions() == 0; }));
  CHECK(f.server->server().store().bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
