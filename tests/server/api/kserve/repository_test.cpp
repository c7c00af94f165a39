// SPDX-License-Identifier: Apache-2.0
// Models as the Open Inference Protocol configures, counts, loads and unloads them.
#include <grpcpp/grpcpp.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "open_inference.grpc.pb.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using Catch::Matchers::Contains;

// A server with the model "tokens" and a repository.
struct Server {
  explicit Server(std::vector<std::string> flags = {}) {
    // A line a call would fill the pipe, which is not read while the test polls.
    flags.insert(flags.end(),
                 {"--model-repository", repository.path().string(), "--log-level", "error"});
    process = std::make_unique<ServerProcess>(std::vector{TinyModel::kTokens}, flags);
    stub = inference::GRPCInferenceService::NewStub(
        grpc::CreateChannel(process->address(), grpc::InsecureChannelCredentials()));
  }

  void write(const std::string& path, std::uint64_t seed) const {
    std::filesystem::create_directories(repository.path() / path);
    write_random_model(repository.path() / path, tiny_config(TinyModel::kTokens), seed);
  }
  grpc::Status load(const inference::RepositoryModelLoadRequest& request) const {
    grpc::ClientContext context;
    inference::RepositoryModelLoadResponse response;
    return stub->RepositoryModelLoad(&context, request, &response);
  }
  grpc::Status load(const std::string& name) const {
    inference::RepositoryModelLoadRequest request;
    request.set_model_name(name);
    return load(request);
  }
  grpc::Status unload(const std::string& name) const {
    inference::RepositoryModelUnloadRequest request;
    request.set_model_name(name);
    (*request.mutable_parameters())["unload_dependents"].set_bool_param(true);
    grpc::ClientContext context;
    inference::RepositoryModelUnloadResponse response;
    return stub->RepositoryModelUnload(&context, request, &response);
  }
  // "NAME VERSION STATE" of each.
  std::vector<std::string> index(bool ready = false) const {
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    grpc::ClientContext context;
    inference::RepositoryIndexResponse response;
    REQUIRE(stub->RepositoryIndex(&context, request, &response).ok());
    std::vector<std::string> out;
    for (const auto& model : response.models()) {
      out.push_back(model.name() + " " + model.version() + " " + model.state());
      CHECK(model.reason().empty() == (model.state() != "UNAVAILABLE"));
    }
    return out;
  }
  bool ready(const std::string& name, const std::string& version = "") const {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    grpc::ClientContext context;
    inference::ModelReadyResponse response;
    REQUIRE(stub->ModelReady(&context, request, &response).ok());
    return response.ready();
  }
  grpc::Status infer(const std::string& model, const std::string& version, int rows,
                     inference::ModelInferResponse* response) const {
    inference::ModelInferRequest request;
    request.set_model_name(model);
    request.set_model_version(version);
    auto& input = *request.add_inputs();
    input.set_name("tokens");
    input.set_datatype("INT32");
    input.add_shape(rows);
    input.add_shape(1);
    for (int i = 0; i < rows; ++i) input.mutable_contents()->add_int_contents(i);
    (*request.mutable_parameters())["max_new_tokens"].set_int64_param(8);
    (*request.mutable_parameters())["seed"].set_int64_param(7);
    grpc::ClientContext context;
    return stub->ModelInfer(&context, request, response);
  }
  std::vector<int> tokens(const std::string& model, const std::string& version = "") const {
    inference::ModelInferResponse response;
    const grpc::Status status = infer(model, version, 1, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    if (!version.empty()) CHECK(response.model_version() == version);
    const auto& contents = response.outputs(0).contents().int_contents();
    return {contents.begin(), contents.end()};
  }
  inference::ModelStatistics statistics(const std::string& name) const {
    inference::ModelStatisticsRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    inference::ModelStatisticsResponse response;
    REQUIRE(stub->ModelStatistics(&context, request, &response).ok());
    REQUIRE(response.model_stats_size() == 1);
    return response.model_stats(0);
  }

  const TemporaryDirectory repository;
  std::unique_ptr<ServerProcess> process;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};

}  // namespace

