// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_manager.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/model_files.h"
#include "server/chat/template/traits.h"
#include "server/core/file_stamp.h"
#include "server/core/mutex.h"
#include "server/models/model_loader.h"
#include "server/models/model_repository.h"

namespace lintel {

// Loads of models and adapters whose exceptions become refusals, so that the caller is answered.

// `text` may quote a file.
inline LoadRefusal load_refusal(LoadRefusal::Kind kind, const std::string& model,
                                const std::string& text) {
  return {kind, model, one_line(text)};
}

inline LoadRefusal stopping_refusal(const std::string& model) {
  return {LoadRefusal::Kind::kStopping, model, "the server is shutting down"};
}

// A name in a message.
inline std::string short_name(const std::string& name) { return shorten(name, 64); }

inline LoadRefusal out_of_memory_refusal() noexcept {
  LoadRefusal refusal{LoadRefusal::Kind::kOutOfMemory, {}, {}};
  try {
    refusal.text = "the machine is out of memory";
  } catch (const std::bad_alloc&) {  // its kind suffices
  }
  return refusal;
}

// Runs `load`, which may return a refusal of its own. `unusable(what)`: the text for a ModelError.
template <typename Load, typename Unusable>
std::optional<LoadRefusal> guarded_load(const std::string& model, const Load& load,
                                        const Unusable& unusable) noexcept {
  using Kind = LoadRefusal::Kind;
  try {
    try {
      return load();
    } catch (const OutOfModelMemory& error) {
      return load_refusal(Kind::kOutOfModelMemory, model, error.what());
    } catch (const ModelError& error) {
      return load_refusal(Kind::kUnusable, model, unusable(error.what()));
    } catch (const std::bad_alloc&) {
      return out_of_memory_refusal();
    } catch (const std::exception& error) {
      return load_refusal(Kind::kFailed, model, error.what());
    }
  } catch (...) {
    return out_of_memory_refusal();
  }
}

namespace {

constexpr std::chrono::milliseconds kTryAgain{100};  // after a lack of memory
constexpr std::size_t kMostWaitingLoads = 16;
constexpr std::size_t kMostWaitingRequests = 1024;  // for loads, of all models
constexpr int kAnswerThreads = 2;                   // run requests that waited for a model

using Kind = LoadRefusal::Kind;

// guarded_load of a model. `repository`: keeps its path out of what callers read.
template <typename Load>
std::optional<LoadRefusal> guarded_model_load(const std::string& model,
                                              const ModelRepository& repository,
                                              const Load& load) noexcept {
  return guarded_load(model, load, [&](const std::string& what) {
    return "model " + model + " cannot be loaded: " + repository.without_path(what);
  });
}

// The command that fetches a model; empty unless the name is one of a hub.
std::string pull_hint(const std::string& name) {
  if (!is_repository_name(name) || name.find('/') == std::string::npos) return "";
  return "; `lintel pull " + name + "` gets it into a hub's cache, which --models can name";
}

// True if repeating the request does not help.
bool is_failure(LoadRefusal::Kind kind) { return kind == Kind::kUnusable || kind == Kind::kFailed; }

}  // namespace

namespace {

// The files that a model may be read from, each with its stamp: all of its directory, or a GGUF
// file and its parts.
using ModelStamps = std::vector<std::pair<std::filesystem::path, FileStamp>>;

void add_stamps(const std::filesystem::path& directory, std::string_view prefix,
                ModelStamps& stamps) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& file = entry->path();
    if (!file.filename().string().starts_with(prefix)) continue;
    stamps.emplace_back(file, FileStamp::of(file));
  }
}

ModelStamps stamps_of(const std::filesystem::path& model) {
  ModelStamps stamps = {{model, FileStamp::of(model)}};
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) {
    add_stamps(model, "", stamps);
    add_stamps(model / "additional_chat_templates", "", stamps);
  } else if (const std::string name = model.filename().string();
             name.find("-00001-of-") != std::string::npos) {
    add_stamps(model.parent_path(), name.substr(0, name.find("-00001-of-")) + "-0", stamps);
  }
  std::ranges::sort(stamps, {}, &ModelStamps::value_type::first);
  return stamps;
}

