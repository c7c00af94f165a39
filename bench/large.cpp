// SPDX-License-Identifier: Apache-2.0
// Checkpoints of 0.1 to 2 billion parameters: decoding alone and in batches, prompts, loading; each
// with the bound that memory and multipliers set in the same minute.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bounds.h"
#include "bench/commands.h"
#include "bench/run_flags.h"
#include "client/cli/output.h"
#include "model/core/step_thread_pool.h"
#include "model/model_files.h"
#include "model/ops/dense_kernels.h"
#include "model/ops/mixer_kernels.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

// ---- Checkpoints of published shapes.

using Json = nlohmann::ordered_json;
using Size = std::int64_t;

struct QwenShape {
  const char* name;
  Size width, heads, kv_heads, value_heads, feed_forward;
};
constexpr std::array kQwen = {QwenShape{"qwen3.5-0.8b", 1024, 8, 2, 16, 3584},
                              QwenShape{"qwen3.5-2b", 2048, 8, 2, 16, 6144}};
constexpr Size kQwenLayers = 24, kQwenVocabulary = 248'320, kHeadWidth = 256, kLinearWidth = 128;
constexpr Size kKeyHeads = 16;

struct RwkvShape {
  const char* name;
  Size width, layers;
  std::array<Size, 4> ranks;  // of w, a, v and g
};
constexpr std::array kRwkv = {RwkvShape{"rwkv7-0.1b", 768, 12, {64, 64, 32, 128}},
                              RwkvShape{"rwkv7-0.4b", 1024, 24, {64, 64, 32, 128}},
                              RwkvShape{"rwkv7-1.5b", 2048, 24, {96, 96, 64, 256}}};
constexpr Size kRwkvVocabulary = 65'536, kRwkvHeadWidth = 64;

struct Tensor {
  std::string name;
  std::vector<Size> shape;
  bool is_gain = false;  // a factor near one
};

struct Plan {
  Json config;
  std::vector<Tensor> tensors;

  void add(std::string name, std::vector<Size> shape, bool is_gain = false) {
    tensors.push_back({std::move(name), std::move(shape), is_gain});
  }
};

