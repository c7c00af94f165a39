// SPDX-License-Identifier: Apache-2.0
#include "server/app/startup.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "model/core/child_process.h"
#include "model/core/pytorch_file.h"
#include "model/fastest_type.h"
#include "model/model_files.h"
#include "model/numerics_fingerprint.h"
#include "model/transformer.h"
#include "server/config/option_values.h"
#include "server/core/threads.h"
#include "server/grpc/listener.h"
#include "server/models/model_loader.h"
#include "server/models/model_repository.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"

namespace lintel {
namespace {

// `message`, which begins with a file, with the flags in front that name that file.
std::string with_flag(const std::string& message, const SecurityOptions& security) {
  const std::pair<const char*, const std::filesystem::path&> flags[] = {
      {"--tls-cert", security.tls_cert},
      {"--tls-key", security.tls_key},
      {"--tls-client-ca", security.tls_client_ca},
      {"--auth-tokens", security.auth_tokens}};
  std::string named;
  for (const auto& [flag, file] : flags) {
    if (file.empty() || !message.starts_with(file.string())) continue;
    const char after = message.c_str()[file.string().size()];
    if (after == ':' || after == ',') named += (named.empty() ? "" : ", ") + std::string(flag);
  }
  return named.empty() ? message : named + ": " + message;
}

void check_security_files(const SecurityOptions& security) {
  try {
    if (security.tls()) {
      read_certificates({security.tls_cert, security.tls_key, security.tls_client_ca});
    }
    if (!security.auth_tokens.empty()) BearerTokens tokens(security.auth_tokens);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(with_flag(error.what(), security));
  }
}

void check_repository(const ServerOptions& options) {
  const ModelOptions& models = options.models;
  if (models.models_directory().empty()) return;
  const std::string flag = models.loads_on_request() ? "--models" : "--model-repository";
  const std::string directory = models.models_directory().string();
  DIR* const opened = ::opendir(directory.c_str());
  if (opened == nullptr) {
    throw std::runtime_error(flag + ": " + directory + ": " + std::strerror(errno));
  }
  ::closedir(opened);
  // A server without a model is ready, and all that it answers is that there is none.
  if (!models.directories.empty() || !models.load.empty()) return;
  std::string names;
  for (const std::string& name : ModelRepository(models.models_directory()).names()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) {
    spdlog::warn("no model is loaded, and {} {} has none yet", flag, directory);
  } else if (models.loads_on_request()) {
    spdlog::info("requests load their models, one of {}", names);
  } else {
    spdlog::warn(
        "no model is loaded: give --load-model, or `lintel model load NAME` with one of {}", names);
  }
}

void check_directory(const char* flag, const std::filesystem::path& path,
                     const std::string& hint = "") {
  if (std::filesystem::is_directory(path)) return;
  const bool exists = std::filesystem::exists(path);
  throw std::runtime_error(std::string(flag) + ": " + path.string() + ": " +
                           std::strerror(exists ? ENOTDIR : ENOENT) + (exists ? "" : hint));
}

// A directory, or a GGUF file.
void check_model(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) {
    const std::string ending = path.extension().string();
    if (ending == ".gguf") return;
    throw std::runtime_error("--model: " + path.string() +
                             ": expected a model's directory or a .gguf file" +
                             (is_pytorch_file(ending) ? std::string("; ") + kPytorchHint : ""));
  }
  check_directory("--model", path, hint_to_pull(path.string()));
}

// Holds the address until the others are looked at: two flags may name one.
std::unique_ptr<const Listener> hold(const std::string& flag, const ListenAddress& address,
                                     bool is_first_start) {
  try {
    return std::make_unique<const Listener>(address, std::chrono::seconds(20));
  } catch (const std::runtime_error& error) {
    const std::string other = "; " + flag + " 127.0.0.1:0 takes a free port";
    throw std::runtime_error(flag + ": " + error.what() + (is_first_start ? other : ""));
  }
}

constexpr const char* kThreadLimits =
    " (ulimit -u, pids.max of the container, or memory for their stacks)";

}  // namespace

void check_files(const ServerOptions& options) {
  check_security_files(options.security);
  check_repository(options);
  for (const auto& model : options.models.directories) {
    if (!model.path.empty()) check_model(model.path);  // else it is to be pulled
  }
  for (const auto& adapter : options.models.adapters) check_directory("--adapter", adapter.path);
  for (const auto& file : options.models.chat_templates) {
    if (!std::filesystem::is_regular_file(file.path)) {
      throw UsageError("--chat-template: " + file.path.string() + " is not a file");
    }
  }
  if (const auto& states = options.initial_states.directory; !states.empty()) {
    check_directory("--initial-states", states);
  }
  start_sources(options.models, ModelRepository(options.models.models_directory()));
}

void check_before_loading(const ServerOptions& options) {
  check_files(options);
  // A second server on one address ends here, and not after its models are loaded.
  const bool is_first_start = options.serves_packaged_models;
  const auto grpc = hold("--listen", options.listen, is_first_start);
  std::unique_ptr<const Listener> http, metrics;
  if (const auto& address = options.http.listen; address && !options.http_is_default) {
    http = hold("--http-listen", *address, is_first_start);
  }
  if (const auto& address = options.monitoring.metrics_listen) {
    metrics = hold("--metrics-listen", *address, is_first_start);
  }
}