TEST_CASE("a model is loaded, reloaded and unloaded by the repository calls") {
  const Server server;
  server.write("second/1", 1);
  CHECK(server.index() == std::vector<std::string>{"second 1 UNAVAILABLE", "tokens 1 READY"});
  CHECK_FALSE(server.ready("second"));
  REQUIRE(server.load("second").ok());
  CHECK(server.index() == std::vector<std::string>{"second 1 READY", "tokens 1 READY"});
  CHECK(server.ready("second"));
  const std::vector<int> first = server.tokens("second", "1");
  server.write("second/2", 2);
  REQUIRE(server.load("second").ok());
  CHECK(server.ready("second", "2"));
  CHECK_FALSE(server.ready("second", "1"));
  CHECK(server.tokens("second", "2") != first);
  inference::ModelInferResponse response;
  const grpc::Status gone = server.infer("second", "1", 1, &response);
  CHECK(gone.error_code() == Code::NOT_FOUND);
  CHECK_THAT(gone.error_message(), Contains("model_version"));
  REQUIRE(server.unload("second").ok());
  CHECK_FALSE(server.ready("second"));
  CHECK(server.index(/*ready=*/true) == std::vector<std::string>{"tokens 1 READY"});
  CHECK(server.infer("second", "", 1, &response).error_code() == Code::NOT_FOUND);
  CHECK(server.unload("second").error_code() == Code::NOT_FOUND);
}

