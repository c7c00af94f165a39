// SPDX-License-Identifier: Apache-2.0
// The plan of the server's memory at limits from 256 MiB to 24 GiB.
#include "server/app/memory_plan.h"

#include <algorithm>
#include <string>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kPlanMiB = std::size_t{1} << 20;
constexpr std::size_t kPlanGiB = std::size_t{1} << 30;

// The defaults of a server with one model and HTTP.
ServerOptions default_options() {
  ServerOptions options;
  options.models.directories.push_back({"m", "m"});
  options.http.listen = ListenAddress{"127.0.0.1", 0, ""};
  return options;
}

struct Planned {
  ServerOptions options;
  MemoryPlan plan;

  std::size_t row(const std::string& name) const {
    const auto found = std::ranges::find(plan.rows, name, &MemoryPlan::Row::name);
    return found == plan.rows.end() ? 0 : found->bytes;
  }
};

Planned planned(ServerOptions options, std::size_t limit_bytes, const LoadedModels& models) {
  const MemoryLimit limit{.bytes = limit_bytes, .source = "a test"};
  choose_sizes(options, limit);
  MemoryPlan plan = plan_memory(options, limit, models);
  return {std::move(options), std::move(plan)};
}

constexpr LoadedModels kSmall{
    .count = 1, .weight_bytes = 8 * kPlanMiB, .worker_bytes = 4 * kPlanMiB};

}  // namespace

TEST_CASE("memory plan: sessions get the rest of 0.9 of the limit", "[memory_plan]") {
  struct Case {
    std::size_t limit, requests, queues, connections, http, responses, sessions;
  };
  // Sizes in MiB; the program has 64, weights have 8, workers 4.
  const Case cases[] = {
      {512, 64, 32, 32, 16, 16, 224},
      {2048, 256, 128, 128, 64, 64, 1127},
      {24 * 1024, 3072, 256, 256, 64, 256, 18138},
  };
  for (const Case& each : cases) {
    CAPTURE(each.limit);
    const Planned got = planned(default_options(), each.limit * kPlanMiB, kSmall);
    CHECK(got.row("program") == 64 * kPlanMiB);
    CHECK(got.row("weights") == kSmall.weight_bytes);
    CHECK(got.row("worker buffers") == kSmall.worker_bytes);
    CHECK(got.row("requests") == each.requests * kPlanMiB);
    CHECK(got.row("queues") == each.queues * kPlanMiB);
    CHECK(got.row("connections") == each.connections * kPlanMiB);
    CHECK(got.row("HTTP") == each.http * kPlanMiB);
    CHECK(got.row("responses") == each.responses * kPlanMiB);
    CHECK(got.row("sessions") == each.sessions * kPlanMiB);
    CHECK(got.plan.session_memory_bytes == each.sessions * kPlanMiB);
    CHECK(got.plan.prefix_memory_bytes == got.plan.session_memory_bytes);
    CHECK(got.plan.model_memory_bytes == 0);
    CHECK_FALSE(got.plan.is_too_small);
    CHECK(got.plan.total_bytes() <= each.limit * kPlanMiB / 10 * 9);
    // Nothing that is left would be a MiB more for sessions.
    CHECK(got.plan.total_bytes() + kPlanMiB > each.limit * kPlanMiB / 10 * 9);
    // The sizes are those that the server uses.
    CHECK(got.options.request_memory_bytes == each.requests * kPlanMiB);
    CHECK(got.options.http.memory_bytes == static_cast<std::int64_t>(each.http * kPlanMiB));
  }
}

TEST_CASE("memory plan: sessions need 64 MiB", "[memory_plan]") {
  const auto with_weights = [](std::size_t mebibytes) {
    LoadedModels models = kSmall;
    models.weight_bytes = mebibytes * kPlanMiB;
    return planned(default_options(), 512 * kPlanMiB, models).plan;
  };
  CHECK(with_weights(168).session_memory_bytes == 64 * kPlanMiB);
  CHECK_FALSE(with_weights(168).is_too_small);
  CHECK(with_weights(169).is_too_small);
  CHECK(with_weights(4000).is_too_small);
  CHECK(with_weights(4000).session_memory_bytes == 0);
}