void pull_model(ServerOptions& options) {
  if (options.pulled_model.empty()) return;
  const std::string command = "lintel pull " + options.pulled_model;
  ChildProcess child(
      {program_beside("lintel").string(), "pull", "--if-missing", options.pulled_model}, {});
  std::string out;
  char bytes[512];
  for (ssize_t got = 0; (got = ::read(child.out(), bytes, sizeof bytes)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) out.append(bytes, static_cast<std::size_t>(got));
  }
  const int status = child.wait();
  if (status == 127) {
    throw std::runtime_error(command + ": lintel is neither beside lintel-server nor on the PATH");
  }
  if (status != 0) {  // it has said why
    throw std::runtime_error(command + " ended with status " + std::to_string(status));
  }
  for (ModelDirectory& model : options.models.directories) {
    if (model.path.empty()) model.path = out.substr(0, out.find('\n'));
  }
}

int threads_at_start(const ServerOptions& options) {
  const ModelOptions& models = options.models;
  const int cores = usable_cores();
  const int workers = models.scheduling.workers > 0 ? models.scheduling.workers : cores;
  const auto num_models = static_cast<int>(models.directories.size() + models.load.size());
  // main, signals, loading, draining, maintenance, a listener for each port, turns of chats.
  int threads = 12 + std::max(num_models, 1) * workers;
  threads += 8 + 2 * cores;  // gRPC
  if (options.http.listen) threads += options.http.threads + 4;
  if (options.monitoring.metrics_listen) threads += 16;
  if (!options.durable.store.empty()) threads += options.durable.store_threads + 8;
  return threads;
}

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Besides stacks; that of a small model's start is 20 MiB.
constexpr std::size_t kStartBytes = 128 * kMiB;

std::size_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 8 * kMiB;
  if (pthread_attr_init(&attributes) != 0) return bytes;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

int running_threads() {
  std::error_code error;
  int threads = 0;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end;
       at.increment(error)) {
    ++threads;
  }
  return std::max(threads, 1);
}

bool has_address_space(std::size_t bytes) {
  void* const room = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            /*fd=*/-1, /*offset=*/0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, bytes);
  return true;
}

}  // namespace

void check_address_space(const ServerOptions& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const int threads = std::max(threads_at_start(options) - running_threads(), 0);
  const std::size_t needed = static_cast<std::size_t>(threads) * stack_bytes() + kStartBytes;
#ifdef M_ARENA_MAX
  // glibc makes at most 8 heaps a core, and maps twice the size of the one that it makes.
  const std::size_t heaps = (static_cast<std::size_t>(usable_cores()) * 8 + 2) * 64 * kMiB;
  if (!has_address_space(needed + heaps)) ::mallopt(M_ARENA_MAX, 1);
#endif
  if (has_address_space(needed)) return;
  throw std::runtime_error("there is not enough memory: the stacks of " + std::to_string(threads) +
                           " threads and the start of a server of these flags take " +
                           std::to_string(needed / kMiB) + " MiB of addresses, the limit of " +
                           std::to_string(limit.rlim_cur / kMiB) +
                           " MiB (ulimit -v, RLIMIT_AS) leaves less");
}

void check_threads(const ServerOptions& options) {
  const int wanted = threads_at_start(options);
  std::mutex mutex;
  mutex.lock();  // the threads wait for it
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(wanted));
  std::string why;
  try {
    while (std::ssize(threads) + 1 < wanted) {  // this one counts, too
      threads.emplace_back([&mutex] { const std::lock_guard<std::mutex> lock(mutex); });
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  mutex.unlock();
  for (std::thread& thread : threads) thread.join();
  if (why.empty()) return;
  throw std::runtime_error("only " + std::to_string(threads.size() + 1) +
                           " threads can run, a server of these flags needs " +
                           std::to_string(wanted) + kThreadLimits + ": " + why);
}

std::string text_of_failure(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "there is not enough memory (ulimit -v, the limit of the container or the machine)";
  }
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return std::string("a thread cannot be started") + kThreadLimits + ": " + error.what();
  }
  return error.what();
}

void print_numerics(const ModelOptions& options, std::ostream& out) {
  for (const ModelSource& source :
       start_sources(options, ModelRepository(options.models_directory()))) {
    const ModelFiles files(source.directory);
    const auto model = load_as_planned(files, plan_as_asked(files, options)).transformer;
    const NumericsFingerprint numerics = numerics_of(*model);
    out << source.name << '\t' << source.version << '\t' << numerics.hex << '\t' << numerics.text
        << '\n';
  }
}

namespace {

constexpr int kQuit = SIGUSR1;  // from the destructor; from others it means nothing

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, kQuit);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void(int)> on_first) {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this, set, on_first = std::move(on_first)] {
    bool first = true;
    while (true) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0 || quitting_) return;
      if (signal == kQuit) continue;
      if (!first) std::_Exit(128 + signal);
      first = false;
      survives(ServerThread::kSignals, [&] { on_first(signal); });
    }
  });
}

SignalWatcher::~SignalWatcher() {
  quitting_ = true;
  pthread_kill(thread_.native_handle(), kQuit);
  thread_.join();
}

}  // namespace lintel