// A fact about each model that its files have. It is read when it is first asked for, and again
// when a file has changed. Thread-safe; no call waits for the reads of another.
template <typename Fact>
class FactOfFiles {
 public:
  using Read = Fact (*)(const std::filesystem::path& model);
  explicit FactOfFiles(Read read) : read_(read) {}

  Fact find(const std::filesystem::path& model) EXCLUDES(mutex_) {
    // Before the files are read: a change meanwhile makes the next call read them again.
    ModelStamps stamps = stamps_of(model);
    {
      MutexLock lock(mutex_);
      const auto known = known_.find(model);
      if (known != known_.end() && known->second.first == stamps) return known->second.second;
    }
    Fact fact = read_(model);
    MutexLock lock(mutex_);
    known_.insert_or_assign(model, std::pair(std::move(stamps), fact));
    return fact;
  }

 private:
  const Read read_;
  Mutex mutex_;
  std::map<std::filesystem::path, std::pair<ModelStamps, Fact>> known_ GUARDED_BY(mutex_);
};

// The facts are shared by the process: the contents of files are the same for every manager.

// A fault of the files that fails every load; empty: none is known.
std::string problem_of(const std::filesystem::path& model) {
  static FactOfFiles<std::string> problems([](const std::filesystem::path& read) -> std::string {
    try {
      const ModelFiles files(read);
      return "";
    } catch (const ModelError& error) {
      return error.what();
    }
  });
  return problems.find(model);
}

struct ChatFiles {
  bool has_tokenizer = false;
  bool has_template = false;  // for chats, that is served
};

// Neither, where the model cannot be loaded.
ChatFiles chat_files_of(const std::filesystem::path& model) {
  static FactOfFiles<ChatFiles> chat_files([](const std::filesystem::path& read) {
    ChatFiles found;
    try {
      const ModelFiles files(read);
      found.has_tokenizer = files.has_tokenizer();
      if (!found.has_tokenizer) return found;
      const ChatTemplateSources sources = files.load_chat_template_sources();
      found.has_template = compile_chat_templates(sources.templates, sources.special_tokens)
                               .find(/*has_tools=*/false) != nullptr;
    } catch (const ModelError&) {  // problem_of() says why
      return ChatFiles();
    }
    return found;
  });
  return chat_files.find(model);
}

}  // namespace

class ModelManager::Unload {
 public:
  Unload(std::size_t models, OnUnloaded done) : left_(models), done_(std::move(done)) {}
  void one_is_gone() {
    if (left_.fetch_sub(1) == 1) done_(std::nullopt);
  }

 private:
  std::atomic<std::size_t> left_;
  const OnUnloaded done_;
};

ModelManager::ModelManager(const ModelOptions& options, ModelRegistry& registry,
                           SessionManager& store, const Clock& clock, PrefixCache* prefixes)
    : options_(options),
      registry_(registry),
      store_(store),
      memory_(std::make_shared<ModelMemory>(
          options.memory_bytes == kAutoBytes ? 0 : options.memory_bytes)),
      loader_(options_, memory_, clock, prefixes),
      repository_(options.models_directory()),
      clock_(clock),
      answers_(options.loads_on_request() ? kAnswerThreads : 0, kMostWaitingRequests) {
  try {
    loading_ = std::thread([this] { run_loads(); });
    draining_ = std::thread([this] { run_drains(); });
  } catch (...) {  // no second thread: joins the first one before it is destroyed
    stop();
    throw;
  }
}

ModelManager::~ModelManager() { stop(); }

