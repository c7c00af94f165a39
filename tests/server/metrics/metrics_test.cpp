// SPDX-License-Identifier: Apache-2.0
// /metrics, /healthz and /readyz over HTTP, and the dashboard that shows them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "inference/grpc_service.grpc.pb.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "lintel/v1/chat.grpc.pb.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/rpc/call_scope.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

// Calls of a method that ended well, about the model "tokens".
std::string ok_calls(const std::string& method) {
  return "lintel_requests_total{method=\"" + method + R"(",code="OK",model="tokens"})";
}

const std::string kGenerate =
    R"(lintel_requests_total{method="lintel.v1.GenerationService/Generate",)";

}  // namespace

TEST_CASE("the metrics count requests and work") {
  ServerOptions options = with_metrics();
  options.sessions.idle_timeout = std::chrono::seconds(60);
  options.sessions.session_memory_bytes = std::size_t{1} << 30;
  options.request_memory_bytes = std::size_t{1} << 29;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  REQUIRE(generate(server, request_for("tokens", {1, 2, 3}, 7)).status.ok());
  REQUIRE(generate(server, request_for("tokens", {1}, 2)).status.ok());
  CHECK_FALSE(generate(server, request_for("nosuch", {1}, 2)).status.ok());
  v1::ScoreRequest scoring;
  for (int i = 0; i < 4; ++i) {
    if (i == 0) scoring.add_sequences();
    scoring.mutable_sequences(0)->mutable_tokens()->add_ids(i);
  }
  REQUIRE(score(server, scoring).status.ok());
  const v1::Session session = create_session(server, "tokens");
  create_session(server, "tokens");

  CHECK(comes_to(server, kGenerate + R"(code="OK",model="tokens"})", 2));
  CHECK(comes_to(server, kGenerate + R"(code="NOT_FOUND"})", 1));
  auto now = values(server.server());
  CHECK(now.at(ok_calls("lintel.v1.GenerationService/Score")) == 1);
  CHECK(now.at(ok_calls("lintel.v1.SessionService/Create")) == 2);
  CHECK(now.at(R"(lintel_tokens_total{model="tokens",kind="prompt"})") == 3 + 1 + 4);
  CHECK(now.at(R"(lintel_tokens_total{model="tokens",kind="generated"})") == 7 + 2);
  CHECK(now.at(R"(lintel_tokens_total{model="tokens",kind="drafted"})") == 0);
  CHECK(now.at(R"(lintel_tokens_total{model="tokens",kind="accepted"})") == 0);
  CHECK(now.at(R"(lintel_grammar_mask_waits_total{model="tokens"})") == 0);
  CHECK(now.at(R"(lintel_grammar_empty_masks_total{model="tokens"})") == 0);
  CHECK(now.at(R"(lintel_grammar_mask_waits_total{model="tokens"})") == 0);
  CHECK(now.at(R"(lintel_time_to_first_token_seconds_count{model="tokens"})") == 2);
  CHECK(now.at(R"(lintel_time_between_tokens_seconds_count{model="tokens"})") == 6 + 1);
  CHECK(now.at(R"(lintel_queue_time_seconds_count{model="tokens"})") == 3);
  const double steps = now.at(R"(lintel_batch_rows_count{model="tokens"})");
  CHECK(steps >= 7);
  CHECK(now.at(R"(lintel_batch_rows_bucket{model="tokens",le="+Inf"})") == steps);
  for (const char* part : {"schedule", "products", "attention", "other", "sample", "deliver"}) {
    CHECK(now.at(R"(lintel_step_time_seconds_count{model="tokens",part=")" + std::string(part) +
                 "\"}") >= steps);
  }
  CHECK(now.at("lintel_build_info{version=\"" + std::string(LINTEL_VERSION) + "\",compiler=\"" +
               __VERSION__ + "\"}") == 1);
  CHECK(now.at(R"(lintel_sessions{state="idle"})") == 2);
  CHECK(now.at(R"(lintel_session_bytes{state="idle"})") ==
        2 * static_cast<double>(session.state_bytes()));
  CHECK(now.at("lintel_session_limit_bytes") == 1u << 30);
  CHECK(now.at("lintel_memory_waiters") == 0);
  CHECK(now.at("lintel_memory_wait_seconds_count") == 0);
  CHECK(now.at(R"(lintel_cancellations_total{model="tokens",reason="memory"})") == 0);
  CHECK(now.at("lintel_request_memory_bytes") >= 0);
  CHECK(now.at("lintel_request_memory_limit_bytes") == 1u << 29);
  for (const char* reason : {"full", "identity", "too_large"}) {
    CHECK(now.at(R"(lintel_request_memory_refusals_total{reason=")" + std::string(reason) +
                 "\"}") == 0);
  }
  CHECK(now.at("lintel_evictions_total") == 0);
  clock.advance(std::chrono::seconds(61));
  CHECK(server.server().store().evict_idle() == 2);
  now = values(server.server());
  CHECK(now.at("lintel_evictions_total") == 2);
  CHECK(now.at("lintel_sessions_created_total") == 2);
  CHECK(now.at(R"(lintel_sessions{state="idle"})") == 0);
}

