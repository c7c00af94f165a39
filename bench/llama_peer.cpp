// SPDX-License-Identifier: Apache-2.0
#include "bench/llama_peer.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "bench/measure.h"
#include "client/cli/console.h"

namespace lintel::bench {

struct LlamaPeer::Request {
  int sequences = 0;
  int prompt = 0;          // tokens; 0: steps of a token of each sequence
  bool continues = false;  // after the prompt
  int threads = 1;
};

struct LlamaPeer::Answer {
  bool failed = false;
  double value = 0;      // tokens a second; first of all: seconds to load
  double continued = 0;  // tokens a second after the prompt
  std::int64_t resident_bytes = 0;
  std::array<char, 1024> error = {};
};

namespace {

constexpr const char* kRelease = "v0.5.0";
constexpr std::chrono::duration<double> kPeerWindow{0.5};

// The public C interface of llama.cpp, of that release.
struct ModelParams {
  void *devices, *tensor_buft_overrides;
  std::int32_t n_gpu_layers, split_mode, load_mode, lazy_mode, main_gpu;
  const float* tensor_split;
  void *progress_callback, *progress_callback_user_data, *kv_overrides;
  bool vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp;
};
struct ContextParams {
  std::uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq;
  std::int32_t n_threads, n_threads_batch, ctx_type, rope_scaling_type, pooling_type,
      attention_type, flash_attn_type;
  float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast,
      yarn_beta_slow;
  std::uint32_t yarn_orig_ctx;
  float defrag_thold;
  void *cb_eval, *cb_eval_user_data;
  std::int32_t type_k, type_v;
  void *abort_callback, *abort_callback_data;
  bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
  void* samplers;
  std::size_t n_samplers;
  void* ctx_other;
};
struct Batch {
  std::int32_t n_tokens;
  std::int32_t* token;
  float* embd;
  std::int32_t* pos;
  std::int32_t* n_seq_id;
  std::int32_t** seq_id;
  std::int8_t* logits;
};
struct ThreadPoolParams {
  std::array<bool, 512> cpumask;
  int n_threads, prio;
  std::uint32_t poll;
  bool strict_cpu, paused;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

class Library {
 public:
  explicit Library(const std::filesystem::path& file)
      : handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    if (handle_ == nullptr) fail(::dlerror());
  }
  template <typename Function>
  Function* find(const char* name) const {
    void* const found = ::dlsym(handle_, name);
    if (found == nullptr) fail(std::string("llama.cpp has no ") + name);
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* const handle_;  // until the process ends
};

// The last lines of llama.cpp's log.
std::string& last_log() {
  static std::string log;
  return log;
}

void keep_log(int, const char* text, void*) {
  std::string& log = last_log();
  log += text;
  if (log.size() > 600) log.erase(0, log.size() - 600);
}

std::filesystem::path libraries_of(const std::filesystem::path& root) {
  return root / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64";
}

// The library for this machine's instruction set, which llama.cpp has chosen and loaded.
std::string loaded_cpu_library() {
  std::string found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        if (std::strstr(info->dlpi_name, "libggml-cpu-") != nullptr) {
          *static_cast<std::string*>(data) = info->dlpi_name;
        }
        return 0;
      },
      &found);
  if (found.empty()) fail("llama.cpp has no library for this machine's CPU");
  return found;
}

// llama.cpp with a model, in the process that computes.
class Llama {
 public:
  Llama(const std::filesystem::path& libraries, const std::filesystem::path& gguf)
      : base_(libraries / "libggml-base.so"),
        ggml_(libraries / ("libggml." + std::string(kRelease) + ".so")),
        llama_(libraries / ("libllama." + std::string(kRelease) + ".so")) {
    llama_.find<void(void (*)(int, const char*, void*), void*)>("llama_log_set")(keep_log, nullptr);
    ggml_.find<void(const char*)>("ggml_backend_load_all_from_path")(libraries.c_str());
    llama_.find<void()>("llama_backend_init")();
    cpu_ = std::make_unique<Library>(loaded_cpu_library());
    ModelParams params = llama_.find<ModelParams()>("llama_model_default_params")();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = true;  // repacks where it has a faster form
    load_seconds_ = seconds_of([&] {
      model_ = llama_.find<void*(const char*, ModelParams)>("llama_model_load_from_file")(
          gguf.c_str(), params);
    });
    if (model_ == nullptr) fail("llama.cpp does not load the model: " + last_log());
    const void* const vocabulary = llama_.find<void*(void*)>("llama_model_get_vocab")(model_);
    vocabulary_size_ = llama_.find<std::int32_t(const void*)>("llama_vocab_n_tokens")(vocabulary);
  }

