// SPDX-License-Identifier: Apache-2.0
// Kills a lintel-server at places drawn from a seed while clients of all levels of durability use
// it, and holds what they saw against a server that nothing ever disturbed: every position once,
// every bit the same.
#include <grpc/support/log.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "tests/chaos/crash_recovery/crashing_server.h"
#include "tests/chaos/crash_recovery/script.h"
#include "tests/support/eventually.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using std::chrono::microseconds;

constexpr int kScripts = 24;
// One client each in every run; the last level's clients draw theirs.
constexpr v1::Durability kLevels[] = {v1::DURABILITY_CALL, v1::DURABILITY_INPUT,
                                      v1::DURABILITY_TOKEN, v1::DURABILITY_UNSPECIFIED};

struct Flags {
  int runs = 100;
  std::uint64_t seed = 1;
  std::string place;
  bool no_store = false;
  std::string keep;
};

std::string text_of(const Place& place) {
  return std::string(kWhenNames[static_cast<std::size_t>(place.when)]) + " " +
         kSystemCallNames[static_cast<std::size_t>(place.call)] + " " +
         std::to_string(place.number);
}

// "sendmsg:17:after"
Place parse_place(const std::string& text) {
  const std::size_t colon = text.find(':'), second = text.find(':', colon + 1);
  const auto index = [](const auto& names, const std::string& name) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const char* known) {
      return std::string(known).substr(0, name.size()) == name;
    });
    if (name.empty() || found == names.end()) throw CLI::ValidationError("--place", "CALL:N:WHEN");
    return found - names.begin();
  };
  Place place;
  place.call = static_cast<SystemCall>(index(kSystemCallNames, text.substr(0, colon)));
  place.number = std::stoll(text.substr(colon + 1));
  place.when = static_cast<When>(index(kWhenNames, text.substr(second + 1)));
  return place;
}

// A client with a connection of its own, which is tried again at once when the server was away.
class Visitor {
 public:
  explicit Visitor(const CrashingServer& server)
      : channel_(channel_to(server.address())), client_(channel_, std::chrono::seconds(100)) {}

  const Client& client() const { return client_; }

  // Asks again while the server is away.
  template <typename Ask>
  void until_answered(const Ask& ask) const {
    const bool answered = eventually([&] {
      try {
        ask(client_);
        return true;
      } catch (const CallError& error) {
        if (error.code() != grpc::StatusCode::UNAVAILABLE) throw;
        grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
        channel_->WaitForConnected(std::chrono::system_clock::now() +
                                   std::chrono::milliseconds(20));
        return false;
      }
    });
    if (!answered) throw std::runtime_error("the server does not come back");
  }

 private:
  static std::shared_ptr<grpc::Channel> channel_to(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const Client client_;
};

// The output of a repeat of a call that has ended, which sends nothing before `from`.
SeenCall behind(SeenCall call, std::int64_t from) {
  std::erase_if(call.tokens, [from](const SeenToken& token) { return token.position < from; });
  return call;
}

// The calls of one client in a run, and the errors it found.
struct Guest {
  const Script* script = nullptr;
  v1::Durability level{};
  std::uint64_t seed = 0;
  std::int64_t history_tokens = 0;  // 0: nothing of its history goes
  std::string session;
  std::vector<std::string> wrong;
  bool same_past = true;  // as the script's session: neither rewound nor a fork
  int forks = 0, rewinds = 0;
  int cut_off = 0;     // times a call had to be repeated
  int in_stream = 0;   // of these: when some of its tokens had come
  int asked_anew = 0;  // calls that were repeated after they had ended
  int unseeded = 0;    // calls whose seed the server drew

  std::string name() const { return script->model + ", " + v1::Durability_Name(level); }

