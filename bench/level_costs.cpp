#include "bench/level_costs.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "bench/load.h"
#include "bench/own_server.h"
#include "bench/scratch_directory.h"
#include "bench/table.h"

namespace lintel::bench {
namespace {

// What is promised of a level: percent of tokens/s, and of the first token ms.
struct Level {
  v1::Durability durability;
  const char* name;
  double most_percent;
  std::optional<double> most_first_ms;
  std::optional<double> most_bytes;  // written for a value
};
constexpr std::array kLevels = {
    Level{v1::DURABILITY_NONE, "none", 0.2, {}, {}},
    Level{v1::DURABILITY_CALL, "call", 1, {}, {}},
    Level{v1::DURABILITY_INPUT, "input", 1, 0.5, 16},
    Level{v1::DURABILITY_TOKEN, "token", 2, 6, 48},
};

// Of one stream; sequences are not waited for.
constexpr std::chrono::duration<double> kWindowAlone{2};
// Values of a call whose first one is what counts.
constexpr std::int64_t kValuesOfAFirst = 4;

struct Seen {
  double tokens_per_second = 0, cpu_us_a_value = 0, bytes_a_value = 0;
  double first_ms = 0, between_ms = 0;  // of a stream alone
};

class LevelLoad {
 public:
  LevelLoad(const OwnServer& server, const Transformer& model, const LevelPlan& plan)
      : load_{.address = server.address(),
              .sequence = sequence_plan(model.config()),
              .clients = plan.streams,
              .warm_up = std::chrono::duration<double>(plan.seconds / 4),
              .window = std::chrono::duration<double>(plan.seconds)} {}

  Seen run(v1::Durability durability) {
    Seen seen;
    load_.durability = durability;
    const LoadResult all = run_load(load_);
    const double values = all.tokens_per_second * all.seconds;
    seen.tokens_per_second = all.tokens_per_second;
    seen.cpu_us_a_value = 1e6 * all.cpu_seconds / values;
    seen.bytes_a_value = all.bytes_written / values;
    LoadOptions one = load_;
    one.clients = 1;
    one.values_per_message = 1;
    one.window = std::min(one.window, kWindowAlone);
    const LoadResult alone = run_load(one);
    if (!alone.between_tokens_seconds.empty()) {
      seen.between_ms = 1000 * quantile(alone.between_tokens_seconds, 0.5);
    }
    one.sequence.values = kValuesOfAFirst;
    one.sequence.ends_itself = false;
    const LoadResult firsts = run_load(one);
    if (!firsts.first_token_seconds.empty()) {
      seen.first_ms = 1000 * quantile(firsts.first_token_seconds, 0.5);
    }
    return seen;
  }

 private:
  LoadOptions load_;
};

}  // namespace

std::vector<SessionFigure> level_costs(const std::shared_ptr<const Transformer>& model,
                                       const LevelPlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  OwnServer::Options options{.workers = plan.workers, .rows = 64, .speculation = Speculation::kOff};
  const OwnServer plain(model, options);
  options.session_store = scratch.path() / "store";
  const OwnServer storing(model, options);
  LevelLoad of_plain(plain, *model, plan), of_storing(storing, *model, plan);

  struct Costs {
    Repeats lost_percent, cpu_percent, first_ms, between_ms, bytes;
  };
  std::array<Costs, kLevels.size()> costs;
  Repeats base_tokens, base_cpu, base_first;
  for (int r = 0; r < plan.repeats; ++r) {
    for (std::size_t n = 0; n < kLevels.size(); ++n) {
      // Each level beside a run of its own without a store, which comes first every other time:
      // what else the machine does then falls on both alike.
      const auto round = static_cast<std::size_t>(r);
      const std::size_t i = (n + round) % kLevels.size();
      const bool base_first_now = (i + round) % 2 == 0;
      Seen base, seen;
      if (base_first_now) base = of_plain.run(v1::DURABILITY_NONE);
      seen = of_storing.run(kLevels[i].durability);
      if (!base_first_now) base = of_plain.run(v1::DURABILITY_NONE);
      base_tokens.add(base.tokens_per_second);
      base_cpu.add(base.cpu_us_a_value);
      base_first.add(base.first_ms);
      costs[i].lost_percent.add(100 * (1 - seen.tokens_per_second / base.tokens_per_second));
      costs[i].cpu_percent.add(100 * (seen.cpu_us_a_value / base.cpu_us_a_value - 1));
      costs[i].first_ms.add(seen.first_ms - base.first_ms);
      costs[i].between_ms.add(seen.between_ms - base.between_ms);
      costs[i].bytes.add(seen.bytes_a_value - base.bytes_a_value);
    }
  }

  const std::string beside = "without a store " + format_number(base_tokens.median(), 4) +
                             " tokens/s, " + format_number(base_cpu.median(), 3) +
                             " us of CPU a value, first " + "token after " +
                             format_number(base_first.median(), 3) + " ms";
  std::vector<SessionFigure> figures;
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    const Level& level = kLevels[i];
    const std::string name = level.name;
    figures.push_back({name + "_lost_percent",
                       name + ": tokens/s lost at " + std::to_string(plan.streams) + " streams",
                       "%", costs[i].lost_percent.summary(), level.most_percent,
                       i == 0 ? beside : "", "none has it"});
    figures.push_back({name + "_cpu_percent",
                       name + ": more CPU a value, clients included",
                       "%",
                       costs[i].cpu_percent.summary(),
                       {},
                       "",
                       ""});
    if (level.durability == v1::DURABILITY_NONE) continue;
    figures.push_back({name + "_first_token_ms", name + ": later first token, one stream", "ms",
                       costs[i].first_ms.summary(), level.most_first_ms, "", ""});
    figures.push_back({name + "_between_tokens_ms",
                       name + ": longer between tokens, one stream",
                       "ms",
                       costs[i].between_ms.summary(),
                       {},
                       "",
                       ""});
    figures.push_back(
        {name + "_bytes_a_value", name + ": bytes written for a value", "bytes",
         costs[i].bytes.summary(), level.most_bytes, "",
         "a state for each: " + format_number(static_cast<double>(model->state_bytes(784)), 6)});
  }
  return figures;
}

}  // namespace lintel::bench
