// SPDX-License-Identifier: Apache-2.0
// The account of what requests hold: every order in which few requests charge, shrink, split, are
// cancelled and end.
#include "server/core/request_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Kind = RequestRefusal::Kind;

TEST_CASE("request memory: a charge is all or nothing, and what it has is its own", "[threat-86]") {
  RequestMemory memory({.bytes = 100, .bytes_per_identity = 60});
  RequestMemory::Charge a(&memory, "a"), b(&memory, "b");
  CHECK_FALSE(a.add(50));
  const RequestRefusal own = a.add(11);
  CHECK(own.kind == Kind::kTooLarge);
  CHECK(own.needed == 61);
  CHECK(own.limit == 60);
  CHECK(own.flag == std::string("--identity-memory"));
  CHECK(a.bytes() == 50);
  CHECK_FALSE(b.add(40));
  const RequestRefusal full = b.add(11);
  CHECK(full.kind == Kind::kFull);
  CHECK(full.needed == 51);
  CHECK(full.limit == 100);
  CHECK(full.flag == std::string("--request-memory"));
  RequestMemory::Charge second(&memory, "a");
  CHECK(second.add(11).kind == Kind::kIdentityFull);
  CHECK_FALSE(second.add(10));
  CHECK(memory.stats().bytes == 100);
  a.shrink_to(20);
  a.shrink_to(30);  // no more than it has
  CHECK(memory.stats().bytes == 70);
  CHECK_FALSE(b.add(11));
  const auto refused = memory.stats().refused;
  CHECK(refused[static_cast<std::size_t>(Kind::kTooLarge)] == 1);
  CHECK(refused[static_cast<std::size_t>(Kind::kFull)] == 1);
  CHECK(refused[static_cast<std::size_t>(Kind::kIdentityFull)] == 1);
}

TEST_CASE("request memory: what can never fit is named by the smaller limit") {
  RequestMemory memory({.bytes = 100});
  RequestMemory::Charge charge(&memory, "");
  const RequestRefusal refusal = charge.add(101);
  CHECK(refusal.kind == Kind::kTooLarge);
  CHECK(refusal.limit == 100);
  CHECK(refusal.flag == std::string("--request-memory"));
  CHECK_FALSE(charge.add(100));
  const RequestRefusal more = charge.add(SIZE_MAX);
  CHECK(more.kind == Kind::kTooLarge);
  CHECK(more.needed == SIZE_MAX);
}

TEST_CASE("request memory: parts of a charge outlive it and each other, and moves change nothing") {
  RequestMemory memory({.bytes = 100, .bytes_per_identity = 100});
  std::optional<RequestMemory::Charge> part;
  {
    RequestMemory::Charge whole(&memory, "a");
    REQUIRE_FALSE(whole.add(80));
    part = whole.split(30);
    CHECK(whole.bytes() == 50);
    CHECK(memory.stats().bytes == 80);
    RequestMemory::Charge moved(std::move(whole));
    moved = RequestMemory::Charge(&memory, "b");
    CHECK(memory.stats().bytes == 30);
  }
  CHECK(part->bytes() == 30);
  RequestMemory::Charge rest = part->split(1000);
  CHECK(rest.bytes() == 30);
  CHECK(part->bytes() == 0);
  part.reset();
  CHECK(memory.stats().bytes == 30);
}

TEST_CASE("request memory: charges of one request are refused for good by what all of them need") {
  RequestMemory memory({.bytes = 100});
  RequestMemory::Charge body(&memory, "a"), other(&memory, "a");
  REQUIRE_FALSE(body.add(60));
  RequestMemory::Charge answer = body.beside();
  CHECK(answer.add(41).kind == Kind::kTooLarge);
  CHECK(other.add(41).kind == Kind::kFull);
  body.shrink_to(50);
  CHECK_FALSE(answer.add(41));
  RequestMemory::Charge part = answer.split(1);
  const RequestRefusal refusal = part.add(10);
  CHECK(refusal.kind == Kind::kTooLarge);
  CHECK(refusal.needed == 101);
  body = {};
  answer = {};
  CHECK_FALSE(part.add(99));
}

