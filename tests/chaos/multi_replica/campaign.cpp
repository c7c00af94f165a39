// SPDX-License-Identifier: Apache-2.0
// Two replicas fight over the sessions of one Redis store while both of them, the store and the
// network between fail; the tokens that clients received of a session must be one line, without
// gaps and doubles.
#include <grpc/support/log.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <map>
#include <thread>

#include "tests/chaos/multi_replica/multi_replica_setup.h"
#include "tests/chaos/multi_replica/replica_client.h"

namespace lintel::testing {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

struct Flags {
  int seconds = 60;
  int sessions = 64;
  int clients = 8;
  std::uint64_t seed = 1;
  bool cluster = false;
  bool undisturbed = false;
  std::filesystem::path keep;
};

// From `first` on, which is the oldest that can be had.
std::vector<std::int32_t> stored_tokens(const Client& client, const std::string& session,
                                        std::int64_t& first) {
  std::vector<std::int32_t> tokens;
  v1::ReadHistoryRequest request;
  request.set_id(session);
  first = client.get_session(session).oldest_position();
  request.set_from_position(first);
  client.read_history(request, [&](const v1::Chunk& chunk) {
    tokens.insert(tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
  });
  return tokens;
}

// A cluster that has just started may be busy; a session that was made nevertheless stays unused.
std::string created(const std::string& address, const v1::CreateSessionRequest& request) {
  for (const auto give_up = SteadyClock::now() + 30s;;) {
    try {
      return client_of(address, 30s).create_session(request).id();
    } catch (const CallError&) {
      if (SteadyClock::now() > give_up) throw;
    }
    std::this_thread::sleep_for(100ms);
  }
}

int run_campaign(const Flags& flags) {
  MultiReplicaSetup field({.seed = flags.seed, .cluster = flags.cluster});
  const std::vector<std::string> addresses = field.addresses();
  std::vector<ReplicaSession> sessions(static_cast<std::size_t>(flags.sessions));
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    v1::CreateSessionRequest create;
    create.set_model("tokens");
    create.set_durability(i % 2 == 0 ? v1::DURABILITY_INPUT : v1::DURABILITY_TOKEN);
    sessions[i].id = created(addresses[i % 2], create);
  }

  Faults faults;
  ReplicaCounts counts;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < flags.clients; ++i) {
    threads.emplace_back([&, i] {
      try {
        ReplicaClient(i, flags.seed * 1000 + static_cast<std::uint64_t>(i), addresses, sessions,
                      faults, counts)
            .fight(over);
      } catch (const std::exception& error) {
        faults.add(error.what());
      }
    });
  }
  const auto end = SteadyClock::now() + std::chrono::seconds(flags.seconds);
  try {
    while (SteadyClock::now() < end && !faults.any()) {
      if (flags.undisturbed) {
        std::this_thread::sleep_for(100ms);
      } else {
        field.strike();
      }
    }
  } catch (const std::exception& error) {
    faults.add(std::string("the battlefield: ") + error.what());
  }
  over = true;
  for (std::thread& thread : threads) thread.join();

  // Both replicas have all of it.
  for (std::size_t with = 0; with < 2; ++with) {
    const Client client = client_of(addresses[with], 30s);
    for (const ReplicaSession& session : sessions) {
      try {
        std::int64_t first = 0;
        const std::vector<std::int32_t> tokens = stored_tokens(client, session.id, first);
        faults.add(session.line.difference(tokens, first),
                   session.id + ", read from replica " + std::to_string(with));
      } catch (const std::exception& error) {
        faults.add(session.id + ", read from replica " + std::to_string(with) + ": " +
                   error.what());
      }
    }
  }
  const std::string cost = field.script_cost();
  const std::vector<std::string> bad_ends = field.stop();

  std::cout << counts.calls << " calls, " << counts.tokens << " tokens, " << counts.tries
            << " tries, " << counts.cut_in_stream << " of them cut off in mid-stream; longest call "
            << counts.longest.count() << " ms\n";
  std::map<std::string, int> strikes;
  for (const MultiReplicaSetup::Strike& strike : field.strikes()) ++strikes[strike.what];
  for (const auto& [what, count] : strikes) std::cout << "  " << count << " x " << what << "\n";
  for (const auto& [what, count] : counts.refusals) {
    std::cout << "  refused " << count << " x code " << what << "\n";
  }
  if (!cost.empty()) std::cout << "  " << cost << "\n";
  std::vector<std::string> wrong = faults.texts();
  wrong.insert(wrong.end(), bad_ends.begin(), bad_ends.end());
  for (const std::string& text : wrong) std::cout << "WRONG: " << text << "\n";
  if (!wrong.empty()) {
    for (const ReplicaSession& session : sessions) {
      const bool is_wrong = std::ranges::any_of(wrong, [&](const std::string& text) {
        return text.find(session.id) != std::string::npos;
      });
      if (is_wrong) std::cout << session.id << ":\n" << session.trace.text();
    }
    if (!flags.keep.empty()) field.keep(flags.keep);
    for (const MultiReplicaSetup::Strike& strike : field.strikes()) {
      std::cout << strike.at.count() << " ms, for " << strike.took.count() << ": " << strike.what;
      if (strike.which) std::cout << " (" << *strike.which << ")";
      std::cout << "\n";
    }
    std::cout << "FAILED: --seed " << flags.seed << "\n";
  }
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace lintel::testing

int main(int argc, char** argv) {
  using namespace lintel::testing;
  signal(SIGPIPE, SIG_IGN);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  redis_server_binary();  // or skipped
  Flags flags;
  CLI::App app("Two lintel-servers fight over the sessions of one Redis store.");
  app.add_option("--seconds", flags.seconds, "How long [60]");
  app.add_option("--sessions", flags.sessions, "Sessions [64]");
  app.add_option("--clients", flags.clients, "Clients, each with one call at a time [8]");
  app.add_option("--seed", flags.seed, "Of all that is drawn [1]");
  app.add_flag("--cluster", flags.cluster, "On a Redis Cluster of six, else on one Redis");
  app.add_flag("--undisturbed", flags.undisturbed, "Nothing fails: what Redis says of its scripts");
  app.add_option("--keep", flags.keep, "Where files and logs of a fight that fails are copied to");
  CLI11_PARSE(app, argc, argv);
  try {
    return run_campaign(flags);
  } catch (const std::exception& error) {
    std::cout << "FAILED: --seed " << flags.seed << ": " << error.what() << "\n";
    return 1;
  }
}
