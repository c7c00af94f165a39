#include "server/models/model_registry.h"

#include <algorithm>

namespace lintel {
namespace {

void add_work(const ServedModel& model, ModelRegistry::Totals& totals) {
  totals.stats.add(model.scheduler->stats());
  totals.timings.add(model.scheduler->timings());
}

}  // namespace

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

SharedModel ModelRegistry::highest(std::string_view name) const {
  SharedModel found;
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    if (it->second.model != nullptr) found = it->second.model;
  }
  return found;
}

SharedModel ModelRegistry::find(std::string_view name, std::optional<std::int64_t> version) const {
  MutexLock lock(mutex_);
  if (!version) return highest(name);
  const auto found = slots_.find(Key(name, *version));
  return found == slots_.end() ? nullptr : found->second.model;
}

SharedModel ModelRegistry::find(std::string_view name, const Transformer* transformer) const {
  MutexLock lock(mutex_);
  for (auto it = slots_.lower_bound(Key(name, 0)); it != slots_.end() && it->first.first == name;
       ++it) {
    const SharedModel& model = it->second.model;
    if (model != nullptr && model->transformer.get() == transformer) return model;
  }
  return nullptr;
}

SharedModel ModelRegistry::only() const {
  MutexLock lock(mutex_);
  SharedModel found;
  for (const auto& [key, slot] : slots_) {
    if (slot.model == nullptr) continue;
    if (found != nullptr && found->name != slot.model->name) return nullptr;
    found = slot.model;
  }
  return found;
}

std::vector<SharedModel> ModelRegistry::ready() const {
  MutexLock lock(mutex_);
  std::vector<SharedModel> models;
  for (const auto& [key, slot] : slots_) {
    if (slot.model != nullptr) models.push_back(slot.model);
  }
  return models;
}

ModelState ModelRegistry::state_of(const Key& key, const Slot& slot) const {
  if (slot.model != nullptr) return ModelState::kReady;
  if (slot.loading) return ModelState::kLoading;
  const bool unloading = std::ranges::any_of(retired_, [&](const SharedModel& model) {
    return model->name == key.first && model->version == key.second;
  });
  return unloading ? ModelState::kUnloading : ModelState::kUnavailable;
}

std::vector<ModelRegistry::Entry> ModelRegistry::index() const {
  MutexLock lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [key, slot] : slots_) {
    const ModelState state = state_of(key, slot);
    // Of a model that is ready: why it was not loaded anew.
    const bool has_reason = state == ModelState::kUnavailable || state == ModelState::kReady;
    entries.push_back({key.first, key.second, state, has_reason ? slot.reason : std::string()});
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
    const ModelState state = state_of(it->first, it->second);
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
    if (slot.model != nullptr) add(*slot.model);
  }
  for (const SharedModel& model : retired_) add(*model);
  std::vector<Totals> all;
  for (auto& [name, totals] : by_name) all.push_back(std::move(totals));
  return all;
}

void ModelRegistry::set_loading(const std::string& name, std::int64_t version) {
  MutexLock lock(mutex_);
  slots_[Key(name, version)].loading = true;
}

void ModelRegistry::set_failed(const std::string& name, std::int64_t version,
                               const std::string& reason) {
  MutexLock lock(mutex_);
  Slot& slot = slots_[Key(name, version)];
  slot.loading = false;
  slot.reason = reason;
}

void ModelRegistry::retire(Slot& slot, const char* reason, std::vector<SharedModel>& retired) {
  if (slot.model == nullptr) return;
  slot.model->retired.store(true);
  slot.reason = reason;
  retired.push_back(slot.model);
  retired_.push_back(std::move(slot.model));
  slot.model = nullptr;
}

std::vector<SharedModel> ModelRegistry::add(SharedModel model, bool replace_all) {
  std::vector<SharedModel> retired;
  MutexLock lock(mutex_);
  for (auto it = slots_.lower_bound(Key(model->name, 0));
       it != slots_.end() && it->first.first == model->name; ++it) {
    if (replace_all || it->first.second == model->version) {
      retire(it->second, "another version took its place", retired);
    }
  }
  Slot& slot = slots_[Key(model->name, model->version)];
  slot.loading = false;
  slot.reason.clear();
  slot.model = std::move(model);
  return retired;
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

bool ModelRegistry::is_unused(const ServedModel* model) const {
  MutexLock lock(mutex_);
  for (const SharedModel& retired : retired_) {
    // Nobody can come by a new one: find() knows it no more, and copies of all() are copies of
    // this.
    if (retired.get() == model) return retired.use_count() == 1;
  }
  return true;
}

void ModelRegistry::forget(const ServedModel* model) {
  SharedModel last;  // destroyed without the mutex
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(retired_, model, &SharedModel::get);
  if (found == retired_.end()) return;
  Totals& totals = forgotten_[model->name];
  totals.name = model->name;
  add_work(*model, totals);
  last = std::move(*found);
  retired_.erase(found);
}

std::vector<SharedModel> ModelRegistry::all() const {
  MutexLock lock(mutex_);
  std::vector<SharedModel> models = retired_;
  for (const auto& [key, slot] : slots_) {
    if (slot.model != nullptr) models.push_back(slot.model);
  }
  return models;
}

}  // namespace lintel
