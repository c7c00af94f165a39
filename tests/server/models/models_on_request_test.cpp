// SPDX-License-Identifier: Apache-2.0
// ModelManager with --models: requests load what they name, and what no call uses goes.
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "model/model_files.h"
#include "server/models/model_manager.h"
#include "tests/server/support/models_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Kind = LoadRefusal::Kind;
using std::chrono::seconds;
namespace fs = std::filesystem;

// Models "a", "b" and "c" of equal size in the directory of --models.
struct OnRequestFixture : ModelsFixture {
  explicit OnRequestFixture(const std::function<void(ModelOptions&)>& change = [](ModelOptions&) {
  }) {
    for (const char* name : {"a", "b", "c"}) write(name);
    options.on_request = options.repository;
    options.repository.clear();
    change(options);
    store = std::make_unique<SessionManager>(sessions, manual);
    manager = std::make_unique<ModelManager>(options, registry, *store, manual);
    manager->load_at_start();
  }
  // Room for `models` that are loaded, and for loading one more.
  static std::size_t memory_for(std::size_t models) {
    const ModelsFixture measured;
    measured.write("a");
    const ModelSize size = measure_model(ModelFiles(measured.directory.path() / "a"), {});
    return (models - 1) * size.resident_bytes + size.peak_bytes();
  }

  using Answer = std::optional<LoadRefusal>;
  // released: kept until the manager has dropped the request and the model that it answered with.
  std::future<Answer> begin_wait(const std::string& name, const void* waiter = nullptr,
                                 const std::shared_ptr<void>& released = nullptr) {
    auto answer = std::make_shared<std::promise<Answer>>();
    manager->wait_for(name, std::nullopt, waiter,
                      [answer, released](const Answer& refusal, const SharedModel& model) {
                        if ((model != nullptr) == refusal.has_value()) {
                          // Catch2 takes no check from this thread.
                          answer->set_exception(std::make_exception_ptr(
                              std::logic_error("either a model or a refusal is the answer")));
                        } else {
                          answer->set_value(refusal);
                        }
                      });
    return answer->get_future();
  }
  // Afterwards no thread of the manager uses a model any more.
  Answer wait(const std::string& name) {
    std::promise<void> released;
    Answer answer =
        begin_wait(name, nullptr, {&released, [](auto* promise) { promise->set_value(); }}).get();
    released.get_future().wait();
    std::promise<void> next;
    manager->load("nosuch", std::nullopt, [&](const auto&, const auto&) { next.set_value(); });
    next.get_future().wait();
    return answer;
  }
  // Keeps the thread that loads from its next load until the result is released.
  std::shared_ptr<void> hold_loads() {
    auto held = std::make_shared<std::promise<void>>();
    std::promise<void> started;
    manager->load("nosuch", std::nullopt,
                  [&started, released = held->get_future().share()](const auto&, const auto&) {
                    started.set_value();
                    released.wait();
                  });
    started.get_future().wait();
    return {held.get(), [held](void*) { held->set_value(); }};
  }
  std::string listed() const {
    std::string all;
    for (const ModelRegistry::Entry& entry : manager->index()) {
      all += entry.name + " " + to_string(entry.state) + (entry.failed ? " failed; " : "; ");
    }
    return all;
  }
  bool is_ready(const std::string& name) const { return registry.find(name) != nullptr; }

  ManualClock manual;
  ModelRegistry registry;
  std::unique_ptr<SessionManager> store;
  std::unique_ptr<ModelManager> manager;
};

