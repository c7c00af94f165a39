// SPDX-License-Identifier: Apache-2.0
// What calls do whose model is not in memory: they wait for it, and no thread with them.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <optional>
#include <utility>

#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/service_context.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"

namespace lintel {

// Runs `again` once the model is there, on the thread that has loaded it, or `refuse` with the
// status that says why it is not: one of them, once. A call that is cancelled or past its deadline
// is refused at once. The reactor is the call's, which has not finished and waits for nothing else.
using RunAgain = std::function<void(const SharedModel& model)>;
using RefuseCall = std::function<void(grpc::Status)>;
void wait_for_model(const ServiceContext& context, RpcCall& call, RpcReactor& reactor,
                    const LogFields& log_fields, const ModelAbsent& absent, RunAgain again,
                    RefuseCall refuse);

// Runs `body`, which returns a status; what it throws becomes one, except that it lacks a model.
template <typename Body>
grpc::Status catch_absent(std::optional<ModelAbsent>& absent, Body&& body) noexcept {
  return catch_exceptions([&]() -> grpc::Status {
    try {
      return body();
    } catch (const ModelAbsent& model) {
      absent = model;
      return grpc::Status::OK;
    }
  });
}

// Whose thread runs what a call begins with: where it may have to wait for the session store, one
// of the store's.
enum class CallThread { kAny, kOfStore };

// Begins a call: runs `step` now, and once more each time that a model it lacked is loaded.
// `refuse` gets the status that it returns, or that of an exception, where that is not OK. What
// both refer to lives as long as the call.
template <typename Step, typename Refuse>
void run_with_models(const ServiceContext& context, RpcCall& call, RpcReactor& reactor,
                     const LogFields& log_fields, CallThread thread, const Step& step,
                     const Refuse& refuse, int tries = 3) noexcept {
  std::optional<ModelAbsent> absent;
  grpc::Status status = catch_absent(absent, step);
  if (absent && tries == 1) {
    status = catch_exceptions([&] { return model_unloaded(absent->name()); });
  } else if (absent) {
    status = catch_exceptions([&] {
      const auto run = [&context, &call, &reactor, log_fields, thread, step, refuse, tries] {
        run_with_models(context, call, reactor, log_fields, thread, step, refuse, tries - 1);
      };
      const auto again = [&context, log_fields, thread, run, refuse](const SharedModel& model) {
        if (thread == CallThread::kAny) return run();
        grpc::Status taken = catch_exceptions([&] {
          return run_by_store(context, log_fields, [run, model] { run(); });  // in use until then
        });
        if (!taken.ok()) refuse(std::move(taken));
      };
      wait_for_model(context, call, reactor, log_fields, *absent, again, refuse);
      return grpc::Status::OK;
    });
  }
  if (!status.ok()) refuse(std::move(status));
}

}  // namespace lintel
