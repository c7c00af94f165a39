// SPDX-License-Identifier: Apache-2.0
// A server with --models: calls over every protocol wait for a model that is not in memory.
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "lintel/v1/chat.grpc.pb.h"
#include "model/fastest_type.h"
#include "model/model_files.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/repository_server.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

// A server without a model in memory, and a directory of some.
struct OnRequestServer {
  explicit OnRequestServer(const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {
  }) {
    options = with_http();
    options.models.on_request = directory.path();
    change(options);
    for (const char* name : {"a", "b"}) write(name);
  }
  void begin() { server = std::make_unique<TestServer>(options, clock, GivenModels()); }
  void write(const std::string& name) const {
    write_random_model(directory.path() / name, tiny_config(TinyModel::kTokens), /*seed=*/5);
  }
  // The model "held", whose load does not end before release(): it waits for its chat template.
  void write_held() {
    write("held");
    held = directory.path() / "held.jinja";
    REQUIRE(mkfifo(held.c_str(), 0600) == 0);
    options.models.chat_templates.push_back({"held", held});
  }
  void release() { std::ofstream(std::exchange(held, {})).close(); }

  json listed() const {
    json states;
    const HttpReply reply =
        request(server->server().http_port(), "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const json list = json::parse(reply.body);
    for (const json& model : list.at("data")) {
      states[model.at("id").get<std::string>()] = model.at("lintel");
    }
    return states;
  }
  std::string state(const std::string& name) const { return listed().at(name).at("state"); }
  HttpReply complete(const std::string& model, const std::string& headers = "") const {
    const json body = {{"model", model}, {"prompt", {1, 2, 3}}, {"max_tokens", 4}};
    return post(server->server().http_port(), "/v1/completions", body.dump(), "application/json",
                headers);
  }

  const TemporaryDirectory directory;
  ManualClock clock;
  ServerOptions options;
  std::unique_ptr<TestServer> server;
  fs::path held;
};

// Room for one of the models, and for loading it.
std::size_t memory_of(const fs::path& model, std::optional<WeightType> type = std::nullopt) {
  return measure_model(ModelFiles(model), {.weight_type = type.value_or(WeightType::kF32)})
      .peak_bytes();
}

// A server whose model "held" loads until it is released.
struct HeldLoad {
  explicit HeldLoad(OnRequestServer& server) : f(server) {
    f.write_held();
    f.begin();
  }
  ~HeldLoad() {
    if (!f.held.empty()) f.release();
  }
  OnRequestServer& f;
};

TEST_CASE("a model is loaded by the first call that names it, over every protocol") {
  OnRequestServer f;
  f.begin();
  CHECK(f.listed() == json({{"a", {{"state", "unloaded"}, {"reason", "not loaded"}}},
                            {"b", {{"state", "unloaded"}, {"reason", "not loaded"}}}}));
  SECTION("Generate") { CHECK(generate(*f.server, request_for("a", {1, 2}, 3)).status.ok()); }
  SECTION("Score") {
    v1::ScoreRequest request;
    request.set_model("a");
    auto& ids = *request.add_sequences()->mutable_tokens();
    for (const int id : {1, 2, 3}) ids.add_ids(id);
    CHECK(score(*f.server, request).status.ok());
  }
  SECTION("a session") {
    const v1::Session session = create_session(*f.server, "a");
    v1::GenerateRequest request = request_for("", {1, 2}, 3);
    request.set_session_id(session.id());
    CHECK(generate(*f.server, request).status.ok());
  }
  SECTION("ModelService.Get") {
    v1::GetModelRequest request;
    request.set_name("a");
    v1::Model model;
    grpc::ClientContext context;
    REQUIRE(f.server->models->Get(&context, request, &model).ok());
    CHECK(model.vocab_size() == 50);
  }
  SECTION("chat") {
    const auto chat = v1::ChatService::NewStub(f.server->channel());
    v1::RenderChatRequest request;
    request.set_body(R"({"model": "a", "messages": [{"role": "user", "content": "hello"}]})");
    v1::RenderChatResponse response;
    grpc::ClientContext context;
    // The model has no chat template, which only a model in memory can be asked for.
    CHECK(chat->Render(&context, request, &response).error_code() ==
          grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("/v1/completions") { CHECK(f.complete("a").status == 200); }
  SECTION("KServe over HTTP") {
    const HttpReply reply =
        post(f.server->server().http_port(), "/v2/models/a/infer",
             R"({"inputs": [{"name": "tokens", "datatype": "INT32", "shape": [1, 2],)"
             R"( "data": [1, 2]}], "parameters": {"max_new_tokens": 3}})");
    CHECK(reply.status == 200);
  }
  SECTION("KServe over gRPC, several on one stream") {
    const auto stub = inference::GRPCInferenceService::NewStub(f.server->channel());
    grpc::ClientContext context;
    const auto stream = stub->ModelStreamInfer(&context);
    for (const char* name : {"a", "b"}) {
      inference::ModelInferRequest request;
      request.set_model_name(name);
      auto& input = *request.add_inputs();
      input.set_name("tokens");
      input.set_datatype("INT32");
      input.add_shape(1);
      input.add_shape(1);
      input.mutable_contents()->add_int_contents(1);
      (*request.mutable_parameters())["max_new_tokens"].set_int64_param(2);
      inference::ModelStreamInferResponse response;
      REQUIRE(stream->Write(request));
      REQUIRE(stream->Read(&response));
      CHECK(response.error_message() == "");
    }
    stream->WritesDone();
    CHECK(stream->Finish().ok());
  }
  CHECK(f.state("a") == "loaded");
  CHECK(values(f.server->server()).at("lintel_model_loads_total{result=\"loaded\"}") >= 1);
  CHECK(values(f.server->server()).at("lintel_model_load_seconds_count") >= 1);
}

TEST_CASE("a call that names no model or an unknown one loads none") {
  OnRequestServer f;
  f.begin();
  const Generated nameless = generate(*f.server, request_for("", {1}, 1));
  CHECK(nameless.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(nameless.status.error_message(), Contains("name one: a, b"));
  const Generated unknown = generate(*f.server, request_for("nosuch", {1}, 1));
  CHECK(unknown.status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(f.state("a") == "unloaded");
  CHECK(f.state("b") == "unloaded");
}

TEST_CASE("a chat without a model gets the only model that can chat, loaded or not") {
  OnRequestServer f;  // "a" and "b" have no tokenizer
  const auto add_template = [&](const char* name) {
    std::ofstream(f.directory.path() / name / "chat_template.jinja")
        << "{% for m in messages %}{{ m.content }}{% endfor %}";
  };
  write_random_model(f.directory.path() / "digits", tiny_config(TinyModel::kImage), /*seed=*/5);
  add_template("digits");
  write_text_model(f.directory.path() / "plain");
  write_text_model(f.directory.path() / "talk");
  add_template("talk");
  fs::create_directories(f.directory.path() / "two/1");
  std::ofstream(f.directory.path() / "two/1/config.json") << "{}";
  write_text_model(f.directory.path() / "two/2");
  f.begin();
  const auto ask = [&] {
    const HttpReply reply =
        post(f.server->server().http_port(), "/v1/chat/completions",
             R"({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})");
    INFO(reply.body);
    return json::parse(reply.body);
  };
  CHECK(ask()["model"] == "talk");
  CHECK(ask()["model"] == "talk");
  // The files are read again once they have changed.
  add_template("plain");
  CHECK(ask()["error"]["message"] == "model: several models chat, name one: plain, talk");
  // The newest version decides, even if an older one cannot be loaded.
  add_template("two/2");
  CHECK(ask()["error"]["message"] == "model: several models chat, name one: plain, talk, two");
}

TEST_CASE("calls at the same time wait for one load") {
  OnRequestServer f;
  f.begin();
  std::vector<std::thread> calls;
  std::atomic<int> served{0};
  for (int i = 0; i < 4; ++i) {
    calls.emplace_back([&f, &served, i] {
      const bool ok = i % 2 == 0 ? f.complete("a").status == 200
                                 : generate(*f.server, request_for("a", {1}, 2)).status.ok();
      if (ok) ++served;
    });
  }
  for (std::thread& call : calls) call.join();
  CHECK(served == 4);
  CHECK(values(f.server->server()).at("lintel_model_loads_total{result=\"loaded\"}") == 1);
}

TEST_CASE("a model that cannot be loaded says why, to its callers and in the list") {
  OnRequestServer f;
  fs::resize_file(f.directory.path() / "a/model.safetensors", 700);
  f.begin();
  const Generated out = generate(*f.server, request_for("a", {1}, 1));
  CHECK(out.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK_THAT(out.status.error_message(), Contains("model a cannot be loaded: a/model.safetensors"));
  const json a = f.listed().at("a");
  CHECK(a.at("state") == "failed");
  CHECK(a.at("reason") == out.status.error_message());
  const HttpReply one = request(f.server->server().http_port(),
                                "GET /v1/models/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(json::parse(one.body).at("lintel") == a);
  CHECK_THAT(f.complete("a").body, Contains("model a cannot be loaded"));
  CHECK(f.complete("b").status == 200);
  CHECK(values(f.server->server()).at("lintel_model_loads_total{result=\"failed\"}") == 1);
}

TEST_CASE("a call whose deadline passes while its model is loaded ends then") {
  OnRequestServer f;
  const HeldLoad load(f);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(50));
  const auto reader = f.server->generation->Generate(&context, request_for("held", {1}, 1));
  v1::GenerateResponse message;
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  // The server's side of it has ended, too, while the load has not.
  CHECK(comes_to(*f.server, "lintel_streams", 0));
  CHECK(comes_to(*f.server, "lintel_model_waiters", 0));
  const HttpReply reply =
      post(f.server->server().http_port(), "/lintel.v1.ModelService/Tokenize",
           R"({"model": "held", "text": ""})", "application/json", "Connect-Timeout-Ms: 50\r\n");
  CHECK_THAT(reply.body, Contains("deadline_exceeded"));
  CHECK(f.state("held") == "loading");
}

TEST_CASE("a call that is cancelled while its model is loaded ends, and so does a lost client's") {
  OnRequestServer f;
  const HeldLoad load(f);
  grpc::ClientContext context;
  const auto reader = f.server->generation->Generate(&context, request_for("held", {1}, 1));
  REQUIRE(eventually([&] { return f.state("held") == "loading"; }));
  context.TryCancel();
  v1::GenerateResponse message;
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  REQUIRE(comes_to(*f.server, "lintel_model_waiters", 0));
  {
    HttpClient client(f.server->server().http_port());
    client.send(post_text("/v1/completions", R"({"model": "held", "prompt": [1], "max_tokens": 1})",
                          "application/json"));
    REQUIRE(comes_to(*f.server, "lintel_model_waiters", 1));
  }
  CHECK(comes_to(*f.server, "lintel_model_waiters", 0));
}

TEST_CASE("calls of models in memory run while another is loaded") {
  OnRequestServer f([](ServerOptions& options) { options.models.load = {"a"}; });
  const HeldLoad load(f);
  std::thread held([&] { CHECK(f.complete("held").status == 200); });
  REQUIRE(eventually([&] { return f.state("held") == "loading"; }));
  CHECK(f.complete("a").status == 200);
  CHECK(generate(*f.server, request_for("a", {1, 2}, 3)).status.ok());
  f.release();
  held.join();
  CHECK(f.state("held") == "loaded");
}

TEST_CASE("a server that stops ends calls that wait for a model") {
  OnRequestServer f;
  f.write_held();
  f.begin();
  const auto reader_of = [&](grpc::ClientContext& context) {
    return f.server->generation->Generate(&context, request_for("held", {1}, 1));
  };
  grpc::ClientContext first, second;
  const auto loading = reader_of(first);
  REQUIRE(eventually([&] { return f.state("held") == "loading"; }));
  const auto queued = f.server->generation->Generate(&second, request_for("a", {1}, 1));
  REQUIRE(eventually([&] { return f.state("a") == "loading"; }));
  std::thread stop([&] { f.server->server().stop(); });
  CHECK(queued->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  f.release();
  v1::GenerateResponse message;
  while (loading->Read(&message)) {  // it may have its token before the model stops
  }
  loading->Finish();
  stop.join();
}

TEST_CASE("a model that no call has used for --model-idle-unload is unloaded") {
  OnRequestServer f([](ServerOptions& options) {
    options.models.idle_unload_ms = seconds(600);
    options.sessions.idle_timeout = seconds(0);  // kept for ever
  });
  f.begin();
  REQUIRE(f.complete("a").status == 200);
  const v1::Session session = create_session(*f.server, "b");
  const auto comes_to_unload = [&](const char* name) {
    return eventually([&] {
      f.clock.advance(seconds(601));
      return f.state(name) == "unloaded";
    });
  };
  CHECK(comes_to_unload("a"));
  CHECK(f.state("b") == "loaded");  // for its session
  CHECK(f.complete("a").status == 200);
  CHECK(values(f.server->server()).at("lintel_model_unloads_total{reason=\"idle\"}") == 1);
  v1::DeleteSessionRequest request;
  request.set_id(session.id());
  google::protobuf::Empty none;
  grpc::ClientContext context;
  REQUIRE(f.server->sessions->Delete(&context, request, &none).ok());
  CHECK(comes_to_unload("b"));
}

TEST_CASE("a stored session continues when its model was unloaded for another") {
  OnRequestServer f;
  f.options.models.memory_bytes = memory_of(f.directory.path() / "a");
  f.options.durable.store = f.directory.path() / "store";
  f.begin();
  const auto session_of = [&](v1::Durability durability) {
    v1::CreateSessionRequest request;
    request.set_model("a");
    request.set_durability(durability);
    v1::Session session;
    grpc::ClientContext context;
    REQUIRE(f.server->sessions->Create(&context, request, &session).ok());
    return session.id();
  };
  const auto continued = [&](const std::string& id) {
    v1::GenerateRequest request = request_for("", {1, 2, 3}, 8);
    request.set_session_id(id);
    const Generated out = generate(*f.server, request);
    INFO(out.status.error_message());
    REQUIRE(out.status.ok());
    return out.only().tokens;
  };
  const std::string stored = session_of(v1::DURABILITY_CALL);
  const std::string other = session_of(v1::DURABILITY_CALL);
  continued(stored);
  continued(other);
  const std::vector<std::int32_t> expected = continued(other);
  CHECK(f.complete("b").status == 200);
  CHECK(f.state("a") == "unloaded");
  CHECK(continued(stored) == expected);
  CHECK(f.state("a") == "loaded");
  CHECK(f.state("b") == "unloaded");
  CHECK(f.complete("b").status == 200);
  v1::ForkSessionRequest fork;
  fork.set_id(stored);
  fork.set_count(1);
  v1::ForkSessionResponse forks;
  grpc::ClientContext context;
  CHECK(f.server->sessions->Fork(&context, fork, &forks).ok());
  CHECK(f.state("a") == "loaded");
  // One that no store has keeps its model.
  const std::string in_memory = session_of(v1::DURABILITY_NONE);
  const HttpReply refused = f.complete("b");
  CHECK(refused.status == 429);
  CHECK_THAT(refused.body, Contains("model b needs"));
  CHECK(f.state("b") == "unloaded");
  continued(in_memory);
}

TEST_CASE("models of weights/ take turns in the memory for one") {
  const fs::path weights = fs::path(LINTEL_TEST_DATA) / ".." / "weights";
  const TemporaryDirectory models;
  for (const char* name : {"text-rwkv7-small", "text-linear-small"}) {
    fs::create_directory_symlink(fs::canonical(weights / name), models.path() / name);
  }
  OnRequestServer f([&](ServerOptions& options) {
    options.models.on_request = models.path();
    options.models.weight_type = WeightType::kF32;
    options.models.memory_bytes = memory_of(models.path() / "text-rwkv7-small", WeightType::kF32);
  });
  f.begin();
  const HttpReply chat = post(f.server->server().http_port(), "/v1/chat/completions",
                              R"({"model": "text-rwkv7-small", "max_tokens": 4,)"
                              R"( "messages": [{"role": "user", "content": "hello"}]})");
  INFO(chat.body);
  CHECK(chat.status == 200);
  CHECK(f.state("text-rwkv7-small") == "loaded");
  CHECK(generate(*f.server, request_for("text-linear-small", {65, 66}, 4)).status.ok());
  CHECK(f.state("text-linear-small") == "loaded");
  CHECK(f.state("text-rwkv7-small") == "unloaded");
  CHECK(values(f.server->server()).at("lintel_model_unloads_total{reason=\"memory\"}") == 1);
}

}  // namespace
}  // namespace lintel::testing
