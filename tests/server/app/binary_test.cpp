// SPDX-License-Identifier: Apache-2.0
// The program: its one line on standard output, signals and exit codes.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "lintel/v1/admin.grpc.pb.h"
#include "lintel/v1/generation.grpc.pb.h"
#include "lintel/v1/session.grpc.pb.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// A running lintel-server; killed with its object.
class Program {
 public:
  Program(const std::vector<std::string>& flags, const std::filesystem::path& error_file) {
    int pipe_ends[2];
    REQUIRE(pipe2(pipe_ends, O_CLOEXEC) == 0);
    std::vector<std::string> words = {LINTEL_SERVER_BINARY, "--http-listen", "off"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int error = open(error_file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      dup2(pipe_ends[1], STDOUT_FILENO);
      dup2(error, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(pipe_ends[1]);
    output_ = fdopen(pipe_ends[0], "r");
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fclose(output_);
  }

  // The next line of standard output; empty at its end.
  std::string line() {
    std::string out;
    for (int c = fgetc(output_); c != EOF; c = fgetc(output_)) {
      out.push_back(static_cast<char>(c));
      if (c == '\n') break;
    }
    return out;
  }
  void send(int signal) { kill(pid_, signal); }
  int exit_code() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  FILE* output_ = nullptr;
};

std::string read_file(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

struct Directory {
  Directory() { write_random_model(model, tiny_config(TinyModel::kTokens), /*seed=*/5); }
  TemporaryDirectory directory;
  std::filesystem::path model = directory.path() / "tiny";
  std::filesystem::path log = directory.path() / "log";
};

const std::string kReady = "lintel-server ready on 127.0.0.1:";

TEST_CASE("the ready line is all of standard output, and SIGTERM ends with exit code 0") {
  const Directory files;
  for (const int signal : {SIGTERM, SIGINT}) {
    Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1",
                     "--log-format", "json"},
                    files.log);
    const std::string line = program.line();
    REQUIRE(line.rfind(kReady, 0) == 0);
    const std::string port = line.substr(kReady.size());
    CHECK(std::stoi(port) > 0);
    program.send(signal);
    CHECK(program.exit_code() == 0);
    CHECK(program.line().empty());
    std::istringstream log(read_file(files.log));
    int lines = 0;
    for (std::string text; std::getline(log, text); ++lines) {
      const auto json = nlohmann::json::parse(text);
      CHECK(json.contains("time"));
      CHECK(json.contains("level"));
      CHECK(json.contains("message"));
    }
    CHECK(lines >= 3);
  }
}

TEST_CASE("after SIGUSR1 the server still ends on SIGTERM") {
  const Directory files;
  Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1"}, files.log);
  REQUIRE(program.line().rfind(kReady, 0) == 0);
  program.send(SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it is taken before the next
  program.send(SIGTERM);
  CHECK(program.exit_code() == 0);
}

TEST_CASE("the log warns of attention that the weights were not trained for") {
  const Directory files;
  Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1",
                   "--log-format", "json", "--attention", "softmax:recompute=true"},
                  files.log);
  REQUIRE(program.line().rfind(kReady, 0) == 0);
  program.send(SIGTERM);
  CHECK(program.exit_code() == 0);
  std::istringstream log(read_file(files.log));
  std::string warnings;
  for (std::string text; std::getline(log, text);) {
    const auto json = nlohmann::json::parse(text);
    if (json["level"] == "warning") warnings += json["message"].get<std::string>() + "\n";
  }
  CHECK_THAT(warnings, Catch::Contains("model tiny") && Catch::Contains("not trained") &&
                           Catch::Contains("not for production"));
}

// The lines of a JSON log whose message is this.
std::vector<nlohmann::json> lines_of(const std::string& log, const std::string& message) {
  std::vector<nlohmann::json> found;
  std::istringstream in(log);
  for (std::string text; std::getline(in, text);) {
    auto json = nlohmann::json::parse(text);
    if (json["message"] == message) found.push_back(std::move(json));
  }
  return found;
}

TEST_CASE(
    "a call is one log line with its ids and figures, and at info nothing of a prompt is logged",
    "[threat-16]") {
  const Directory files;
  write_random_model(files.model, tiny_config(TinyModel::kBytes), /*seed=*/5);
  Program program(
      {"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1", "--log-format", "json"},
      files.log);
  const std::string line = program.line();
  REQUIRE(line.rfind(kReady, 0) == 0);
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto generation = v1::GenerationService::NewStub(channel);
  const auto sessions = v1::SessionService::NewStub(channel);
  const std::string secret = "Correct-Horse-Battery";
  const std::string trace = "0af7651916cd43dd8448eb211c80319c", span = "b7ad6b7169203331";
  std::string session_id, generated;

  // Every way a prompt can come: taken, scored, in a session, and refused in all kinds of fields.
  const auto run = [&](const v1::GenerateRequest& request, const std::string& id) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", id);
    context.AddMetadata("traceparent", "00-" + trace + "-" + span + "-01");
    const auto reader = generation->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      for (const auto& chunk : message.chunks()) {
        for (const int token : chunk.tokens()) generated.push_back(static_cast<char>(token));
      }
    }
    const auto code = reader->Finish().error_code();
    const auto& echoed = context.GetServerInitialMetadata();
    const auto found = echoed.find("x-request-id");
    REQUIRE(found != echoed.end());
    CHECK(std::string(found->second.data(), found->second.size()) == id);
    return code;
  };
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(secret);
  request.set_max_new_tokens(20);
  CHECK(run(request, "one") == grpc::StatusCode::OK);
  {
    grpc::ClientContext context;
    v1::Session session;
    REQUIRE(sessions->Create(&context, {}, &session).ok());
    session_id = session.id();
  }
  request.set_session_id(session_id);
  CHECK(run(request, "two") == grpc::StatusCode::OK);
  request.clear_session_id();
  v1::GenerateRequest wrong = request;
  wrong.set_model(secret);
  CHECK(run(wrong, "three") == grpc::StatusCode::NOT_FOUND);
  wrong = request;
  wrong.set_session_id(secret);
  CHECK(run(wrong, "four") == grpc::StatusCode::NOT_FOUND);
  wrong = request;
  wrong.mutable_stop()->add_strings(secret + std::string(300, 'x'));
  wrong.mutable_prompt()->mutable_tokens()->add_ids(987654);
  CHECK(run(wrong, "five") == grpc::StatusCode::INVALID_ARGUMENT);
  {
    v1::ScoreRequest scored;
    scored.add_sequences()->set_text(secret);
    grpc::ClientContext context;
    const auto reader = generation->Score(&context, scored);
    v1::ScoreResponse message;
    while (reader->Read(&message)) {
    }
    CHECK(reader->Finish().ok());
  }
  program.send(SIGTERM);
  CHECK(program.exit_code() == 0);

  const std::string log = read_file(files.log);
  CHECK_THAT(
      log, !Catch::Contains(secret) && !Catch::Contains("987654") && !Catch::Contains(session_id));
  CHECK(generated.size() == 40);
  CHECK(log.find(generated.substr(0, 20)) == std::string::npos);

  const auto calls = lines_of(log, "call ended");
  REQUIRE(calls.size() == 7);
  const auto of = [&](const std::string& id) {
    for (const auto& call : calls) {
      if (call["request_id"] == id) return call;
    }
    return nlohmann::json();
  };
  CHECK(of("one")["method"] == "lintel.v1.GenerationService/Generate");
  CHECK(of("one")["code"] == "OK");
  CHECK(of("one")["model"] == "tiny");
  CHECK(of("two")["model"] == "tiny");
  CHECK_FALSE(of("three").contains("model"));  // a name from the wire that no model has
  CHECK(of("five")["model"] == "tiny");
  CHECK(of("one")["level"] == "info");
  CHECK(of("one")["prompt_tokens"] == static_cast<int>(secret.size()));
  CHECK(of("one")["generated_tokens"] == 20);
  CHECK(of("one")["trace_id"] == trace);
  CHECK(of("one")["parent_span_id"] == span);
  CHECK(of("one")["seconds"].is_number());
  CHECK(of("three")["code"] == "NOT_FOUND");
  CHECK(of("five")["code"] == "INVALID_ARGUMENT");
  // Missing request ids are made, and differ.
  std::vector<std::string> made;
  for (const auto& call : calls) {
    if (!call.contains("trace_id")) made.push_back(call["request_id"].get<std::string>());
  }
  REQUIRE(made.size() == 2);
  CHECK(made[0].size() == 32);
  CHECK(made[0] != made[1]);
}