TEST_CASE("an unload that cuts a streamed request says so, and the stream continues with others") {
  const Server server({"--drain-timeout", "20ms", "--max-new-tokens", "1000000000"});
  server.write("second", 1);
  REQUIRE(server.load("second").ok());
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  inference::ModelInferRequest request;
  request.set_model_name("second");
  auto& input = *request.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(1);
  input.mutable_contents()->add_int_contents(1);
  auto& parameters = *request.mutable_parameters();
  parameters["stream"].set_bool_param(true);
  parameters["max_new_tokens"].set_int64_param(1'000'000'000);
  REQUIRE(stream->Write(request));
  inference::ModelStreamInferResponse response;
  REQUIRE(stream->Read(&response));
  grpc::Status unloaded;
  std::thread unloading([&] { unloaded = server.unload("second"); });
  const auto read_to_last = [&] {
    while (stream->Read(&response)) {
      const auto& marks = response.infer_response().parameters();
      if (marks.at("triton_final_response").bool_param()) return true;
    }
    return false;
  };
  CHECK(read_to_last());
  CHECK_THAT(response.error_message(), Contains("second was unloaded"));
  unloading.join();
  CHECK(unloaded.ok());
  parameters["max_new_tokens"].set_int64_param(5);
  REQUIRE(stream->Write(request));
  CHECK(read_to_last());
  CHECK_THAT(response.error_message(), Contains("no model is named second"));
  request.set_model_name("tokens");
  REQUIRE(stream->Write(request));
  CHECK(read_to_last());
  CHECK(response.error_message().empty());
  stream->WritesDone();
  CHECK(stream->Finish().ok());
}

TEST_CASE("a refused load names the parameter that is wrong", "[threat-58]") {
  const Server server;
  const auto violation =
      [&](const std::function<void(inference::RepositoryModelLoadRequest&)>& set) {
        inference::RepositoryModelLoadRequest request;
        request.set_model_name("second");
        set(request);
        const grpc::Status status = server.load(request);
        CHECK(status.error_code() == Code::INVALID_ARGUMENT);
        return status.error_message();
      };
  using Request = inference::RepositoryModelLoadRequest;
  for (const char* name : {"../tokens", "/etc", "..", "", "a/b/c"}) {
    CHECK_THAT(violation([&](Request& r) { r.set_model_name(name); }), Contains("model_name"));
  }
  CHECK_THAT(violation([](Request& r) { r.set_repository_name("/etc"); }),
             Contains("repository_name"));
  CHECK_THAT(
      violation([](Request& r) { (*r.mutable_parameters())["config"].set_string_param("{}"); }),
      Contains("parameters[config]"));
  CHECK_THAT(violation([](Request& r) {
               (*r.mutable_parameters())["file:1/model.safetensors"].set_bytes_param("x");
             }),
             Contains("file:1/model.safetensors"));
  CHECK(server.load("second").error_code() == Code::NOT_FOUND);
  std::filesystem::create_directories(server.repository.path() / "second");
  CHECK(server.load("second").error_code() == Code::FAILED_PRECONDITION);
  CHECK(server.tokens("tokens").size() == 8);
}

TEST_CASE("ModelConfig returns a model's configuration") {
  const Server server;
  inference::ModelConfigRequest request;
  request.set_name("tokens");
  inference::ModelConfigResponse response;
  grpc::ClientContext context;
  REQUIRE(server.stub->ModelConfig(&context, request, &response).ok());
  const inference::ModelConfig& config = response.config();
  CHECK(config.name() == "tokens");
  CHECK(config.backend() == "lintel");
  CHECK(config.max_batch_size() == 64);
  REQUIRE(config.input_size() == 1);
  CHECK(config.input(0).name() == "tokens");
  CHECK(config.input(0).data_type() == inference::TYPE_INT32);
  CHECK(config.input(0).dims(0) == -1);
  REQUIRE(config.output_size() >= 2);
  CHECK(config.output(1).name() == "log2_probs");
  CHECK(config.output(1).data_type() == inference::TYPE_FP32);
  REQUIRE(config.instance_group_size() == 1);
  CHECK(config.instance_group(0).kind() == inference::ModelInstanceGroup::KIND_CPU);
  CHECK(config.instance_group(0).count() >= 1);
  CHECK_THAT(config.parameters().at("config_json").string_value(), Contains("n_layers"));
  request.set_name("nosuch");
  grpc::ClientContext second;
  CHECK(server.stub->ModelConfig(&second, request, &response).error_code() == Code::NOT_FOUND);
}

TEST_CASE("statistics count the requests of a model") {
  const Server server;
  inference::ModelStatistics stats = server.statistics("tokens");
  CHECK(stats.name() == "tokens");
  CHECK(stats.version() == "1");
  CHECK(stats.inference_count() == 0);
  CHECK(stats.execution_count() == 0);
  inference::ModelInferResponse response;
  REQUIRE(server.infer("tokens", "", 5, &response).ok());  // counts as five
  REQUIRE(server.infer("tokens", "", 1, &response).ok());
  stats = server.statistics("tokens");
  CHECK(stats.inference_count() == 6);
  CHECK(stats.execution_count() >= 1);
  const inference::InferStatistics& times = stats.inference_stats();
  CHECK(times.success().count() == 6);
  CHECK(times.success().ns() > 0);
  CHECK(times.fail().count() == 0);
  CHECK(times.queue().count() == 6);
  CHECK(times.success().ns() >= times.queue().ns());
  CHECK(times.compute_infer().ns() > 0);

  inference::ModelInferRequest endless;
  endless.set_model_name("tokens");
  auto& input = *endless.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(1);
  input.mutable_contents()->add_int_contents(1);
  (*endless.mutable_parameters())["max_new_tokens"].set_int64_param(1'000'000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  CHECK_FALSE(server.stub->ModelInfer(&context, endless, &response).ok());
  for (int i = 0; i < 100'000 && stats.inference_stats().fail().count() == 0; ++i) {
    stats = server.statistics("tokens");  // until the server has noticed
  }
  CHECK(stats.inference_stats().fail().count() == 1);
  CHECK(stats.inference_stats().fail().ns() > 0);
  CHECK(stats.inference_count() == 6);

  server.write("second", 1);
  REQUIRE(server.load("second").ok());
  inference::ModelStatisticsResponse all;
  grpc::ClientContext listing;
  REQUIRE(server.stub->ModelStatistics(&listing, {}, &all).ok());
  CHECK(all.model_stats_size() == 2);
  CHECK(server.statistics("second").inference_count() == 0);
  inference::ModelStatisticsRequest wrong;
  wrong.set_name("nosuch");
  grpc::ClientContext asking;
  CHECK(server.stub->ModelStatistics(&asking, wrong, &all).error_code() == Code::NOT_FOUND);
}

TEST_CASE("loading and unloading needs the role admin", "[threat-72]") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "tokens";
  const std::string user = new_token(file, "user", "generate,score"),
                    admin = new_token(file, "admin", "admin");
  const Server server({"--auth-tokens", file});
  server.write("second", 1);
  const auto call = [&](const std::string& token, bool loads) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    if (loads) {
      inference::RepositoryModelLoadRequest request;
      request.set_model_name("second");
      inference::RepositoryModelLoadResponse response;
      return server.stub->RepositoryModelLoad(&context, request, &response).error_code();
    }
    inference::RepositoryModelUnloadRequest request;
    request.set_model_name("second");
    inference::RepositoryModelUnloadResponse response;
    return server.stub->RepositoryModelUnload(&context, request, &response).error_code();
  };
  for (const bool loads : {true, false}) {
    CHECK(call("", loads) == Code::UNAUTHENTICATED);
    CHECK(call(user, loads) == Code::PERMISSION_DENIED);
  }
  CHECK(call(admin, true) == Code::OK);
  // The same through lintel.v1.
  const auto lintel = [&](const std::string& command, const std::string& token) {
    return server.process->lintel({"model", command, "second", "--token", token});
  };
  CHECK(lintel("unload", user).code != 0);
  CHECK(lintel("unload", admin).code == 0);
  CHECK(lintel("load", user).code != 0);
  CHECK(lintel("load", admin).code == 0);
  CHECK(call(admin, false) == Code::OK);
}

