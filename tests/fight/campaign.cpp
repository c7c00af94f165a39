// Two replicas fight over the sessions of one Redis store while both of them, the store and the
// network between fail; every value that a client was told is held to one line a session, without
// gaps and without doubles.
#include <grpc/support/log.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "client/lib/client.h"
#include "tests/fight/replica_process.h"
#include "tests/fight/value_line.h"
#include "tests/server/redis_lab/redis_cluster.h"
#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLease = 3s;       // of the replicas
constexpr auto kDeadline = 4s;    // of one try of a call
constexpr auto kPatience = 120s;  // of a call, all its tries

struct Flags {
  int seconds = 60;
  int sessions = 64;
  int clients = 8;
  std::uint64_t seed = 1;
  bool cluster = false;
  bool undisturbed = false;
};

// What is wrong, in words for people.
class Faults {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (texts_.size() < 50) texts_.push_back(text);
  }
  void add(const std::optional<std::string>& text, const std::string& where) {
    if (text && !text->empty()) add(where + ": " + *text);
  }
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

struct FightSession {
  std::string id;
  ValueLine line;
};

// Whether it says that somebody else is at work, or that somebody is away.
bool may_pass(const CallError& error) {
  switch (error.code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return true;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return error.error_reason() == "CALL_INTERRUPTED";  // another client's, which repeats it
    default:
      return false;
  }
}

Client client_of(const std::string& address, milliseconds deadline) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return Client(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments),
                deadline);
}

struct Counts {
  std::atomic<std::int64_t> calls{0}, values{0}, tries{0}, cut_in_stream{0};
  std::mutex mutex;
  std::map<std::string, int> refusals;  // by code and reason
  milliseconds longest{0};              // call
};

// A client of both replicas, one call after another on sessions drawn by chance, each repeated with
// either until it ends.
class Fighter {
 public:
  Fighter(int number, std::uint64_t seed, const std::vector<std::string>& addresses,
          std::vector<FightSession>& sessions, Faults& faults, Counts& counts)
      : name_("client " + std::to_string(number)),
        random_(seed),
        sessions_(sessions),
        faults_(faults),
        counts_(counts) {
    for (const std::string& address : addresses) clients_.push_back(client_of(address, kDeadline));
  }

  void fight(const std::atomic<bool>& over) {
    while (!over) {
      FightSession& session = sessions_[random_() % sessions_.size()];
      const auto begin = SteadyClock::now();
      if (!call(session, begin + kPatience)) return;
      const auto took = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - begin);
      const std::lock_guard lock(counts_.mutex);
      counts_.longest = std::max(counts_.longest, took);
    }
  }

 private:
  bool call(FightSession& session, SteadyClock::time_point give_up) {
    const std::string call_name = name_ + " call " + std::to_string(++calls_);
    v1::GenerateRequest request;
    request.set_session_id(session.id);
    request.set_call_id(call_name);
    request.set_max_new_tokens(static_cast<std::uint32_t>(1 + random_() % 40));
    request.mutable_sampling()->set_seed(random_());
    for (std::uint64_t left = 1 + random_() % 3; left > 0; --left) {
      request.mutable_prompt()->mutable_tokens()->add_ids(
          static_cast<std::int32_t>(random_() % 50));
    }
    std::string last;
    std::int64_t next = -1;  // position to come
    for (std::size_t with = random_() % 2; SteadyClock::now() < give_up; with ^= 1) {
      ++counts_.tries;
      if (next >= 0) request.set_from_position(next);
      try {
        bool has_ended = false;
        clients_[with].generate(
            request, [&](const v1::Chunk& chunk) { take(session, request, chunk, next); },
            [&](const v1::SampleFinish& finish) {
              has_ended = true;
              faults_.add(session.line.ended(call_name, finish.position()), session.id);
            },
            {.patience = milliseconds(0), .durable = true, .on_pause = {}});
        if (!has_ended) faults_.add(call_name + " ended without a finish");
        ++counts_.calls;
        return true;
      } catch (const CallError& error) {
        last = error.what();
        counts_.cut_in_stream += next >= 0;
        {
          const std::lock_guard lock(counts_.mutex);
          ++counts_.refusals[std::to_string(error.code()) + " " + error.error_reason()];
        }
        if (!may_pass(error)) {
          faults_.add(session.id + ", " + call_name + ": " + last);
          return false;
        }
      }
      std::this_thread::sleep_for(milliseconds(20 + random_() % 100));
    }
    faults_.add(session.id + ", " + call_name + " never ended: " + last);
    return false;
  }

  void take(FightSession& session, const v1::GenerateRequest& request, const v1::Chunk& chunk,
            std::int64_t& next) {
    const std::string& call_name = request.call_id();
    if (next < 0) {  // before the first value the prompt was fed: once, however often it was sent
      std::int64_t position = chunk.first_position() - request.prompt().tokens().ids_size();
      for (const std::int32_t value : request.prompt().tokens().ids()) {
        faults_.add(session.line.told(call_name, position++, value), session.id);
      }
    }
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      const std::int64_t position = chunk.first_position() + i;
      if (next >= 0 && position != next) {
        faults_.add(session.id + ", " + call_name + ": position " + std::to_string(position) +
                    " came, not " + std::to_string(next));
      }
      next = position + 1;
      ++counts_.values;
      faults_.add(session.line.told(call_name, position, chunk.tokens(i)), session.id);
    }
  }

  const std::string name_;
  std::mt19937_64 random_;
  std::vector<FightSession>& sessions_;
  Faults& faults_;
  Counts& counts_;
  std::vector<Client> clients_;
  int calls_ = 0;
};