TEST_CASE("the log level is changed at run time") {
  const Directory files;
  Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1",
                   "--log-format", "json", "--log-level", "warn"},
                  files.log);
  const std::string line = program.line();
  REQUIRE(line.rfind(kReady, 0) == 0);
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const auto admin =
      v1::AdminService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto set = [&](const std::string& level) {
    grpc::ClientContext context;
    v1::LogLevel wanted, now;
    wanted.set_level(level);
    const grpc::Status status = admin->SetLogLevel(&context, wanted, &now);
    return status.ok() ? now.level() : "code " + std::to_string(status.error_code());
  };
  const auto get = [&] {
    grpc::ClientContext context;
    v1::LogLevel now;
    REQUIRE(admin->GetLogLevel(&context, {}, &now).ok());
    return now.level();
  };
  CHECK(get() == "warning");
  CHECK(lines_of(read_file(files.log), "call ended").empty());
  CHECK(set("info") == "info");
  CHECK(get() == "info");
  CHECK(set("loud") == "code 3");
  CHECK(set("debug") == "debug");
  CHECK(set("nonsense") == "code 3");
  CHECK(set("off") == "off");
  get();
  const auto calls = lines_of(read_file(files.log), "call ended");
  CHECK(calls.size() ==
        5);  // from the first set on: a call is logged at the level it leaves behind
}