Plan plan_of(const QwenShape& of) {
  const Size keys = kKeyHeads * kLinearWidth, values = of.value_heads * kLinearWidth;
  Plan plan;
  plan.config = {
      {"architectures", {"Qwen3_5ForCausalLM"}},
      {"model_type", "qwen3_5_text"},
      {"dtype", "bfloat16"},
      {"vocab_size", kQwenVocabulary},
      {"hidden_size", of.width},
      {"intermediate_size", of.feed_forward},
      {"num_hidden_layers", kQwenLayers},
      {"num_attention_heads", of.heads},
      {"num_key_value_heads", of.kv_heads},
      {"head_dim", kHeadWidth},
      {"linear_num_key_heads", kKeyHeads},
      {"linear_num_value_heads", of.value_heads},
      {"linear_key_head_dim", kLinearWidth},
      {"linear_value_head_dim", kLinearWidth},
      {"linear_conv_kernel_dim", 4},
      {"full_attention_interval", 4},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", 262'144},
      {"tie_word_embeddings", true},
      {"eos_token_id", 248'044},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 10'000'000}, {"partial_rotary_factor", 0.25}}}};
  plan.add("model.embed_tokens.weight", {kQwenVocabulary, of.width});
  for (Size i = 0; i < kQwenLayers; ++i) {
    std::string at = "model.layers." + std::to_string(i) + ".";
    plan.add(at + "input_layernorm.weight", {of.width});
    plan.add(at + "post_attention_layernorm.weight", {of.width});
    plan.add(at + "mlp.gate_proj.weight", {of.feed_forward, of.width});
    plan.add(at + "mlp.up_proj.weight", {of.feed_forward, of.width});
    plan.add(at + "mlp.down_proj.weight", {of.width, of.feed_forward});
    if ((i + 1) % 4 == 0) {
      at += "self_attn.";
      plan.add(at + "q_proj.weight", {2 * of.heads * kHeadWidth, of.width});
      plan.add(at + "k_proj.weight", {of.kv_heads * kHeadWidth, of.width});
      plan.add(at + "v_proj.weight", {of.kv_heads * kHeadWidth, of.width});
      plan.add(at + "o_proj.weight", {of.width, of.heads * kHeadWidth});
      plan.add(at + "q_norm.weight", {kHeadWidth});
      plan.add(at + "k_norm.weight", {kHeadWidth});
      continue;
    }
    at += "linear_attn.";
    plan.add(at + "in_proj_qkv.weight", {2 * keys + values, of.width});
    plan.add(at + "in_proj_z.weight", {values, of.width});
    plan.add(at + "in_proj_b.weight", {of.value_heads, of.width});
    plan.add(at + "in_proj_a.weight", {of.value_heads, of.width});
    plan.add(at + "conv1d.weight", {2 * keys + values, 1, 4});
    plan.add(at + "A_log", {of.value_heads});
    plan.add(at + "dt_bias", {of.value_heads});
    plan.add(at + "norm.weight", {kLinearWidth}, true);
    plan.add(at + "out_proj.weight", {of.width, values});
  }
  plan.add("model.norm.weight", {of.width});
  return plan;
}

Plan plan_of(const RwkvShape& of) {
  const Size width = of.width;
  Plan plan;
  plan.config = {{"architectures", {"Rwkv7ForCausalLM"}},
                 {"model_type", "rwkv7"},
                 {"dtype", "bfloat16"},
                 {"vocab_size", kRwkvVocabulary},
                 {"hidden_size", width},
                 {"num_hidden_layers", of.layers},
                 {"head_dim", kRwkvHeadWidth},
                 {"num_heads", width / kRwkvHeadWidth},
                 {"norm_eps", 1e-5},
                 {"eos_token_id", 0},
                 {"tie_word_embeddings", false}};
  const auto norm = [&](const std::string& name) {
    plan.add(name + ".weight", {width}, true);
    plan.add(name + ".bias", {width});
  };
  plan.add("rwkv7.emb.weight", {kRwkvVocabulary, width});
  for (Size i = 0; i < of.layers; ++i) {
    const std::string at = "rwkv7.blocks." + std::to_string(i) + ".";
    if (i == 0) norm(at + "ln0");
    norm(at + "ln1");
    norm(at + "ln2");
    for (const char mix : std::string_view("rwkvag")) {
      plan.add(at + "att.x_" + mix, {1, 1, width});
    }
    for (std::size_t n = 0; n < of.ranks.size(); ++n) {
      const char factor = "wavg"[n];
      if (factor == 'v' && i == 0) continue;
      const std::string name = at + "att." + factor;
      if (factor != 'g') plan.add(name + "0", {1, 1, width});
      plan.add(name + "1", {width, of.ranks[n]});
      plan.add(name + "2", {of.ranks[n], width});
    }
    plan.add(at + "att.k_k", {1, 1, width}, true);
    plan.add(at + "att.k_a", {1, 1, width});
    plan.add(at + "att.r_k", {width / kRwkvHeadWidth, kRwkvHeadWidth});
    for (const char* const name : {"receptance", "key", "value", "output"}) {
      plan.add(at + "att." + name + ".weight", {width, width});
    }
    norm(at + "att.ln_x");
    plan.add(at + "ffn.x_k", {1, 1, width});
    plan.add(at + "ffn.key.weight", {4 * width, width});
    plan.add(at + "ffn.value.weight", {width, 4 * width});
  }
  norm("rwkv7.ln_out");
  plan.add("head.weight", {kRwkvVocabulary, width});
  return plan;
}

Plan plan_named(std::string_view shape) {
  for (const QwenShape& of : kQwen) {
    if (shape == of.name) return plan_of(of);
  }
  for (const RwkvShape& of : kRwkv) {
    if (shape == of.name) return plan_of(of);
  }
  refuse("--shape", shape, "the name of a published shape, e.g. qwen3.5-0.8b");
}

// Between 1/64 and 1/32 in size, of either sign.
std::vector<std::uint16_t> random_values(std::size_t count) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    value = static_cast<std::uint16_t>((random() & 0x807F) | 0x3C80);
  }
  return values;
}

std::ofstream open(const std::filesystem::path& file) {
  std::ofstream out(file, std::ios::binary);
  if (!out) throw std::runtime_error(file.string() + ": cannot be written");
  return out;
}

// Names of the shapes.
std::vector<std::string> checkpoint_shapes() {
  std::vector<std::string> names;
  for (const QwenShape& of : kQwen) names.emplace_back(of.name);
  for (const RwkvShape& of : kRwkv) names.emplace_back(of.name);
  return names;
}

