// SPDX-License-Identifier: Apache-2.0
#include "server/api/model_wait.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "server/api/refusals.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// One call that waits. Held by the manager until the model is loaded, and by the call's reactor
// until the call is cancelled.
class ModelWait {
 public:
  ModelWait(RpcReactor& reactor, const LogFields& log_fields, RunAgain again, RefuseCall refuse,
            std::optional<std::chrono::system_clock::time_point> deadline)
      : reactor_(reactor),
        log_fields_(log_fields),
        again_(std::move(again)),
        refuse_(std::move(refuse)),
        deadline_(deadline) {}

  void loaded(const std::optional<LoadRefusal>& refusal, const SharedModel& model) noexcept {
    if (is_over_.exchange(true)) return;
    reactor_.when_cancelled(nullptr);  // the call has not finished: the reactor is there
    // Without memory for its log fields it runs all the same.
    std::optional<LogScope> log;
    catch_exceptions([&] { log.emplace(log_fields_); }, [] {});
    if (!refusal) {
      std::exchange(again_, nullptr)(model);
    } else {
      std::exchange(refuse_, nullptr)(catch_exceptions([&] { return load_status(refusal); }));
    }
    forget();
  }
  void cancelled() noexcept {
    if (is_over_.exchange(true)) return;
    const bool is_late = deadline_ && *deadline_ <= std::chrono::system_clock::now();
    std::exchange(refuse_, nullptr)(
        catch_exceptions([&] { return is_late ? deadline_exceeded() : lintel::cancelled(); }));
    forget();
  }

  bool is_over() const { return is_over_.load(); }

 private:
  // What the functions hold is free before the load has ended.
  void forget() {
    again_ = nullptr;
    refuse_ = nullptr;
  }

  RpcReactor& reactor_;
  const LogFields log_fields_;
  RunAgain again_;
  RefuseCall refuse_;
  const std::optional<std::chrono::system_clock::time_point> deadline_;
  std::atomic<bool> is_over_{false};  // who sets it runs one of the functions
};

}  // namespace

void wait_for_model(const ServiceContext& context, RpcCall& call, RpcReactor& reactor,
                    const LogFields& log_fields, const ModelAbsent& absent, RunAgain again,
                    RefuseCall refuse) {
  const auto wait = std::make_shared<ModelWait>(reactor, log_fields, std::move(again),
                                                std::move(refuse), call.deadline());
  const std::string name = absent.name();
  const std::optional<std::int64_t> version = absent.version();
  ModelManager& manager = context.manager;
  std::function<void()> cancel = [wait, name, version, &manager] {
    manager.stop_waiting(name, version, wait.get());
    wait->cancelled();
  };
  // From here on the call may be over at any time.
  reactor.when_cancelled(std::move(cancel));
  catch_exceptions(
      [&] {
        manager.wait_for(name, version, wait.get(),
                         [wait](const std::optional<LoadRefusal>& refusal,
                                const SharedModel& model) { wait->loaded(refusal, model); });
      },
      [&] { wait->loaded(LoadRefusal{.kind = LoadRefusal::Kind::kOutOfMemory}, nullptr); });
  // It was cancelled before it waited.
  if (wait->is_over()) manager.stop_waiting(name, version, wait.get());
}

}  // namespace lintel
