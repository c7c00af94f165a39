// SPDX-License-Identifier: Apache-2.0
// Measures the cost of sessions: copies of them, calls about them, and what outlives the server.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "bench/session_costs.h"
#include "client/cli/output.h"
#include "server/observability/logging.h"

namespace lintel::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSessionsFooter = R"(
Each repeat measures everything once, and each figure of a repeat is the median, or the p99, of
--count calls. "At most" is what we want of this class of machine, and what stands beside a figure was
measured next to it. Stores are made in --directory, on the disk that is to be measured, and
removed; its caches are the system's. A killed process's store is a copy of the files of one that lives.
What a level of durability costs streams is reported against a server without a store, measured just before
or after it; on a shared machine CPU is more reliable than tokens a second. Of what is wanted a note
says "Missed" where all repeats or their median are beyond it, "Not decided" where they do not agree: ask
for more --repeats then. --seconds should hold several whole sequences.

Examples:
  lintel-bench sessions
  lintel-bench sessions --only levels --repeats 20 --seconds 20
  lintel-bench sessions --weight-type int8 --directory /var/lib/lintel --json)";

struct SessionsFlags {
  RunFlags run;
  ModelFlags model;
  std::string directory;
  int sessions = 10'000;
  int count = 100;
  int streams = 64;
  double seconds = 8;
  std::vector<std::string> only;  // groups of figures; empty: all
};

constexpr std::array kGroups = {"memory", "calls", "prompts", "commits",
                                "states", "kill",  "levels"};

std::vector<std::string> parse_groups(std::string_view flag, std::string_view text) {
  std::vector<std::string> groups;
  std::istringstream words{std::string(text)};
  for (std::string word; std::getline(words, word, ',');) groups.push_back(word);
  const bool all_known = std::ranges::all_of(groups, [](const std::string& word) {
    return std::ranges::find(kGroups, word) != kGroups.end();
  });
  if (groups.empty() || !all_known) {
    refuse(flag, text, "groups of figures, with commas between them");
  }
  return groups;
}

class SessionsExperiment {
 public:
  SessionsExperiment(const SessionsFlags& flags, cli::Console& console)
      : flags_(flags),
        model_(flags.model, flags.run.weight_type),
        measurement_(flags.run, "sessions", model_.description(), console),
        progress_(
            console,
            static_cast<std::int64_t>(flags.only.empty() ? kGroups.size() : flags.only.size()),
            "groups of figures") {
    set_up_logging({.level = "warn", .json = false});
  }

  int run() {
    const std::shared_ptr<const Transformer>& model = model_.transformer;
    const std::int64_t tokens = sequence_plan(model->config()).tokens + 1;
    const auto wants = [this](const char* group) {
      return flags_.only.empty() || std::ranges::find(flags_.only, group) != flags_.only.end();
    };
    const StoragePlan plan{.directory = flags_.directory.empty() ? fs::temp_directory_path()
                                                                 : fs::path(flags_.directory),
                           .sessions = flags_.sessions,
                           .repeats = flags_.run.repeats,
                           .count = flags_.count};
    MadeSession session(model, tokens);
    const int repeats = flags_.run.repeats, count = flags_.count;
    if (wants("memory")) add("In memory", copy_costs(session, repeats, count));
    if (wants("calls")) add("Calls", call_costs(model, tokens, repeats, count));
    if (wants("prompts")) {
      add("Prompts that came before", prefix_costs(model, tokens - 1, repeats));
    }
    if (wants("commits")) add("On the disk", commit_costs(plan));
    if (wants("states")) add("States on the disk", wake_costs(session, plan));
    if (wants("kill")) add("After a kill", open_costs(plan));
    if (wants("levels")) {
      add("Streams by what outlives the server", level_costs(model, {.directory = plan.directory,
                                                                     .workers = flags_.run.workers,
                                                                     .streams = flags_.streams,
                                                                     .repeats = repeats,
                                                                     .seconds = flags_.seconds}));
    }
    return measurement_.publish();
  }

 private:
  void add(const std::string& title, const std::vector<SessionFigure>& figures) {
    Table table{.title = title,
                .columns = {"", "unit", "measured", "at most", "beside it", "others"}};
    for (const SessionFigure& figure : figures) {
      const auto text = [](const std::string& words) {
        return words.empty() ? Cell::none() : Cell::text(words);
      };
      table.rows.push_back({Cell::text(figure.what), Cell::text(figure.unit),
                            Cell::measured(figure.value),
                            figure.most ? Cell::number(*figure.most) : Cell::none(),
                            text(figure.beside), text(figure.others)});
      measurement_.add(figure.name, figure.value.median);
      if (!figure.most) continue;
      // Repeats that do not agree are for a quieter machine, or more of them, to decide.
      if (figure.value.least <= *figure.most && *figure.most < figure.value.most) {
        table.notes.push_back(
            "Not decided, some repeats are within and some beyond: " + figure.what + ".");
      } else if (figure.value.median > *figure.most) {
        table.notes.push_back("Missed: " + figure.what + ".");
      }
    }
    measurement_.add(std::move(table));
    progress_.add(1);
  }

  const SessionsFlags& flags_;
  const LoadedModel model_;
  Measurement measurement_;
  cli::Progress progress_;
};

}  // namespace

void add_sessions(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<SessionsExperiment, SessionsFlags>(
      app, command_line, "sessions", "What copies of sessions cost, and what outlives the server",
      kSessionsFooter);
  flags->model.add_to(command);
  cli::add_text(command, "--directory", flags->directory, "DIR",
                "Where stores are made [the system's for temporary files]");
  cli::add_parsed(command, "--sessions", flags->sessions, whole_number(), "N",
                  "Sessions of the store that is opened after a kill [10000]");
  cli::add_parsed(command, "--count", flags->count, whole_number(), "N",
                  "Calls of each kind in a repeat [100]");
  cli::add_parsed(command, "--streams", flags->streams, whole_number(), "N",
                  "Streams whose throughput levels of durability are to lose nothing of [64]");
  cli::add_parsed(command, "--seconds", flags->seconds, positive_number(3600), "SECONDS",
                  "Of each measurement of streams [8]");
  std::string groups = "Of ";
  for (const char* const group : kGroups) groups += std::string(group) + ", ";
  cli::add_parsed(command, "--only", flags->only, parse_groups, "GROUPS",
                  groups + "these alone, with commas between them [all]");
  flags->run.add_to(command, {64}, /*batch_help=*/"");
}

}  // namespace lintel::bench
