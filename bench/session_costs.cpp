// SPDX-License-Identifier: Apache-2.0
#include "bench/session_costs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "bench/throughput.h"
#include "client/lib/client.h"
#include "model/core/tensor.h"
#include "server/api/lintel_v1/snapshot_bytes.h"
#include "server/sessions/session_history.h"
#include "server/sessions/snapshot.h"

namespace lintel::bench {
namespace {

constexpr std::size_t kRowsOfASlice = 64;
const Owner kNobody;

std::vector<std::int32_t> random_tokens(std::int64_t count, int vocab_size) {
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab_size));
  }
  return tokens;
}

SessionImage image_of(const Transformer& model, const std::vector<std::int32_t>& tokens) {
  SessionHistory history({.vocab_size = model.head().vocab_size()});
  for (const std::int32_t token : tokens) history.append(token, TokenSource::kSampled);
  const auto position = static_cast<std::int64_t>(tokens.size());
  SessionImage image;
  image.model = "model";
  image.position = position;
  image.tokens = tokens;
  image.marks = history.marks(0, position);
  image.digest = history.extent().digest;
  image.base_digest = *history.digest_at(0);
  return image;
}

// All but the last, which stays pending.
void feed(const Transformer& model, std::span<const std::int32_t> tokens, SequenceState& sequence) {
  Workspace workspace = model.new_workspace(kRowsOfASlice);
  std::vector<BatchRow> rows;
  for (std::size_t at = 0; at + 1 < tokens.size(); at += rows.size()) {
    rows.clear();
    const std::size_t count = std::min(kRowsOfASlice, tokens.size() - 1 - at);
    for (std::size_t i = 0; i < count; ++i) rows.push_back({tokens[at + i], &sequence, false});
    model.step(rows, workspace);
  }
  sequence.pending = tokens.back();
}

// The promise of a level: percent of tokens/s, and of the first token ms.
struct DurabilityLevel {
  v1::Durability durability;
  const char* name;
  double most_percent;
  std::optional<double> most_first_ms;
  std::optional<double> most_bytes;  // written for a token
};
constexpr std::array kLevels = {
    DurabilityLevel{v1::DURABILITY_NONE, "none", 0.2, {}, {}},
    DurabilityLevel{v1::DURABILITY_CALL, "call", 1, {}, {}},
    DurabilityLevel{v1::DURABILITY_INPUT, "input", 1, 0.5, 16},
    DurabilityLevel{v1::DURABILITY_TOKEN, "token", 2, 6, 48},
};

// The window of one stream; sequences are not waited for.
constexpr std::chrono::duration<double> kWindowAlone{2};
// Tokens of a call whose first one is what counts.
constexpr std::int64_t kTokensOfAFirst = 4;

struct Seen {
  double tokens_per_second = 0, cpu_us_a_token = 0, bytes_a_token = 0;
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
    const Throughput all = measure_throughput(load_);
    const double tokens = all.tokens_per_second * all.seconds;
    seen.tokens_per_second = all.tokens_per_second;
    seen.cpu_us_a_token = 1e6 * all.cpu_seconds / tokens;
    seen.bytes_a_token = all.bytes_written / tokens;
    ThroughputOptions one = load_;
    one.clients = 1;
    one.tokens_per_message = 1;
    one.window = std::min(one.window, kWindowAlone);
    const Throughput alone = measure_throughput(one);
    if (!alone.between_tokens_seconds.empty()) {
      seen.between_ms = 1000 * quantile(alone.between_tokens_seconds, 0.5);
    }
    one.sequence.tokens = kTokensOfAFirst;
    one.sequence.ends_itself = false;
    const Throughput firsts = measure_throughput(one);
    if (!firsts.first_token_seconds.empty()) {
      seen.first_ms = 1000 * quantile(firsts.first_token_seconds, 0.5);
    }
    return seen;
  }

 private:
  ThroughputOptions load_;
};

}  // namespace

