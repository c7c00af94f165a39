// SPDX-License-Identifier: Apache-2.0
// Checkpoints of 0.1 to 2 billion parameters: decoding alone and in batches, prompts, through the
// server, loading; each with the bound that memory and multipliers set in the same minute, and with
// llama.cpp beside it.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bounds.h"
#include "bench/checkpoints.h"
#include "bench/commands.h"
#include "bench/llama_peer.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/throughput.h"
#include "client/cli/output.h"
#include "model/core/step_thread_pool.h"
#include "model/fastest_type.h"
#include "model/model_files.h"
#include "model/ops/dense_kernels.h"
#include "model/ops/kv_type.h"
#include "server/observability/logging.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

constexpr const char* kLargeFooter = R"(
Weights are random, of the published shapes: speed and memory do not depend on them. share_of_bound
is the time that a step needs at least over the time that it takes. At least it needs the weights
read once or the multiplications done, the longer of both, and the states read and written; both
speeds are measured for each figure, with as many threads. With --model the weights are given, and
so is what their type loses against f32.

Through gRPC and HTTP clients of a server in this process draw tokens, as many at a time as there are
sequences; grpc_share and http_share are of the speed without a server, where nothing is drawn.

Draft tokens are measured with one client: a server with --speculation auto in turn with one without,
on a text that repeats, as its only token is asked for, and on one that does not.

--context N also reads a prompt of N tokens with one sequence, once, and continues it: the layers of
softmax attention take longer with every token of it. --kv-type is that of their keys and values,
as of a server; llama.cpp keeps them in f16.

--peer llama runs llama.cpp v0.5.0 in turn with ours: its Q8_0 beside int8, the better of its Q4_0
and Q4_K beside those in 4 bits. over_peer is our speed over its own. Its libraries are npm's:

  mkdir peer && cd peer && npm init -y && npm i --ignore-scripts @node-llama-cpp/linux-x64@3.22.1

Examples:
  lintel-bench large --shape qwen3.5-0.8b --weight-type int8
  lintel-bench large --shape rwkv7-0.4b --weight-type int4 --json rwkv.json
  lintel-bench large --shape qwen3.5-0.8b --weight-type int8 --peer llama --peer-root peer
  lintel-bench large --context 8192,32768 --kv-type int8
  lintel-bench large --model weights/text-rwkv7-small --weight-type int4)";

constexpr std::size_t kPrompt = 512;
constexpr std::size_t kSliceRows = 64;  // of a prompt in a step
constexpr double kServedSteps = 8;

struct LargeFlags {
  LargeFlags() { run.weight_type = WeightType::kInt8; }

  RunFlags run;
  std::string shape = "qwen3.5-0.8b";
  std::filesystem::path model;  // in place of the shape; empty: the shape
  std::string peer;             // empty: none
  std::filesystem::path peer_root;
  std::optional<KvType> kv_type;  // nothing: by the weights
  std::vector<int> contexts;      // tokens
  double seconds = 0.5;           // of one measurement; four times as long through a server
};

std::optional<KvType> parse_kv_type(std::string_view flag, std::string_view text) {
  if (text == "auto") return std::nullopt;
  for (const KvType type : kKvTypes) {
    if (text == to_string(type)) return type;
  }
  throw cli::UsageError(std::string(flag) + " " + std::string(text) + ": auto, f32, bf16 or int8");
}