// A Hugging Face directory with random BF16 weights, made in `directory`, which exists. Throws
// std::runtime_error naming the file that cannot be written.
void write_random_checkpoint(const Plan& plan, const std::filesystem::path& directory) {
  open(directory / "config.json") << plan.config.dump(2) << "\n";
  Json header;
  Size end = 0;
  const auto count_of = [](const Tensor& tensor) {
    Size count = 1;
    for (const Size size : tensor.shape) count *= size;
    return count;
  };
  for (const Tensor& tensor : plan.tensors) {
    const Size bytes = 2 * count_of(tensor);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::filesystem::path file = directory / "model.safetensors";
  std::ofstream out = open(file);
  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  // A number of values that no width divides: rows differ.
  const std::vector<std::uint16_t> values = random_values((std::size_t{1} << 22) + 7);
  const std::vector<std::uint16_t> ones(std::size_t{1} << 12, 0x3F80);
  std::size_t at = 0;
  for (const Tensor& tensor : plan.tensors) {
    const std::vector<std::uint16_t>& from = tensor.is_gain ? ones : values;
    if (tensor.is_gain) at = 0;
    for (auto left = static_cast<std::size_t>(count_of(tensor)); left > 0;) {
      const std::size_t count = std::min(left, from.size() - at);
      out.write(reinterpret_cast<const char*>(from.data() + at),
                static_cast<std::streamsize>(2 * count));
      left -= count;
      at = (at + count) % from.size();
    }
    if (tensor.is_gain) at = 0;
  }
  if (!out.flush()) throw std::runtime_error(file.string() + ": cannot be written");
}

constexpr const char* kLargeFooter = R"(
Weights are random, of the published shapes: speed and memory do not depend on them. share_of_bound
is the time that a step needs at least over the time that it takes. At least it needs the weights
read once or the multiplications done, the longer of both, and the states read and written; both
speeds are measured for each figure, with as many threads.

Examples:
  lintel-bench large --shape qwen3.5-0.8b --weight-type int8
  lintel-bench large --shape rwkv7-0.4b --weight-type int4 --json rwkv.json)";

constexpr std::size_t kPrompt = 512;
constexpr std::size_t kSliceRows = 64;  // of a prompt in a step
constexpr std::chrono::duration<double> kWindow{0.5};

struct LargeFlags {
  LargeFlags() { run.weight_type = WeightType::kInt8; }

  RunFlags run;
  std::string shape = "qwen3.5-0.8b";
};

// A checkpoint in a folder of its own, which goes with it.
class TemporaryCheckpoint {
 public:
  explicit TemporaryCheckpoint(const std::string& shape) {
    const Plan plan = plan_named(shape);
    std::string name = (std::filesystem::temp_directory_path() / "lintel-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw cli::Failure(name + ": cannot be made: " + std::strerror(errno));
    }
    directory_ = name;
    try {
      write_random_checkpoint(plan, directory_);
    } catch (...) {
      remove();
      throw;
    }
  }
  ~TemporaryCheckpoint() { remove(); }
  TemporaryCheckpoint(const TemporaryCheckpoint&) = delete;
  TemporaryCheckpoint& operator=(const TemporaryCheckpoint&) = delete;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  void remove() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  std::filesystem::path directory_;
};

