// SPDX-License-Identifier: Apache-2.0
#include "server/app/memory_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <type_traits>

namespace lintel {
namespace {

constexpr std::size_t kOneMiB = std::size_t{1} << 20;
constexpr std::size_t kOneGiB = std::size_t{1} << 30;
// The program, its libraries, stacks and tables.
constexpr std::size_t kProgramBytes = 64 * kOneMiB;
// The sessions' memory where the limit is unknown.
constexpr std::size_t kUnknownSessionBytes = kOneGiB;
constexpr std::size_t kUnknownLimit = 4 * kOneGiB;
// Workers of models that are loaded later have this part of the memory of those models.
constexpr std::size_t kWorkerPart = 8;

std::size_t limit_part(const MemoryLimit& limit, std::size_t part, std::size_t least,
                       std::size_t most) {
  const std::size_t bytes = limit.bytes > 0 ? limit.bytes : kUnknownLimit;
  return std::clamp(bytes / part / kOneMiB * kOneMiB, least, most);
}

bool loads_later(const ServerOptions& options) {
  return !options.models.models_directory().empty();
}

// Models that have a queue: those of the start, and one more where models are loaded later.
std::size_t queues(const ServerOptions& options, std::size_t models) {
  return std::max<std::size_t>(models, 1) + (loads_later(options) && models > 0 ? 1 : 0);
}

std::string plan_amount(std::size_t bytes) {
  constexpr double kMiBs = 1 << 20, kGiBs = 1 << 30;
  const auto number = static_cast<double>(bytes);
  char text[32];
  if (bytes >= 10 * kOneGiB) {
    std::snprintf(text, sizeof text, "%.1f GiB", number / kGiBs);
  } else {
    std::snprintf(text, sizeof text, "%.0f MiB", number / kMiBs);
  }
  return text;
}

std::string plan_line(const std::string& name, std::size_t bytes, const std::string& note) {
  char text[256];
  std::snprintf(text, sizeof text, "memory: %-16s %10s", name.c_str(), plan_amount(bytes).c_str());
  return note.empty() ? text : std::string(text) + "  " + note;
}

std::size_t left_of(std::size_t bytes, std::size_t taken) { return bytes - std::min(bytes, taken); }

}  // namespace

MemoryLimit memory_limit_of(const ServerOptions& options) {
  if (options.memory_limit_bytes == kAutoBytes) return read_memory_limit();
  return {.bytes = options.memory_limit_bytes, .source = "--memory-limit"};
}

void choose_sizes(ServerOptions& options, const MemoryLimit& limit) {
  const auto choose = [](auto& bytes, std::size_t chosen) {
    using Bytes = std::remove_reference_t<decltype(bytes)>;
    if (bytes == static_cast<Bytes>(kAutoBytes)) bytes = static_cast<Bytes>(chosen);
  };
  choose(options.request_memory_bytes, limit_part(limit, 8, 16 * kOneMiB, SIZE_MAX));
  choose(options.connections.memory_bytes, limit_part(limit, 16, 16 * kOneMiB, 256 * kOneMiB));
  choose(options.http.memory_bytes, limit_part(limit, 32, 8 * kOneMiB, 64 * kOneMiB));
  const ModelOptions& models = options.models;
  const std::size_t all = limit_part(limit, 16, 16 * kOneMiB, SIZE_MAX);
  choose(options.models.scheduling.max_queued_bytes,
         std::min(all / queues(options, models.directories.size() + models.load.size()),
                  256 * kOneMiB));
}

std::size_t response_bytes(const ServerOptions& options, const MemoryLimit& limit) {
  return options.durable.store.empty() ? limit_part(limit, 32, 8 * kOneMiB, 256 * kOneMiB) : 0;
}

MemoryPlan plan_memory(const ServerOptions& options, const MemoryLimit& limit,
                       const LoadedModels& models) {
  MemoryPlan plan;
  plan.limit = limit;
  std::size_t taken = 0;
  const auto add = [&](const char* name, std::size_t bytes, const char* flag) {
    plan.rows.push_back({name, bytes, flag});
    taken += bytes;
  };
  add("program", kProgramBytes, "");
  add("weights", models.weight_bytes, "");
  add("worker buffers", models.worker_bytes, "--workers, --max-batch-rows");
  add("requests", options.request_memory_bytes, "--request-memory");
  add("queues", options.models.scheduling.max_queued_bytes * queues(options, models.count),
      "--max-queued-bytes, for each model");
  add("connections", static_cast<std::size_t>(options.connections.memory_bytes),
      "--connection-memory");
  if (options.http.listen) {
    add("HTTP", static_cast<std::size_t>(options.http.memory_bytes), "--http-memory");
  }
  if (const std::size_t bytes = response_bytes(options, limit)) {
    add("responses", bytes, "none with --session-store");
  }

  const std::size_t given = options.sessions.session_memory_bytes;
  const bool is_auto = given == kAutoBytes;
  const std::size_t models_given = options.models.memory_bytes;
  if (loads_later(options)) {
    std::size_t later = 0;  // what models have that are loaded later, with their workers
    if (models_given == kAutoBytes) {
      // Half of what is left, but sessions have their least.
      const std::size_t rest = left_of(plan.most_bytes(), taken);
      later = is_auto ? std::min(rest / 2, left_of(rest, MemoryPlan::kLeastSessionBytes))
                      : left_of(rest, given);
      later = later / kOneMiB * kOneMiB;
      // A bound of 0 would be none.
      plan.model_memory_bytes =
          std::max<std::size_t>(models.weight_bytes + later - later / kWorkerPart, 1);
      add("later models", later, "--model-memory, and their workers");
    } else if (models_given > 0) {
      const std::size_t weights = left_of(models_given, models.weight_bytes);
      later = weights + weights / kWorkerPart;
      add("later models", later, "--model-memory, and their workers");
    }
  }
  if (models_given != kAutoBytes) plan.model_memory_bytes = models_given;

  if (!is_auto) {
    plan.session_memory_bytes = given;
  } else if (limit.bytes == 0) {
    plan.session_memory_bytes = kUnknownSessionBytes;
  } else {
    plan.session_memory_bytes = left_of(plan.most_bytes(), taken) / kOneMiB * kOneMiB;
    plan.is_too_small = plan.session_memory_bytes < MemoryPlan::kLeastSessionBytes;
  }
  add("sessions", plan.session_memory_bytes, "--session-memory");
  plan.prefix_memory_bytes = options.prefixes.memory_bytes == kAutoBytes
                                 ? plan.session_memory_bytes
                                 : options.prefixes.memory_bytes;
  return plan;
}

std::size_t MemoryPlan::total_bytes() const {
  std::size_t total = 0;
  for (const Row& row : rows) total += row.bytes;
  return total;
}

std::vector<std::string> MemoryPlan::table() const {
  std::vector<std::string> lines = {plan_line("limit", limit.bytes, limit.source)};
  for (const Row& row : rows) lines.push_back(plan_line(row.name, row.bytes, row.flag));
  lines.push_back(plan_line("sum", total_bytes(), "of at most " + plan_amount(most_bytes())));
  return lines;
}

}  // namespace lintel