TEST_CASE("requests that wait for a model are answered by one load, in any order of models") {
  OnRequestFixture f;
  CHECK(f.manager->names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(f.manager->loads_on_request("a", std::nullopt));
  CHECK(f.manager->loads_on_request("a", 1));
  CHECK_FALSE(f.manager->loads_on_request("a", 2));
  CHECK_FALSE(f.manager->loads_on_request("nosuch", std::nullopt));
  CHECK(f.listed() == "a UNAVAILABLE; b UNAVAILABLE; c UNAVAILABLE; ");
  std::shared_ptr<void> held = f.hold_loads();
  std::vector<std::future<OnRequestFixture::Answer>> answers;
  for (const char* name : {"a", "b", "a", "a"}) answers.push_back(f.begin_wait(name));
  CHECK(f.listed() == "a LOADING; b LOADING; c UNAVAILABLE; ");
  CHECK(f.manager->stats().waiting == 4);
  held.reset();
  for (auto& answer : answers) CHECK_FALSE(answer.get());
  CHECK(f.listed() == "a READY; b READY; c UNAVAILABLE; ");
  CHECK(f.manager->stats().loaded == 2);
  CHECK(f.manager->stats().waiting == 0);
  CHECK_FALSE(f.wait("a"));  // it is there already
  CHECK(f.manager->stats().loaded == 2);
}

TEST_CASE("a request that has its model delays no load of another") {
  OnRequestFixture f;
  std::promise<void> release;
  std::promise<std::thread::id> ran_on;
  f.manager->wait_for("a", std::nullopt, &f, [&](const auto&, const auto&) {
    ran_on.set_value(std::this_thread::get_id());
    release.get_future().wait();
  });
  const std::thread::id answering = ran_on.get_future().get();
  std::future<OnRequestFixture::Answer> other = f.begin_wait("b");
  CHECK(other.wait_for(seconds(30)) == std::future_status::ready);
  std::promise<std::thread::id> loads_on;
  f.manager->load("nosuch", std::nullopt, [&](const auto&, const auto&) {
    loads_on.set_value(std::this_thread::get_id());
  });
  std::future<std::thread::id> loading = loads_on.get_future();
  const bool is_loaded = loading.wait_for(seconds(30)) == std::future_status::ready;
  CHECK(is_loaded);
  release.set_value();
  CHECK(loading.get() != answering);
}

TEST_CASE("a load without room unloads the models that are unused for longest, and no others") {
  OnRequestFixture f(
      [](ModelOptions& options) { options.memory_bytes = OnRequestFixture::memory_for(2); });
  REQUIRE_FALSE(f.wait("a"));
  REQUIRE_FALSE(f.wait("b"));
  f.registry.use("a");  // after b
  REQUIRE_FALSE(f.wait("c"));
  CHECK(f.is_ready("a"));
  CHECK_FALSE(f.is_ready("b"));
  CHECK(f.manager->stats().unloaded_for_memory == 1);
  // A call that runs keeps its model, also the one that is unused for longest otherwise.
  const SharedModel call = f.registry.use("a");
  f.registry.use("c");
  REQUIRE_FALSE(f.wait("b"));
  CHECK(f.is_ready("a"));
  CHECK_FALSE(f.is_ready("c"));
  const SharedModel other = f.registry.use("b");
  const OnRequestFixture::Answer refused = f.wait("c");
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kOutOfModelMemory);
  CHECK_THAT(refused->text, Contains("model c needs "));
  CHECK(f.is_ready("a"));
  CHECK(f.is_ready("b"));
  CHECK(f.manager->stats().refused == 1);
  CHECK(f.manager->stats().failed == 0);
}

TEST_CASE("a model that is too large for the memory unloads none") {
  OnRequestFixture f(
      [](ModelOptions& options) { options.memory_bytes = OnRequestFixture::memory_for(2); });
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.vocab_size *= 40;
  write_random_model(f.directory.path() / "large", config, /*seed=*/5);
  REQUIRE_FALSE(f.wait("a"));
  const OnRequestFixture::Answer refused = f.wait("large");
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kUnusable);  // not: try again
  CHECK_THAT(refused->text, Contains(" of --model-memory"));
  CHECK(f.is_ready("a"));
}

TEST_CASE("a model with sessions in memory alone is not unloaded, neither unused nor for memory") {
  OnRequestFixture f([](ModelOptions& options) {
    options.memory_bytes = OnRequestFixture::memory_for(1);
    options.idle_unload_ms = seconds(60);
  });
  REQUIRE_FALSE(f.wait("a"));
  const SharedModel model = f.registry.find("a");
  const std::string id = f.store->create("a", model->transformer, 10).info.id;
  CHECK(f.wait("b")->kind == Kind::kOutOfModelMemory);
  f.manager->unload_idle();
  f.manual.advance(seconds(61));
  f.manager->unload_idle();
  CHECK(f.is_ready("a"));
  // Stored it may go.
  f.store->set_stored(id, "");
  CHECK_FALSE(f.store->has_unstored_sessions(*model->transformer));
}

TEST_CASE("a model is unloaded when no call has used it for --model-idle-unload") {
  OnRequestFixture f([](ModelOptions& options) { options.idle_unload_ms = seconds(60); });
  std::vector<std::string> stored;
  f.manager->when_unused([&](const Transformer&) { stored.emplace_back("states"); });
  REQUIRE_FALSE(f.wait("a"));
  const auto pass = [&](seconds time) {
    f.manager->unload_idle();
    f.manual.advance(time);
    f.manager->unload_idle();
  };
  pass(seconds(59));
  CHECK(f.is_ready("a"));
  f.registry.use("a");
  pass(seconds(59));
  CHECK(f.is_ready("a"));
  SharedModel call = f.registry.use("a");
  pass(seconds(1000));
  CHECK(f.is_ready("a"));
  call.reset();  // its use ends only now
  pass(seconds(59));
  CHECK(f.is_ready("a"));
  CHECK(stored.empty());
  pass(seconds(1));
  CHECK_FALSE(f.is_ready("a"));
  CHECK(stored.size() == 1);
  CHECK(f.manager->stats().unloaded_idle == 1);
  CHECK_FALSE(f.wait("a"));
  CHECK(f.is_ready("a"));
}