// Threads that help the one that steps with `workspace`, which outlives them.
class Team {
 public:
  Team(int threads, Workspace& workspace)
      : workspace_(workspace), helpers_(pool_, static_cast<std::size_t>(threads - 1)) {
    workspace.share_with(&pool_);
  }
  ~Team() { workspace_.share_with(nullptr); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  Workspace& workspace_;
  StepThreadPool pool_;
  const StepHelpers helpers_;
};

// llama.cpp with the formats that are compared with a weight type.
class Peer {
 public:
  Peer(const LargeFlags& flags, const std::filesystem::path& folder) {
    const bool is_int8 = flags.run.weight_type == WeightType::kInt8;
    if (!is_int8 && input_type_of(flags.run.weight_type) != WeightType::kInt8Groups) {
      throw cli::UsageError("--peer goes with --weight-type int8, int4, int4-ffn or int4-all");
    }
    for (const DType type :
         is_int8 ? std::vector{DType::kQ8_0} : std::vector{DType::kQ4_0, DType::kQ4_K}) {
      const std::filesystem::path file = folder / (std::string(to_string(type)) + ".gguf");
      write_random_gguf(flags.shape, type, file);
      formats_.push_back({to_string(type), std::make_unique<LlamaPeer>(flags.peer_root, file)});
    }
  }

  struct Format {
    std::string name;
    std::unique_ptr<LlamaPeer> llama;
  };
  std::vector<Format>& formats() { return formats_; }

 private:
  std::vector<Format> formats_;
};

// Runs of each speed of a bound, the best of which counts.
constexpr int kBoundRuns = 3;

class LargeExperiment {
 public:
  LargeExperiment(const LargeFlags& flags, cli::Console& console)
      : flags_(checked(flags)),
        measurement_(flags.run, "large", subject_of(flags), console),
        progress_(console, 8 + static_cast<std::int64_t>(flags.contexts.size()), "figures") {
    if (flags.model.empty()) write_random_checkpoint(flags.shape, folder_.path());
    // Before any thread is started.
    if (!flags.peer.empty()) peer_ = std::make_unique<Peer>(flags, folder_.path());
    speeds_.columns = speed_columns();
    contexts_.columns = {"tokens of the prompt", "threads", "prompt, tokens/s",
                         "after it, tokens/s"};
    if (peer_ != nullptr) {
      contexts_.columns.insert(contexts_.columns.end(),
                               {"llama.cpp, prompt, tokens/s", "llama.cpp, after it, tokens/s"});
    }
    const lintel::ModelFiles files(flags.model.empty() ? folder_.path() : flags.model);
    if (files.family() == nullptr) {
      throw cli::Failure(
          flags.model.string() +
          ": a model of Lintel's own format, which lintel-bench speed measures; large "
          "expects a checkpoint of a family");
    }
    // Null: the embedding is tied to the head.
    const TensorInfo* const embedding = files.checkpoint().tensors.find("rwkv7.emb.weight");
    const std::int64_t before = resident_bytes();
    load_seconds_ = seconds_of([&] {
      model_ = Transformer::load(files,
                                 {.weight_type = flags.run.weight_type, .kv_type = flags.kv_type});
    });
    loaded_bytes_ = resident_bytes() - before;
    const std::int64_t rows = embedding != nullptr ? embedding->num_elements() : 0;
    read_elements_ = static_cast<double>(model_->num_parameters() - rows);
    read_bytes_ = static_cast<double>(model_->weight_bytes()) - 2.0 * static_cast<double>(rows);
    head_elements_ = static_cast<double>(model_->config().vocab_size) * width_of(files);
    if (!flags.model.empty()) {
      const auto exact = Transformer::load(files, {.streams = true});
      loss_ = kl_divergence_bits(*exact, *model_);
    }
    set_up_logging({.level = "warn", .json = false});
    server_ =
        std::make_unique<OwnServer>(model_, OwnServer::Options{.workers = flags.run.workers,
                                                               .rows = 64,
                                                               .speculation = Speculation::kOff,
                                                               .http = true});
    drafting_server_ = std::make_unique<OwnServer>(
        model_, OwnServer::Options{
                    .workers = flags.run.workers, .rows = 64, .speculation = Speculation::kAuto});
  }