TEST_CASE("request memory: large releases return to the system before they count as free") {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  RequestMemory* account = nullptr;
  std::vector<std::size_t> held;  // bytes of the account, where memory is returned
  RequestMemory memory({.bytes = 64 * kMiB}, [&] { held.push_back(account->stats().bytes); });
  account = &memory;
  RequestMemory::Charge charge(&memory, "a");
  REQUIRE_FALSE(charge.add(64 * kMiB));
  charge.shrink_to(60 * kMiB);
  charge.shrink_to(52 * kMiB);
  CHECK(held.empty());
  charge.shrink_to(48 * kMiB);
  CHECK(held == std::vector{52 * kMiB});
  for (std::size_t left = 47; left > 7; --left) charge.shrink_to(left * kMiB);  // small ones
  CHECK(held.size() == 1);
  REQUIRE_FALSE(charge.add(56 * kMiB));
  charge = {};
  CHECK(held == std::vector{52 * kMiB, 64 * kMiB});
}

TEST_CASE("request memory: a charge of no account counts alone") {
  RequestMemory::Charge charge;
  CHECK_FALSE(charge.add(std::size_t{1} << 60));
  CHECK(charge.split(5).bytes() == 5);
  charge.shrink_to(7);
  CHECK(charge.bytes() == 7);
}

// The next action of a request of the model. Each is a program of a few steps; any step may be its
// last one, for its client goes or an error ends it.
struct Step {
  enum class Do { kAdd, kShrink, kSplit, kDropPart, kMove };
  Do what;
  std::size_t bytes = 0;
};

// One request: its charge, and a part that is held apart, as an answer or a log is.
class ModelRequest {
 public:
  ModelRequest(RequestMemory& memory, std::string identity)
      : identity_(std::move(identity)), charge_(&memory, identity_) {}

  // Returns whether it may continue: a request that is refused ends.
  bool run(const Step& step, RequestRefusal& refusal) {
    switch (step.what) {
      case Step::Do::kAdd:
        refusal = charge_.add(step.bytes);
        return !refusal;
      case Step::Do::kShrink:
        charge_.shrink_to(step.bytes);
        break;
      case Step::Do::kSplit:
        part_ = charge_.split(step.bytes);
        break;
      case Step::Do::kDropPart:
        part_.reset();
        break;
      case Step::Do::kMove: {
        RequestMemory::Charge moved(std::move(charge_));
        charge_ = std::move(moved);
        break;
      }
    }
    return true;
  }
  const std::string& identity() const { return identity_; }
  std::size_t bytes() const { return charge_.bytes() + (part_ ? part_->bytes() : 0); }

 private:
  const std::string identity_;
  RequestMemory::Charge charge_;
  std::optional<RequestMemory::Charge> part_;
};

// Runs every interleaving of the requests' steps, each of which may be cut off before any of its
// steps. The account has one lock, so that an interleaving of its calls is all that threads do.
class Exploration {
 public:
  using Program = std::vector<Step>;
  Exploration(RequestMemory::Limits limits, std::vector<std::pair<std::string, Program>> requests)
      : limits_(limits), requests_(std::move(requests)) {}

  void run() {
    std::vector<int> choices;
    explore(choices);
  }
  int runs() const { return runs_; }
  int refusals() const { return refusals_; }

