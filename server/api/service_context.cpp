// SPDX-License-Identifier: Apache-2.0
#include "server/api/service_context.h"

#include <chrono>
#include <optional>
#include <utility>

#include "server/api/refusals.h"
#include "server/core/threads.h"
#include "server/rpc/status.h"

namespace lintel {

grpc::Status run_by_store(const ServiceContext& context, const LogFields& log_fields,
                          std::function<void()> work) {
  return run_by_store(context, [log_fields, work = std::move(work)] {
    // Without memory for its log fields it is done all the same: its call waits for it.
    std::optional<LogScope> log;
    catch_exceptions([&] { log.emplace(log_fields); }, [] {});
    work();
  });
}

grpc::Status run_by_store(const ServiceContext& context, std::function<void()> work) {
  if (context.persistent_sessions->run(std::move(work))) return grpc::Status::OK;
  return resource_exhausted("too many calls wait for the session store",
                            std::chrono::milliseconds(200));
}

grpc::Status keep_session(const ServiceContext& context, const Owner& owner, SessionInfo& info) {
  if (context.persistent_sessions == nullptr || info.durability == Durability::kNone)
    return grpc::Status::OK;
  if (const SessionRefusal refusal = context.persistent_sessions->persist(info.id, owner)) {
    context.sessions.remove(info.id, owner);
    return store_refusal(refusal, context.sessions.options(), /*session_id=*/"", owner);
  }
  // With what the store says of it.
  if (auto kept = context.persistent_sessions->find(info.id, owner)) info = *std::move(kept);
  return grpc::Status::OK;
}

}  // namespace lintel