TEST_CASE("calls are counted by their model, and unknown names by none") {
  TestServer server({"tokens", "bytes"}, with_metrics());
  const std::string no_call = R"(lintel_requests_total{method="lintel.v1.GenerationService/Score",)"
                              R"(code="OK",model="bytes"})";
  CHECK(values(server.server()).at(no_call) == 0);  // there before the first call
  REQUIRE(generate(server, request_for("bytes", {1}, 2)).status.ok());
  CHECK_FALSE(generate(server, request_for("bytes", {999'999}, 2)).status.ok());
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(generate(server, request_for("wire" + std::to_string(i), {1}, 2)).status.ok());
  }
  const v1::Session session = create_session(server, "tokens");
  const auto inference = inference::GRPCInferenceService::NewStub(server.channel());
  inference::ModelInferRequest infer;
  infer.set_model_name("bytes");
  inference::ModelInferResponse inferred;
  grpc::ClientContext infer_context;
  CHECK_FALSE(inference->ModelInfer(&infer_context, infer, &inferred).ok());  // it has no input
  v1::DeleteSessionRequest deletion;
  deletion.set_id(session.id());
  google::protobuf::Empty nothing;
  grpc::ClientContext delete_context;
  REQUIRE(server.sessions->Delete(&delete_context, deletion, &nothing).ok());

  CHECK(comes_to(server, kGenerate + R"(code="OK",model="bytes"})", 1));
  CHECK(comes_to(server, kGenerate + R"(code="INVALID_ARGUMENT",model="bytes"})", 1));
  CHECK(comes_to(server, kGenerate + R"(code="NOT_FOUND"})", 20));
  CHECK(comes_to(server, ok_calls("lintel.v1.SessionService/Delete"), 1));
  CHECK(comes_to(server,
                 R"(lintel_requests_total{method="inference.GRPCInferenceService/ModelInfer",)"
                 R"(code="INVALID_ARGUMENT",model="bytes"})",
                 1));
  CHECK_THAT(get(server.server(), "/metrics").body, !Catch::Contains("wire"));
}

TEST_CASE("a call that is refused by its headers is counted once") {
  const TokenFile file;
  ServerOptions options = with_metrics();
  options.security.auth_tokens = file.path;
  TestServer server({"tokens"}, options);
  const std::string list = R"(lintel_requests_total{method="lintel.v1.ModelService/List",)";
  const auto call_as = [&](const std::string& who) {
    grpc::ClientContext context;
    set_token(context, who);
    v1::ListModelsResponse response;
    return server.models->List(&context, {}, &response).error_code();
  };
  for (int i = 0; i < 3; ++i) CHECK(call_as("mallory") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(call_as("alice") == grpc::StatusCode::OK);
  CHECK(comes_to(server, list + R"(code="OK"})", 1));
  CHECK(comes_to(server, list + R"(code="UNAUTHENTICATED"})", 3));
}

TEST_CASE("durations of calls are a histogram of each method") {
  TestServer server({"tokens"}, with_metrics());
  const std::string name = "lintel_request_duration_seconds";
  const std::string labels = R"({method="lintel.v1.GenerationService/Generate")";
  const auto before = values(server.server());
  CHECK(before.at(name + "_count" + labels + "}") == 0);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(generate(server, request_for("tokens", {1}, 2)).status.ok());
  }
  CHECK(comes_to(server, name + "_count" + labels + "}", 3));
  const auto now = values(server.server());
  CHECK(now.at(name + "_bucket" + labels + R"(,le="+Inf"})") == 3);
  CHECK(now.at(name + "_sum" + labels + "}") > 0);

  RequestCounters counters;
  counters.count(Method::kScore, "a", 0, 0.001);  // bounds are inclusive
  counters.count(Method::kScore, "b", 99, 0.002);
  counters.count(Method::kScore, "", 0, 1e6);
  const HistogramSnapshot durations = counters.durations(Method::kScore);
  CHECK(durations.counts.front() == 1);
  CHECK(durations.counts.at(1) == 1);
  CHECK(durations.counts.back() == 1);
  CHECK(durations.sum == Approx(1e6 + 0.003));
  CHECK(counters.get(Method::kScore, 0, "a") == 1);
  CHECK(counters.get(Method::kScore, 2, "b") == 1);  // any other code counts as UNKNOWN
  CHECK(counters.get(Method::kScore, 0) == 1);
  CHECK(counters.total() == 3);
}

TEST_CASE("resources of the process have Prometheus' standard names") {
  TestServer server({"tokens"}, with_metrics());
  auto now = values(server.server());
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(now.at("process_max_fds") == static_cast<double>(limit.rlim_cur));
  CHECK(now.at("process_resident_memory_bytes") > 1 << 20);
  CHECK(now.at("process_virtual_memory_bytes") > now.at("process_resident_memory_bytes"));
  const double since =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
      now.at("process_start_time_seconds");
  CHECK(since > -2);
  CHECK(since < 24 * 3600);
  const double cpu = now.at("process_cpu_seconds_total");
  CHECK(cpu > 0);
  const double open = now.at("process_open_fds");
  const int more = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(eventually([&] { return values(server.server()).at("process_open_fds") >= open + 1; }));
  ::close(more);
  while (std::clock() < static_cast<std::clock_t>((cpu + 0.1) * CLOCKS_PER_SEC)) {
  }
  CHECK(values(server.server()).at("process_cpu_seconds_total") > cpu);
}

TEST_CASE("draft tokens of speculation and accepted ones are counted") {
  ServerOptions options = with_metrics();
  options.models.scheduling.speculation = Speculation::kOn;
  TestServer server({"tokens"}, options);
  v1::GenerateRequest request = request_for("tokens", {3, 7}, 200);
  (*request.mutable_sampling()->mutable_logit_bias())[11] = 14;  // one token nearly always
  const Generated out = generate(server, request);
  REQUIRE(out.status.ok());
  const v1::SampleFinish& finish = out.only().finish;
  REQUIRE(finish.accepted_tokens() > 100);
  REQUIRE(finish.drafted_tokens() >= finish.accepted_tokens());
  const Scheduler::Stats stats = server.scheduler("tokens").stats();
  const auto now = values(server.server());
  const double drafted = now.at(R"(lintel_tokens_total{model="tokens",kind="drafted"})");
  const double accepted = now.at(R"(lintel_tokens_total{model="tokens",kind="accepted"})");
  CHECK(drafted == static_cast<double>(stats.drafted_tokens));
  CHECK(accepted == static_cast<double>(stats.accepted_tokens));
  CHECK(drafted == finish.drafted_tokens());
  CHECK(accepted == finish.accepted_tokens());
  CHECK(now.at(R"(lintel_batch_rows_count{model="tokens"})") < 100);  // steps
}

TEST_CASE("steps that a row waits for the mask of its grammar are counted") {
  const TemporaryDirectory directory;
  const auto chat_template = directory.path() / "chat.jinja";
  std::ofstream(chat_template) << "{{ messages[0].content }}";
  ServerOptions options = with_metrics();
  options.models.chat_templates = {{"text", chat_template}};
  options.models.scheduling.mask_budget = 1;
  const SteadyClock clock;
  TestServer server(options, clock, {{"text", llama_text_model()}});
  const std::string name = R"(lintel_grammar_mask_waits_total{model="text"})";
  CHECK(values(server.server()).at(name) == 0);
  v1::ChatRequest request;
  request.set_body(R"({"messages": [{"role": "user", "content": "A city?"}],
                       "response_format": {"type": "json_object"}, "max_tokens": 5})");
  grpc::ClientContext context;
  const auto reader = v1::ChatService::NewStub(server.channel())->Complete(&context, request);
  v1::ChatResponse message;
  while (reader->Read(&message)) {
  }
  REQUIRE(reader->Finish().ok());
  const std::uint64_t waits = server.scheduler("text").stats().mask_waits;
  CHECK(waits > 0);
  CHECK(values(server.server()).at(name) == static_cast<double>(waits));
}

TEST_CASE("running and waiting requests, open streams and cancellations are seen") {
  ServerOptions options = with_metrics();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_batch_rows = 1;
  options.models.scheduling.prefill_rows_per_step = 1;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> streams;
  for (std::size_t i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(
        server.generation->Generate(contexts.back().get(), request_for("tokens", {1}, 5)));
    REQUIRE(eventually([&] { return scheduler.stats().queued == i + 1; }));
  }
  scheduler.run_one_step();
  auto now = values(server.server());
  CHECK(now.at(R"(lintel_requests_running{model="tokens"})") == 1);
  CHECK(now.at(R"(lintel_requests_waiting{model="tokens"})") == 2);
  CHECK(now.at("lintel_streams") == 3);
  CHECK(now.at(R"(lintel_session_bytes{state="one_shot"})") > 0);
  contexts[0]->TryCancel();
  const std::string cancelled = R"(lintel_cancellations_total{model="tokens",reason="client"})";
  CHECK(eventually([&] {
    scheduler.run_one_step();
    return values(server.server()).at(cancelled) == 1;
  }));
  run_until_idle(scheduler);
  CHECK(comes_to(server, kGenerate + R"(code="CANCELLED",model="tokens"})", 1));
  CHECK(comes_to(server, "lintel_streams", 0));
  for (auto& stream : streams) {
    v1::GenerateResponse message;
    while (stream->Read(&message)) {
    }
    stream->Finish();
  }
}

TEST_CASE("metrics have our prefix, base units and a help text, and no ids", "[threat-17]") {
  TestServer server({"tokens", "image"}, with_metrics());
  const v1::Session session = create_session(server, "tokens");
  v1::GenerateRequest request = request_for("", {1}, 3);
  request.set_session_id(session.id());
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "my-own-request-id");
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  REQUIRE(reader->Finish().ok());
  REQUIRE(comes_to(server, kGenerate + R"(code="OK",model="tokens"})", 1));
  const HttpAnswer answer = get(server.server(), "/metrics");
  CHECK(answer.code == 200);
  CHECK_THAT(answer.head, Catch::Contains("text/plain; version=0.0.4"));
  CHECK_THAT(answer.body, !Catch::Contains(session.id()) && !Catch::Contains("my-own-request-id"));
  std::istringstream lines(answer.body);
  std::set<std::string> named;
  const std::set<std::string> known_labels = {
      "model",         "method",   "code",      "kind",   "state",    "part",        "reason",
      "version",       "compiler", "attention", "head",   "modality", "weight_type", "fingerprint",
      "model_version", "le",       "result",    "thread", "how",      "at"};
  const std::regex label("([a-z_]+)=\"");
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    if (line.rfind("# HELP ", 0) == 0) {
      const std::size_t space = line.find(' ', 7);
      CHECK(line.size() > space + 5);
      named.insert(line.substr(7, space - 7));
    } else if (line[0] != '#') {
      CHECK((line.rfind("lintel_", 0) == 0 || line.rfind("process_", 0) == 0));
      for (std::sregex_iterator it(line.begin(), line.end(), label), end; it != end; ++it) {
        CHECK(known_labels.contains((*it)[1]));
      }
    }
  }
  CHECK(named.size() >= 20);
  const std::regex unit("_(ms|millis|milliseconds|us|micros|kb|mb|percent)(_|$)");
  for (const std::string& name : named) CHECK_FALSE(std::regex_search(name, unit));
}