// The store, the network and the replicas, and what happens to them.
class Battlefield {
 public:
  explicit Battlefield(const Flags& flags) : random_(flags.seed) {
    write_random_model(directory_.path() / "tokens", tiny_config(TinyModel::kTokens), /*seed=*/7);
    if (flags.cluster) {
      cluster_.emplace();
    } else {
      server_.emplace();
    }
    for (std::size_t i = 0; i < 2; ++i) {
      std::string store = "redis://";
      if (cluster_) {
        store += cluster_->endpoints();
      } else {
        store += networks_.emplace_back(std::make_unique<TcpProxy>(server_->endpoint()))
                     ->endpoint()
                     .text();
      }
      replicas_.push_back(std::make_unique<ReplicaProcess>(
          ReplicaProcess::Options{.directory = directory_.path(),
                                  .model = directory_.path() / "tokens",
                                  .name = "replica-" + std::to_string(i),
                                  .store = store,
                                  .lease = std::to_string(kLease.count()) + "s"}));
    }
  }

  std::vector<std::string> addresses() const {
    return {replicas_[0]->address(), replicas_[1]->address()};
  }

  // One thing that goes wrong, and is mended when it returns.
  void strike() {
    const std::size_t which = random_() % 2;
    ReplicaProcess& replica = *replicas_[which];
    switch (random_() % 8) {
      case 0:
        note("replica paused beyond its lease");
        replica.pause();
        rest(kLease + 1s);
        replica.resume();
        break;
      case 1:
        note("replica paused");
        replica.pause();
        rest(milliseconds(random_() % 2000));
        replica.resume();
        break;
      case 2:
        note("replica killed");
        replica.kill_and_start();
        break;
      case 3:
        note("replica ended");
        replica.end_and_start();
        break;
      default:
        cluster_ ? strike_cluster() : strike_server(*networks_[which]);
    }
    rest(milliseconds(500 + random_() % 1500));
  }

  std::vector<std::string> stop() {
    std::vector<std::string> wrong;
    for (const auto& replica : replicas_) {
      if (std::string text = replica->stop(); !text.empty()) wrong.push_back(text);
    }
    return wrong;
  }

  const std::map<std::string, int>& strikes() const { return strikes_; }
  // What Redis says of its scripts since it was started last.
  std::string script_cost() {
    if (!server_) return "";
    const std::string stats = server_->client()("INFO commandstats").text;
    const std::size_t at = stats.find("cmdstat_evalsha");
    return at == std::string::npos ? "" : stats.substr(at, stats.find('\r', at) - at);
  }

 private:
  void note(const std::string& what) { ++strikes_[what]; }
  static void rest(milliseconds time) { std::this_thread::sleep_for(time); }

  void strike_server(TcpProxy& network) {
    switch (random_() % 6) {
      case 0:
        note("replica cut off from the store");
        network.cut();
        rest(milliseconds(random_() % 5000));
        network.heal();
        break;
      case 1:
        note("answers of the store held");
        network.cut_answers();
        rest(milliseconds(random_() % 2000));
        network.heal();
        break;
      case 2:
        note("answer of a script lost");
        network.lose_answer_to("EVALSHA");
        break;
      case 3:
        note("connections to the store reset");
        network.reset();
        break;
      case 4:
        note("store paused");
        server_->pause();
        rest(milliseconds(random_() % 4000));
        server_->resume();
        break;
      default:
        note("store killed");
        server_->kill();
        rest(milliseconds(random_() % 1000));
        server_->start();
    }
  }

