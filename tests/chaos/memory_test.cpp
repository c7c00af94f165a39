// SPDX-License-Identifier: Apache-2.0
// What strangers can make a server hold and do before they have shown a token.
#include <fstream>
#include <iostream>
#include <sstream>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/chaos/chaos_server.h"
#include "tests/chaos/sockets.h"
#include "tests/server/support/generic_call.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kMiB = 1 << 20;

// A line of the process's status: "VmHWM" (KiB, the most memory it ever had), "Threads".
std::size_t status_of(const ChaosServer& server, const std::string& name) {
  std::ifstream lines("/proc/" + std::to_string(server.pid()) + "/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoull(line.substr(name.size() + 1));
  }
  return 0;
}
std::size_t peak_bytes(const ChaosServer& server) { return status_of(server, "VmHWM") * 1024; }

std::string repeated(const std::string& bytes, std::size_t size) {
  std::string all;
  while (all.size() + bytes.size() <= size) all += bytes;
  return all;
}

struct Flood {
  std::string method;
  std::string element;  // of which the message has as many as fit
};

const std::vector<Flood>& floods() {
  const std::string inference = "/inference.GRPCInferenceService/";
  const std::string unknown("\xf8\x07\x01", 3);
  static const std::vector<Flood> all = {
      {inference + "ServerLive", unknown},
      {inference + "ModelReady", unknown},
      {inference + "ModelInfer", std::string("\x3a\0", 2)},        // raw_input_contents
      {inference + "ModelStreamInfer", std::string("\x2a\0", 2)},  // inputs
      {"/lintel.v1.GenerationService/Generate", std::string("\x5a\0", 2)},
      {"/lintel.v1.GenerationService/Score", std::string("\x12\0", 2)},
      {"/lintel.v1.SessionService/Create", unknown},
      {"/lintel.v1.ModelService/List", unknown},
      {"/grpc.health.v1.Health/Check", unknown},
      {"/grpc.health.v1.Health/Watch", unknown},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", unknown},
      {"/grpc.channelz.v1.Channelz/GetServers", unknown},
  };
  return all;
}

grpc::Status send(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& message) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  GenericCall call(channel, method, context);
  call.write_last(message);
  if (method.find("Watch") != std::string::npos) {
    call.read();
    context.TryCancel();
  }
  return call.finish();
}

}  // namespace

TEST_CASE("a message of two-byte elements costs about its bytes, in every method", "[threat-42]") {
  ChaosServer server({.flags = {"--channelz"}});
  const std::size_t before = server.usage().rss_bytes;
  for (const Flood& flood : floods()) {
    INFO(flood.method);
    const std::string message = repeated(flood.element, 4 * kMiB);
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] { send(server.channel(), flood.method, message); });
    }
    for (std::thread& caller : callers) caller.join();
    std::cout << "chaos: 4 messages of 4 MiB to " << flood.method << ": at most "
              << (peak_bytes(server) - before) / kMiB << " MiB" << std::endl;
    CHECK(peak_bytes(server) < before + 160 * kMiB);
  }
  CHECK(server.generate_reference() == server.reference());
  CHECK(server.serving());
}

TEST_CASE("a refused message names the bound", "[smoke][threat-42]") {
  ChaosServer server;
  const auto refusal = [&](const std::string& method, const std::string& element,
                           std::size_t size) {
    return send(server.channel(), method, repeated(element, size)).error_message();
  };
  const std::string unknown("\xf8\x07\x01", 3);
  CHECK_THAT(refusal("/inference.GRPCInferenceService/ServerLive", unknown, 5000),
             Catch::Contains("than the 4096 of a ServerLiveRequest"));
  CHECK_THAT(refusal("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", unknown, 5000),
             Catch::Contains("than the 4096 of a ServerReflectionRequest"));
  CHECK_THAT(refusal("/inference.GRPCInferenceService/ModelInfer", std::string("\x3a\0", 2), kMiB),
             Catch::Contains("16777216 bytes of memory"));
  CHECK_THAT(refusal("/lintel.v1.ModelService/List", unknown, 5 * kMiB),
             Catch::Contains("4194304"));
}

TEST_CASE("messages that gRPC takes in whole share the memory for connections", "[threat-43]") {
  ChaosServer server({.flags = {"--connection-memory", "32MiB"}});
  const std::size_t before = server.usage().rss_bytes;
  const std::string message(200 * kMiB, '\0');
  const auto channel = new_channel(server.address());
  for (const char* method : {"/grpc.health.v1.Health/Check", "/lintel.v1.ModelService/List"}) {
    CHECK_FALSE(send(channel, method, message).ok());
    CHECK(peak_bytes(server) < before + 80 * kMiB);
  }
  std::cout << "chaos: messages of 200 MiB: at most " << (peak_bytes(server) - before) / kMiB
            << " MiB" << std::endl;
  CHECK(server.generate_reference() == server.reference());
  CHECK(server.serving());
}