void ModelManager::load_at_start() {
  const std::vector<ModelSource> sources = start_sources(options_, repository_);
  for (const ModelSource& source : sources) {
    try {
      const auto start = std::chrono::steady_clock::now();
      registry_.add(loader_.load(source));
      load_seconds_.observe(std::chrono::steady_clock::now() - start);
    } catch (const OutOfModelMemory& error) {
      throw ModelError(std::string("--model-memory: ") + error.what());
    }
  }
  for (const ModelRepository::Unused& file : repository_.unused()) {
    spdlog::warn("model {}: {} is served; {} would have the same name and is not", file.name,
                 file.used.filename().string(), file.unused.filename().string());
  }
  for (const std::string& name : repository_.names()) {
    for (const ModelSource& found : repository_.versions(name)) {
      if (!is_unreadable_model(found.directory)) continue;
      spdlog::warn("model {} version {} cannot be loaded: {}", name, found.version,
                   problem_of(found.directory));
    }
  }
  if (options_.loads_on_request()) {
    memory_->make_room_with([this](std::size_t bytes) { make_room(bytes); });
  }
}

void ModelManager::check_sessions() const {
  for (const SharedModel& model : registry_.ready()) {
    if (!model->directory.empty()) check_sessions_of(*model);
  }
}

void ModelManager::check_sessions_of(const ServedModel& model) const {
  const Transformer& transformer = *model.transformer;
  const SessionManager::Options sessions = store_.options();
  const std::size_t needed = SessionManager::admitted_bytes(transformer, 1);
  const auto check = [&](const char* flag, std::size_t limit) {
    if (needed <= limit) return;
    throw ModelError("model " + model.name + ": one session needs " + std::to_string(needed) +
                     " bytes, and " + flag + " is " + std::to_string(limit));
  };
  check("--session-memory", sessions.session_memory_bytes);
  if (sessions.bytes_per_owner != 0) check("--identity-memory", sessions.bytes_per_owner);
  const std::int64_t longest = transformer.config().served_length();
  const std::size_t all = longest > 0 ? SessionManager::admitted_bytes(transformer, longest) : 0;
  if (all > sessions.session_memory_bytes) {
    spdlog::warn(
        "model {}: a session of full length, {} tokens, needs {} bytes, more than the {} of "
        "--session-memory",
        model.name, longest, all, sessions.session_memory_bytes);
  }
  const auto tokens = [](std::int64_t count) {
    return count == 0 ? std::string("any number of tokens") : std::to_string(count) + " tokens";
  };
  const SessionManager::Capacity capacity = store_.capacity(transformer);
  spdlog::info("model {}: --session-memory holds {} sessions of {}, or one of {}", model.name,
               capacity.sessions, tokens(capacity.session_tokens), tokens(capacity.tokens));
}

void ModelManager::serve(const std::string& name, std::shared_ptr<const Transformer> transformer) {
  registry_.add(loader_.serve(name, /*version=*/1, std::move(transformer)));
}

void ModelManager::tell_readiness(OnReadiness on_readiness) {
  {
    MutexLock lock(telling_);
    on_readiness_ = std::move(on_readiness);
  }
  for (const SharedModel& model : registry_.ready()) tell_readiness_of(model->name);
}

void ModelManager::tell_readiness_of(const std::string& name) {
  MutexLock lock(telling_);
  if (on_readiness_) on_readiness_(name, registry_.find(name) != nullptr);
}

void ModelManager::stop() {
  std::deque<Load> refused;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    refused.swap(loads_);
    load_asked_.notify_all();
  }
  registry_.unused_bell()->ring();
  for (const Load& load : refused) load.refuse(stopping_refusal(load.model));
  if (loading_.joinable()) loading_.join();
  if (draining_.joinable()) draining_.join();
}

std::vector<ModelRegistry::Entry> ModelManager::index() const {
  std::vector<ModelRegistry::Entry> entries = registry_.index();
  const std::size_t known = entries.size();
  for (const std::string& name : repository_.names()) {
    for (const ModelSource& found : repository_.versions(name)) {
      const auto end = entries.begin() + static_cast<std::ptrdiff_t>(known);
      const bool is_known =
          std::any_of(entries.begin(), end, [&](const ModelRegistry::Entry& entry) {
            return entry.name == name && entry.version == found.version;
          });
      if (is_known) continue;
      const std::string problem = problem_of(found.directory);
      entries.push_back({name, found.version, ModelState::kUnavailable,
                         problem.empty() ? "not loaded" : repository_.without_path(problem),
                         !problem.empty()});
    }
  }
  {
    MutexLock lock(mutex_);  // a load that waits for others
    for (ModelRegistry::Entry& entry : entries) {
      const bool is_asked_for = waiting_.contains({entry.name, std::nullopt}) ||
                                waiting_.contains({entry.name, entry.version});
      if (is_asked_for && entry.state == ModelState::kUnavailable) {
        entry = {entry.name, entry.version, ModelState::kLoading, ""};
      }
    }
  }
  std::ranges::sort(entries, {}, [](const ModelRegistry::Entry& entry) {
    return std::pair<const std::string&, std::int64_t>(entry.name, entry.version);
  });
  return entries;
}

