// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/chaos_server.h"

#include <arpa/inet.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

// The allocator and gRPC's buffers breathe; what leaks with every call shows beyond this.
constexpr std::size_t kRssTolerance = 8 << 20;
// The server gives memory back when it had no call for a second.
constexpr std::chrono::milliseconds kIdle{1500};

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// Ports on which the process listens.
std::set<int> listening_ports(pid_t pid) {
  const std::filesystem::path proc = "/proc/" + std::to_string(pid);
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "fd")) {
    std::error_code gone;
    sockets.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::set<int> ports;
  for (const char* table : {"tcp", "tcp6"}) {
    std::istringstream lines(text_of(proc / "net" / table));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skip, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skip;
      words >> inode;
      if (state != "0A" || !sockets.contains("socket:[" + inode + "]")) continue;
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

std::string megabytes(std::size_t bytes) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

}  // namespace

std::shared_ptr<grpc::Channel> new_channel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

v1::GenerateRequest tokens_request(std::uint64_t seed, unsigned max_new_tokens) {
  v1::GenerateRequest request;
  request.set_model("tokens");
  for (const int token : {3, 1, 4, 1, 5})
    request.mutable_prompt()->mutable_tokens()->add_ids(token);
  request.set_max_new_tokens(max_new_tokens);
  request.mutable_sampling()->set_seed(seed);
  request.set_log2_probs(true);
  return request;
}

v1::GenerateRequest endless_request() { return tokens_request(1, 1'000'000'000); }

Answer generate(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  const auto reader = v1::GenerationService::NewStub(channel)->Generate(&context, request);
  Answer answer;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    for (const v1::Chunk& chunk : message.chunks()) {
      answer.tokens.insert(answer.tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
      answer.log2_probs.insert(answer.log2_probs.end(), chunk.log2_probs().begin(),
                               chunk.log2_probs().end());
    }
  }
  answer.status = reader->Finish();
  return answer;
}

ChaosServer::ChaosServer(const Options& options) : credentials_(options.credentials) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // clients fail here on purpose
  std::vector<std::string> words = {"/bin/sh",
                                    "-c",
                                    options.shell,
                                    "sh",
                                    LINTEL_SERVER,
                                    "--listen",
                                    "127.0.0.1:0",
                                    "--metrics-listen",
                                    "127.0.0.1:0",
                                    "--workers",
                                    "2",
                                    "--max-new-tokens",
                                    options.max_new_tokens};
  std::vector<std::string> models = options.models;
  if (models.empty()) {
    models.push_back(path("tokens"));
    write_random_model(models.back(), tiny_config(TinyModel::kTokens), /*seed=*/7);
  }
  for (const std::string& model : models) words.insert(words.end(), {"--model", model});
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  std::string http = "off";
  if (options.http) {  // a port that was free a moment ago
    http_port_ = Socket::listen().port();
    http = "127.0.0.1:" + std::to_string(http_port_);
  }
  words.insert(words.end(), {"--http-listen", http});
  // Unless the shell sends it elsewhere, the log goes to a file: a pipe without a reader fills up.
  words[2] = "exec 2>" + path("log") + "\n" + options.shell;
  process_ = std::make_unique<Process>(words);
  const std::string ready = "lintel-server ready on ";
  const std::string& out = process_->read_out_until("\n");
  const std::size_t end = out.find('\n');  // with HTTP a second line may have come
  if (out.rfind(ready, 0) != 0 || end == std::string::npos) {
    process_->wait();
    throw std::runtime_error("lintel-server did not start: " + out + log());
  }
  address_ = out.substr(ready.size(), end - ready.size());
  for (const int listening : listening_ports(pid())) {
    if (listening != port() && listening != http_port_) metrics_port_ = listening;
  }
  channel_ = new_channel(address_, credentials_);
  reference_ = generate_reference();
  INFO(reference_.status.error_message());
  REQUIRE(reference_.status.ok());
  REQUIRE(reference_.tokens.size() == 60);
  metric("lintel_streams");  // the first request of metrics opens descriptors that stay
  baseline_ = usage();
}

ChaosServer::~ChaosServer() {
  if (std::uncaught_exceptions() > 0) {  // a REQUIRE failed
    const std::string text = log();
    std::cerr << "the end of the server's log:\n"
              << text.substr(text.size() - std::min<std::size_t>(text.size(), 3000));
  }
}

int ChaosServer::port() const { return std::stoi(address_.substr(address_.rfind(':') + 1)); }

Usage ChaosServer::usage() const {
  const std::filesystem::path proc = "/proc/" + std::to_string(pid());
  Usage usage;
  const std::string status = text_of(proc / "status");
  const auto at = status.find("VmRSS:");
  if (at != std::string::npos) usage.rss_bytes = std::stoull(status.substr(at + 6)) * 1024;
  std::error_code gone;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(proc / "fd", gone)) {
    ++usage.descriptors;
  }
  return usage;
}

std::uint64_t ChaosServer::cpu_ticks() const {
  const std::string stat = text_of("/proc/" + std::to_string(pid()) + "/stat");
  std::istringstream words(stat.substr(stat.rfind(')') + 1));
  std::string skip;
  for (int i = 0; i < 11; ++i) words >> skip;
  std::uint64_t user = 0, system = 0;
  words >> user >> system;
  return user + system;
}

std::string ChaosServer::get(const std::string& path) const {
  try {
    const Socket socket = Socket::connect(metrics_port_);
    socket.write("GET " + path + " HTTP/1.0\r\n\r\n");
    return socket.read_to_end();
  } catch (const std::runtime_error&) {
    return "";
  }
}

double ChaosServer::metric(const std::string& family, const std::string& label) const {
  std::string text;
  // The first try may fail for lack of descriptors or memory.
  eventually([&] { return !(text = get("/metrics")).empty(); });
  std::istringstream lines(text);
  double sum = 0;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(family, 0) != 0) continue;
    if (line[family.size()] != ' ' && line[family.size()] != '{') continue;
    if (line.find(label) == std::string::npos) continue;
    sum += std::stod(line.substr(line.rfind(' ')));
    found = true;
  }
  if (!found && label.empty()) throw std::runtime_error("no metric " + family + " in " + text);
  return sum;
}