MadeSession::MadeSession(std::shared_ptr<const Transformer> model, std::int64_t num_tokens)
    : tokens_(random_tokens(num_tokens, model->head().vocab_size())),
      store_({.session_memory_bytes = std::size_t{1} << 40}, clock_) {
  model_.name = "model";
  model_.set_numerics(numerics_of(*model));
  model_.transformer = model;
  const auto made = store_.restore("model", model, image_of(*model, tokens_));
  id_ = made.info.id;
  SessionManager::LeaseResult leased = store_.lease(id_);
  if (!leased.lease) throw std::runtime_error("a session of this model cannot be made");
  feed(*model, tokens_, leased.lease.sequence());
}

std::vector<SessionFigure> call_costs(const std::shared_ptr<const Transformer>& model,
                                      std::int64_t num_tokens, int repeats, int count) {
  const OwnServer server(model, {});
  const Client client({.address = server.address()});
  const std::string id = client.create_session("model", num_tokens).id();
  v1::GenerateRequest generate;
  generate.set_session_id(id);
  generate.set_max_new_tokens(static_cast<std::uint32_t>(num_tokens));
  client.generate(generate);
  v1::SnapshotSessionRequest request;
  request.set_id(id);
  const std::string bytes = client.snapshot_session(request);

  std::vector<double> smallest, snapshot, restore;
  for (int r = 0; r < repeats; ++r) {
    smallest.push_back(median_microseconds(count, [&] { client.get_session(id); }));
    snapshot.push_back(median_microseconds(count, [&] { client.snapshot_session(request); }));
    std::vector<double> restores;
    for (int i = 0; i < count; ++i) {
      std::string made;
      restores.push_back(microseconds_of([&] { made = client.restore_session({}, bytes).id(); }));
      client.delete_session(made);
    }
    restore.push_back(median(restores));
  }
  const std::string beside = "a call of nothing " + format_number(median(smallest), 2) + " us";
  const char* const others = "ai00: states as JSON; llama.cpp refuses recurrent ones (issue 8220)";
  return {
      figure_of("snapshot_call_us", "Snapshot over loopback", "us", snapshot, 500, beside, others),
      figure_of("restore_call_us", "Restore over loopback", "us", restore, 500, beside, others)};
}

std::vector<SessionFigure> prefix_costs(const std::shared_ptr<const Transformer>& model,
                                        std::int64_t num_tokens, int repeats) {
  constexpr int kRequests = 64;
  const OwnServer server(model, {});
  const Client client({.address = server.address()});
  v1::GenerateRequest request;
  request.set_max_new_tokens(1);
  auto& prompt = *request.mutable_prompt()->mutable_tokens()->mutable_ids();
  prompt.Resize(static_cast<int>(num_tokens), 0);
  const int vocab_size = model->head().vocab_size();

  std::vector<double> missed, hit, miss;
  for (int r = 0; r < repeats; ++r) {
    // Another beginning each time, of which nothing is known.
    for (int i = 0; i < prompt.size(); ++i) prompt[i] = (i * (r + 3) + r) % vocab_size;
    std::vector<double> hits, misses;
    for (int i = 0; i < kRequests; ++i) {
      prompt[prompt.size() - 1] = i % vocab_size;
      std::vector<v1::SampleFinish> finished;
      const double took =
          1e3 * seconds_of([&] { finished = client.generate(request, [](const v1::Chunk&) {}); });
      (finished.at(0).cached_tokens() > 0 ? hits : misses).push_back(took);
    }
    missed.push_back(static_cast<double>(misses.size()));
    if (!hits.empty()) hit.push_back(median(hits));
    if (!misses.empty()) miss.push_back(median(misses));
  }
  std::vector<SessionFigure> figures = {
      figure_of("prefix_misses",
                "prompts read from their beginning, of " + std::to_string(kRequests) +
                    " that share all but the last of " + std::to_string(num_tokens) + " tokens",
                "calls", missed, 2, "", "vLLM with blocks: none or 52 of 64 hit (issue 45238)")};
  if (!hit.empty() && !miss.empty()) {
    figures.push_back(figure_of(
        "prefix_call_ms", "a call of one token after a prompt that came before", "ms", hit,
        std::nullopt, "after one that is read " + format_number(median(miss), 3) + " ms"));
  }
  return figures;
}