void ModelManager::ask(Load load) {
  LoadRefusal refused;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      refused = stopping_refusal(load.model);
    } else if (loads_.size() == kMostWaitingLoads) {
      refused =
          load_refusal(Kind::kTooManyLoads, load.model,
                       std::to_string(kMostWaitingLoads) + " models are waiting to be loaded");
    } else {
      loads_.push_back(std::move(load));
      load_asked_.notify_all();
      return;
    }
  }
  load.refuse(refused);
}

void ModelManager::load(const std::string& name, std::optional<std::int64_t> version,
                        OnLoaded done) {
  ask({name,
       [this, name, version, done] {
         SharedModel loaded;
         const std::optional<LoadRefusal> refused =
             guarded_model_load(name, repository_, [&] { return load_now(name, version, loaded); });
         if (refused) spdlog::error("model {} was not loaded: {}", name, refused->text);
         done(refused, loaded);
       },
       [done](const LoadRefusal& refused) { done(refused, nullptr); }});
}

void ModelManager::run_loads() {
  while (true) {
    Load load;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && loads_.empty()) load_asked_.wait(mutex_);
      if (stopping_) return;
      load = std::move(loads_.front());
      loads_.pop_front();
    }
    survives(ServerThread::kModelLoads, load.run);  // answers even if it fails
  }
}

std::vector<ModelSource> ModelManager::sources(const std::string& name) const {
  if (options_.loads_on_request()) {
    for (const ModelDirectory& given : options_.directories) {
      if (given.name == name) return {{.name = name, .directory = given.path}};
    }
  }
  return repository_.versions(name);
}

std::optional<LoadRefusal> ModelManager::load_now(const std::string& name,
                                                  std::optional<std::int64_t> version,
                                                  SharedModel& loaded) {
  if (!repository_.exists()) {
    return load_refusal(Kind::kNotFound, name,
                        "this server was started without --model-repository");
  }
  const std::vector<ModelSource> versions = sources(name);
  if (versions.empty()) {
    return load_refusal(Kind::kNotFound, name,
                        "the model repository has no model " + short_name(name) + pull_hint(name));
  }
  if (!version) return load_from(versions.back(), /*replace_all=*/true, loaded);
  for (const ModelSource& found : versions) {
    if (found.version == *version) return load_from(found, /*replace_all=*/false, loaded);
  }
  return load_refusal(Kind::kNotFound, name,
                      "the model repository has no version " + std::to_string(*version) +
                          " of model " + short_name(name));
}

std::optional<LoadRefusal> ModelManager::load_from(const ModelSource& source, bool replace_all,
                                                   SharedModel& loaded) {
  registry_.set_loading(source.name, source.version);
  const auto start = std::chrono::steady_clock::now();
  SharedModel model;
  const auto load = [&]() -> std::optional<LoadRefusal> {
    model = loader_.load(
        source, [this, name = source.name, version = source.version](const std::string& progress) {
          registry_.set_progress(name, version, progress);
        });
    check_sessions_of(*model);
    return std::nullopt;
  };
  const ModelRepository place(source.directory.parent_path());
  if (std::optional<LoadRefusal> refused = guarded_model_load(source.name, repository_, load)) {
    refused->text = place.without_path(std::move(refused->text));
    const bool failed = is_failure(refused->kind);
    registry_.set_failed(source.name, source.version, refused->text, failed);
    (failed ? failed_ : refused_).fetch_add(1);
    return refused;
  }
  load_seconds_.observe(std::chrono::steady_clock::now() - start);
  {
    MutexLock lock(mutex_);
    std::erase_if(failures_,
                  [&](const auto& failure) { return failure.first.first == source.name; });
  }
  ModelRegistry::Added added = registry_.add(std::move(model), replace_all);
  loaded = std::move(added.model);
  drain(added.replaced, nullptr);
  tell_readiness_of(source.name);
  return std::nullopt;
}

