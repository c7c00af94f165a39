// SPDX-License-Identifier: Apache-2.0
// Exceptions on threads that run until the server ends.
#include <future>
#include <new>
#include <stdexcept>
#include <string>

#include "server/core/threads.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("exception in work for a thread: counted, logged with its text, and the next is done",
          "[threat-66]") {
  static std::promise<std::string> logged;
  ThreadFailures& failures = ThreadFailures::of_process();
  failures.log_with([](const char* thread, const char* what) noexcept {
    logged.set_value(std::string(thread) + ": " + what);
  });
  const std::uint64_t before = failures.count(ServerThread::kStoreWork);
  std::promise<void> done;
  {
    WorkThreads threads(1, 10);
    REQUIRE(threads.run([] { throw std::runtime_error("of the test"); }));
    REQUIRE(threads.run([&] { done.set_value(); }));
    done.get_future().wait();
  }
  failures.log_with(nullptr);
  CHECK(logged.get_future().get() == "store_work: of the test");
  CHECK(failures.count(ServerThread::kStoreWork) == before + 1);
}

TEST_CASE("turn of a loop: any exception ends the turn alone") {
  int turns = 0;
  CHECK(survives(ServerThread::kWorker, [&] { ++turns; }));
  CHECK_FALSE(survives(ServerThread::kWorker, [&] {
    ++turns;
    throw std::bad_alloc();
  }));
  CHECK_FALSE(survives(ServerThread::kWorker, [&] {
    ++turns;
    throw 1;
  }));
  CHECK(turns == 3);
}

}  // namespace
}  // namespace lintel::testing