TEST_CASE("a load that failed says why, and requests are refused for a while before the next") {
  OnRequestFixture f;
  fs::resize_file(f.directory.path() / "a/model.safetensors", 700);
  const OnRequestFixture::Answer refused = f.wait("a");
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kUnusable);
  CHECK_THAT(refused->text, Contains("model a cannot be loaded: a/model.safetensors") &&
                                !Contains(f.directory.path().string()));
  CHECK(f.listed() == "a UNAVAILABLE failed; b UNAVAILABLE; c UNAVAILABLE; ");
  f.write("a");
  CHECK(f.wait("a")->text == refused->text);
  CHECK(f.manager->stats().failed == 1);
  f.manual.advance(ModelManager::kFailureTime);
  CHECK_FALSE(f.wait("a"));
  CHECK(f.listed() == "a READY; b UNAVAILABLE; c UNAVAILABLE; ");
}

TEST_CASE("a model that can never load is listed with its reason, until its files change") {
  OnRequestFixture f;
  const fs::path model = f.directory.path() / "never";
  fs::create_directory(model);
  const auto write_config = [&](const std::string& text) {
    const auto before = fs::exists(model / "config.json")
                            ? fs::last_write_time(model / "config.json")
                            : fs::file_time_type::min();
    std::ofstream(model / "config.json") << text;
    if (before != fs::file_time_type::min()) {
      fs::last_write_time(model / "config.json", before + seconds(1));
    }
  };
  const auto listed = [&] {
    for (const ModelRegistry::Entry& entry : f.manager->index()) {
      if (entry.name == "never") return entry;
    }
    FAIL("never is not listed");
    return ModelRegistry::Entry{};
  };
  write_config(R"({"model_type": "none_of_ours"})");
  CHECK(listed().failed);
  CHECK(listed().state == ModelState::kUnavailable);
  CHECK_THAT(listed().reason, Contains("none_of_ours"));
  CHECK_THAT(listed().reason, !Contains(f.directory.path().string()));
  write_config(R"({"model_type": "another"})");
  CHECK_THAT(listed().reason, Contains("another"));
  CHECK(f.listed().find("a UNAVAILABLE; ") != std::string::npos);
  fs::copy(f.directory.path() / "a", model,
           fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  CHECK_FALSE(listed().failed);
  CHECK(listed().reason == "not loaded");
}

// This thread has the rights of another user's, also where root runs the tests.
class AsOtherUser {
 public:
  AsOtherUser() : before_(setfsuid(65534)) {}
  ~AsOtherUser() { setfsuid(static_cast<uid_t>(before_)); }
  AsOtherUser(const AsOtherUser&) = delete;
  AsOtherUser& operator=(const AsOtherUser&) = delete;

 private:
  const int before_;
};

TEST_CASE("a model that the server may not read is listed with the reason, and requests get it") {
  OnRequestFixture f;
  const fs::path cached = f.directory.path() / "models--org--name/snapshots/c1";
  fs::create_directories(cached);
  write_random_model(cached, tiny_config(TinyModel::kTokens), /*seed=*/5);
  fs::permissions(f.directory.path(), fs::perms(0755));
  const std::vector<fs::path> hidden = {f.directory.path() / "a",
                                        f.directory.path() / "b/config.json",
                                        f.directory.path() / "models--org--name"};
  for (const fs::path& path : hidden) fs::permissions(path, fs::perms::none);
  {
    const AsOtherUser other;
    CHECK(
        f.listed() ==
        "a UNAVAILABLE failed; b UNAVAILABLE failed; c UNAVAILABLE; org/name UNAVAILABLE failed; ");
    for (const ModelRegistry::Entry& entry : f.manager->index()) {
      if (entry.failed) CHECK_THAT(entry.reason, Contains("Permission denied"));
    }
    CHECK(f.manager->loads_on_request("a", std::nullopt));
    CHECK(f.manager->loads_on_request("org/name", std::nullopt));
  }
  for (const fs::path& path : hidden) fs::permissions(path, fs::perms(0755));
  const AsOtherUser other;
  CHECK(f.listed() == "a UNAVAILABLE; b UNAVAILABLE; c UNAVAILABLE; org/name UNAVAILABLE; ");
}

// Counts how often a file is opened.
class Opens {
 public:
  explicit Opens(const fs::path& file) : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    REQUIRE(inotify_ >= 0);
    REQUIRE(inotify_add_watch(inotify_, file.c_str(), IN_OPEN) >= 0);
  }
  ~Opens() { ::close(inotify_); }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;

  // Returns whether it was opened since the last call.
  bool any() const {
    char events[4096];
    bool found = false;
    while (::read(inotify_, events, sizeof events) > 0) found = true;
    return found;
  }

 private:
  const int inotify_;
};

