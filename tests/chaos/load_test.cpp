// SPDX-License-Identifier: Apache-2.0
// More streams than rows, and the end of the server while streams run.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

// A shell's words that keep a program on the first two processors there are.
std::string on_two_cores() {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
  std::string list;
  for (int cpu = 0, taken = 0; cpu < CPU_SETSIZE && taken < 2; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    list += (taken++ == 0 ? "" : ",") + std::to_string(cpu);
  }
  return "exec taskset -c " + list + " \"$@\"";
}

// Many calls at a time, on few threads.
class Streams {
 public:
  ~Streams() { wait(); }

  // held: it reads nothing before read().
  void start(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request,
             bool held = false) {
    auto& stream = streams_.emplace_back(std::make_unique<Stream>(*this));
    stream->request = request;
    {
      const std::lock_guard lock(mutex_);
      ++running_;
    }
    v1::GenerationService::NewStub(channel)->async()->Generate(&stream->context, &stream->request,
                                                               stream.get());
    held ? stream->AddHold() : stream->StartRead(&stream->message);
    stream->StartCall();
  }
  // Lets all that were held read.
  void read() {
    for (const auto& stream : streams_) {
      stream->StartRead(&stream->message);
      stream->RemoveHold();
    }
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
  }
  int with_tokens() const { return with_tokens_; }
  std::size_t size() const { return streams_.size(); }
  const Answer& answer(std::size_t i) const { return streams_[i]->answer; }
  const v1::GenerateRequest& request(std::size_t i) const { return streams_[i]->request; }

 private:
  struct Stream final : grpc::ClientReadReactor<v1::GenerateResponse> {
    explicit Stream(Streams& all) : all_(all) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (answer.tokens.empty()) ++all_.with_tokens_;
      for (const v1::Chunk& chunk : message.chunks()) {
        answer.tokens.insert(answer.tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
        answer.log2_probs.insert(answer.log2_probs.end(), chunk.log2_probs().begin(),
                                 chunk.log2_probs().end());
      }
      StartRead(&message);
    }
    void OnDone(const grpc::Status& status) override {
      answer.status = status;
      const std::lock_guard lock(all_.mutex_);
      if (--all_.running_ == 0) all_.ended_.notify_all();
    }
    Streams& all_;
    grpc::ClientContext context;
    v1::GenerateRequest request;
    v1::GenerateResponse message;
    Answer answer;
  };

  std::vector<std::unique_ptr<Stream>> streams_;
  std::atomic<int> with_tokens_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
};

constexpr int kSeeds = 50;

}  // namespace

TEST_CASE("500 streams at a time on two cores all get their tokens") {
  constexpr int kStreams = 500;
  const TemporaryDirectory directory;
  const std::string tokens = directory.path() / "tokens";
  write_random_model(tokens, tiny_config(TinyModel::kTokens), /*seed=*/7);
  ChaosServer server({.flags = {"--outbox-tokens", "32"},
                      .models = {LINTEL_WEIGHTS "/mnist-linear-small", tokens},
                      .shell = on_two_cores()});
  v1::GenerateRequest request;
  request.set_model("mnist-linear-small");
  request.mutable_prompt()->mutable_tokens()->add_ids(0);
  request.set_top_log2_probs(32);  // more than the connection takes in without a reader
  std::vector<Answer> expected;
  for (int i = 0; i < kSeeds; ++i) {
    request.mutable_sampling()->set_seed(static_cast<std::uint64_t>(i));
    expected.push_back(generate(server.channel(), request));
    REQUIRE(expected.back().status.ok());
  }
  const auto run = [&] {
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int i = 0; i < 10; ++i) channels.push_back(new_channel(server.address()));
    Streams streams;
    for (int i = 0; i < kStreams; ++i) {
      request.mutable_sampling()->set_seed(static_cast<std::uint64_t>(i % kSeeds));
      streams.start(channels[i % channels.size()], request,
                    /*held=*/true);
    }
    CHECK(eventually([&] { return server.metric("lintel_streams") == kStreams; }));
    streams.read();
    streams.wait();
    int right = 0;
    for (std::size_t i = 0; i < kStreams; ++i) {
      INFO(streams.answer(i).status.error_message());
      CHECK(streams.answer(i).status.ok());
      right += streams.answer(i) == expected[i % kSeeds] ? 1 : 0;
    }
    CHECK(right == kStreams);
  };
  run();
  server.take_baseline();
  run();
  server.check_recovered("500 streams at once, twice");
}

TEST_CASE("SIGTERM under load: every stream that was taken gets all of its tokens", "[smoke]") {
  constexpr int kStreams = 64;
  constexpr unsigned kTokens = 20'000;
  ChaosServer server({.flags = {"--drain-timeout", "120s"}});
  const Answer expected = generate(server.channel(), tokens_request(7, kTokens));
  REQUIRE(expected.status.ok());

  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 8; ++i) channels.push_back(new_channel(server.address()));
  Streams streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.start(channels[i % channels.size()], tokens_request(7, kTokens));
  }
  REQUIRE(eventually([&] { return streams.with_tokens() == kStreams; }));
  // More of them all the time, while the signal comes and until some were refused.
  std::atomic<int> opened{0};
  std::atomic<bool> enough{false};
  std::thread opener([&] {
    for (; !enough; ++opened) {
      streams.start(channels[opened % channels.size()], tokens_request(7, 100));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto open_more = [&](int some) {
    const int before = opened;
    return eventually([&] { return opened >= before + some; });
  };
  CHECK(open_more(20));
  const auto signalled = std::chrono::steady_clock::now();
  kill(server.pid(), SIGTERM);
  CHECK(eventually([&] { return server.get("/readyz").find("200 OK") == std::string::npos; }));
  CHECK(open_more(20));
  enough = true;
  opener.join();
  streams.wait();
  CHECK(server.wait() == 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - signalled;
  CHECK(took < std::chrono::seconds(120));

  int whole = 0, refused = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const Answer& answer = streams.answer(i);
    if (answer.status.ok()) {
      const std::size_t asked = streams.request(i).max_new_tokens();
      CHECK(answer.tokens.size() == asked);
      CHECK(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.tokens.begin()));
      ++whole;
    } else {
      INFO(answer.status.error_message());
      CHECK(answer.status.error_code() == grpc::StatusCode::UNAVAILABLE);
      CHECK(answer.tokens.empty());
      ++refused;
    }
    if (i < kStreams) CHECK(answer.status.ok());
  }
  CHECK(refused > 0);
  std::cout << "chaos: SIGTERM with " << kStreams
            << " streams running and more being opened: " << whole << " whole, " << refused
            << " refused, none cut; ended in " << took.count() << " s" << std::endl;
}

}  // namespace lintel::testing
