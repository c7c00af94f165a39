#include "server/models/model_manager.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "model/network/model_memory.h"
#include "server/call/unary_call.h"
#include "server/models/model_loader.h"

namespace lintel {
namespace {

constexpr std::size_t kMostWaitingLoads = 16;
constexpr std::chrono::milliseconds kLookInterval{5};  // at models that are drained
// After calls were ended, for their last messages to go out.
constexpr std::chrono::milliseconds kFlushTime{1000};

grpc::Status out_of_model_memory(const std::string& name, const ModelMemory& memory,
                                 const ModelBudget& budget) {
  return resource_exhausted("model " + name + " needs " + std::to_string(memory.peak_bytes()) +
                                " bytes while it is loaded, " +
                                std::to_string(memory.resident_bytes) +
                                " of them afterwards, and " + std::to_string(budget.free_bytes()) +
                                " of " + std::to_string(budget.limit_bytes()) + " are left",
                            std::chrono::seconds(10));
}

}  // namespace

class ModelManager::Unload {
 public:
  Unload(std::size_t models, OnUnloaded done) : left_(models), done_(std::move(done)) {}
  void one_is_gone() {
    if (left_.fetch_sub(1) == 1) done_(grpc::Status::OK);
  }

 private:
  std::atomic<std::size_t> left_;
  const OnUnloaded done_;
};

ModelManager::ModelManager(const ModelOptions& options, ModelRegistry& registry,
                           SessionStore& store, std::shared_ptr<ModelBudget> budget,
                           const Clock& clock)
    : options_(options),
      registry_(registry),
      store_(store),
      budget_(std::move(budget)),
      clock_(clock),
      repository_(options.repository) {
  try {
    loading_ = std::thread([this] { run_loads(); });
    draining_ = std::thread([this] { run_drains(); });
  } catch (...) {  // the system has no thread for it: the one that runs is joined before it goes
    stop();
    throw;
  }
}

ModelManager::~ModelManager() { stop(); }

void ModelManager::listen(Listener listener) {
  {
    MutexLock lock(telling_);
    listener_ = std::move(listener);
  }
  for (const SharedModel& model : registry_.ready()) tell(model->name);
}

void ModelManager::tell(const std::string& name) {
  MutexLock lock(telling_);
  if (listener_) listener_(name, registry_.find(name) != nullptr);
}

void ModelManager::stop() {
  std::deque<Load> refused;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    refused.swap(loads_);
    changed_.notify_all();
  }
  for (const Load& load : refused) load.done(shutting_down(), nullptr);
  if (loading_.joinable()) loading_.join();
  if (draining_.joinable()) draining_.join();
}

std::vector<ModelRegistry::Entry> ModelManager::index() const {
  std::vector<ModelRegistry::Entry> entries = registry_.index();
  const std::size_t known = entries.size();
  for (const std::string& name : repository_.names()) {
    for (const ModelRepository::Version& found : repository_.versions(name)) {
      const auto end = entries.begin() + static_cast<std::ptrdiff_t>(known);
      const bool is_known =
          std::any_of(entries.begin(), end, [&](const ModelRegistry::Entry& entry) {
            return entry.name == name && entry.version == found.version;
          });
      if (!is_known)
        entries.push_back({name, found.version, ModelState::kUnavailable, "not loaded"});
    }
  }
  std::ranges::sort(entries, {}, [](const ModelRegistry::Entry& entry) {
    return std::pair<const std::string&, std::int64_t>(entry.name, entry.version);
  });
  return entries;
}

void ModelManager::load(const std::string& name, std::optional<std::int64_t> version,
                        OnLoaded done) {
  grpc::Status refusal;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      refusal = shutting_down();
    } else if (loads_.size() == kMostWaitingLoads) {
      refusal =
          resource_exhausted(std::to_string(kMostWaitingLoads) + " models are waiting to be loaded",
                             std::chrono::seconds(1));
    } else {
      loads_.push_back({name, version, std::move(done)});
      changed_.notify_all();
      return;
    }
  }
  done(refusal, nullptr);
}

void ModelManager::run_loads() {
  while (true) {
    Load load;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && loads_.empty()) changed_.wait(mutex_);
      if (stopping_) return;
      load = std::move(loads_.front());
      loads_.pop_front();
    }
    SharedModel loaded;
    const grpc::Status status = guarded([&] { return load_now(load.name, load.version, loaded); });
    if (!status.ok()) {
      spdlog::error("model {} was not loaded: {}", load.name, status.error_message());
    }
    load.done(status, loaded);
  }
}