TEST_CASE("healthz is liveness, readyz is readiness, and other paths are 404", "[threat-57]") {
  TestServer server({"tokens"}, with_metrics());
  CHECK(get(server.server(), "/healthz").code == 200);
  CHECK(get(server.server(), "/readyz").code == 200);
  for (const char* path : {"/", "/metrics/x", "/etc/passwd", "/../../etc/passwd", "/healthz2"}) {
    INFO(path);
    CHECK(get(server.server(), path).code >= 400);
  }
  server.server().begin_drain();
  CHECK(get(server.server(), "/healthz").code == 200);
  CHECK(get(server.server(), "/readyz").code == 503);
  CHECK(values(server.server()).at("lintel_draining") == 1);
}

TEST_CASE("exception while a page is made: answered 500, counted, and the next page is there",
          "[threat-66]") {
  TestServer server({"tokens"}, with_metrics());
  std::atomic<bool> throws{true};
  const auto answer = [&] {
    if (throws) throw std::bad_alloc();
    return true;
  };
  class Nothing final : public prometheus::Collectable {
   public:
    std::vector<prometheus::MetricFamily> Collect() const override { return {}; }
  } const nothing;
  const MetricsEndpoint endpoint({.host = "127.0.0.1", .port = 0}, nothing, answer, answer, {});
  CHECK(get(endpoint.port(), "/readyz").code == 500);
  CHECK(get(endpoint.port(), "/healthz").code == 500);
  CHECK(values(server.server()).at(R"(lintel_thread_failures_total{thread="metrics"})") >= 2);
  throws = false;
  CHECK(get(endpoint.port(), "/readyz").code == 200);
}