std::vector<SessionFigure> copy_costs(MadeSession& session, int repeats, int count) {
  SessionManager& store = session.store();
  const auto image_of = [&] {
    return std::move(store.image(session.id(), kNobody, std::nullopt, true, true).image);
  };
  SnapshotOf of = snapshot_of(image_of(), session.model());
  const std::vector<std::byte> bytes = write_snapshot(of);
  std::vector<std::byte> target(bytes.size());
  const auto tokens = static_cast<std::int64_t>(session.tokens().size());
  volatile std::byte sink{};

  std::vector<double> copied, hashed, image, written, snapshot, read, restore, forked, rewound;
  for (int r = 0; r < repeats; ++r) {
    copied.push_back(median_microseconds(count, [&] {
      std::memcpy(target.data(), bytes.data(), bytes.size());
      sink = target[static_cast<std::size_t>(r)];
    }));
    hashed.push_back(median_microseconds(count, [&] { sink = digest_of(bytes).bytes[0]; }));
    image.push_back(median_microseconds(count, [&] {
      SessionImage taken = image_of();
      zero(taken);
    }));
    written.push_back(median_microseconds(count, [&] {
      std::vector<std::byte> made = write_snapshot(of);
      zero_memory(std::span(made));
    }));
    snapshot.push_back(median_microseconds(count, [&] {  // as the RPC makes one
      const SnapshotOf about = snapshot_of({}, session.model());
      std::optional<SnapshotDraft> draft;
      SessionImage taken =
          store
              .image(session.id(), kNobody, std::nullopt, true, true,
                     [&](const SessionImage& rest, std::size_t size) -> std::vector<std::byte>& {
                       return draft.emplace(about, rest, size).bytes();
                     })
              .image;
      const ZeroedBytes made(draft->finish(taken));
      zero(taken);
    }));
    read.push_back(median_microseconds(count, [&] {
      SnapshotOf taken = view_snapshot(bytes);
      zero(taken.image);
    }));
    std::vector<double> restores, forks, rewinds;
    for (int i = 0; i < count; ++i) {
      std::string id;
      restores.push_back(microseconds_of([&] {
        SnapshotOf taken = view_snapshot(bytes);
        id = store.restore("model", session.model().transformer, taken.image).info.id;
        zero(taken.image);
      }));
      store.remove(id);
      forks.push_back(microseconds_of(
          [&] { id = store.fork(session.id(), kNobody, std::nullopt, 1).infos.at(0).id; }));
      rewinds.push_back(
          microseconds_of([&] { store.rewind(id, kNobody, tokens / 2, std::nullopt); }));
      store.remove(id);
    }
    restore.push_back(median(restores));
    forked.push_back(median(forks));
    rewound.push_back(median(rewinds));
  }
  (void)sink;

  const std::string beside = "memcpy " + format_number(median(copied), 2) + ", XXH3-128 " +
                             format_number(median(hashed), 2) + " us";
  const char* const llama =
      "llama.cpp: 20 and 26 us for 541 KB, and then computes the prompt again (issue 25913)";
  const std::string size = format_number(static_cast<double>(bytes.size()), 6) + " bytes";
  std::vector<SessionFigure> figures = {
      figure_of("snapshot_us", "snapshot in process, " + size, "us", snapshot, 20, beside, llama),
      figure_of("snapshot_image_us", "state and history taken, as for a store", "us", image),
      figure_of("snapshot_write_us", "written out of that, and hashed", "us", written),
      figure_of("restore_us", "restored in process", "us", restore, 20, beside, llama),
      figure_of("restore_read_us", "of that: hash checked, read", "us", read),
      figure_of("fork_us", "fork of " + std::to_string(tokens) + " tokens", "us", forked, 50,
                beside, "none is exact to the token; rwkv_lightning forks by turn"),
      figure_of("rewind_us", "rewind to half of them", "us", rewound, 50, "", "as above"),
  };
  const Transformer& model = *session.model().transformer;
  const auto state = static_cast<double>(model.state_bytes(tokens));
  const auto admitted = static_cast<double>(
      SessionManager::session_bytes(model, {.max_tokens = tokens}, store.options().history_tokens));
  figures.push_back(figure_of("beside_state_percent", "memory of an open session beside its state",
                              "%", std::vector{100 * (admitted - state) / state}, 5,
                              "a state is " + format_number(state, 6) + " bytes"));
  return figures;
}

