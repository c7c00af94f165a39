// The program: its one line on standard output, signals and exit codes.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lintel/v1/generation.grpc.pb.h"
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
    std::vector<std::string> words = {LINTEL_SERVER_BINARY};
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

TEST_CASE("attention that the weights were not trained for is warned of in the log") {
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
  int values = 1;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  while (reader->Read(&message)) {
    for (const auto& chunk : message.chunks()) values += chunk.tokens_size();
    for (const auto& finish : message.finished()) reason = finish.reason();
  }
  CHECK(reader->Finish().ok());
  CHECK(values >= 30'000);
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
  // A refused call shows that the first signal was taken; the stream nobody reads keeps the drain
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

TEST_CASE("flags that make no sense end with 2 before anything is loaded") {
  const Directory files;
  Program program({"--model", "/no/such/model", "--workers", "0"}, files.log);
  CHECK(program.line().empty());
  CHECK(program.exit_code() == 2);
  const std::string log = read_file(files.log);
  CHECK(log.find("--workers") != std::string::npos);
  CHECK(log.find("/no/such/model") == std::string::npos);
}

TEST_CASE("a model that cannot be loaded ends with 1 and says which and why") {
  const Directory files;
  std::ofstream(files.model / "config.json", std::ios::app) << "}";
  Program program({"--model", files.model, "--listen", "127.0.0.1:0"}, files.log);
  CHECK(program.line().empty());
  CHECK(program.exit_code() == 1);
  CHECK(read_file(files.log).find((files.model / "config.json").string()) != std::string::npos);
}

TEST_CASE("an address that is taken ends with 1") {
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