TEST_CASE("a metrics address in use: the error names it") {
  TestServer server({"tokens"}, with_metrics());
  ServerOptions options = with_metrics();
  options.monitoring.metrics_listen->port = server.server().metrics_port();
  CHECK_THROWS_WITH(TestServer({"tokens"}, options),
                    Catch::Contains(std::to_string(server.server().metrics_port())) &&
                        Catch::Contains("Address already in use"));
}

TEST_CASE("the dashboard queries metrics that exist") {
  const TemporaryDirectory directory;
  ServerOptions options = with_metrics();
  options.durable.store = directory.path() / "store";  // whose metrics are there with it alone
  TestServer server({"tokens"}, options);
  const std::string exported = get(server.server(), "/metrics").body;
  std::ifstream file(LINTEL_DOCKER_DIRECTORY "/grafana-dashboard.json");
  const auto dashboard = nlohmann::json::parse(file);
  int queries = 0;
  const std::regex metric("lintel_[a-z_]+");
  for (const auto& panel : dashboard["panels"]) {
    if (!panel.contains("targets")) continue;
    for (const auto& target : panel["targets"]) {
      const std::string query = target["expr"];
      ++queries;
      for (std::sregex_iterator it(query.begin(), query.end(), metric), end; it != end; ++it) {
        const std::string name = it->str();
        INFO(query);
        CHECK((exported.find("\n" + name + " ") != std::string::npos ||
               exported.find("\n" + name + "{") != std::string::npos));
      }
    }
  }
  CHECK(queries >= 12);
}