void ModelManager::unload(const std::string& name, std::optional<std::int64_t> version,
                          OnUnloaded done) {
  const std::vector<SharedModel> models = registry_.retire(name, version);
  if (models.empty()) {
    const std::string subject =
        version ? "version " + std::to_string(*version) + " of model " : std::string("model ");
    return done(load_refusal(Kind::kNotFound, name, subject + short_name(name) + " is not loaded"));
  }
  tell_readiness_of(name);
  drain(models, std::make_shared<Unload>(models.size(), std::move(done)));
}

void ModelManager::drain(const std::vector<SharedModel>& models,
                         const std::shared_ptr<Unload>& unload) {
  const TimePoint give_up = std::chrono::steady_clock::now() + options_.drain_timeout_ms;
  for (const SharedModel& model : models) {
    const std::size_t sessions = store_.close_sessions(*model->transformer);
    model->scheduler->end_memory_waits();     // others may hold the memory for any time
    model->scheduler->waiting_room().tell();  // waiting calls learn that it is retired
    spdlog::info("model {} version {} takes no more requests; {} sessions are closed", model->name,
                 model->version, sessions);
  }
  std::vector<Drain> drains;
  for (const SharedModel& model : models) drains.push_back({model.get(), give_up, unload});
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      drains_.insert(drains_.end(), drains.begin(), drains.end());
      registry_.unused_bell()->ring();
      return;
    }
  }
  // The manager's thread takes no more drains; the caller is answered all the same.
  for (Drain& drain : drains) advance(drain, /*at_once=*/true);
}

