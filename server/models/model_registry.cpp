// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_registry.h"

#include <algorithm>
#include <cassert>

#include "model/lora/adapter.h"

namespace lintel {
namespace {

// The pointer that calls hold copies of. The last of them reports its end, on its own thread: it
// releases the model first, so that the registry's is then the last pointer to it.
SharedModel handle_of(SharedModel model, std::shared_ptr<std::atomic<bool>> is_used,
                      std::shared_ptr<Notification> unused_bell) {
  const ServedModel* const bare = model.get();
  return {bare, [model = std::move(model), is_used = std::move(is_used),
                 unused_bell = std::move(unused_bell)](const ServedModel*) mutable {
            model.reset();
            is_used->store(false);
            unused_bell->ring();
          }};
}

// Orders the uses of all models.
void note_use(const ServedModel& model) noexcept {
  static std::atomic<std::uint64_t> uses{0};
  model.last_use.store(uses.fetch_add(1) + 1);
}

// The pointer for a call that runs on the model: counts the use until its last copy is gone.
SharedModel use_of(SharedModel handle) {
  if (handle == nullptr) return nullptr;
  const ServedModel* const bare = handle.get();
  bare->uses.fetch_add(1);
  note_use(*bare);
  return {bare, [handle = std::move(handle)](const ServedModel* model) mutable {
            note_use(*model);
            model->uses.fetch_sub(1);
            handle.reset();
          }};
}

void add_work(const ServedModel& model, ModelRegistry::Totals& totals) {
  totals.stats.add(model.scheduler->stats());
  totals.timings.add(model.scheduler->timings());
}

}  // namespace

bool may_follow(LoadState from, LoadState to) {
  switch (from) {
    case LoadState::kLoading:
      return to == LoadState::kReady || to == LoadState::kGone;
    case LoadState::kReady:
      return to == LoadState::kDraining;
    case LoadState::kDraining:
      return to == LoadState::kEnding;
    case LoadState::kEnding:
      return to == LoadState::kGone;
    case LoadState::kGone:
      return false;
  }
  return false;
}

const char* to_string(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kReady:
      return "READY";
    case ModelState::kUnloading:
      return "UNLOADING";
    case ModelState::kUnavailable:
      return "UNAVAILABLE";
  }
  return "";
}

SharedModel ModelRegistry::Slot::ready() const {
  const auto found = std::ranges::find(loads, LoadState::kReady, &Load::state);
  return found == loads.end() ? nullptr : found->handle;
}

void ModelRegistry::set_state(Load& load, LoadState state) {
  assert(may_follow(load.state, state));
  load.state = state;
}

SharedModel ModelRegistry::highest(std::string_view name) const {
  SharedModel found;
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    if (SharedModel ready = it->second.ready()) found = std::move(ready);
  }
  return found;
}

SharedModel ModelRegistry::find_locked(std::string_view name,
                                       std::optional<std::int64_t> version) const {
  if (!version) return highest(name);
  const auto found = slots_.find(Key(name, *version));
  return found == slots_.end() ? nullptr : found->second.ready();
}

SharedModel ModelRegistry::find_locked(std::string_view name,
                                       const Transformer* transformer) const {
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    SharedModel model = it->second.ready();
    if (model != nullptr && model->transformer.get() == transformer) return model;
  }
  return nullptr;
}

SharedModel ModelRegistry::find(std::string_view name, std::optional<std::int64_t> version) const {
  MutexLock lock(mutex_);
  return find_locked(name, version);
}

SharedModel ModelRegistry::find(std::string_view name, const Transformer* transformer) const {
  MutexLock lock(mutex_);
  return find_locked(name, transformer);
}

SharedModel ModelRegistry::use(std::string_view name, std::optional<std::int64_t> version) const {
  MutexLock lock(mutex_);
  return use_of(find_locked(name, version));
}

SharedModel ModelRegistry::use(std::string_view name, const Transformer* transformer) const {
  MutexLock lock(mutex_);
  return use_of(find_locked(name, transformer));
}