TEST_CASE("the metrics on a loopback address are read by names of this machine or allowed ones",
          "[threat-37]") {
  ServerOptions options = with_metrics();
  options.http.allowed_hosts = {"prometheus.example"};
  TestServer server({"tokens"}, options);
  const int port = server.server().metrics_port();
  for (const char* const path : {"/metrics", "/healthz", "/readyz"}) {
    CHECK(get(port, path).code == 200);
    CHECK(get(port, path, "127.0.0.1:9464").code == 200);
    CHECK(get(port, path, "prometheus.example:9464").code == 200);
    const HttpAnswer refused = get(port, path, "evil.example");
    CHECK(refused.code == 403);
    CHECK(refused.body.find("--http-allowed-host") != std::string::npos);
    CHECK(refused.body.find("lintel_") == std::string::npos);
  }
}

TEST_CASE("metrics are served before the server is ready, and readyz fails until then") {
  SteadyClock clock;
  LintelServer server(with_metrics(), clock, tiny_models({"tokens"}));
  CHECK(get(server, "/metrics").code == 200);
  CHECK(get(server, "/healthz").code == 200);
  CHECK(get(server, "/readyz").code == 503);
  server.start();
  CHECK(get(server, "/readyz").code == 200);
}

}  // namespace lintel::testing