bool ModelManager::advance(Drain& drain, bool at_once) {
  const TimePoint now = std::chrono::steady_clock::now();
  const bool unused = registry_.is_unused(drain.model);
  if (!unused && !at_once && now < drain.give_up) return false;
  if (registry_.set_ending(drain.model)) {
    drain.give_up = now + kFlushTime;
    // Remaining calls end, and so do sessions that a call made that came just before.
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
  std::vector<AdapterDrain> adapter_drains;
  while (true) {
    bool stopping = false;
    const bool is_well = survives(ServerThread::kModelDrains, [&] {
      MutexLock lock(mutex_);
      // Room is made first, so that no drain is lost.
      drains.reserve(drains.size() + drains_.size());
      adapter_drains.reserve(adapter_drains.size() + adapter_drains_.size());
      std::ranges::move(drains_, std::back_inserter(drains));
      std::ranges::move(adapter_drains_, std::back_inserter(adapter_drains));
      drains_.clear();
      adapter_drains_.clear();
      stopping = stopping_;
    });
    const auto is_over = [&](auto& drain) {
      bool over = false;
      survives(ServerThread::kModelDrains, [&] { over = advance(drain, stopping); });
      return over;
    };
    std::erase_if(adapter_drains, is_over);
    std::erase_if(drains, is_over);
    if (stopping && drains.empty() && adapter_drains.empty()) return;
    std::optional<TimePoint> next;
    if (!is_well) next = std::chrono::steady_clock::now() + kTryAgain;
    const auto look_at = [&](const auto& all) {
      for (const auto& drain : all) next = std::min(next.value_or(drain.give_up), drain.give_up);
    };
    look_at(drains);
    look_at(adapter_drains);
    registry_.unused_bell()->wait(next);
  }
}

// ModelManager: loading models for requests, and unloading others for them.

bool ModelManager::loads_on_request(const std::string& name,
                                    std::optional<std::int64_t> version) const {
  if (!options_.loads_on_request()) return false;
  const std::vector<ModelSource> versions = sources(name);
  return std::ranges::any_of(versions, [&](const ModelSource& source) {
    return source.version == version.value_or(source.version) && is_model_path(source.directory);
  });
}

std::vector<std::string> ModelManager::names() const {
  std::vector<std::string> names;
  for (const SharedModel& model : registry_.ready()) names.push_back(model->name);
  if (options_.loads_on_request()) {
    for (const ModelDirectory& given : options_.directories) names.push_back(given.name);
    std::ranges::move(repository_.names(), std::back_inserter(names));
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  return names;
}

bool ModelManager::can_chat(const std::string& name) const {
  const std::vector<ModelSource> found = sources(name);
  if (found.empty()) return false;
  const ChatFiles files = chat_files_of(found.back().directory);
  const bool is_given = std::ranges::any_of(
      options_.chat_templates, [&](const ChatTemplateFile& given) { return given.model == name; });
  return files.has_tokenizer && (files.has_template || is_given);
}

void ModelManager::wait_for(const std::string& name, std::optional<std::int64_t> version,
                            const void* waiter, OnLoaded done) {
  const Key key(name, version);
  std::optional<LoadRefusal> at_once;
  {
    MutexLock lock(mutex_);
    const auto failure = failures_.find(key);
    if (failure != failures_.end() && clock_.now() < failure->second.second) {
      at_once = failure->second.first;
    } else if (num_waiting_ == kMostWaitingRequests) {
      at_once = load_refusal(
          Kind::kTooManyLoads, name,
          std::to_string(kMostWaitingRequests) + " requests are waiting for models to be loaded");
    } else {
      const auto [waiting, is_first] = waiting_.try_emplace(key);
      waiting->second.push_back({waiter, std::move(done)});
      ++num_waiting_;
      if (!is_first) return;
    }
  }
  if (at_once) return done(at_once, nullptr);
  const auto load = [this, key] {
    if (!is_awaited(key)) return;
    // Another request may have loaded it.
    SharedModel loaded = registry_.use(key.first, key.second);
    std::optional<LoadRefusal> refused;
    if (loaded == nullptr) {
      refused = guarded_model_load(key.first, repository_,
                                   [&] { return load_now(key.first, key.second, loaded); });
      if (refused) spdlog::error("model {} was not loaded: {}", key.first, refused->text);
      // Keeps it in use until the waiting requests have it.
      if (SharedModel used = registry_.use(key.first, key.second)) loaded = std::move(used);
    }
    answer_waiting(key, refused, loaded);
  };
  try {
    ask({name, load,
         [this, key](const LoadRefusal& refused) { answer_waiting(key, refused, nullptr); }});
  } catch (const std::bad_alloc&) {
    answer_waiting(key, out_of_memory_refusal(), nullptr);
  }
}

void ModelManager::answer_waiting(const Key& key, const std::optional<LoadRefusal>& refused,
                                  const SharedModel& model) {
  std::vector<Waiter> waiting;
  {
    MutexLock lock(mutex_);
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return;
    waiting = std::move(found->second);
    waiting_.erase(found);
    num_waiting_ -= waiting.size();
    if (refused && is_failure(refused->kind)) {
      failures_.insert_or_assign(key, std::pair(*refused, clock_.now() + kFailureTime));
    } else {
      failures_.erase(key);
    }
  }
  for (const Waiter& each : waiting) {
    bool is_handed_on = false;
    catch_exceptions(
        [&] {
          is_handed_on = answers_.run([done = each.done, refused, model] { done(refused, model); });
        },
        [] {});
    if (is_handed_on) continue;
    // There is no memory for the other thread, so this one answers.
    survives(ServerThread::kModelLoads, [&] { each.done(refused, model); });
  }
}

void ModelManager::stop_waiting(const std::string& name, std::optional<std::int64_t> version,
                                const void* waiter) {
  OnLoaded gone;  // freed without the mutex
  MutexLock lock(mutex_);
  const auto found = waiting_.find({name, version});
  if (found == waiting_.end()) return;
  const auto each = std::ranges::find(found->second, waiter, &Waiter::waiter);
  if (each == found->second.end()) return;
  gone = std::move(each->done);
  found->second.erase(each);
  --num_waiting_;
}

bool ModelManager::is_awaited(const Key& key) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(key);
  if (found != waiting_.end() && !found->second.empty()) return true;
  waiting_.erase(key);  // the next request asks for a load of its own
  return false;
}

bool ModelManager::may_unload(const ModelRegistry::Unused& model) const {
  return loads_on_request(model.name, model.version) &&
         !store_.has_unstored_sessions(*model.transformer);
}

SharedModel ModelManager::retire(const ModelRegistry::Unused& model, const std::string& why) {
  SharedModel retired = registry_.retire(model);
  if (retired == nullptr) return nullptr;  // a call uses it again
  spdlog::info("model {} version {} is unloaded: {}", model.name, model.version, why);
  tell_readiness_of(model.name);
  // Calls of its sessions wait for the next load.
  if (store_states_ != nullptr) {
    survives(ServerThread::kModelDrains, [&] { store_states_(*retired->transformer); });
  }
  return retired;
}

void ModelManager::make_room(std::size_t bytes) {
  std::size_t free = memory_->free_bytes();
  std::vector<ModelRegistry::Unused> unused = registry_.unused();
  std::erase_if(unused, [&](const ModelRegistry::Unused& model) { return !may_unload(model); });
  std::size_t most = free;
  for (const ModelRegistry::Unused& model : unused) most += model.memory_bytes;
  if (most < bytes) return;
  std::vector<SharedModel> retired;
  for (const ModelRegistry::Unused& model : unused) {
    if (free >= bytes) break;
    SharedModel goes = retire(model, "another needs its memory");
    if (goes == nullptr) continue;
    free += model.memory_bytes;
    retired.push_back(std::move(goes));
  }
  if (retired.empty()) return;
  unloaded_for_memory_.fetch_add(retired.size());
  const auto gone = std::make_shared<std::promise<void>>();
  drain(retired,
        std::make_shared<Unload>(retired.size(),
                                 [gone](const std::optional<LoadRefusal>&) { gone->set_value(); }));
  retired.clear();
  unused.clear();  // its pointers keep the weights
  gone->get_future().wait();
}

void ModelManager::unload_idle() {
  if (options_.idle_unload_ms.count() == 0) return;
  const TimePoint now = clock_.now();
  std::map<Key, Seen> seen;
  {
    MutexLock lock(mutex_);
    seen.swap(seen_unused_);
  }
  std::map<Key, Seen> still;
  for (const ModelRegistry::Unused& model : registry_.unused()) {
    const auto before = seen.find({model.name, model.version});
    const bool was_used = before == seen.end() || before->second.last_use != model.last_use;
    const Seen since = was_used ? Seen{model.last_use, now} : before->second;
    still.emplace(Key(model.name, model.version), since);
    if (now - since.at < options_.idle_unload_ms || !may_unload(model)) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - since.at);
    const SharedModel goes = retire(model, "unused for " + std::to_string(seconds.count()) + " s");
    if (goes == nullptr) continue;
    unloaded_idle_.fetch_add(1);
    drain({goes}, nullptr);
  }
  MutexLock lock(mutex_);
  seen_unused_ = std::move(still);
}

ModelManager::Stats ModelManager::stats() const {
  Stats stats{.failed = failed_.load(),
              .refused = refused_.load(),
              .unloaded_idle = unloaded_idle_.load(),
              .unloaded_for_memory = unloaded_for_memory_.load(),
              .load_seconds = load_seconds_.snapshot()};
  stats.loaded = stats.load_seconds.total();
  MutexLock lock(mutex_);
  stats.waiting = num_waiting_;
  return stats;
}

// ModelManager: loading and unloading adapters of a model that is served.

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
  // Shows only the adapter's own directory of a path.
  const auto shown = [&](const std::string& what) {
    return source ? ModelRepository(source->directory.parent_path()).without_path(what) : what;
  };
  std::optional<LoadRefusal> refused = guarded_load(model.name, load, shown);
  if (refused) refused->adapter = name;
  return refused;
}

// Ends requests with the adapter within one step, and closes its sessions.
void end_adapter(const ServedModel& model, const std::string& name, SessionManager& store) {
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
  model->scheduler->note_adapter_end();  // of requests that wait for memory
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
  // Adapters of a model that is gone went with it.
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