SharedModel ModelRegistry::only() const {
  MutexLock lock(mutex_);
  SharedModel found;
  for (const auto& [key, slot] : slots_) {
    SharedModel model = slot.ready();
    if (model == nullptr) continue;
    if (found != nullptr && found->name != model->name) return nullptr;
    found = std::move(model);
  }
  return found;
}

std::vector<SharedModel> ModelRegistry::ready() const {
  MutexLock lock(mutex_);
  std::vector<SharedModel> models;
  for (const auto& [key, slot] : slots_) {
    if (SharedModel model = slot.ready()) models.push_back(std::move(model));
  }
  return models;
}

ModelState ModelRegistry::state_of(const Slot& slot) {
  const auto any = [&](LoadState state) {
    return std::ranges::find(slot.loads, state, &Load::state) != slot.loads.end();
  };
  if (any(LoadState::kReady)) return ModelState::kReady;
  if (any(LoadState::kLoading)) return ModelState::kLoading;
  return slot.loads.empty() ? ModelState::kUnavailable : ModelState::kUnloading;
}

std::vector<ModelRegistry::Entry> ModelRegistry::index() const {
  MutexLock lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [key, slot] : slots_) {
    const ModelState state = state_of(slot);
    // The reason of a ready model says why its reload failed.
    const bool has_reason = state == ModelState::kUnavailable || state == ModelState::kReady;
    std::string reason = has_reason ? slot.reason : std::string();
    if (state == ModelState::kLoading) {
      reason = std::ranges::find(slot.loads, LoadState::kLoading, &Load::state)->progress;
    }
    entries.push_back({key.first, key.second, state, std::move(reason), has_reason && slot.failed});
  }
  return entries;
}

ModelState ModelRegistry::state(std::string_view name) const {
  MutexLock lock(mutex_);
  ModelState best = ModelState::kUnavailable;
  const auto rank = [](ModelState state) {
    return state == ModelState::kReady     ? 0
           : state == ModelState::kLoading ? 1
                                           : 2 + (state == ModelState::kUnavailable);
  };
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    const ModelState state = state_of(it->second);
    if (rank(state) < rank(best)) best = state;
  }
  return best;
}

std::vector<ModelRegistry::Totals> ModelRegistry::totals() const {
  MutexLock lock(mutex_);
  std::map<std::string, Totals> by_name = forgotten_;
  const auto add = [&](const ServedModel& model) {
    Totals& totals = by_name[model.name];
    totals.name = model.name;
    add_work(model, totals);
    totals.weight_bytes += model.transformer->weight_bytes();
    totals.workers += model.scheduler->options().workers;
    totals.max_batch_rows =
        std::max(totals.max_batch_rows, model.scheduler->options().max_batch_rows);
  };
  for (const auto& [key, slot] : slots_) {
    for (const Load& load : slot.loads) {
      if (load.model != nullptr) add(*load.model);
    }
  }
  std::vector<Totals> all;
  for (auto& [name, totals] : by_name) all.push_back(std::move(totals));
  return all;
}

void ModelRegistry::set_loading(const std::string& name, std::int64_t version) {
  MutexLock lock(mutex_);
  slots_[Key(name, version)].loads.push_back({});
}

void ModelRegistry::set_progress(const std::string& name, std::int64_t version,
                                 const std::string& progress) {
  MutexLock lock(mutex_);
  const auto slot = slots_.find(Key(name, version));
  if (slot == slots_.end()) return;
  for (Load& load : slot->second.loads) {
    if (load.state == LoadState::kLoading) load.progress = progress;
  }
}

void ModelRegistry::set_failed(const std::string& name, std::int64_t version,
                               const std::string& reason, bool failed) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[Key(name, version)];
  std::erase_if(slot.loads, [](const Load& load) { return load.state == LoadState::kLoading; });
  slot.reason = reason;
  slot.failed = failed;
}

void ModelRegistry::retire(Slot& slot, const char* reason, std::vector<SharedModel>& retired) {
  const auto load = std::ranges::find(slot.loads, LoadState::kReady, &Load::state);
  if (load == slot.loads.end()) return;
  load->model->retired.store(true);
  slot.reason = reason;
  slot.failed = false;
  retired.push_back(std::move(load->handle));
  set_state(*load, LoadState::kDraining);
}