  double load_seconds() const { return load_seconds_; }

  double decode(int sequences, int threads) {
    const int most_tokens = sequences > 4 ? 128 : 512;  // of each sequence
    Context context(*this, sequences, most_tokens, threads);
    int position = 0;
    const auto step = [&] {
      for (int i = 0; i < sequences; ++i) context.put(i, i, position, /*output=*/true);
      context.compute(sequences);
      ++position;
    };
    return steps_per_second(step, [&] { return position < most_tokens; }) * sequences;
  }

  LongContextSpeed read_prompt(int tokens, int threads, bool continues) {
    constexpr int kMostContinued = 512;
    Context context(*this, 1, kWarmUp + tokens + (continues ? kMostContinued : 0), threads);
    int position = 0;
    const auto read = [&](int count) {
      for (int i = 0; i < count; ++i) context.put(i, 0, position++, i + 1 == count);
      context.compute(count);
    };
    read(kWarmUp);
    LongContextSpeed speed{.prompt = tokens / seconds_of([&] { read(tokens); })};
    if (continues) {
      const int end = position + kMostContinued;
      speed.decode = steps_per_second([&] { read(1); }, [&] { return position < end; });
    }
    return speed;
  }

 private:
  static constexpr int kWarmUp = 32;

  // The speed over about half a second, as long as there may be more steps, after two that do not
  // count.
  template <typename Step, typename MayContinue>
  static double steps_per_second(const Step& step, const MayContinue& may_continue) {
    step();
    step();
    int steps = 0;
    std::chrono::duration<double> taken{};
    const auto begin = std::chrono::steady_clock::now();
    while (taken < kPeerWindow && may_continue()) {
      step();
      ++steps;
      taken = std::chrono::steady_clock::now() - begin;
    }
    return steps / taken.count();
  }

  class Context {
   public:
    Context(Llama& of, int sequences, int tokens, int threads) : of_(of) {
      const int rows = std::max({512, sequences, tokens});
      ContextParams params = of.llama_.find<ContextParams()>("llama_context_default_params")();
      params.n_ctx = static_cast<std::uint32_t>(tokens * sequences);
      params.n_batch = static_cast<std::uint32_t>(rows);
      params.n_seq_max = static_cast<std::uint32_t>(sequences);
      params.n_threads = params.n_threads_batch = threads;
      params.offload_kqv = false;
      context_ =
          of.llama_.find<void*(void*, ContextParams)>("llama_init_from_model")(of.model_, params);
      if (context_ == nullptr) fail("llama.cpp makes no context: " + last_log());
      if (threads > 1) {
        ThreadPoolParams pool{.cpumask = {},
                              .n_threads = threads,
                              .prio = 0,
                              .poll = 50,
                              .strict_cpu = false,
                              .paused = false};
        pool_ = of.cpu_->find<void*(ThreadPoolParams*)>("ggml_threadpool_new")(&pool);
        of.llama_.find<void(void*, void*, void*)>("llama_attach_threadpool")(context_, pool_,
                                                                             pool_);
      }
      batch_ = of.llama_.find<Batch(std::int32_t, std::int32_t, std::int32_t)>("llama_batch_init")(
          rows, 0, 1);
    }
    ~Context() {
      of_.llama_.find<void(Batch)>("llama_batch_free")(batch_);
      of_.llama_.find<void(void*)>("llama_free")(context_);
      if (pool_ != nullptr) of_.cpu_->find<void(void*)>("ggml_threadpool_free")(pool_);
    }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    // A random token as the row of the next computation.
    void put(int row, int sequence, int position, bool output) {
      batch_.token[row] =
          static_cast<std::int32_t>(of_.random_() % static_cast<unsigned>(of_.vocabulary_size_));
      batch_.pos[row] = position;
      batch_.n_seq_id[row] = 1;
      batch_.seq_id[row][0] = sequence;
      batch_.logits[row] = output ? 1 : 0;
    }
    void compute(int rows) {
      batch_.n_tokens = rows;
      if (of_.llama_.find<std::int32_t(void*, Batch)>("llama_decode")(context_, batch_) != 0) {
        fail("llama.cpp does not compute: " + last_log());
      }
      of_.llama_.find<void(void*)>("llama_synchronize")(context_);
    }