  int run() {
    const int cores = flags_.run.workers;
    measure("alone_1_thread", 1, 1, /*through_server=*/false);
    measure("alone", 1, cores, /*through_server=*/true);
    measure("seqs_4", 4, 1, /*through_server=*/false);
    measure("seqs_16", 16, cores, /*through_server=*/true);
    measure("seqs_64", 64, cores, /*through_server=*/true);
    measure("prompt_512", 0, cores, /*through_server=*/false);
    measure_drafts("drafts_repeating", "text that repeats", /*only_token=*/7);
    measure_drafts("drafts_new_text", "text that does not repeat", /*only_token=*/{});
    for (const int tokens : flags_.contexts) measure_context(tokens, cores);
    measurement_.add("weight_bytes", static_cast<double>(model_->weight_bytes()));
    measurement_.add("resident_bytes", static_cast<double>(loaded_bytes_));
    measurement_.add("load_seconds", load_seconds_);
    if (loss_) measurement_.add("bits_lost", *loss_);
    speeds_.notes.push_back("Ours ran on " + model_->kernels() + ".");
    if (model_->kv_type()) {
      speeds_.notes.push_back("Keys and values: ours in " +
                              std::string(to_string(*model_->kv_type())) +
                              (peer_ == nullptr ? "." : ", llama.cpp's in f16."));
    }
    if (multiply_rate(1) == 0) {
      speeds_.notes.push_back(
          "The bound is of memory alone: multiplications are not measured here.");
    }
    measurement_.add(std::move(speeds_));
    measurement_.add(std::move(served_));
    measurement_.add(std::move(drafts_));
    if (!contexts_.rows.empty()) measurement_.add(std::move(contexts_));
    measurement_.add(costs());
    return measurement_.publish();
  }

 private:
  static std::string subject_of(const LargeFlags& flags) {
    return (flags.model.empty() ? flags.shape + ", random weights" : flags.model.string()) +
           (flags.kv_type ? ", KV cache " + std::string(to_string(*flags.kv_type)) : "");
  }

  static const LargeFlags& checked(const LargeFlags& flags) {
    if (flags.peer.empty() != flags.peer_root.empty()) {
      throw cli::UsageError("--peer and --peer-root go together");
    }
    if (!flags.peer.empty() && !flags.model.empty()) {
      throw cli::UsageError("--peer goes with --shape, not with --model");
    }
    if (!flags.peer.empty()) LlamaPeer::require(flags.peer_root);
    return flags;
  }

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

  // Tokens a second of steps of so many tokens, for window_.
  double per_second(std::size_t tokens_of_step, const std::function<void()>& step) const {
    int steps = 0;
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::duration<double> taken{};
    while (taken < window_) {
      step();
      ++steps;
      taken = std::chrono::steady_clock::now() - begin;
    }
    return steps * static_cast<double>(tokens_of_step) / taken.count();
  }

  // Tokens a second of steps of a token of each of `rows` sequences.
  double decode(std::size_t rows, int threads) {
    Workspace workspace = model_->new_workspace(rows);
    std::vector<SequenceState> sequences;
    for (std::size_t r = 0; r < rows; ++r) sequences.push_back(model_->new_sequence());
    const Team team(threads, workspace);  // its threads poll: only while we compute
    const auto step = [&] {
      std::vector<BatchRow> batch;
      for (SequenceState& sequence : sequences) batch.push_back({token(), &sequence, true});
      model_->step(batch, workspace);
    };
    step();
    step();
    return per_second(rows, step);
  }

  // continues: also decodes after it.
  LongContextSpeed read_prompt(std::size_t tokens, int threads, bool continues) {
    const std::size_t slice = std::min(model_->most_prompt_rows(), kSliceRows);
    Workspace workspace = model_->new_workspace(slice);
    const Team team(threads, workspace);
    SequenceState sequence = model_->new_sequence();
    const auto read = [&](std::size_t count) {
      for (std::size_t at = 0; at < count; at += slice) {
        std::vector<BatchRow> batch;
        for (std::size_t i = at; i < std::min(at + slice, count); ++i) {
          batch.push_back({token(), &sequence, i + 1 == count});
        }
        model_->step(batch, workspace);
      }
    };
    read(32);  // not counted: touches memory
    LongContextSpeed speed;
    speed.prompt = static_cast<double>(tokens) / seconds_of([&] { read(tokens); });
    if (continues) {
      read(1);
      speed.decode = per_second(1, [&] { read(1); });
    }
    return speed;
  }