TEST_CASE("a server begins with models of its repository, if their memory is admitted") {
  const TemporaryDirectory repository;
  for (const char* path : {"a/1", "a/2", "b"}) {
    std::filesystem::create_directories(repository.path() / path);
    write_random_model(repository.path() / path, tiny_config(TinyModel::kTokens), 3);
  }
  const auto start = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {LINTEL_SERVER, "--listen", "127.0.0.1:0", "--http-listen", "off",
                                 "--model-repository", repository.path().string()});
    return std::make_unique<Process>(flags);
  };
  const auto all = start({"--load-model", "*"});
  CHECK_THAT(all->read_out_until("\n"), Contains("ready on"));
  all->send(SIGTERM);
  CHECK(all->wait() == 0);
  CHECK_THAT(all->err(), Contains("model a version 2 from") && Contains("model b version 1 from"));
  CHECK_THAT(all->err(), !Contains("model a version 1"));

  const auto twice =
      start({"--load-model", "*", "--model", "a=" + (repository.path() / "b").string()});
  CHECK(twice->wait() == 1);
  CHECK_THAT(twice->err(), Contains("model a") && Contains("--model, too"));

  const auto none = start({});
  CHECK_THAT(none->read_out_until("\n"), Contains("ready on"));
  none->send(SIGTERM);
  CHECK(none->wait() == 0);
  const auto missing = start({"--load-model", "nosuch"});
  CHECK(missing->wait() == 1);
  CHECK_THAT(missing->err(), Contains("nosuch"));
  const auto too_large = start({"--load-model", "*", "--model-memory", "10KiB"});
  CHECK(too_large->wait() == 1);
  CHECK_THAT(too_large->err(), Contains("--model-memory"));
}

TEST_CASE("the command line loads, lists and unloads models") {
  const Server server;
  server.write("second/1", 1);
  server.write("second/3", 2);
  const auto lintel = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "model");
    Result result = server.process->lintel(arguments);
    INFO(result.err);
    CHECK(result.code == 0);
    return result;
  };
  const auto loaded = lintel({"load", "second", "--json"}).json();
  CHECK(loaded["name"] == "second");
  CHECK(loaded["version"] == "3");
  CHECK(loaded["state"] == "ready");
  CHECK(lintel({"load", "second", "--version", "1"}).out == "second version 1 is ready\n");
  // Both are there, and both answer.
  CHECK(server.tokens("second", "1") != server.tokens("second", "3"));
  CHECK(server.tokens("second") == server.tokens("second", "3"));
  inference::ModelMetadataRequest request;
  request.set_name("second");
  inference::ModelMetadataResponse metadata;
  grpc::ClientContext context;
  REQUIRE(server.stub->ModelMetadata(&context, request, &metadata).ok());
  REQUIRE(metadata.versions_size() == 2);
  CHECK(metadata.versions(0) == "1");
  CHECK(metadata.versions(1) == "3");
  CHECK(lintel({"unload", "second", "--version", "3"}).out == "second version 3 is unloaded\n");
  CHECK(lintel({"unload", "second"}).out == "second is unloaded\n");
  const auto all = lintel({"list", "--all", "--json"}).json();
  REQUIRE(all.size() == 3);
  CHECK(all[0]["state"] == "unavailable");
  CHECK(all[0]["reason"] == "unloaded");
  CHECK(all[2]["name"] == "tokens");
  CHECK_THAT(lintel({"list", "--all"}).out, Contains("not loaded"));
  const Result wrong = server.process->lintel({"model", "load", "../x"});
  CHECK(wrong.code != 0);
  CHECK_THAT(wrong.err, Contains("cannot name a model"));
}

}  // namespace lintel::testing