// Threads that help the one that steps with `workspace`, which outlives them.
class Team {
 public:
  Team(int threads, Workspace& workspace) : workspace_(workspace) {
    workspace.share_with(&pool_);
    pool_.use(static_cast<std::size_t>(threads));
    for (int i = 1; i < threads; ++i) {
      const std::size_t seat = pool_.sit_down(static_cast<std::size_t>(threads - 1));
      helpers_.emplace_back([this, seat] {
        while (!stop_.load(std::memory_order_relaxed)) pool_.help(seat);
        pool_.stand_up(seat);
      });
    }
  }
  ~Team() {
    stop_.store(true);
    for (std::thread& helper : helpers_) helper.join();
    workspace_.share_with(nullptr);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  Workspace& workspace_;
  StepThreadPool pool_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

#if defined(__x86_64__)
// Multiply-adds of bytes by vpdpbusd, in twelve chains that wait for nothing else.
__attribute__((target("avx512f,avx512vnni"))) double multiply_bytes(std::int64_t rounds) {
  asm volatile(
      "vpxorq %%zmm0, %%zmm0, %%zmm0\n\t"
      "vpxorq %%zmm1, %%zmm1, %%zmm1\n\t"
      "1:\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm4\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm5\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm6\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm7\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm8\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm9\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm10\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm11\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm12\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm13\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm14\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm15\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(rounds)
      :
      : "zmm0", "zmm1", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
        "zmm13", "zmm14", "zmm15", "cc");
  return 12.0 * 64;
}
#else
double multiply_bytes(std::int64_t) { return 0; }
#endif

// Multiply-adds of bytes a second of all threads together; 0 where there is no vpdpbusd.
double multiply_rate(int threads) {
  if (!has_vnni()) return 0;
  constexpr std::int64_t kRounds = 5'000'000;
  double each = 0;
  const double seconds = run_on_workers(threads, [&](int w) {
    const double products = multiply_bytes(kRounds);
    if (w == 0) each = products;
  });
  return each * static_cast<double>(kRounds) * threads / seconds;
}

// Bytes a second of buffers that are read and written in place, of all threads together.
double update_rate(int threads) {
  constexpr std::size_t kFloats = std::size_t{24} << 20;
  std::vector<std::vector<float>> buffers(static_cast<std::size_t>(threads));
  for (auto& buffer : buffers) buffer.assign(kFloats, 1.0f);
  const double seconds =
      run_on_workers(threads, [&](int w) { squared_relu(buffers[static_cast<std::size_t>(w)]); });
  return static_cast<double>(kFloats * sizeof(float)) * threads / seconds;
}

std::int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

class LargeExperiment {
 public:
  LargeExperiment(const LargeFlags& flags, cli::Console& console)
      : flags_(flags),
        measurement_(flags.run, "large", flags.shape + ", random weights", console),
        checkpoint_(flags.shape),
        progress_(console, 6, "figures") {
    const lintel::ModelFiles files(checkpoint_.directory());
    // Null: the embedding is tied to the head.
    const TensorInfo* const embedding = files.checkpoint().tensors.find("rwkv7.emb.weight");
    const std::int64_t before = resident_bytes();
    load_seconds_ = seconds_of(
        [&] { model_ = Transformer::load(files, {.weight_type = flags.run.weight_type}); });
    loaded_bytes_ = resident_bytes() - before;
    const std::int64_t rows = embedding != nullptr ? embedding->num_elements() : 0;
    read_elements_ = static_cast<double>(model_->num_parameters() - rows);
    read_bytes_ = static_cast<double>(model_->weight_bytes()) - 2.0 * static_cast<double>(rows);
    head_elements_ = static_cast<double>(model_->config().vocab_size) * width_of(files);
  }

  int run() {
    const int cores = flags_.run.workers;
    decode("alone_1_thread", 1, 1);
    decode("alone", 1, cores);
    decode("seqs_4", 4, 1);
    decode("seqs_16", 16, cores);
    decode("seqs_64", 64, cores);
    read_prompt("prompt_512", cores);
    Table costs{.title = "Memory and loading",
                .columns = {"weights", "bytes", "resident bytes after loading", "seconds to load"}};
    costs.rows.push_back({Cell::text(to_string(model_->weight_type())),
                          Cell::count(static_cast<std::int64_t>(model_->weight_bytes())),
                          Cell::count(loaded_bytes_), Cell::number(load_seconds_)});
    measurement_.add("weight_bytes", static_cast<double>(model_->weight_bytes()));
    measurement_.add("resident_bytes", static_cast<double>(loaded_bytes_));
    measurement_.add("load_seconds", load_seconds_);
    speeds_.notes.push_back("Ours ran on " + model_->kernels() + ".");
    if (!has_vnni()) {
      speeds_.notes.push_back("This machine has no vpdpbusd: the bound is of memory alone.");
    }
    measurement_.add(std::move(speeds_));
    measurement_.add(std::move(costs));
    return measurement_.publish();
  }

 private:
  static double width_of(const lintel::ModelFiles& files) {
    const WeightSource& tensors = files.checkpoint().tensors;
    for (const char* const name : {"model.embed_tokens.weight", "head.weight"}) {
      const TensorInfo* const found = tensors.find(name);
      if (found != nullptr) return static_cast<double>(found->shape[1]);
    }
    return 0;
  }

  std::int32_t token() {
    return static_cast<std::int32_t>(random_() %
                                     static_cast<unsigned>(model_->config().vocab_size));
  }

  void decode(const std::string& name, std::size_t rows, int threads) {
    Workspace workspace = model_->new_workspace(rows);
    std::vector<SequenceState> sequences;
    for (std::size_t r = 0; r < rows; ++r) sequences.push_back(model_->new_sequence());
    const auto step = [&] {
      std::vector<BatchRow> batch;
      for (SequenceState& sequence : sequences) batch.push_back({token(), &sequence, true});
      model_->step(batch, workspace);
    };
    step();
    std::vector<double> rates, shares;
    for (int repeat = 0; repeat < flags_.run.repeats; ++repeat) {
      const double bound = bound_of(threads, static_cast<double>(rows), /*is_prompt=*/false);
      const Team team(threads, workspace);  // its threads poll: not while the bound is measured
      int steps = 0;
      const auto begin = std::chrono::steady_clock::now();
      std::chrono::duration<double> taken{};
      while (taken < kWindow) {
        step();
        ++steps;
        taken = std::chrono::steady_clock::now() - begin;
      }
      const double seconds = taken.count() / steps;
      rates.push_back(static_cast<double>(rows) / seconds);
      shares.push_back(bound / seconds);
    }
    add(name, std::to_string(rows) + (rows == 1 ? " sequence" : " sequences"), threads, rates,
        shares);
  }

  void read_prompt(const std::string& name, int threads) {
    const std::size_t slice = std::min(model_->most_prompt_rows(), kSliceRows);
    Workspace workspace = model_->new_workspace(slice);
    std::vector<double> rates, shares;
    for (int repeat = 0; repeat < flags_.run.repeats; ++repeat) {
      const double bound = bound_of(threads, kPrompt, /*is_prompt=*/true);
      const Team team(threads, workspace);
      SequenceState sequence = model_->new_sequence();
      const double seconds = seconds_of([&] {
        for (std::size_t at = 0; at < kPrompt; at += slice) {
          std::vector<BatchRow> batch;
          for (std::size_t i = at; i < std::min(at + slice, kPrompt); ++i) {
            batch.push_back({token(), &sequence, i + 1 == kPrompt});
          }
          model_->step(batch, workspace);
        }
      });
      rates.push_back(kPrompt / seconds);
      shares.push_back(bound / seconds);
    }
    add(name, "prompt of " + std::to_string(kPrompt), threads, rates, shares);
  }

  // Seconds that so many rows take at least.
  double bound_of(int threads, double rows, bool is_prompt) const {
    constexpr std::size_t kReadBytes = std::size_t{256} << 20;
    const double states = static_cast<double>(model_->state_bytes(1));
    const double rate = multiply_rate(threads);
    const double elements = is_prompt ? read_elements_ - head_elements_ : read_elements_;
    const double multiplying = rate > 0 ? rows * elements / rate : 0;
    const double pass = read_bytes_ / read_bandwidth(threads, kReadBytes, 1).median;
    if (!is_prompt) return std::max(pass, multiplying) + rows * states / update_rate(threads);
    // The head is read for one row. The states' three multiply-adds an element are of floats, four
    // to a vpdpbusd.
    const double reading = pass * elements / read_elements_ * rows / kSliceRows;
    const double updating = rate > 0 ? rows * 3 * (states / sizeof(float)) / (rate / 4) : 0;
    return std::max(reading, multiplying) + updating;
  }

  void add(const std::string& name, const std::string& what, int threads,
           const std::vector<double>& rates, const std::vector<double>& shares) {
    const Summary rate = summarize(rates), share = summarize(shares);
    speeds_.rows.push_back(
        {Cell::text(what), Cell::count(threads), Cell::measured(rate), Cell::measured(share)});
    measurement_.add(name + ".tokens_per_s", rate.median);
    measurement_.add(name + ".share_of_bound", share.median);
    progress_.add(1);
  }

  const LargeFlags& flags_;
  Measurement measurement_;
  const TemporaryCheckpoint checkpoint_;
  std::unique_ptr<const Transformer> model_;
  double load_seconds_ = 0;
  std::int64_t loaded_bytes_ = 0;
  double read_bytes_ = 0;     // of weights, in a step
  double read_elements_ = 0;  // of weights, multiplied for each row
  double head_elements_ = 0;  // of these
  std::mt19937 random_{1};
  Table speeds_{.title = "Speed", .columns = {"what", "threads", "tokens/s", "share of the bound"}};
  cli::Progress progress_;
};

}  // namespace

void add_large(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<LargeExperiment, LargeFlags>(
      app, command_line, "large", "Speed and memory of checkpoints of 0.1 to 2 billion parameters",
      kLargeFooter);
  cli::add_text(command, "--shape", flags->shape, "NAME", "Published shape [qwen3.5-0.8b]")
      ->check(describe::offers(checkpoint_shapes()));
  flags->run.repeats = 5;
  flags->run.add_to(command, {}, "");
}

}  // namespace lintel::bench