  // step: seconds of one that has a token of each client. The window has eight of them or more.
  double through_server(std::size_t clients, bool http, double step) const {
    return measure_throughput(
               {.address = http ? server_->http_address() : server_->address(),
                .http = http,
                .sequence = {.first_token = 1, .tokens = kEndlessTokens, .ends_itself = false},
                .clients = static_cast<int>(clients),
                .warm_up = window_,
                .window =
                    std::max(4 * window_, kServedSteps * std::chrono::duration<double>(step))})
        .tokens_per_second;
  }

  // Seconds that so many rows take at least.
  double bound_of(int threads, double rows, bool is_prompt) const {
    constexpr std::size_t kReadBytes = std::size_t{256} << 20;
    const double states = static_cast<double>(model_->state_bytes(1));
    const double rate = multiply_rate(threads);
    const double elements = is_prompt ? read_elements_ - head_elements_ : read_elements_;
    const double fastest = std::max(rate, tile_multiply_rate(threads));
    const double multiplying = fastest > 0 ? rows * elements / fastest : 0;
    const double pass = read_bytes_ / read_bandwidth(threads, kReadBytes, kBoundRuns).most;
    if (!is_prompt) return std::max(pass, multiplying) + rows * states / update_rate(threads);
    // The head is read for one row. The states' three multiply-adds an element are of floats.
    const double reading = pass * elements / read_elements_ * rows / kSliceRows;
    const double of_floats = float_multiply_rate(threads);
    const double updating = of_floats > 0 ? rows * 3 * (states / sizeof(float)) / of_floats : 0;
    return std::max(reading, multiplying) + updating;
  }

  // rows: of a step; 0: a prompt.
  void measure(const std::string& name, std::size_t rows, int threads, bool through_server) {
    const bool is_prompt = rows == 0;
    const double tokens = is_prompt ? kPrompt : static_cast<double>(rows);
    std::vector<Peer::Format> none;
    std::vector<Peer::Format>& formats = peer_ != nullptr ? peer_->formats() : none;
    std::vector<double> rates, shares, over_grpc, over_http;
    std::vector<std::vector<double>> peers(formats.size());
    for (int repeat = 0; repeat < flags_.run.repeats; ++repeat) {
      const double bound = bound_of(threads, tokens, is_prompt);
      rates.push_back(is_prompt ? read_prompt(kPrompt, threads, false).prompt
                                : decode(rows, threads));
      shares.push_back(bound * rates.back() / tokens);
      for (std::size_t i = 0; i < formats.size(); ++i) {
        LlamaPeer& llama = *formats[i].llama;
        peers[i].push_back(is_prompt ? llama.read_prompt(kPrompt, threads)
                                     : llama.decode(static_cast<int>(rows), threads));
      }
      if (!through_server) continue;
      const double step = tokens / rates.back();
      over_grpc.push_back(this->through_server(rows, /*http=*/false, step));
      over_http.push_back(this->through_server(rows, /*http=*/true, step));
    }
    const Summary rate = summarize(rates), share = summarize(shares);
    const std::string what = is_prompt   ? "prompt of " + std::to_string(kPrompt)
                             : rows == 1 ? "1 sequence"
                                         : std::to_string(rows) + " sequences";
    std::vector<Cell> row = {Cell::text(what), Cell::count(threads), Cell::measured(rate),
                             Cell::measured(share)};
    measurement_.add(name + ".tokens_per_s", rate.median);
    measurement_.add(name + ".share_of_bound", share.median);
    double best = 0;
    for (const std::vector<double>& of_format : peers) {
      const Summary peer = summarize(of_format);
      row.push_back(Cell::measured(peer));
      best = std::max(best, peer.median);
    }
    if (peer_ != nullptr) {
      row.push_back(Cell::number(rate.median / best, 2));
      measurement_.add(name + ".peer_tokens_per_s", best);
      measurement_.add(name + ".over_peer", rate.median / best);
    }
    speeds_.rows.push_back(std::move(row));
    if (through_server) {
      const Summary grpc = summarize(over_grpc), http = summarize(over_http);
      served_.rows.push_back({Cell::text(what), Cell::measured(grpc),
                              Cell::number(grpc.median / rate.median, 2), Cell::measured(http),
                              Cell::number(http.median / rate.median, 2)});
      measurement_.add(name + ".grpc_tokens_per_s", grpc.median);
      measurement_.add(name + ".grpc_share", grpc.median / rate.median);
      measurement_.add(name + ".http_tokens_per_s", http.median);
      measurement_.add(name + ".http_share", http.median / rate.median);
    }
    progress_.add(1);
  }