   private:
    Llama& of_;
    void* context_ = nullptr;
    void* pool_ = nullptr;  // null: one thread
    Batch batch_{};
  };

  const Library base_, ggml_, llama_;
  std::unique_ptr<const Library> cpu_;
  void* model_ = nullptr;  // until the process ends
  double load_seconds_ = 0;
  std::int32_t vocabulary_size_ = 0;
  std::mt19937 random_{1};
};

}  // namespace

void LlamaPeer::require(const std::filesystem::path& root) {
  const std::filesystem::path libraries = libraries_of(root);
  std::ifstream about(libraries / "_nlcBuildMetadata.json");
  const std::string text{std::istreambuf_iterator<char>(about), {}};
  if (text.find('"' + std::string(kRelease) + '"') != std::string::npos) return;
  throw cli::Failure("--peer-root " + root.string() + ": no llama.cpp " + kRelease + " in " +
                     libraries.string() + "; npm i --ignore-scripts " +
                     "@node-llama-cpp/linux-x64@3.22.1 puts it there");
}

LlamaPeer::LlamaPeer(const std::filesystem::path& root, const std::filesystem::path& gguf) {
  require(root);
  const std::filesystem::path libraries = libraries_of(root);
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0 ||
      (process_ = ::fork()) < 0) {
    throw cli::Failure(std::string("a process for llama.cpp: ") + std::strerror(errno));
  }
  socket_ = sockets[process_ == 0];
  ::close(sockets[process_ != 0]);
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Answer answer;
    try {
      Llama llama(libraries, gguf);
      answer.value = llama.load_seconds();
      answer.resident_bytes = bench::resident_bytes();
      Request request;
      while (::send(socket_, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer &&
             ::recv(socket_, &request, sizeof request, 0) == sizeof request) {
        if (request.prompt == 0) {
          answer.value = llama.decode(request.sequences, request.threads);
          continue;
        }
        const LongContextSpeed speed =
            llama.read_prompt(request.prompt, request.threads, request.continues);
        answer.value = speed.prompt;
        answer.continued = speed.decode;
      }
      ::_exit(0);
    } catch (const std::exception& error) {
      answer.failed = true;
      std::snprintf(answer.error.data(), answer.error.size(), "%s", error.what());
      (void)!::send(socket_, &answer, sizeof answer, MSG_NOSIGNAL);
      ::_exit(1);
    }
  }
  try {
    const Answer loaded = receive();
    load_seconds_ = loaded.value;
    resident_bytes_ = loaded.resident_bytes;
  } catch (...) {
    stop();
    throw;
  }
}

LlamaPeer::~LlamaPeer() { stop(); }

void LlamaPeer::stop() {
  ::close(socket_);
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

double LlamaPeer::decode(int sequences, int threads) {
  return ask({.sequences = sequences, .threads = threads}).value;
}

double LlamaPeer::read_prompt(int tokens, int threads) {
  return ask({.sequences = 1, .prompt = tokens, .threads = threads}).value;
}

LongContextSpeed LlamaPeer::read_and_continue(int tokens, int threads) {
  const Answer answer =
      ask({.sequences = 1, .prompt = tokens, .continues = true, .threads = threads});
  return {.prompt = answer.value, .decode = answer.continued};
}

LlamaPeer::Answer LlamaPeer::ask(const Request& request) {
  // A process that has ended is seen by receive().
  (void)!::send(socket_, &request, sizeof request, MSG_NOSIGNAL);
  return receive();
}

LlamaPeer::Answer LlamaPeer::receive() {
  Answer answer;
  if (::recv(socket_, &answer, sizeof answer, 0) != sizeof answer) {
    throw cli::Failure("the process of llama.cpp has ended");
  }
  if (answer.failed) throw cli::Failure(answer.error.data());
  return answer;
}

}  // namespace lintel::bench