std::vector<SessionFigure> level_costs(const std::shared_ptr<const Transformer>& model,
                                       const LevelPlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  OwnServer::Options options{.workers = plan.workers, .rows = 64, .speculation = Speculation::kOff};
  const OwnServer plain(model, options);
  options.session_store = scratch.path() / "store";
  const OwnServer storing(model, options);
  LevelLoad of_plain(plain, *model, plan), of_storing(storing, *model, plan);

  struct Costs {
    std::vector<double> lost_percent, cpu_percent, first_ms, between_ms, bytes;
  };
  std::array<Costs, kLevels.size()> costs;
  std::vector<double> base_tokens, base_cpu, base_first;
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
      base_tokens.push_back(base.tokens_per_second);
      base_cpu.push_back(base.cpu_us_a_token);
      base_first.push_back(base.first_ms);
      costs[i].lost_percent.push_back(100 * (1 - seen.tokens_per_second / base.tokens_per_second));
      costs[i].cpu_percent.push_back(100 * (seen.cpu_us_a_token / base.cpu_us_a_token - 1));
      costs[i].first_ms.push_back(seen.first_ms - base.first_ms);
      costs[i].between_ms.push_back(seen.between_ms - base.between_ms);
      costs[i].bytes.push_back(seen.bytes_a_token - base.bytes_a_token);
    }
  }

  const std::string beside = "without a store " + format_number(median(base_tokens), 4) +
                             " tokens/s, " + format_number(median(base_cpu), 3) +
                             " us of CPU a token, first token after " +
                             format_number(median(base_first), 3) + " ms";
  std::vector<SessionFigure> figures;
  for (std::size_t i = 0; i < kLevels.size(); ++i) {
    const DurabilityLevel& level = kLevels[i];
    const std::string name = level.name;
    figures.push_back(
        figure_of(name + "_lost_percent",
                  name + ": tokens/s lost at " + std::to_string(plan.streams) + " streams", "%",
                  costs[i].lost_percent, level.most_percent, i == 0 ? beside : "", "none has it"));
    figures.push_back(figure_of(name + "_cpu_percent",
                                name + ": more CPU a token, clients included", "%",
                                costs[i].cpu_percent));
    if (level.durability == v1::DURABILITY_NONE) continue;
    figures.push_back(figure_of(name + "_first_token_ms", name + ": later first token, one stream",
                                "ms", costs[i].first_ms, level.most_first_ms));
    figures.push_back(figure_of(name + "_between_tokens_ms",
                                name + ": longer between tokens, one stream", "ms",
                                costs[i].between_ms));
    figures.push_back(figure_of(
        name + "_bytes_a_value", name + ": bytes written for a token", "bytes", costs[i].bytes,
        level.most_bytes, "",
        "a state for each: " + format_number(static_cast<double>(model->state_bytes(784)), 6)));
  }
  return figures;
}

}  // namespace lintel::bench