grpc::Status ModelManager::load_now(const std::string& name, std::optional<std::int64_t> version,
                                    SharedModel& loaded) {
  if (!repository_.exists()) {
    return not_found("model", name, "this server was started without --model-repository");
  }
  const std::vector<ModelRepository::Version> versions = repository_.versions(name);
  if (versions.empty()) {
    return not_found("model", name, "the model repository has no model " + clip(name));
  }
  if (!version) return load_from(name, versions.back(), /*replace_all=*/true, loaded);
  for (const ModelRepository::Version& found : versions) {
    if (found.version == *version) return load_from(name, found, /*replace_all=*/false, loaded);
  }
  return not_found("model", name,
                   "the model repository has no version " + std::to_string(*version) +
                       " of model " + clip(name));
}

grpc::Status ModelManager::load_from(const std::string& name, const ModelRepository::Version& found,
                                     bool replace_all, SharedModel& loaded) {
  registry_.set_loading(name, found.version);
  std::string reason = "an unknown error";
  grpc::Status status = guarded([&]() -> grpc::Status {
    try {
      const ModelMemory memory = measure_model(found.path, transformer_options(options_));
      if (!budget_->reserve(memory.peak_bytes())) {
        return out_of_model_memory(name, memory, *budget_);
      }
      ModelReservation reservation(budget_, memory.peak_bytes());
      NamedTransformer model =
          load_model(options_, store_.options(), name, found.version, found.path);
      reservation.shrink_to(memory.resident_bytes);
      model.transformer = counted(std::move(model.transformer), std::move(reservation));
      loaded = serve_model(options_, std::move(model), clock_);
      return grpc::Status::OK;
    } catch (const ModelError& error) {
      return failed_precondition(
          "MODEL", name,
          "model " + name + " cannot be loaded: " + repository_.without_path(error.what()));
    }
  });
  if (!status.ok()) {
    registry_.set_failed(name, found.version, status.error_message());
    return status;
  }
  drain(registry_.add(loaded, replace_all), nullptr);
  tell(name);
  return status;
}

void ModelManager::unload(const std::string& name, std::optional<std::int64_t> version,
                          OnUnloaded done) {
  const std::vector<SharedModel> models = registry_.retire(name, version);
  if (models.empty()) {
    const std::string subject =
        version ? "version " + std::to_string(*version) + " of model " : std::string("model ");
    return done(not_found("model", name, subject + clip(name) + " is not loaded"));
  }
  tell(name);
  drain(models, std::make_shared<Unload>(models.size(), std::move(done)));
}

void ModelManager::drain(const std::vector<SharedModel>& models,
                         const std::shared_ptr<Unload>& unload) {
  const TimePoint give_up = std::chrono::steady_clock::now() + options_.drain_timeout_ms;
  for (const SharedModel& model : models) {
    const std::size_t sessions = store_.close_sessions(*model->transformer);
    spdlog::info("model {} version {} takes no more requests; {} sessions are closed", model->name,
                 model->version, sessions);
  }
  std::vector<Drain> drains;
  for (const SharedModel& model : models) drains.push_back({model.get(), give_up, false, unload});
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      drains_.insert(drains_.end(), drains.begin(), drains.end());
      changed_.notify_all();
      return;
    }
  }
  // Nobody takes them on any more, and whoever asked is answered all the same.
  for (Drain& drain : drains) advance(drain, /*at_once=*/true);
}

bool ModelManager::advance(Drain& drain, bool at_once) {
  const TimePoint now = std::chrono::steady_clock::now();
  const bool unused = registry_.is_unused(drain.model);
  if (!unused && !at_once && now < drain.give_up) return false;
  if (!drain.stopped) {
    drain.stopped = true;
    drain.give_up = now + kFlushTime;
    // What is left ends, and so do sessions that a call made that came just before.
    drain.model->scheduler->stop();
    store_.close_sessions(*drain.model->transformer);
    if (!unused) {
      spdlog::warn("model {} version {}: calls were ended for the drain timeout", drain.model->name,
                   drain.model->version);
      if (!at_once) return false;
    }
  }
  spdlog::info("model {} version {} is unloaded", drain.model->name, drain.model->version);
  registry_.forget(drain.model);
  if (drain.unload != nullptr) drain.unload->one_is_gone();
  return true;
}

void ModelManager::run_drains() {
  std::vector<Drain> drains;
  while (true) {
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      if (!stopping_ && drains_.empty()) {
        drains.empty() ? changed_.wait(mutex_) : changed_.wait_for(mutex_, kLookInterval);
      }
      stopping = stopping_;
      drains.insert(drains.end(), std::make_move_iterator(drains_.begin()),
                    std::make_move_iterator(drains_.end()));
      drains_.clear();
    }
    std::erase_if(drains, [&](Drain& drain) { return advance(drain, stopping); });
    if (stopping && drains.empty()) return;
  }
}

}  // namespace lintel
