// What ModelManager does to the adapters of a model that is served.
#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "server/models/guarded_load.h"
#include "server/models/model_manager.h"

namespace lintel {
namespace {

using Kind = LoadRefusal::Kind;

// "adapter thin of model mnist"
std::string subject(const ServedModel& model, const std::string& adapter) {
  return "adapter " + short_name(adapter) + " of model " + model.name;
}

LoadRefusal adapter_refusal(Kind kind, const ServedModel& model, const std::string& adapter,
                            const std::string& what) {
  LoadRefusal refused = load_refusal(kind, model.name, subject(model, adapter) + " " + what);
  refused.adapter = adapter;
  return refused;
}

std::optional<LoadRefusal> load_adapter_now(const ModelLoader& loader, const ServedModel& model,
                                            const std::string& name, SharedAdapter& loaded) {
  std::optional<AdapterSource> source;
  const auto load = [&]() -> std::optional<LoadRefusal> {
    if (model.retired.load()) {
      return adapter_refusal(Kind::kNotFound, model, name, "is not loaded: its model goes");
    }
    if (model.adapters->has(name)) {
      const bool is_ready = model.adapters->find(name) != nullptr;
      return adapter_refusal(Kind::kUnusable, model, name,
                             is_ready ? "is loaded: unload it first" : "is being unloaded");
    }
    source = loader.find_adapter(model, name);
    if (!source) {
      return adapter_refusal(Kind::kNotFound, model, name,
                             "is not there: its model has no adapters/" + short_name(name) +
                                 "/, and no --adapter names it");
    }
    loaded = loader.load_adapter(model, *source);
    return std::nullopt;
  };
  // No more of a path than the adapter's own directory.
  const auto shown = [&](const std::string& what) {
    return source ? ModelRepository(source->directory.parent_path()).without_path(what) : what;
  };
  std::optional<LoadRefusal> refused = guarded_load(model.name, load, shown);
  if (refused) refused->adapter = name;
  return refused;
}

// Requests with the adapter end within one step, and its sessions are closed.
void end_adapter(const ServedModel& model, const std::string& name, SessionStore& store) {
  const SharedAdapter adapter = model.adapters->retired(name);
  if (adapter == nullptr) return;
  adapter->ended.store(true);
  store.close_sessions(*adapter);
  model.scheduler->note_adapter_end();
}

}  // namespace

void ModelManager::load_adapter(const SharedModel& model, const std::string& name,
                                OnAdapterLoaded done) {
  ask({model->name,
       [this, model, name, done] {
         SharedAdapter loaded;
         const std::optional<LoadRefusal> refused = load_adapter_now(loader_, *model, name, loaded);
         if (refused) {
           spdlog::error("{} was not loaded: {}", subject(*model, name), refused->text);
         }
         done(refused, loaded);
       },
       [done](const LoadRefusal& refused) { done(refused, nullptr); }});
}

void ModelManager::unload_adapter(const SharedModel& model, const std::string& name,
                                  OnUnloaded done) {
  if (!model->adapters->retire(name, registry_.unused_bell())) {
    return done(
        adapter_refusal(Kind::kNotFound, *model, name,
                        model->adapters->has(name) ? "is being unloaded" : "is not loaded"));
  }
  spdlog::info("{} takes no more requests", subject(*model, name));
  AdapterDrain drain{.model = model,
                     .name = name,
                     .give_up = std::chrono::steady_clock::now() + options_.drain_timeout_ms,
                     .ended = false,
                     .done = std::move(done)};
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      adapter_drains_.push_back(std::move(drain));
      registry_.unused_bell()->ring();
      return;
    }
  }
  // The manager's thread takes no more drains; the caller is answered all the same.
  advance(drain, /*at_once=*/true);
}

bool ModelManager::advance(AdapterDrain& drain, bool at_once) {
  // Where the model is gone, its adapters went with it.
  if (const SharedModel model = drain.model.lock()) {
    AdapterTable& table = *model->adapters;
    const TimePoint now = std::chrono::steady_clock::now();
    const bool unused = table.is_unused(drain.name);
    if (!unused && !at_once && now < drain.give_up) return false;
    if (!unused) end_adapter(*model, drain.name, store_);
    if (!unused && !std::exchange(drain.ended, true)) {
      spdlog::warn("{}: calls and sessions were ended for the drain timeout",
                   subject(*model, drain.name));
      drain.give_up = now + kFlushTime;
      if (!at_once) return false;
    }
    table.forget(drain.name);
    model->scheduler->forget_gone_adapters();
    spdlog::info("{} is unloaded", subject(*model, drain.name));
  }
  drain.done(std::nullopt);
  return true;
}

}  // namespace lintel
