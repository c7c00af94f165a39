// Models that come and go while the server runs.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "model/memory.h"
#include "tests/service/service_fixture.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;
namespace fs = std::filesystem;

// A server with the model "tokens", and a repository from which others are loaded.
struct Fixture {
  explicit Fixture(const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {}) {
    ServerOptions options = test_options();
    options.model_repository = directory.path();
    options.drain_timeout_ms = std::chrono::minutes(10);
    change(options);
    server = std::make_unique<TestServer>(std::vector<std::string>{"tokens"}, options);
    admin = v1::AdminService::NewStub(server->channel());
  }

  // Writes the model into the repository. Another seed is another model.
  void write(const std::string& path, TinyModel kind = TinyModel::kTokens,
             std::uint64_t seed = 5) const {
    fs::create_directories((directory.path() / path).parent_path());
    write_random_model(directory.path() / path, tiny_config(kind), seed);
  }
  void spoil(const std::string& file, std::size_t size) const {
    fs::resize_file(directory.path() / file, size);
  }

  grpc::Status load(const std::string& name, const std::string& version = "",
                    v1::Model* model = nullptr) const {
    v1::LoadModelRequest request;
    request.set_name(name);
    request.set_version(version);
    v1::Model ignored;
    grpc::ClientContext context;
    return admin->LoadModel(&context, request, model == nullptr ? &ignored : model);
  }
  grpc::Status unload(const std::string& name, const std::string& version = "") const {
    v1::UnloadModelRequest request;
    request.set_name(name);
    request.set_version(version);
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    return admin->UnloadModel(&context, request, &response);
  }

  // "NAME VERSION STATE" of each, in order.
  std::vector<std::string> listed(bool all) const {
    v1::ListModelsRequest request;
    request.set_all(all);
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    REQUIRE(server->models->List(&context, request, &response).ok());
    std::vector<std::string> out;
    for (const v1::Model& model : response.models()) {
      out.push_back(model.name() + " " + model.version() + " " +
                    v1::ModelState_Name(model.state()).substr(sizeof("MODEL_STATE_") - 1));
    }
    return out;
  }
  std::string reason(const std::string& name) const {
    v1::ListModelsRequest request;
    request.set_all(true);
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    REQUIRE(server->models->List(&context, request, &response).ok());
    for (const v1::Model& model : response.models()) {
      if (model.name() == name) return model.reason();
    }
    return "no such entry";
  }
  std::string health(const std::string& name) const {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("model/" + name);
    grpc::health::v1::HealthCheckResponse response;
    grpc::ClientContext context;
    const auto stub = grpc::health::v1::Health::NewStub(server->channel());
    const grpc::Status status = stub->Check(&context, request, &response);
    if (!status.ok()) return "unknown";
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING ? "serving"
                                                                               : "not serving";
  }
  std::vector<int> tokens(const std::string& model, unsigned count = 6) const {
    const Generated out = generate(*server, request_for(model, {1, 2, 3}, count));
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return {out.only().tokens.begin(), out.only().tokens.end()};
  }