 private:
  // 2i: request i takes a step; 2i + 1: it ends where it is.
  void explore(std::vector<int>& choices) {
    const std::vector<bool> open = replay(choices);
    bool is_leaf = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!open[i]) continue;
      is_leaf = false;
      for (const int end : {0, 1}) {
        choices.push_back(static_cast<int>(2 * i) + end);
        explore(choices);
        choices.pop_back();
      }
    }
    runs_ += is_leaf;
  }

  // Runs the choices from the start; returns which requests have not ended.
  std::vector<bool> replay(const std::vector<int>& choices) {
    RequestMemory memory(limits_);
    std::vector<std::optional<ModelRequest>> live(requests_.size());
    std::vector<std::size_t> at(requests_.size());
    std::vector<bool> open(requests_.size(), true);
    for (std::size_t i = 0; i < live.size(); ++i) live[i].emplace(memory, requests_[i].first);
    for (const int choice : choices) {
      const auto i = static_cast<std::size_t>(choice) / 2;
      const std::size_t before = held(live), own = held(live, live[i]->identity());
      const std::size_t mine = live[i]->bytes();
      bool goes_on = choice % 2 == 0 && at[i] < requests_[i].second.size();
      RequestRefusal refusal;
      if (goes_on) {
        const Step& step = requests_[i].second[at[i]++];
        goes_on = live[i]->run(step, refusal);
        if (step.what == Step::Do::kAdd) check(step.bytes, mine, before, own, refusal);
      }
      if (!goes_on) {
        live[i].reset();
        open[i] = false;
      }
      const std::size_t now = held(live);
      REQUIRE(memory.stats().bytes == now);
      REQUIRE(now <= limits_.bytes);
      for (const auto& request : live) {
        if (request && limits_.bytes_per_identity > 0) {
          REQUIRE(held(live, request->identity()) <= limits_.bytes_per_identity);
        }
      }
    }
    live.clear();
    REQUIRE(memory.stats().bytes == 0);
    return open;
  }

  // A charge is refused where it must be, and only there.
  void check(std::size_t bytes, std::size_t mine, std::size_t all, std::size_t own,
             const RequestRefusal& refusal) {
    const std::size_t most = limits_.bytes_per_identity == 0
                                 ? limits_.bytes
                                 : std::min(limits_.bytes, limits_.bytes_per_identity);
    const bool fits_own =
        limits_.bytes_per_identity == 0 || own + bytes <= limits_.bytes_per_identity;
    const bool fits = fits_own && all + bytes <= limits_.bytes;
    REQUIRE(!refusal == fits);
    refusals_ += !fits;
    if (fits) return;
    REQUIRE((refusal.kind == Kind::kTooLarge) == (mine + bytes > most));
    if (mine + bytes <= most) REQUIRE((refusal.kind == Kind::kIdentityFull) == !fits_own);
  }

  static std::size_t held(const std::vector<std::optional<ModelRequest>>& live,
                          const std::optional<std::string>& identity = {}) {
    std::size_t bytes = 0;
    for (const auto& request : live) {
      if (request && (!identity || request->identity() == *identity)) bytes += request->bytes();
    }
    return bytes;
  }

  const RequestMemory::Limits limits_;
  const std::vector<std::pair<std::string, Program>> requests_;
  int runs_ = 0;
  int refusals_ = 0;
};

TEST_CASE("request memory: in no order of few requests is it negative, leaked or beyond its limit",
          "[threat-86]") {
  using Do = Step::Do;
  // A chat's steps: its body, its answer apart, the body dropped, the answer written.
  const Exploration::Program chat = {{Do::kAdd, 3}, {Do::kAdd, 2},    {Do::kSplit, 2},
                                     {Do::kMove},   {Do::kShrink, 1}, {Do::kDropPart}};
  const Exploration::Program small = {{Do::kAdd, 2}, {Do::kShrink, 0}, {Do::kAdd, 4}};
  const Exploration::Program large = {{Do::kAdd, 5}, {Do::kAdd, 5}};
  SECTION("two chats of one caller") {
    Exploration all({.bytes = 9, .bytes_per_identity = 9}, {{"a", chat}, {"a", chat}});
    all.run();
    CHECK(all.runs() > 1000);
    CHECK(all.refusals() > 0);
  }
  SECTION("three requests of two callers") {
    Exploration all({.bytes = 8, .bytes_per_identity = 6},
                    {{"a", small}, {"b", large}, {"a", small}});
    all.run();
    CHECK(all.runs() > 1000);
    CHECK(all.refusals() > 0);
  }
  SECTION("without a limit of a caller's own") {
    Exploration all({.bytes = 7}, {{"", chat}, {"", small}});
    all.run();
    CHECK(all.runs() > 1000);
    CHECK(all.refusals() > 0);
  }
}

TEST_CASE("request memory: threads leave nothing in it", "[threads]") {
  RequestMemory memory({.bytes = 1000, .bytes_per_identity = 600});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (std::size_t i = 0; i < 2000; ++i) {
        RequestMemory::Charge charge(&memory, t % 2 == 0 ? "a" : "b");
        if (charge.add(100 + i % 200)) continue;
        RequestMemory::Charge part = charge.split(i % 100);
        charge.shrink_to(i % 50);
        charge = std::move(part);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory.stats().bytes == 0);
}

}  // namespace
}  // namespace lintel::testing
