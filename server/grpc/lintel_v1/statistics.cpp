#include "server/grpc/lintel_v1/statistics.h"

#include <chrono>

#include "server/grpc/transport/wire_time.h"

namespace lintel {
namespace {

void write_activity(const ModelRegistry::Totals& totals, v1::ModelActivity& wire) {
  const Scheduler::Stats& stats = totals.stats;
  wire.set_name(totals.name);
  wire.set_running(static_cast<std::uint32_t>(stats.running));
  wire.set_waiting(static_cast<std::uint32_t>(stats.queued));
  wire.set_prompt_tokens(stats.prompt_tokens);
  wire.set_generated_tokens(stats.generated_tokens);
  wire.set_drafted_tokens(stats.drafted_tokens);
  wire.set_accepted_tokens(stats.accepted_tokens);
  wire.set_requests(totals.timings.queued.total());
  const std::chrono::duration<double> queued(totals.timings.queued.sum);
  write_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(queued),
                 *wire.mutable_queue_time());
  wire.set_workers(static_cast<std::uint32_t>(totals.workers));
}

}  // namespace

void write_statistics(const ServiceContext& context, v1::StatisticsResponse& wire) {
  for (const ModelRegistry::Totals& totals : context.models.totals()) {
    write_activity(totals, *wire.add_models());
  }
  wire.set_streams(static_cast<std::uint32_t>(context.calls.count()));
  const SessionStore::Stats sessions = context.store.stats();
  wire.set_idle_sessions(sessions.idle_sessions);
  wire.set_busy_sessions(sessions.busy_sessions);
  wire.set_session_bytes(static_cast<std::int64_t>(sessions.idle_bytes + sessions.busy_bytes +
                                                   sessions.one_shot_bytes));
  wire.set_session_memory(static_cast<std::int64_t>(context.store.options().session_memory_bytes));
  wire.set_model_bytes(static_cast<std::int64_t>(context.manager.memory().used_bytes()));
  wire.set_model_memory(static_cast<std::int64_t>(context.manager.memory().limit_bytes()));
  wire.set_version(LINTEL_VERSION);
}

}  // namespace lintel