  void strike_cluster() {
    const auto slot = static_cast<std::uint16_t>(random_() % 16384);
    const std::size_t owner = cluster_->owner_of(slot);
    switch (random_() % 4) {
      case 0:
        note("master killed");
        cluster_->node(owner).kill();
        cluster_->wait_for_successor(slot, owner);
        cluster_->node(owner).start();
        break;
      case 1:
        note("master paused beyond the node timeout");
        cluster_->node(owner).pause();
        cluster_->wait_for_successor(slot, owner);
        cluster_->node(owner).resume();
        break;
      case 2:
        note("failover in agreement");
        cluster_->fail_over_to(cluster_->replica_of(owner));
        break;
      default: {
        note("slots moved");
        for (int i = 0; i < 20; ++i) {
          const auto moved = static_cast<std::uint16_t>((slot + i) % 16384);
          const std::size_t from = cluster_->owner_of(moved);
          std::size_t to = random_() % cluster_->size();
          while (to == from || !cluster_->is_master(to)) to = random_() % cluster_->size();
          cluster_->move_slot(moved, to);
        }
      }
    }
    cluster_->wait_until_up();
  }

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::optional<RedisServer> server_;
  std::optional<RedisCluster> cluster_;
  std::vector<std::unique_ptr<TcpProxy>> networks_;  // of each replica, to server_
  std::vector<std::unique_ptr<ReplicaProcess>> replicas_;
  std::map<std::string, int> strikes_;
};

std::vector<std::int32_t> stored_values(const Client& client, const std::string& session) {
  std::vector<std::int32_t> values;
  v1::ReadHistoryRequest request;
  request.set_id(session);
  client.read_history(request, [&](const v1::Chunk& chunk) {
    values.insert(values.end(), chunk.tokens().begin(), chunk.tokens().end());
  });
  return values;
}

int run_campaign(const Flags& flags) {
  Battlefield field(flags);
  const std::vector<std::string> addresses = field.addresses();
  std::vector<FightSession> sessions(static_cast<std::size_t>(flags.sessions));
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    v1::CreateSessionRequest create;
    create.set_model("tokens");
    create.set_durability(i % 2 == 0 ? v1::DURABILITY_INPUT : v1::DURABILITY_TOKEN);
    sessions[i].id = client_of(addresses[i % 2], 30s).create_session(create).id();
  }

  Faults faults;
  Counts counts;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < flags.clients; ++i) {
    threads.emplace_back([&, i] {
      try {
        Fighter(i, flags.seed * 1000 + static_cast<std::uint64_t>(i), addresses, sessions, faults,
                counts)
            .fight(over);
      } catch (const std::exception& error) {
        faults.add(error.what());
      }
    });
  }
  const auto end = SteadyClock::now() + std::chrono::seconds(flags.seconds);
  try {
    while (SteadyClock::now() < end && faults.texts().empty()) {
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
    for (const FightSession& session : sessions) {
      try {
        faults.add(session.line.difference(stored_values(client, session.id)),
                   session.id + ", read from replica " + std::to_string(with));
      } catch (const std::exception& error) {
        faults.add(session.id + ", read from replica " + std::to_string(with) + ": " +
                   error.what());
      }
    }
  }
  const std::string cost = field.script_cost();
  const std::vector<std::string> bad_ends = field.stop();

  std::cout << counts.calls << " calls, " << counts.values << " values, " << counts.tries
            << " tries, " << counts.cut_in_stream << " of them cut off in mid-stream; longest call "
            << counts.longest.count() << " ms\n";
  for (const auto& [what, count] : field.strikes())
    std::cout << "  " << count << " x " << what << "\n";
  for (const auto& [what, count] : counts.refusals) {
    std::cout << "  refused " << count << " x code " << what << "\n";
  }
  if (!cost.empty()) std::cout << "  " << cost << "\n";
  std::vector<std::string> wrong = faults.texts();
  wrong.insert(wrong.end(), bad_ends.begin(), bad_ends.end());
  for (const std::string& text : wrong) std::cout << "WRONG: " << text << "\n";
  if (!wrong.empty()) std::cout << "FAILED: --seed " << flags.seed << "\n";
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
  CLI11_PARSE(app, argc, argv);
  return run_campaign(flags);
}