std::string ChaosServer::log() const { return text_of(path("log")); }

bool ChaosServer::serving() const {
  const auto health = grpc::health::v1::Health::NewStub(new_channel(address_, credentials_));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::health::v1::HealthCheckResponse response;
  return health->Check(&context, {}, &response).ok() &&
         response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

void ChaosServer::take_baseline() {
  CHECK(eventually([&] { return metric("lintel_streams") == 0; }));
  std::this_thread::sleep_for(kIdle);
  baseline_ = usage();
  baseline_sessions_ = metric("lintel_sessions");
  started_ = std::chrono::steady_clock::now();
}

bool ChaosServer::gives_memory_back() const {
  return eventually([&] { return usage().rss_bytes <= baseline_.rss_bytes + kRssTolerance; },
                    std::chrono::seconds(10));
}

void ChaosServer::check_recovered(const std::string& counts) {
  INFO(counts);
  for (const char* family :
       {"lintel_requests_running", "lintel_requests_waiting", "lintel_streams"}) {
    INFO(family);
    CHECK(eventually([&] { return metric(family) == 0; }));
  }
  CHECK(eventually([&] { return metric("lintel_session_bytes", "one_shot") == 0; }));
  CHECK(eventually([&] { return metric("lintel_sessions", "busy") == 0; }));
  CHECK(metric("lintel_sessions") == baseline_sessions_);

  CHECK(serving());
  CHECK_THAT(get("/healthz"), Catch::Contains("200 OK"));
  CHECK_THAT(get("/readyz"), Catch::Contains("200 OK"));
  const Answer now = generate_reference();
  INFO(now.status.error_message());
  CHECK(now == reference_);

  CHECK(eventually([&] { return usage().descriptors <= baseline_.descriptors; }));
  CHECK(gives_memory_back());
  const Usage after = usage();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started_;
  std::cout << "chaos: " << counts << "; RSS " << megabytes(baseline_.rss_bytes) << " -> "
            << megabytes(after.rss_bytes) << "; descriptors " << baseline_.descriptors << " -> "
            << after.descriptors << "; " << took.count() << " s" << std::endl;
}

int ChaosServer::stop() {
  process_->send(SIGTERM);
  return process_->wait();
}

Neighbour::Neighbour(const ChaosServer& server)
    : thread_([this, &server] {
        const auto channel = new_channel(server.address());
        while (!done_) {
          const Answer answer = generate(channel, ChaosServer::reference_request());
          ++served_;
          if (!(answer == server.reference())) ++disturbed_;
        }
      }) {}

void Neighbour::stop() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace lintel::testing