  void use(const CrashingServer& server) {
    try {
      const Visitor visitor(server);
      const Client& client = visitor.client();
      v1::CreateSessionRequest create;
      create.set_model(script->model);
      create.set_durability(level);
      create.set_window(script->window);
      create.set_history_tokens(history_tokens);
      visitor.until_answered([&](const Client& c) { session = c.create_session(create).id(); });
      std::mt19937_64 random(seed);
      int calls = 0;
      for (std::size_t i = 0; i < script->calls.size(); ++i) {
        const SeenCall& expected = script->calls[i].expected;
        v1::GenerateRequest request = script->calls[i].request;
        request.set_session_id(session);
        const bool durable = level != v1::DURABILITY_NONE;
        // At the level call a call that has not ended is not known any more, nor is its seed.
        if (durable && level != v1::DURABILITY_CALL && history_tokens == 0 && random() % 4 == 0) {
          const std::int64_t before =
              i == 0 ? 0 : script->calls[i - 1].expected.finishes[0].position();
          let_draw_a_seed(visitor, request, before);
        }
        if (durable) request.set_call_id("call " + std::to_string(++calls));
        compare("call " + std::to_string(i), expected, ask(client, request));
        if (durable && history_tokens == 0 && random() % 3 == 0) {
          const auto positions = static_cast<std::uint64_t>(expected.finishes[0].position() + 2);
          request.set_from_position(static_cast<std::int64_t>(random() % positions));
          compare("call " + std::to_string(i) + " once more from " +
                      std::to_string(request.from_position()),
                  behind(expected, request.from_position()), ask(client, request));
          ++asked_anew;
        }
        // Room for one more is made of sessions that are idle now.
        if (durable && random() % 3 == 0) {
          visitor.until_answered([&](const Client& c) { c.create_session(create); });
        }
        if (history_tokens != 0) continue;
        if (random() % 4 == 0) fork_at(expected.finishes[0].position(), visitor);
        if (random() % 5 == 0) {
          i = random() % (i + 1);  // from there once more
          rewind_to(i == 0 ? 0 : script->calls[i - 1].expected.finishes[0].position(), visitor);
          --i;  // which the loop adds
        }
      }
    } catch (const std::exception& error) {
      wrong.push_back(error.what());
    }
  }

  // Continues with a fork: another session of the same tokens.
  void fork_at(std::int64_t position, const Visitor& visitor) {
    v1::ForkSessionRequest request;
    request.set_id(session);
    request.set_position(position);
    request.set_count(1);
    visitor.until_answered(
        [&](const Client& client) { session = client.fork_session(request).at(0).id(); });
    same_past = false;
    ++forks;
  }

  // A call whose seed the server draws has one seed, however often it is cut off: called with that,
  // it gives the same. Then the session stands at `before` again.
  void let_draw_a_seed(const Visitor& visitor, v1::GenerateRequest request, std::int64_t before) {
    const std::string name = "unseeded " + std::to_string(++unseeded);
    request.mutable_sampling()->clear_seed();
    request.set_call_id(name);
    const SeenCall drawn = ask(visitor.client(), request);
    compare(name + ", once more", drawn, ask(visitor.client(), request));
    rewind_to(before, visitor);
    request.set_call_id("seed of " + name);
    request.mutable_sampling()->set_seed(drawn.finishes.at(0).seed());
    compare(name + ", with its seed", drawn, ask(visitor.client(), request));
    rewind_to(before, visitor);
  }

  // The same calls give the same tokens after it.
  void rewind_to(std::int64_t position, const Visitor& visitor) {
    v1::RewindSessionRequest request;
    request.set_id(session);
    request.set_position(position);
    visitor.until_answered([&](const Client& client) { client.rewind_session(request); });
    same_past = false;
    ++rewinds;
  }

  SeenCall ask(const Client& client, const v1::GenerateRequest& request) {
    Client::Repeat repeat{.patience = std::chrono::seconds(60)};
    SeenCall seen;
    repeat.on_pause = [&](const Client::Pause&) {
      ++cut_off;
      in_stream += seen.tokens.empty() ? 0 : 1;
    };
    call(client, request, repeat, seen);
    return seen;
  }

  void compare(const std::string& what, const SeenCall& expected, const SeenCall& seen) {
    const std::string text = difference(expected, seen, same_past);
    if (!text.empty()) wrong.push_back(what + ": " + text);
  }

