// SPDX-License-Identifier: Apache-2.0
// A wall clock that jumps: sessions, deadlines, time limits and quotas go by another.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// The server's wall clock.
class JumpingClock {
 public:
  JumpingClock() {
    std::ofstream(file(), std::ios::binary) << std::string(sizeof(std::int64_t), '\0');
    const int fd = open(file().c_str(), O_RDWR | O_CLOEXEC);
    void* const mapped =
        mmap(nullptr, sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    REQUIRE(mapped != MAP_FAILED);
    seconds_ = static_cast<std::atomic<std::int64_t>*>(mapped);
  }
  ~JumpingClock() { munmap(seconds_, sizeof(std::int64_t)); }

  std::string shell() const {
    return "LINTEL_TEST_CLOCK=" + file() + " LD_PRELOAD=" LINTEL_CLOCK_SHIM " exec \"$@\"";
  }
  void jump_to(std::chrono::seconds offset) { *seconds_ = offset.count(); }

 private:
  std::string file() const { return (directory_.path() / "clock").string(); }
  TemporaryDirectory directory_;
  std::atomic<std::int64_t>* seconds_ = nullptr;
};

using std::chrono::hours;

constexpr hours kJumps[] = {hours(24), hours(-24), hours(24 * 365), hours(-24 * 365), hours(0)};

v1::Session create_session(const ChaosServer& server) {
  grpc::ClientContext context;
  v1::CreateSessionRequest request;
  v1::Session session;
  REQUIRE(v1::SessionService::NewStub(server.channel())->Create(&context, request, &session).ok());
  return session;
}

}  // namespace

TEST_CASE("jumps of the wall clock end no session, stream or deadline", "[smoke]") {
  JumpingClock clock;
  ChaosServer server({.flags = {"--session-idle-timeout", "10m"}, .shell = clock.shell()});
  clock.jump_to(hours(24));
  const v1::Session session = create_session(server);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto created = std::chrono::seconds(session.create_time().seconds());
  CHECK(created - now > hours(23));  // it is this clock that jumps
  clock.jump_to(hours(0));
  server.take_baseline();

  // A stream with a deadline of its own runs all the while.
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  const auto stream =
      v1::GenerationService::NewStub(server.channel())->Generate(&context, endless_request());
  v1::GenerateResponse message;
  int jumps = 0;
  for (int round = 0; round < 4; ++round) {
    for (const hours offset : kJumps) {
      INFO(offset.count());
      clock.jump_to(offset);
      ++jumps;
      for (int i = 0; i < 10; ++i) REQUIRE(stream->Read(&message));
      CHECK(server.generate_reference() == server.reference());

      v1::GenerateRequest limited = endless_request();
      limited.mutable_time_limit()->set_nanos(20'000'000);
      const auto before = std::chrono::steady_clock::now();
      const Answer cut = generate(server.channel(), limited);
      CHECK(cut.status.ok());
      CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(30));

      // A deadline that only the server could keep: the client reads for a minute.
      grpc::ClientContext late;
      late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
      const auto reader =
          v1::GenerationService::NewStub(server.channel())->Generate(&late, endless_request());
      v1::GenerateResponse ignored;
      while (reader->Read(&ignored)) {
      }
      CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    }
  }
  context.TryCancel();
  while (stream->Read(&message)) {
  }
  CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(server.metric("lintel_evictions_total") == 0);
  server.check_recovered(std::to_string(jumps) + " jumps of the wall clock by a day and a year");
  CHECK(server.stop() == 0);
}

TEST_CASE(
    "an idle session outlives a clock that jumps over its timeout, and ends in its own time") {
  JumpingClock clock;
  ChaosServer server({.flags = {"--session-idle-timeout", "4s"}, .shell = clock.shell()});
  const auto created = std::chrono::steady_clock::now();
  const std::string id = create_session(server).id();
  clock.jump_to(hours(24));
  // Eviction looks every second.
  CHECK(eventually([&] { return server.metric("lintel_evictions_total") == 1; }));
  CHECK(std::chrono::steady_clock::now() - created > std::chrono::seconds(4));
  CHECK(eventually([&] { return server.metric("lintel_sessions") == 0; }));
}

TEST_CASE("a quota is not refilled by a jump of the wall clock") {
  JumpingClock clock;
  // Ten calls' worth, and ten more: at one a second another call is a long way off.
  ChaosServer server(
      {.flags = {"--identity-tokens-per-second", "1", "--identity-token-burst", "660"},
       .shell = clock.shell()});
  // True if a call gets its 60 tokens within two seconds: on saved quota, not at one a second.
  const auto runs_at_full_speed = [&] {
    v1::GenerateRequest request = ChaosServer::reference_request();
    request.mutable_time_limit()->set_seconds(2);
    return generate(server.channel(), request).tokens.size() == 60;
  };
  int taken = 0;
  while (runs_at_full_speed()) ++taken;
  CHECK(taken >= 5);
  CHECK(taken <= 20);
  for (const hours offset : kJumps) {
    clock.jump_to(offset);
    CHECK(!runs_at_full_speed());
  }
  CHECK(server.serving());
}

}  // namespace lintel::testing