TEST_CASE("memory plan: sizes that are given stay, also where their sum is above it",
          "[memory_plan]") {
  ServerOptions options = default_options();
  options.sessions.session_memory_bytes = 3 * kPlanGiB;
  options.prefixes.memory_bytes = 5 * kPlanMiB;
  options.request_memory_bytes = 7 * kPlanMiB;
  options.models.scheduling.max_queued_bytes = 11 * kPlanMiB;
  options.connections.memory_bytes = 17 << 20;
  options.http.listen.reset();
  options.durable.store = "sessions";
  LoadedModels models = kSmall;
  models.count = 3;
  const Planned got = planned(options, kPlanGiB, models);
  CHECK(got.plan.session_memory_bytes == 3 * kPlanGiB);
  CHECK(got.plan.prefix_memory_bytes == 5 * kPlanMiB);
  CHECK(got.row("requests") == 7 * kPlanMiB);
  CHECK(got.row("queues") == 33 * kPlanMiB);
  CHECK(got.row("connections") == 17 * kPlanMiB);
  CHECK(got.row("HTTP") == 0);
  CHECK(got.row("responses") == 0);
  CHECK_FALSE(got.plan.is_too_small);
  CHECK(got.plan.total_bytes() > got.plan.most_bytes());
}

TEST_CASE("memory plan: models that load later have a bound", "[memory_plan]") {
  for (const bool on_request : {false, true}) {
    ServerOptions options = default_options();
    (on_request ? options.models.on_request : options.models.repository) = "models";
    const Planned got = planned(options, 24 * kPlanGiB, kSmall);
    const std::size_t later = got.row("later models");
    CHECK(later > 8 * kPlanGiB);
    CHECK(got.plan.session_memory_bytes >= later);
    CHECK(got.plan.session_memory_bytes <= later + 2 * kPlanMiB);
    CHECK(got.plan.model_memory_bytes == kSmall.weight_bytes + later - later / 8);
    CHECK(got.plan.total_bytes() <= got.plan.most_bytes());

    options.models.memory_bytes = 4 * kPlanGiB;
    const Planned given = planned(options, 24 * kPlanGiB, kSmall);
    CHECK(given.plan.model_memory_bytes == 4 * kPlanGiB);
    CHECK(given.row("later models") == (4 * kPlanGiB - kSmall.weight_bytes) / 8 * 9);
    CHECK(given.plan.session_memory_bytes > got.plan.session_memory_bytes);
    CHECK(given.plan.total_bytes() <= given.plan.most_bytes());

    options.models.memory_bytes = 0;  // no bound
    const Planned unbound = planned(options, 24 * kPlanGiB, kSmall);
    CHECK(unbound.plan.model_memory_bytes == 0);
    CHECK(unbound.row("later models") == 0);
  }
  // Little memory is the sessions' first; and a bound of 0 would be none.
  ServerOptions options = default_options();
  options.models.directories.clear();
  options.models.on_request = "models";
  const Planned small = planned(options, 320 * kPlanMiB, {});
  CHECK(small.plan.session_memory_bytes >= MemoryPlan::kLeastSessionBytes);
  CHECK(small.plan.model_memory_bytes > 0);
}

TEST_CASE("memory plan: queues of several models share a 16th of the limit", "[memory_plan]") {
  ServerOptions options = default_options();
  for (int i = 1; i < 6; ++i) options.models.directories.push_back({"m" + std::to_string(i), "m"});
  LoadedModels models = kSmall;
  models.count = 6;
  const Planned got = planned(options, 2 * kPlanGiB, models);
  CHECK(got.row("queues") <= 128 * kPlanMiB);
  CHECK(got.row("queues") > 127 * kPlanMiB);
}

TEST_CASE("memory plan: an unknown limit leaves what servers had before", "[memory_plan]") {
  const Planned got = planned(default_options(), 0, kSmall);
  CHECK(got.plan.session_memory_bytes == kPlanGiB);
  CHECK(got.options.request_memory_bytes == 512 * kPlanMiB);
  CHECK_FALSE(got.plan.is_too_small);
}

TEST_CASE("memory plan: --memory-limit replaces the machine's", "[memory_plan]") {
  ServerOptions options;
  options.memory_limit_bytes = 3 * kPlanGiB;
  CHECK(memory_limit_of(options).bytes == 3 * kPlanGiB);
  CHECK(memory_limit_of(options).source == "--memory-limit");
  options.memory_limit_bytes = kAutoBytes;
  CHECK(memory_limit_of(options).source != "--memory-limit");
}

TEST_CASE("memory plan: the table has the limit, each row and the sum", "[memory_plan]") {
  using Catch::Matchers::Contains;
  const Planned got = planned(default_options(), 24 * kPlanGiB, kSmall);
  const std::vector<std::string> table = got.plan.table();
  REQUIRE(table.size() == got.plan.rows.size() + 2);
  CHECK_THAT(table.front(), Contains("limit") && Contains("24.0 GiB") && Contains("a test"));
  CHECK_THAT(table[table.size() - 2],
             Contains("sessions") && Contains("17.7 GiB") && Contains("--session-memory"));
  CHECK_THAT(table.back(), Contains("sum") && Contains("of at most 21.6 GiB"));
}

}  // namespace lintel::testing