  // One client of a server with draft tokens, and of one without, in turn.
  void measure_drafts(const std::string& name, const std::string& what,
                      std::optional<std::int32_t> only_token) {
    const auto rate = [&](const OwnServer& server) {
      return measure_throughput(
                 {.address = server.address(),
                  .sequence = {.first_token = 1, .tokens = kEndlessTokens, .ends_itself = false},
                  .only_token = only_token,
                  .warm_up = window_,
                  .window = 4 * window_})
          .tokens_per_second;
    };
    std::vector<double> off, with, ratios;
    for (int repeat = 0; repeat < flags_.run.repeats; ++repeat) {
      // Each comes first in turn, as a machine may slow down.
      if (repeat % 2 != 0) with.push_back(rate(*drafting_server_));
      off.push_back(rate(*server_));
      if (repeat % 2 == 0) with.push_back(rate(*drafting_server_));
      ratios.push_back(with.back() / off.back());
    }
    const Summary ratio = summarize(ratios);
    drafts_.rows.push_back({Cell::text(what), Cell::measured(summarize(off)),
                            Cell::measured(summarize(with)), Cell::measured(ratio)});
    measurement_.add(name + ".off_tokens_per_s", summarize(off).median);
    measurement_.add(name + ".tokens_per_s", summarize(with).median);
    measurement_.add(name + ".over_off", ratio.median);
    progress_.add(1);
  }

  // A prompt of so many tokens, and steps after it.
  void measure_context(int tokens, int threads) {
    const auto count = static_cast<std::size_t>(tokens);
    const LongContextSpeed ours = read_prompt(count, threads, /*continues=*/true);
    const std::string name = "context_" + std::to_string(tokens);
    measurement_.add(name + ".prompt_tokens_per_s", ours.prompt);
    measurement_.add(name + ".alone_tokens_per_s", ours.decode);
    std::vector<Cell> row = {Cell::count(tokens), Cell::count(threads), Cell::number(ours.prompt),
                             Cell::number(ours.decode)};
    if (peer_ != nullptr) {
      LongContextSpeed best;
      for (const Peer::Format& format : peer_->formats()) {
        const LongContextSpeed peer = format.llama->read_and_continue(tokens, threads);
        best = {.prompt = std::max(best.prompt, peer.prompt),
                .decode = std::max(best.decode, peer.decode)};
      }
      row.insert(row.end(), {Cell::number(best.prompt), Cell::number(best.decode)});
      measurement_.add(name + ".prompt_over_peer", ours.prompt / best.prompt);
      measurement_.add(name + ".alone_over_peer", ours.decode / best.decode);
    }
    contexts_.rows.push_back(std::move(row));
    progress_.add(1);
  }

