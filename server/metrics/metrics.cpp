// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/metrics.h"

#include <dirent.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/lora/adapter.h"
#include "server/core/threads.h"
#include "server/rpc/status.h"

namespace lintel {

// Resources of the process, by the names that Prometheus' own clients use.

// process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
// process_open_fds, process_max_fds and process_start_time_seconds, read from /proc; what cannot be
// read is left out.
std::vector<prometheus::MetricFamily> collect_process_metrics();

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

void add(std::vector<MetricFamily>& out, MetricType type, const char* name, const char* help,
         double value) {
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  out.push_back({name, help, type, {metric}});
}

// The time at which the machine was started, in seconds of Unix time; 0 if it cannot be read.
double boot_time() {
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

// Fields of /proc/self/stat, numbered from 1 as in proc(5).
std::vector<std::string> stat_fields() {
  std::ifstream in("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t name_end = text.rfind(')');  // the name may have spaces and brackets
  if (name_end == std::string::npos) return {};
  std::vector<std::string> fields = {"", "", ""};  // 0: none; pid, name
  std::istringstream rest(text.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// -1 where /proc is not there.
std::int64_t open_descriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  std::int64_t count = -1;  // the directory itself
  while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.';
  ::closedir(directory);
  return count;
}

}  // namespace

std::vector<MetricFamily> collect_process_metrics() {
  std::vector<MetricFamily> out;
  const auto tick = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (const std::vector<std::string> stat = stat_fields(); stat.size() > 24) {
    add(out, MetricType::Counter, "process_cpu_seconds_total", "Processor time, user and system",
        (std::stod(stat[14]) + std::stod(stat[15])) / tick);
    add(out, MetricType::Gauge, "process_virtual_memory_bytes", "Addresses that are mapped",
        std::stod(stat[23]));
    add(out, MetricType::Gauge, "process_resident_memory_bytes", "Memory that is held",
        std::stod(stat[24]) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    // The machine's start is whole seconds: so is this, and it does not move.
    if (const double boot = boot_time(); boot > 0) {
      add(out, MetricType::Gauge, "process_start_time_seconds",
          "When the process was started, as Unix time", boot + std::stod(stat[22]) / tick);
    }
  }
  if (const std::int64_t count = open_descriptors(); count >= 0) {
    add(out, MetricType::Gauge, "process_open_fds", "File descriptors that are open",
        static_cast<double>(count));
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add(out, MetricType::Gauge, "process_max_fds", "File descriptors there can be",
        static_cast<double>(limit.rlim_cur));
  }
  return out;
}

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// One family: a name, a help text, and a value for each set of labels.
class Family {
 public:
  Family(std::vector<MetricFamily>& families, MetricType type, const char* name, const char* help)
      : families_(families) {
    family_.name = std::string("lintel_") + name;
    family_.help = help;
    family_.type = type;
  }
  ~Family() { families_.push_back(std::move(family_)); }

  template <typename Number>
  Family& add(Labels labels, Number value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        static_cast<double>(value);
    family_.metric.push_back(std::move(metric));
    return *this;
  }

  Family& add(Labels labels, const HistogramSnapshot& snapshot) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < snapshot.bounds.size(); ++i) {
      below += snapshot.counts[i];
      metric.histogram.bucket.push_back({below, snapshot.bounds[i]});
    }
    metric.histogram.sample_count = snapshot.total();
    metric.histogram.sample_sum = snapshot.sum;
    metric.histogram.bucket.push_back(
        {metric.histogram.sample_count, std::numeric_limits<double>::infinity()});
    family_.metric.push_back(std::move(metric));
    return *this;
  }

 private:
  std::vector<MetricFamily>& families_;
  MetricFamily family_;
};

// RequestOutcome's, in its order; that of kDone is none.
constexpr const char* kReasons[kNumOutcomes] = {
    nullptr,    "client",  "deadline",     "shutdown", "non_finite",
    "internal", "adapter", "grammar_work", "no_token", "memory"};

using ModelTotals = std::vector<ModelRegistry::Totals>;

void collect_models(const ModelRegistry& models, const ModelTotals& totals,
                    std::vector<MetricFamily>& out) {
  Family info(out, MetricType::Gauge, "model_info", "What is served; always 1");
  for (const SharedModel& model : models.ready()) {
    const Transformer& transformer = *model->transformer;
    const ModelConfig& config = transformer.config();
    info.add({{"model", model->name},
              {"attention", attention_names(config)},
              {"head", to_string(config.head)},
              {"modality", to_string(config.modality)},
              {"weight_type", to_string(transformer.weight_type())},
              // Not known while the files of a large model are hashed.
              {"fingerprint", transformer.knows_fingerprint() ? transformer.fingerprint() : ""},
              {"model_version", std::to_string(model->version)}},
             1);
  }
  Family adapters(out, MetricType::Gauge, "adapter_info", "Adapters that requests can name");
  Family bytes(out, MetricType::Gauge, "adapter_bytes", "Memory of an adapter's weights");
  for (const SharedModel& model : models.ready()) {
    for (const SharedAdapter& adapter : model->adapters->ready()) {
      const Labels labels = {{"model", model->name},
                             {"model_version", std::to_string(model->version)},
                             {"adapter", adapter->name}};
      Labels with_fingerprint = labels;
      with_fingerprint.push_back({"fingerprint", adapter->weights->fingerprint()});
      adapters.add(std::move(with_fingerprint), 1);
      bytes.add(labels, adapter->weights->bytes());
    }
  }
  // Totals include all versions of a name, also one that is being unloaded.
  Family weights(out, MetricType::Gauge, "model_weight_bytes", "Memory of a model's weights");
  Family workers(out, MetricType::Gauge, "workers", "Threads that step a model");
  Family limit(out, MetricType::Gauge, "batch_rows_limit", "Rows a worker's step can have");
  for (const ModelRegistry::Totals& model : totals) {
    weights.add({{"model", model.name}}, model.weight_bytes);
    workers.add({{"model", model.name}}, model.workers);
    limit.add({{"model", model.name}}, model.max_batch_rows);
  }
}

void collect_model_memory(const ModelMemory& model_memory, std::vector<MetricFamily>& out) {
  Family(out, MetricType::Gauge, "model_memory_bytes",
         "Memory counted for models: weights and tables, and what loading one takes")
      .add({}, model_memory.used_bytes());
  Family(out, MetricType::Gauge, "model_memory_limit_bytes",
         "Memory there is for them; 0: no bound")
      .add({}, model_memory.limit_bytes());
}

void collect_loads(const ModelManager::Stats& stats, std::vector<MetricFamily>& out) {
  Family(out, MetricType::Counter, "model_loads_total",
         "Loads of models; refused: for want of memory")
      .add({{"result", "loaded"}}, stats.loaded)
      .add({{"result", "failed"}}, stats.failed)
      .add({{"result", "refused"}}, stats.refused);
  Family(out, MetricType::Histogram, "model_load_seconds", "Time that loading a model took")
      .add({}, stats.load_seconds);
  Family(out, MetricType::Counter, "model_unloads_total",
         "Models that went because no call used them")
      .add({{"reason", "idle"}}, stats.unloaded_idle)
      .add({{"reason", "memory"}}, stats.unloaded_for_memory);
  Family(out, MetricType::Gauge, "model_waiters", "Calls that wait until their model is loaded")
      .add({}, stats.waiting);
}

// Calls that make, read or continue tokens: their series are there before the first call, so that
// the first one is seen as a rise.
bool is_work(const MethodInfo& method) {
  return method.role == Role::kGenerate || method.role == Role::kScore;
}

void collect_requests(const RequestCounters& requests, const ModelTotals& totals,
                      std::vector<MetricFamily>& out) {
  Family family(out, MetricType::Counter, "requests_total",
                "Calls that have ended, with the model that they were about where it was known");
  const auto add = [&](const MethodInfo& method, std::size_t code, const std::string& model,
                       std::uint64_t count) {
    Labels labels = {{"method", method.name}, {"code", code_name(static_cast<int>(code))}};
    if (!model.empty()) labels.push_back({"model", model});
    family.add(std::move(labels), count);
  };
  std::set<std::string> counted;
  for (const auto& [model, methods] : requests.by_model()) {
    counted.insert(model);
    for (const MethodInfo& method : kMethods) {
      const auto& codes = methods[static_cast<std::size_t>(method.method)];
      for (std::size_t code = 0; code < kNumStatusCodes; ++code) {
        const bool is_first = code == 0 && (model.empty() || is_work(method));
        // Other codes appear with their first call.
        if (codes[code] != 0 || is_first) add(method, code, model, codes[code]);
      }
    }
  }
  for (const auto& model : totals) {
    if (counted.contains(model.name)) continue;
    for (const MethodInfo& method : kMethods) {
      if (is_work(method)) add(method, 0, model.name, 0);
    }
  }
}

void collect_durations(const RequestCounters& requests, std::vector<MetricFamily>& out) {
  Family family(out, MetricType::Histogram, "request_duration_seconds",
                "From a call's headers to its end, a stream's last message included");
  for (const MethodInfo& method : kMethods) {
    const HistogramSnapshot durations = requests.durations(method.method);
    if (is_work(method) || durations.total() > 0) family.add({{"method", method.name}}, durations);
  }
}

void collect_scheduling(const ModelTotals& totals, std::vector<MetricFamily>& out) {
  Family running(out, MetricType::Gauge, "requests_running", "Requests in a batch, or paused");
  Family waiting(out, MetricType::Gauge, "requests_waiting", "Requests in the queue");
  Family tokens(out, MetricType::Counter, "tokens_total",
                "Tokens read (prompt), produced (generated), proposed by speculation (drafted) and "
                "accepted by the model (accepted)");
  Family shared(out, MetricType::Counter, "shared_steps_total",
                "Steps that idle workers shared (--step-threads)");
  Family empty_masks(out, MetricType::Counter, "grammar_empty_masks_total",
                     "Masks of grammars that permitted no token, which ended their request");
  Family waits(out, MetricType::Counter, "grammar_mask_waits_total",
               "Steps that rows waited for the masks of their grammars");
  Family cancelled(out, MetricType::Counter, "cancellations_total",
                   "Requests that were ended before they were done");
  for (const auto& model : totals) {
    const std::string& name = model.name;
    const Scheduler::Stats& stats = model.stats;
    running.add({{"model", name}}, stats.running);
    waiting.add({{"model", name}}, stats.queued);
    tokens.add({{"model", name}, {"kind", "prompt"}}, stats.prompt_tokens)
        .add({{"model", name}, {"kind", "generated"}}, stats.generated_tokens)
        .add({{"model", name}, {"kind", "drafted"}}, stats.drafted_tokens)
        .add({{"model", name}, {"kind", "accepted"}}, stats.accepted_tokens);
    shared.add({{"model", name}}, stats.shared_steps);
    empty_masks.add({{"model", name}}, stats.empty_masks);
    waits.add({{"model", name}}, stats.mask_waits);
    for (std::size_t i = 0; i < kNumOutcomes; ++i) {
      if (kReasons[i] == nullptr) continue;
      cancelled.add({{"model", name}, {"reason", kReasons[i]}}, stats.ended[i]);
    }
  }
}

void collect_timings(const ModelTotals& totals, std::vector<MetricFamily>& out) {
  Family rows(out, MetricType::Histogram, "batch_rows", "Rows of a step");
  Family queued(out, MetricType::Histogram, "queue_time_seconds",
                "From a request's acceptance until it is in a batch");
  Family first(out, MetricType::Histogram, "time_to_first_token_seconds",
               "From a request's acceptance until its first new token");
  Family between(out, MetricType::Histogram, "time_between_tokens_seconds",
                 "Between the new tokens of a sample");
  Family step(
      out, MetricType::Histogram, "step_time_seconds",
      "A step's parts: schedule, the model's products, attention and other, sample, deliver");
  for (const auto& model : totals) {
    const std::string& name = model.name;
    const SchedulerTimings& timings = model.timings;
    rows.add({{"model", name}}, timings.rows);
    queued.add({{"model", name}}, timings.queued);
    first.add({{"model", name}}, timings.first_token);
    between.add({{"model", name}}, timings.between_tokens);
    for (std::size_t i = 0; i < kNumWorkParts; ++i) {
      step.add({{"model", name}, {"part", to_string(static_cast<WorkPart>(i))}}, timings.step[i]);
    }
  }
}

void collect_sessions(const SessionManager& store, std::vector<MetricFamily>& out) {
  const SessionManager::Stats stats = store.stats();
  Family(out, MetricType::Gauge, "sessions", "Sessions by what they do")
      .add({{"state", "idle"}}, stats.idle_sessions)
      .add({{"state", "busy"}}, stats.busy_sessions);
  Family(out, MetricType::Gauge, "session_bytes",
         "Memory admitted for sessions, and for calls: those without one, and what any call holds "
         "in addition to its sequences (one_shot)")
      .add({{"state", "idle"}}, stats.idle_bytes)
      .add({{"state", "busy"}}, stats.busy_bytes)
      .add({{"state", "one_shot"}}, stats.one_shot_bytes);
  Family(out, MetricType::Gauge, "session_limit_bytes", "Memory there is for them")
      .add({}, store.options().session_memory_bytes);
  const MemoryLine::Stats waiting = store.waiting();
  Family(out, MetricType::Gauge, "memory_waiters", "Requests that wait for such memory")
      .add({}, waiting.waiting);
  Family(out, MetricType::Histogram, "memory_wait_seconds",
         "Time that requests which got it had waited for")
      .add({}, waiting.waited);
  Family(out, MetricType::Counter, "sessions_created_total", "Sessions made")
      .add({}, stats.created);
  Family(out, MetricType::Counter, "sessions_forked_total", "Sessions forked from others")
      .add({}, stats.forked);
  Family(out, MetricType::Counter, "sessions_rewound_total", "Rewinds of sessions")
      .add({}, stats.rewound);
  Family(out, MetricType::Counter, "evictions_total", "Idle sessions evicted")
      .add({}, stats.evicted);
}

void collect_request_memory(const RequestMemory& memory, std::vector<MetricFamily>& out) {
  using Kind = RequestRefusal::Kind;
  const RequestMemory::Stats stats = memory.stats();
  const auto refused = [&](Kind kind) { return stats.refused[static_cast<std::size_t>(kind)]; };
  Family(out, MetricType::Gauge, "request_memory_bytes", "Memory admitted for what requests hold")
      .add({}, stats.bytes);
  Family(out, MetricType::Gauge, "request_memory_limit_bytes", "Memory there is for it")
      .add({}, memory.limits().bytes);
  Family(out, MetricType::Counter, "request_memory_refusals_total",
         "Requests refused for want of it: others held it, others of the same identity did, or "
         "they could never fit")
      .add({{"reason", "full"}}, refused(Kind::kFull))
      .add({{"reason", "identity"}}, refused(Kind::kIdentityFull))
      .add({{"reason", "too_large"}}, refused(Kind::kTooLarge));
}

void collect_prefixes(const PrefixCache& prefixes, std::vector<MetricFamily>& out) {
  const PrefixCache::Stats stats = prefixes.stats();
  Family(out, MetricType::Counter, "prefix_cache_hits_total",
         "Prompts whose beginning was not read: a state was kept of an earlier one")
      .add({}, stats.hits);
  Family(out, MetricType::Counter, "prefix_cache_misses_total",
         "Prompts without a kept state, which were read from their beginning")
      .add({}, stats.misses);
  Family(out, MetricType::Counter, "prefix_cache_joins_total",
         "Of the hits, prompts that waited for another that began alike to be read")
      .add({}, stats.joins);
  Family(out, MetricType::Counter, "prefix_cache_saved_tokens_total",
         "Tokens of prompts that were not read")
      .add({}, stats.saved_tokens);
  Family(out, MetricType::Counter, "prefix_cache_evictions_total",
         "States after prompts that were evicted for want of memory")
      .add({}, stats.evictions);
  Family(out, MetricType::Gauge, "prefix_cache_bytes",
         "Memory for states after prompts and for the prompts' tokens")
      .add({}, stats.bytes);
  Family(out, MetricType::Counter, "chat_prompt_tokens_total",
         "Tokens of prompts of conversations: those before a kept state, and those that were read")
      .add({{"how", "cached"}}, stats.chat_cached_tokens)
      .add({{"how", "read"}}, stats.chat_read_tokens);
  Family(out, MetricType::Counter, "chat_history_reread_total",
         "Prompts of conversations that were read from before the boundary of their last turn")
      .add({}, stats.chat_rereads);
  Family(out, MetricType::Counter, "chat_common_not_cached_tokens_total",
         "Tokens that a prompt had in common with an earlier one, read for want of a state")
      .add({}, stats.chat_common_not_cached);
  Family(
      out, MetricType::Gauge, "chat_states",
      "States of conversations: at boundaries of turns, before answers with calls, behind answers")
      .add({{"at", "turn"}}, stats.turn_states)
      .add({{"at", "call"}}, stats.call_states)
      .add({{"at", "end"}}, stats.end_states);
  Family(out, MetricType::Counter, "chat_states_dropped_total",
         "States of conversations that were of no more use")
      .add({}, stats.chat_states_dropped);
}

void collect_chat_states(const StoredChatStates& states, std::vector<MetricFamily>& out) {
  const StoredChatStates::Stats stats = states.stats();
  Family(out, MetricType::Gauge, "chat_states_stored", "Turns of conversations in the store")
      .add({}, stats.keys);
  Family(out, MetricType::Counter, "chat_states_spilled_total",
         "Turns of conversations whose states were stored")
      .add({}, stats.stored);
  Family(out, MetricType::Counter, "chat_states_restored_total",
         "Stored turns that a prompt continued from")
      .add({}, stats.restored);
}

// Collects the figures of a store that several servers share.
void collect_shared_store(const SessionStorage::Health& health, std::vector<MetricFamily>& out) {
  Family(out, MetricType::Counter, "session_claims_total",
         "Sessions that calls asked the store for: granted, or held by another server")
      .add({{"outcome", "granted"}}, health.claims)
      .add({{"outcome", "held"}}, health.claims_held);
  Family(out, MetricType::Counter, "session_fenced_total",
         "Writes refused because another server had taken the session over")
      .add({}, health.fenced);
  Family(out, MetricType::Counter, "session_rolled_back_total",
         "Sessions of which the store had lost the last tokens")
      .add({}, health.rolled_back);
  Family(out, MetricType::Counter, "session_healed_total",
         "Of those, written again by the call that had them")
      .add({}, health.healed);
  Family(out, MetricType::Counter, "session_store_reconnects_total",
         "Connections to the store that were made again")
      .add({}, health.reconnects);
  Family(out, MetricType::Counter, "session_store_redirects_total",
         "Questions that another server of the cluster had to answer")
      .add({}, health.redirects);
  Family(out, MetricType::Counter, "session_store_short_waits_total",
         "Commits that too few replicas of the store had in time")
      .add({}, health.short_waits);
  Family(out, MetricType::Gauge, "session_store_clocks_differ",
         "1: the store's clock is so far from this machine's that nothing is removed as expired")
      .add({}, health.clocks_differ ? 1 : 0);
}

// Collects the figures of --session-store.
void collect_store(const PersistentSessions& durable, std::chrono::duration<double> recovery_time,
                   std::vector<MetricFamily>& out) {
  const SessionStorage::Health health = durable.health();
  const PersistentSessions::Stats stats = durable.stats();
  Family(out, MetricType::Gauge, "session_store_state",
         "0: takes writes; 1: is full; 2: is away; 3: is broken until a restart")
      .add({}, static_cast<int>(health.state));
  Family(out, MetricType::Gauge, "stored_sessions", "Sessions that outlive the server")
      .add({}, health.sessions);
  Family(out, MetricType::Counter, "session_commits_total", "Commits to the session store")
      .add({}, health.commits);
  Family(out, MetricType::Counter, "session_commit_records_total", "What sessions wrote in them")
      .add({}, health.writes);
  Family(out, MetricType::Gauge, "session_commit_queue_bytes", "Waiting to be committed")
      .add({}, health.queued_bytes);
  Family(out, MetricType::Gauge, "session_load_queue", "Calls that wait for a thread of the store")
      .add({}, stats.queued);
  Family(out, MetricType::Counter, "session_loads_total",
         "Sessions loaded into memory again, from their stored state or by reading their tokens")
      .add({{"from", "slot"}}, stats.loaded_from_slot)
      .add({{"from", "values"}}, stats.loaded_from_tokens);
  Family(out, MetricType::Counter, "session_states_stored_total", "States put into the store")
      .add({}, stats.states_stored);
  Family(out, MetricType::Counter, "session_states_lost_total",
         "Stored states that differed from what had been written; their tokens were read again")
      .add({}, health.states_lost);
  Family(out, MetricType::Counter, "session_states_dropped_total",
         "Stored states that were dropped to make room on a full disk")
      .add({}, health.states_dropped);
  Family(out, MetricType::Counter, "session_calls_resumed_total",
         "Calls that were repeated by their call_id and resumed")
      .add({}, stats.calls_resumed);
  Family(out, MetricType::Counter, "session_replayed_tokens_total",
         "Tokens of stored sessions that were read again: without a state after them, "
         "after a rewind, of calls that were repeated")
      .add({{"why", "cold"}}, stats.replayed_cold)
      .add({{"why", "rewind"}}, stats.replayed_rewound)
      .add({{"why", "resume"}}, stats.replayed_resumed);
  Family(out, MetricType::Counter, "session_numerics_changed_total",
         "Stored sessions that were loaded on a machine of other numerics")
      .add({}, stats.numerics_changed);
  Family(out, MetricType::Gauge, "sessions_quarantined",
         "Stored sessions that are damaged, and set aside")
      .add({}, health.quarantined);
  Family(out, MetricType::Gauge, "recovery_seconds", "What opening the session store took")
      .add({}, recovery_time.count());
  if (health.is_shared) collect_shared_store(health, out);
}

void collect_http(const HttpCounters& http, std::vector<MetricFamily>& out) {
  Family(out, MetricType::Gauge, "http_connections", "HTTP connections that are open")
      .add({}, http.connections.load());
  Family(out, MetricType::Counter, "http_connections_accepted_total", "HTTP connections so far")
      .add({}, http.accepted.load());
  Family(out, MetricType::Counter, "http_connections_refused_total",
         "HTTP connections beyond --http-max-connections or --http-max-client-connections")
      .add({}, http.refused.load());
  Family(out, MetricType::Counter, "http_timeouts_total",
         "HTTP connections closed because their client was too slow")
      .add({}, http.timeouts.load());
  Family(out, MetricType::Counter, "http_exceptions_total",
         "Exceptions on the way of an HTTP request, for want of memory; each ended its connection")
      .add({}, http.exceptions.load());
  Family(out, MetricType::Gauge, "http_body_bytes", "Bodies of HTTP requests that are being read")
      .add({}, http.body_bytes.load());
  Family answers(out, MetricType::Counter, "http_answers_total",
                 "HTTP answers by status; gone: the client went before its answer was out");
  static constexpr const char* kClasses[] = {"gone", "1xx", "2xx", "3xx", "4xx", "5xx"};
  for (std::size_t i = 0; i < http.answers.size(); ++i) {
    if (i != 1) answers.add({{"status", kClasses[i]}}, http.answers[i].load());
  }
}

void collect_thread_failures(std::vector<MetricFamily>& out) {
  Family family(out, MetricType::Counter, "thread_failures_total",
                "Exceptions that reached the loop of a thread, which continued; the log has each");
  for (std::size_t i = 0; i < kNumServerThreads; ++i) {
    family.add({{"thread", kServerThreadNames[i]}},
               ThreadFailures::of_process().count(static_cast<ServerThread>(i)));
  }
}

}  // namespace

Metrics::Metrics(const ModelRegistry& models, const ModelManager& manager,
                 const SessionManager& store, const PrefixCache& prefixes, const ActiveCalls& calls,
                 const RequestCounters& requests, const PersistentSessions* durable,
                 const StoredChatStates* chat_states, std::chrono::duration<double> recovery_time,
                 const HttpCounters* http, const RequestMemory* request_memory)
    : models_(models),
      manager_(manager),
      store_(store),
      prefixes_(prefixes),
      calls_(calls),
      requests_(requests),
      durable_(durable),
      chat_states_(chat_states),
      recovery_time_(recovery_time),
      http_(http),
      request_memory_(request_memory) {}

std::vector<MetricFamily> Metrics::Collect() const {
  std::vector<MetricFamily> out;
  Family(out, MetricType::Gauge, "build_info", "What was built; always 1")
      .add({{"version", LINTEL_VERSION}, {"compiler", __VERSION__}}, 1);
  Family(out, MetricType::Gauge, "start_time_seconds", "When the server was made, as Unix time")
      .add({}, std::chrono::duration<double>(started_.time_since_epoch()).count());
  Family(out, MetricType::Gauge, "draining", "1: nothing new is taken")
      .add({}, calls_.closed() ? 1 : 0);
  Family(out, MetricType::Gauge, "streams", "Generate and Score calls that are open")
      .add({}, calls_.count());
  const ModelTotals totals = models_.totals();
  collect_models(models_, totals, out);
  collect_model_memory(manager_.memory(), out);
  collect_loads(manager_.stats(), out);
  collect_requests(requests_, totals, out);
  collect_durations(requests_, out);
  collect_scheduling(totals, out);
  collect_timings(totals, out);
  collect_sessions(store_, out);
  if (request_memory_ != nullptr) collect_request_memory(*request_memory_, out);
  collect_prefixes(prefixes_, out);
  if (chat_states_ != nullptr) collect_chat_states(*chat_states_, out);
  if (durable_ != nullptr) collect_store(*durable_, recovery_time_, out);
  if (http_ != nullptr) collect_http(*http_, out);
  collect_thread_failures(out);
  std::ranges::move(collect_process_metrics(), std::back_inserter(out));
  return out;
}

}  // namespace lintel