TEST_CASE("the list of models reads no chat template, and the question for a chat only once") {
  OnRequestFixture f;
  const fs::path file = f.directory.path() / "talk/chat_template.jinja";
  write_text_model(file.parent_path());
  std::ofstream(file) << "{{ messages[0].content }}";
  const Opens opens(file);
  CHECK(f.listed() == "a UNAVAILABLE; b UNAVAILABLE; c UNAVAILABLE; talk UNAVAILABLE; ");
  CHECK_FALSE(opens.any());
  CHECK(f.manager->can_chat("talk"));
  CHECK(opens.any());
  CHECK(f.manager->can_chat("talk"));
  CHECK_FALSE(opens.any());
}

TEST_CASE("files of a model that change are read again, also those with older times") {
  OnRequestFixture f;
  const fs::path model = f.directory.path() / "talk";
  write_text_model(model);
  const fs::file_time_type old = fs::last_write_time(model / "config.json") - seconds(1000);
  // As a copy that preserves times.
  const auto write_old = [&](const fs::path& file, const std::string& text) {
    std::ofstream(model / file) << text;
    fs::last_write_time(model / file, old);
    fs::last_write_time(model, old);
  };
  const auto template_json = [](const std::string& source) {
    return R"({"chat_template": ")" + source + R"("})";
  };
  fs::create_directory(model / "additional_chat_templates");
  for (const char* const name :
       {"tokenizer_config.json", "chat_template.json", "chat_template.jinja",
        "additional_chat_templates/default.jinja"}) {
    INFO(name);
    const fs::path file = name;
    const bool is_json = file.extension() == ".json";
    for (const bool is_served : {false, true, false}) {
      const std::string source = is_served ? "{{ messages[0].content }}" : "{% nosuch %}";
      write_old(file, is_json ? template_json(source) : source);
      CHECK(f.manager->can_chat("talk") == is_served);
    }
    fs::remove(model / file);
  }
}

TEST_CASE("a model of --model is unloaded and loaded again as those of --models") {
  const ModelsFixture elsewhere;
  elsewhere.write("given");
  OnRequestFixture f([&](ModelOptions& options) {
    options.directories = {{"given", elsewhere.directory.path() / "given"}};
    options.memory_bytes = OnRequestFixture::memory_for(1);
  });
  CHECK(f.is_ready("given"));
  CHECK_FALSE(f.wait("a"));
  CHECK_FALSE(f.is_ready("given"));
  CHECK(f.manager->names() == std::vector<std::string>{"a", "b", "c", "given"});
  CHECK_FALSE(f.wait("given"));
  CHECK(f.is_ready("given"));
  CHECK_FALSE(f.is_ready("a"));
}

TEST_CASE("requests that wait when the server stops are answered") {
  OnRequestFixture f;
  std::shared_ptr<void> held = f.hold_loads();
  std::future<OnRequestFixture::Answer> waiting = f.begin_wait("a");
  std::future<void> stopped = std::async(std::launch::async, [&] { f.manager->stop(); });
  CHECK(waiting.get()->kind == Kind::kStopping);
  held.reset();
  stopped.get();
  CHECK(f.wait("a")->kind == Kind::kStopping);
}

TEST_CASE("a load that no request waits for any more does not begin") {
  OnRequestFixture f;
  std::shared_ptr<void> held = f.hold_loads();
  const std::future<OnRequestFixture::Answer> gone = f.begin_wait("a", &f);
  f.manager->stop_waiting("a", std::nullopt, &f);
  CHECK(f.manager->stats().waiting == 0);
  held.reset();
  CHECK_FALSE(f.wait("b"));
  CHECK(f.listed() == "a UNAVAILABLE; b READY; c UNAVAILABLE; ");
  // The next request has its load, also where one before it went.
  held = f.hold_loads();
  f.begin_wait("a", &f);
  f.manager->stop_waiting("a", std::nullopt, &f);
  std::future<OnRequestFixture::Answer> next = f.begin_wait("a");
  held.reset();
  CHECK_FALSE(next.get());
  CHECK(f.is_ready("a"));
}

TEST_CASE("more requests than may wait for loads are refused") {
  OnRequestFixture f;
  const std::shared_ptr<void> held = f.hold_loads();
  std::vector<std::future<OnRequestFixture::Answer>> waiting;
  for (int i = 0; i < 1024; ++i) waiting.push_back(f.begin_wait("a"));
  CHECK(f.begin_wait("b").get()->kind == Kind::kTooManyLoads);
}

}  // namespace
}  // namespace lintel::testing