TEST_CASE("a running stream is finished before the program ends") {
  const Directory files;
  Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1"}, files.log);
  const std::string line = program.line();
  REQUIRE(line.rfind(kReady, 0) == 0);
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const auto stub = v1::GenerationService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_tokens()->add_ids(1);
  request.set_max_new_tokens(30'000);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  program.send(SIGTERM);
  int tokens = 1;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  while (reader->Read(&message)) {
    for (const auto& chunk : message.chunks()) tokens += chunk.tokens_size();
    for (const auto& finish : message.finished()) reason = finish.reason();
  }
  CHECK(reader->Finish().ok());
  CHECK(tokens >= 30'000);
  CHECK(reason == v1::FINISH_REASON_LENGTH);
  CHECK(program.exit_code() == 0);
}

TEST_CASE("a second signal ends the program at once") {
  const Directory files;
  Program program({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1",
                   "--drain-timeout", "1h"},
                  files.log);
  const std::string line = program.line();
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const auto stub = v1::GenerationService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_tokens()->add_ids(1);
  request.set_max_new_tokens(1'000'000);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  program.send(SIGTERM);
  // A refused call shows that the first signal was taken; the unread stream keeps the drain
  // open.
  grpc::StatusCode code = grpc::StatusCode::OK;
  while (code != grpc::StatusCode::UNAVAILABLE) {
    grpc::ClientContext other;
    request.set_max_new_tokens(1);
    const auto probe = stub->Generate(&other, request);
    while (probe->Read(&message)) {
    }
    code = probe->Finish().error_code();
  }
  program.send(SIGTERM);
  CHECK(program.exit_code() == 128 + SIGTERM);
}

TEST_CASE("invalid flags end with exit code 2 before a model is loaded") {
  const Directory files;
  Program program({"--model", "/no/such/model", "--workers", "0"}, files.log);
  CHECK(program.line().empty());
  CHECK(program.exit_code() == 2);
  const std::string log = read_file(files.log);
  CHECK(log.find("--workers") != std::string::npos);
  CHECK(log.find("/no/such/model") == std::string::npos);
}

TEST_CASE("a model that cannot be loaded ends with exit code 1, its name and the reason") {
  const Directory files;
  std::ofstream(files.model / "config.json", std::ios::app) << "}";
  Program program({"--model", files.model, "--listen", "127.0.0.1:0"}, files.log);
  CHECK(program.line().empty());
  CHECK(program.exit_code() == 1);
  CHECK(read_file(files.log).find((files.model / "config.json").string()) != std::string::npos);
}

TEST_CASE("an address in use ends with exit code 1") {
  const Directory files;
  Program first({"--model", files.model, "--listen", "127.0.0.1:0", "--workers", "1"}, files.log);
  const std::string line = first.line();
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const std::filesystem::path log = files.directory.path() / "second-log";
  Program second({"--model", files.model, "--listen", address, "--workers", "1"}, log);
  CHECK(second.line().empty());
  CHECK(second.exit_code() == 1);
  CHECK(read_file(log).find(address) != std::string::npos);
}

TEST_CASE("a unix socket serves too") {
  const Directory files;
  const std::string address = "unix:" + (files.directory.path() / "socket").string();
  Program program({"--model", files.model, "--listen", address, "--workers", "1"}, files.log);
  CHECK(program.line() == "lintel-server ready on " + address + "\n");
  const auto stub = v1::GenerationService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_tokens()->add_ids(1);
  request.set_max_new_tokens(3);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().ok());
}

}  // namespace
}  // namespace lintel::testing