  Table costs() {
    Table table{.title = "Memory and loading",
                .columns = {"weights", "bytes", "resident bytes after loading", "seconds to load",
                            "bits a token lost"}};
    table.rows.push_back({Cell::text(to_string(model_->weight_type())),
                          Cell::count(static_cast<std::int64_t>(model_->weight_bytes())),
                          Cell::count(loaded_bytes_), Cell::number(load_seconds_),
                          loss_ ? Cell::number(*loss_, 2) : Cell::text("unknown")});
    if (peer_ == nullptr) return table;
    for (const Peer::Format& format : peer_->formats()) {
      table.rows.push_back({Cell::text("llama.cpp, " + format.name), Cell::none(),
                            Cell::count(format.llama->resident_bytes()),
                            Cell::number(format.llama->load_seconds()), Cell::text("unknown")});
    }
    return table;
  }

  std::vector<std::string> speed_columns() const {
    std::vector<std::string> columns = {"what", "threads", "tokens/s", "share of the bound"};
    if (peer_ == nullptr) return columns;
    for (const Peer::Format& format : peer_->formats()) {
      columns.push_back("llama.cpp, " + format.name + ", tokens/s");
    }
    columns.push_back("over llama.cpp");
    return columns;
  }

  const LargeFlags& flags_;
  const std::chrono::duration<double> window_{flags_.seconds};
  Measurement measurement_;
  const ScratchDirectory folder_{std::filesystem::temp_directory_path()};
  std::unique_ptr<Peer> peer_;  // null: none
  std::shared_ptr<const Transformer> model_;
  std::unique_ptr<OwnServer> server_;           // without draft tokens
  std::unique_ptr<OwnServer> drafting_server_;  // with them
  double load_seconds_ = 0;
  std::int64_t loaded_bytes_ = 0;
  double read_bytes_ = 0;     // of weights, in a step
  double read_elements_ = 0;  // of weights, multiplied for each row
  double head_elements_ = 0;  // of these
  std::optional<double> loss_;
  std::mt19937 random_{1};
  Table speeds_{.title = "Speed"};
  Table served_{.title = "Through the server",
                .columns = {"what", "gRPC, tokens/s", "share", "HTTP, tokens/s", "share "}};
  Table drafts_{.title = "Draft tokens, one sequence through gRPC",
                .columns = {"what", "off, tokens/s", "auto, tokens/s", "ratio"}};
  Table contexts_{.title = "Long contexts, one sequence"};
  cli::Progress progress_;
};

}  // namespace

void add_large(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<LargeExperiment, LargeFlags>(
      app, command_line, "large", "Speed and memory of checkpoints of 0.1 to 2 billion parameters",
      kLargeFooter);
  CLI::Option* const shape =
      cli::add_text(command, "--shape", flags->shape, "NAME", "Published shape [qwen3.5-0.8b]")
          ->check(describe::offers(checkpoint_shapes()));
  command.add_option("--model", flags->model, "A checkpoint in place of a shape")
      ->type_name("DIRECTORY")
      ->excludes(shape);
  cli::add_parsed(command, "--context", flags->contexts, parse_counts, "N[,N...]",
                  "Also prompts of so many tokens, and what follows them");
  cli::add_parsed(
      command, "--kv-type", flags->kv_type, parse_kv_type, "TYPE",
      "Type of cached keys and values: f32, bf16 or int8; auto: f32 beside weights in f32, else "
      "bf16 [auto]")
      ->check(describe::offers({"auto", "f32", "bf16", "int8"}));
  cli::add_text(command, "--peer", flags->peer, "NAME", "Also measure llama.cpp, in turn with ours")
      ->check(describe::offers(std::vector<std::string>{"llama"}));
  command
      .add_option("--peer-root", flags->peer_root,
                  "With --peer: the directory whose node_modules has its libraries")
      ->type_name("DIRECTORY");
  cli::add_parsed(command, "--seconds", flags->seconds, positive_number(3600), "SECONDS",
                  "Length of one measurement, four times as long through a server [0.5]");
  flags->run.repeats = 5;
  flags->run.add_to(command, {}, "");
}

}  // namespace lintel::bench