  // Compares the server's session after its last call with the script.
  void check(const CrashingServer& server) {
    if (!wrong.empty()) return;
    try {
      const Visitor visitor(server);
      v1::Session info;
      visitor.until_answered([&](const Client& c) { info = c.get_session(session); });
      if (info.has_interrupted()) wrong.push_back("a call that ended is said to be interrupted");
      if (info.position() != script->history.back().position + 1) {
        wrong.push_back("it stands at position " + std::to_string(info.position()));
      }
      std::vector<SeenToken> history = script->history;
      std::erase_if(
          history, [&](const SeenToken& token) { return token.position < info.oldest_position(); });
      const std::string text =
          difference(history, read_history(visitor.client(), session, info.oldest_position()));
      if (!text.empty()) wrong.push_back("its history: " + text);
    } catch (const std::exception& error) {
      wrong.push_back(std::string("afterwards: ") + error.what());
    }
  }
};

class Campaign {
 public:
  explicit Campaign(const Flags& flags) : flags_(flags) {
    for (const auto& [name, kind] :
         {std::pair{"tokens", TinyModel::kTokens}, {"bytes", TinyModel::kBytes}}) {
      write_random_model(directory_.path() / "models" / name, tiny_config(kind), /*seed=*/7);
    }
    CrashingServer undisturbed(options_of("twin", /*with_store=*/false, {}));
    const Visitor visitor(undisturbed);
    visitor.until_answered([](const Client& client) { client.list_models(); });
    for (int i = 0; i < kScripts; ++i) {
      scripts_.push_back(make_script(visitor.client(), static_cast<std::uint64_t>(i)));
    }
    // Counts the system calls to be killed at.
    counts_ = run(0, {}).second;
  }

  int kill_all() {
    for (int i = 0; i < flags_.runs; ++i) run_one(flags_.seed + static_cast<std::uint64_t>(i));
    report();
    return failed_ == 0 ? 0 : 1;
  }

 private:
  CrashingServer::Options options_of(const std::string& name, bool with_store,
                                     std::deque<Place> places) const {
    const auto directory = directory_.path() / name;
    std::filesystem::create_directories(directory);
    return {.directory = directory,
            .models = directory_.path() / "models",
            .store = with_store ? directory / "store" : std::filesystem::path(),
            .places = std::move(places)};
  }