ModelRegistry::Added ModelRegistry::add(SharedModel model, bool replace_all) {
  const auto is_used = std::make_shared<std::atomic<bool>>(true);
  Added added{.model = handle_of(model, is_used, unused_bell_), .replaced = {}};
  MutexLock lock(mutex_);
  for (auto it = slots_.lower_bound(Key(model->name, 0));
       it != slots_.end() && it->first.first == model->name; ++it) {
    if (replace_all || it->first.second == model->version) {
      retire(it->second, "another version took its place", added.replaced);
    }
  }
  note_use(*model);
  Slot& slot = slots_[Key(model->name, model->version)];
  auto load = std::ranges::find(slot.loads, LoadState::kLoading, &Load::state);
  if (load == slot.loads.end()) load = slot.loads.insert(load, Load{});
  load->model = std::move(model);
  load->handle = added.model;
  load->is_used = is_used;
  set_state(*load, LoadState::kReady);
  slot.reason.clear();
  slot.failed = false;
  return added;
}

std::vector<SharedModel> ModelRegistry::retire(std::string_view name,
                                               std::optional<std::int64_t> version) {
  std::vector<SharedModel> retired;
  MutexLock lock(mutex_);
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    if (!version || it->first.second == *version) retire(it->second, "unloaded", retired);
  }
  return retired;
}

std::vector<ModelRegistry::Unused> ModelRegistry::unused() const {
  std::vector<Unused> found;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, slot] : slots_) {
      const SharedModel model = slot.ready();
      if (model == nullptr || model->uses.load() > 0) continue;
      std::size_t bytes = model->memory_bytes;
      for (const SharedAdapter& adapter : model->adapters->ready()) {
        bytes += adapter->weights->bytes();
      }
      found.push_back({key.first, key.second, model->last_use.load(), bytes, model->transformer});
    }
  }
  std::ranges::sort(found, {}, &Unused::last_use);
  return found;
}

SharedModel ModelRegistry::retire(const Unused& unused) {
  std::vector<SharedModel> retired;
  MutexLock lock(mutex_);
  const auto slot = slots_.find(Key(unused.name, unused.version));
  if (slot == slots_.end()) return nullptr;
  const SharedModel model = slot->second.ready();
  const bool is_unused = model != nullptr && model->transformer == unused.transformer &&
                         model->uses.load() == 0 && model->last_use.load() == unused.last_use;
  if (!is_unused) return nullptr;
  retire(slot->second, "unloaded", retired);
  return retired.front();
}

ModelRegistry::Load* ModelRegistry::find_load(const ServedModel* model) {
  for (auto& [key, slot] : slots_) {
    const auto load =
        std::ranges::find(slot.loads, model, [](const Load& l) { return l.model.get(); });
    if (load != slot.loads.end()) return &*load;
  }
  return nullptr;
}

bool ModelRegistry::is_unused(const ServedModel* model) {
  MutexLock lock(mutex_);
  const Load* const load = find_load(model);
  return load == nullptr || !load->is_used->load();
}

bool ModelRegistry::set_ending(const ServedModel* model) {
  MutexLock lock(mutex_);
  Load* const load = find_load(model);
  if (load == nullptr || load->state != LoadState::kDraining) return false;
  set_state(*load, LoadState::kEnding);
  return true;
}

void ModelRegistry::forget(const ServedModel* model) {
  SharedModel last;  // destroyed without the mutex
  MutexLock lock(mutex_);
  Load* const load = find_load(model);
  if (load == nullptr) return;
  Totals& totals = forgotten_[model->name];
  totals.name = model->name;
  add_work(*model, totals);
  last = std::move(load->model);
  set_state(*load, LoadState::kGone);
  std::erase_if(slots_[Key(model->name, model->version)].loads,
                [](const Load& each) { return each.state == LoadState::kGone; });
}

std::vector<SharedModel> ModelRegistry::all() const {
  MutexLock lock(mutex_);
  std::vector<SharedModel> models;
  for (const auto& [key, slot] : slots_) {
    for (const Load& load : slot.loads) {
      if (load.model != nullptr) models.push_back(load.model);
    }
  }
  return models;
}

}  // namespace lintel