TEST_CASE("an open stream holds nothing of the requests it has read", "[threat-44]") {
  constexpr int kStreams = 32;
  ChaosServer server;
  const auto stub = inference::GRPCInferenceService::NewStub(server.channel());
  inference::ModelInferRequest refused;  // within its bounds
  for (int i = 0; i < 60'000; ++i) refused.add_outputs();
  refused.set_id(std::string(kMiB, 'x'));
  inference::ModelStreamInferResponse response;
  // The allocator's share is the same for one stream and for many.
  const auto open = [&](grpc::ClientContext& context) {
    auto stream = stub->ModelStreamInfer(&context);
    REQUIRE(stream->Write(refused));
    REQUIRE(stream->Read(&response));
    CHECK_FALSE(response.error_message().empty());
    return stream;
  };
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<decltype(stub->ModelStreamInfer(nullptr))> streams;
  const auto open_one = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(open(*contexts.back()));
  };
  open_one();
  const std::size_t before = server.usage().rss_bytes;
  for (int i = 0; i < kStreams; ++i) open_one();
  CHECK(eventually([&] { return server.usage().rss_bytes < before + 48 * kMiB; }));
  std::cout << "chaos: " << kStreams << " idle streams: "
            << (static_cast<double>(server.usage().rss_bytes) - static_cast<double>(before)) / kMiB
            << " MiB" << std::endl;
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) stream->Finish();
}

TEST_CASE("streams of reflection take no threads", "[smoke][threat-46]") {
  namespace reflection = grpc::reflection::v1alpha;
  ChaosServer server;
  const auto stub = reflection::ServerReflection::NewStub(new_channel(server.address()));
  const std::size_t before = status_of(server, "Threads");
  reflection::ServerReflectionRequest request;
  request.set_list_services("");
  reflection::ServerReflectionResponse response;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<decltype(stub->ServerReflectionInfo(nullptr))> streams;
  for (int i = 0; i < 200; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->ServerReflectionInfo(contexts.back().get()));
    // The answer shows that the stream is there, and waits for the next question.
    REQUIRE(streams.back()->Write(request));
    REQUIRE(streams.back()->Read(&response));
  }
  CHECK(response.list_services_response().service_size() >= 8);
  CHECK(status_of(server, "Threads") < before + 30);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) stream->Finish();
}

TEST_CASE("a header field without an end costs its connection, and no other client waits",
          "[smoke][threat-45]") {
  using namespace http2;
  ChaosServer server;
  const std::uint64_t ticks_before = server.cpu_ticks();
  const std::size_t before = server.usage().rss_bytes;
  // A literal that is announced as 2 GiB less a bit, in CONTINUATION frames.
  const std::string announced = std::string(1, '\0') + "\x06x-long\x7f\x80\xff\xff\xff\x07";
  const std::string piece = frame(kContinuation, 0, 1, std::string(8192, 'x'));
  Neighbour neighbour(server);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Socket socket = Socket::connect(server.port());
    socket.write(
        hello() +
        frame(kHeaders, 0, 1, call_headers("/lintel.v1.GenerationService/Generate") + announced));
    std::size_t sent = 0;
    while (sent < 16 * kMiB && socket.try_write(piece)) sent += piece.size();
    CHECK(sent < 16 * kMiB);  // the connection was closed
  }
  neighbour.stop();
  CHECK(neighbour.served() > 0);
  CHECK(neighbour.disturbed() == 0);
  CHECK(peak_bytes(server) < before + 32 * kMiB);
  // 16 MiB would take 10 s, 100 ticks each; the neighbour is what is left.
  const std::uint64_t used = server.cpu_ticks() - ticks_before;
  std::cout << "chaos: three endless header fields beside " << neighbour.served()
            << " generations: " << used << " ticks" << std::endl;
  CHECK(used < 500);
}

TEST_CASE("slow connections to the metrics port keep no probe waiting", "[threat-57]") {
  ChaosServer server;
  std::vector<Socket> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(Socket::connect(server.metrics_port()));
    slow.back().write("GET /healthz HTTP/1.1\r\nHost:");
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THAT(server.get("/healthz"), Catch::Contains("200 OK"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));  // the probe's timeout
}

}  // namespace lintel::testing