  // Draws frequent system calls more often, but not in proportion: most are alike.
  std::deque<Place> draw_places(std::uint64_t seed) const {
    if (!flags_.place.empty()) return {parse_place(flags_.place)};
    std::vector<double> weights;
    for (const std::int64_t count : counts_) {
      weights.push_back(std::log2(1 + static_cast<double>(count)));
    }
    std::discrete_distribution<std::size_t> draw_call(weights.begin(), weights.end());
    std::mt19937_64 random(seed);
    std::deque<Place> places;
    do {
      const std::size_t call = draw_call(random);
      // Later lives have less to do.
      const std::int64_t most =
          std::max<std::int64_t>(counts_[call] / (1 + static_cast<std::int64_t>(places.size())), 1);
      places.push_back({static_cast<SystemCall>(call),
                        1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)),
                        static_cast<When>(random() % 3)});
    } while (places.size() < 3 && random() % 2 == 0);
    return places;
  }

  // Returns the errors, and the counts of the first life's system calls.
  std::pair<std::vector<std::string>, std::vector<std::int64_t>> run(std::uint64_t seed,
                                                                     std::deque<Place> places) {
    const bool with_store = !flags_.no_store;
    const std::string name = "run" + std::to_string(seed);
    std::mt19937_64 random(~seed);
    std::vector<Guest> guests;
    for (v1::Durability level : kLevels) {
      if (level == v1::DURABILITY_UNSPECIFIED) {
        level = kLevels[random() % 3];
      }
      if (!with_store) level = v1::DURABILITY_NONE;
      guests.push_back({&scripts_[random() % scripts_.size()],
                        level,
                        random(),
                        random() % 4 == 0 ? 40 : 0,
                        "",
                        {}});
    }
    CrashingServer server(options_of(name, with_store, std::move(places)));
    std::vector<std::thread> threads;
    for (Guest& guest : guests) threads.emplace_back([&] { guest.use(server); });
    for (std::thread& thread : threads) thread.join();
    server.spare();
    if (with_store) server.kill_and_wait();
    for (Guest& guest : guests) guest.check(server);
    const std::string death = server.stop();
    std::vector<std::string> wrong;
    if (!death.empty()) wrong.push_back(death);
    for (const Guest& guest : guests) {
      for (const std::string& text : guest.wrong) wrong.push_back(guest.name() + ": " + text);
      cut_off_ += guest.cut_off;
      in_stream_ += guest.in_stream;
      asked_anew_ += guest.asked_anew;
      unseeded_ += guest.unseeded;
      forks_ += guest.forks;
      rewinds_ += guest.rewinds;
    }
    note(server);
    if (wrong.empty() || flags_.keep.empty()) {
      std::filesystem::remove_all(directory_.path() / name);
    } else {
      std::filesystem::copy(directory_.path() / name, std::filesystem::path(flags_.keep) / name,
                            std::filesystem::copy_options::recursive);
    }
    return {wrong, server.counts()};
  }

  void run_one(std::uint64_t seed) {
    const std::deque<Place> places = flags_.no_store ? std::deque<Place>() : draw_places(seed);
    const auto [wrong, counts] = run(seed, places);
    if (wrong.empty()) return;
    ++failed_;
    std::cout << "FAILED: --runs 1 --seed " << seed << ", killed";
    for (const Place& place : places) std::cout << " " << text_of(place) << ";";
    std::cout << "\n";
    for (const std::string& text : wrong) std::cout << "  " << text << "\n";
    std::cout << std::flush;
  }

  void note(const CrashingServer& server) {
    for (const CrashingServer::Death& death : server.deaths()) {
      ++deaths_[kSystemCallNames[static_cast<std::size_t>(death.place.call)]]
               [static_cast<std::size_t>(death.place.when)];
      before_ready_ += death.before_ready ? 1 : 0;
    }
    for (std::size_t i = 0; i < server.starts().size(); ++i) {
      (i == 0 ? starts_ : recoveries_).push_back(server.starts()[i]);
    }
  }

  static std::string spread(std::vector<microseconds> times) {
    if (times.empty()) return "none";
    std::sort(times.begin(), times.end());
    const auto ms = [](microseconds time) {
      std::ostringstream text;
      text.precision(1);
      text << std::fixed << static_cast<double>(time.count()) / 1000 << " ms";
      return text.str();
    };
    return std::to_string(times.size()) + ", p50 " + ms(times[times.size() / 2]) + ", max " +
           ms(times.back());
  }

  void report() const {
    std::cout << "calls of an undisturbed run:";
    for (std::size_t i = 0; i < kSystemCalls; ++i) {
      std::cout << " " << kSystemCallNames[i] << " " << counts_[i];
    }
    std::cout << "\nkilled at            before  halfway  after\n";
    int deaths = 0;
    for (const auto& [call, when] : deaths_) {
      std::printf("  %-16s %8d %8d %6d\n", call.c_str(), when[0], when[1], when[2]);
      deaths += when[0] + when[1] + when[2];
    }
    std::fflush(stdout);
    std::cout << flags_.runs << " runs, killed " << deaths << " times, " << before_ready_
              << " of them before it was ready\n"
              << "calls cut off " << cut_off_ << " times, " << in_stream_
              << " of them in mid-stream; " << asked_anew_ << " calls asked for once more, "
              << unseeded_ << " without a seed, " << forks_ << " forks, " << rewinds_
              << " rewinds\n"
              << "first starts: " << spread(starts_) << "\nrecoveries: " << spread(recoveries_)
              << "\n"
              << failed_ << " failed\n";
  }

  const Flags flags_;
  const TemporaryDirectory directory_;
  std::vector<Script> scripts_;
  std::vector<std::int64_t> counts_;
  std::map<std::string, std::array<int, 3>> deaths_;
  std::vector<microseconds> starts_, recoveries_;
  int before_ready_ = 0, failed_ = 0, cut_off_ = 0, in_stream_ = 0, asked_anew_ = 0, unseeded_ = 0,
      forks_ = 0, rewinds_ = 0;
};

int run_campaign(int argc, char** argv) {
  Flags flags;
  CLI::App app("Kills a lintel-server at many places; what its clients see must not show it.");
  app.add_option("--runs", flags.runs, "Runs, each with a store of its own")->capture_default_str();
  app.add_option("--seed", flags.seed, "Of the first run; the next has the next")
      ->capture_default_str();
  app.add_option("--place", flags.place, "Kill there alone: CALL:N:before|halfway|after");
  app.add_flag("--no-store", flags.no_store, "Sessions in memory, and nothing is killed");
  app.add_option("--keep", flags.keep, "Copy stores and logs of runs that failed to DIR");
  CLI11_PARSE(app, argc, argv);
  gpr_set_log_function([](gpr_log_func_args*) {});  // connections are lost on purpose
  return Campaign(flags).kill_all();
}

}  // namespace
}  // namespace lintel::testing

int main(int argc, char** argv) { return lintel::testing::run_campaign(argc, argv); }