  const TemporaryDirectory directory;
  std::unique_ptr<TestServer> server;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

// A stream that runs until somebody ends it; made when its first message has come.
struct RunningStream {
  RunningStream(TestServer& server, v1::GenerateRequest request) {
    request.set_max_new_tokens(1'000'000);
    reader = server.generation->Generate(&context, request);
    v1::GenerateResponse message;
    REQUIRE(reader->Read(&message));
  }
  grpc::Status end() {
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      for (const auto& finish : message.finished()) last = finish;
    }
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  v1::SampleFinish last;
};

TEST_CASE("a model of the repository is loaded, serves and is unloaded while another runs") {
  Fixture f;
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

TEST_CASE("an unloaded model refuses new requests at once while a running stream goes on") {
  Fixture f;
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
  for (int i = 0; i < 10; ++i) REQUIRE(running.reader->Read(&message));  // it goes on
  running.context.TryCancel();
  running.end();
  unloading.join();
  CHECK(unloaded.ok());
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
}

TEST_CASE("past the drain timeout the streams of an unloaded model end, and others do not") {
  Fixture f(
      [](ServerOptions& options) { options.drain_timeout_ms = std::chrono::milliseconds(20); });
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
  Fixture f;
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

TEST_CASE("sessions go with their model, and say so; those of others stay") {
  Fixture f;
  f.write("second");
  REQUIRE(f.load("second").ok());
  SessionStore& store = f.server->server().store();
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

TEST_CASE("loading a name anew serves with the old until the new is ready, then with the new") {
  Fixture f;
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

TEST_CASE("a version that is named is loaded beside the others") {
  Fixture f;
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

TEST_CASE("a load that fails leaves the others serving, and says why without a path") {
  Fixture f;
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
  // Loading anew fails: the old one stays.
  f.spoil("good/model.safetensors", 700);
  CHECK(f.load("good").error_code() == Code::FAILED_PRECONDITION);
  CHECK(f.tokens("good") == before);
  CHECK(f.health("good") == "serving");
  // What was wrong is put right.
  fs::remove_all(f.directory.path() / "cut");
  f.write("cut");
  CHECK(f.load("cut").ok());
}

TEST_CASE("no name from the wire leaves the repository") {
  Fixture f;
  const TemporaryDirectory outside;
  write_random_model(outside.path() / "secret", tiny_config(TinyModel::kTokens), 5);
  const std::string beside = "../" + outside.path().filename().string() + "/secret";
  f.write("second");
  for (const std::string& name :
       {beside, (outside.path() / "secret").string(), std::string(".."), std::string("."),
        std::string(""), std::string("second/"), std::string("./second"), std::string("second/1"),
        std::string("second\\1"), std::string("second\0x", 8), std::string(".hidden"),
        std::string("a b"), std::string(129, 'a'), std::string("\xff\xfe")}) {
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
  CHECK(f.load("tokens").error_code() == Code::NOT_FOUND);  // served, but not of the repository
  CHECK(f.listed(false) == std::vector<std::string>{"tokens 1 READY"});
}

TEST_CASE("a model's memory is admitted before it is loaded, and given back") {
  const TemporaryDirectory measured;
  write_random_model(measured.path(), tiny_config(TinyModel::kTokens), 5);
  const ModelMemory memory = measure_model(measured.path(), {});
  // One that is loaded and another that is being loaded fit, a third does not.
  const std::size_t limit = memory.resident_bytes + memory.peak_bytes();
  Fixture f([&](ServerOptions& options) { options.model_memory_bytes = limit; });
  for (const char* name : {"a", "b", "c"}) f.write(name);
  REQUIRE(f.load("a").ok());
  REQUIRE(f.load("b").ok());
  const grpc::Status refused = f.load("c");
  CHECK(refused.error_code() == Code::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused));
  CHECK_THAT(refused.error_message(), Contains(std::to_string(memory.peak_bytes())));
  CHECK_THAT(refused.error_message(),
             Contains(std::to_string(limit - 2 * memory.resident_bytes) + " of"));
  CHECK(f.tokens("a") == f.tokens("b"));
  // So it is for one that is loaded anew: both are there for a while.
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
  Fixture f;
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

TEST_CASE("a server that stops ends what is being unloaded, and answers who waits") {
  Fixture f;
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
  // The state of a sequence grows with its length, and there is memory for one of 1000 values.
  const AttentionSpec softmax = parse_attention_spec("softmax");
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 5);
  const std::shared_ptr<const Transformer> other =
      Transformer::load(directory.path(), {.attention = softmax});
  Fixture f([&](ServerOptions& options) {
    options.attention = softmax;
    options.scheduling.workers = 0;
    options.sessions.memory_bytes = other->state_bytes(999);
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

TEST_CASE("models can be all that a server begins without") {
  Fixture f;
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
