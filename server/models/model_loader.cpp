// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_loader.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/core/sha256.h"
#include "model/core/step_thread_pool.h"
#include "model/fastest_type.h"
#include "model/formats/gguf.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "server/chat/template/chat_model.h"
#include "server/core/threads.h"
#include "server/models/batch_rows.h"
#include "server/models/model_repository.h"

namespace lintel {

std::vector<AdapterSource> adapters_in(const std::filesystem::path& model_directory) {
  std::vector<AdapterSource> found;
  if (model_directory.empty()) return found;
  std::error_code error;
  std::filesystem::directory_iterator it(model_directory / "adapters", error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code unreadable;
    const std::string name = it->path().filename().string();
    if (is_model_name(name) && it->is_directory(unreadable)) found.push_back({name, it->path()});
  }
  std::ranges::sort(found, {}, &AdapterSource::name);
  return found;
}

namespace {

constexpr int kSteps = 2;       // the second one reads a state
constexpr int kMostRows = 256;  // several of the largest blocks that kernels take
// A step of a large model takes a tenth of a second, and its states take longer to allocate than to
// compute: few sequences and steps are compared.
constexpr int kMostRowsOfLarge = 8;  // enough for AMX's tiles, too
constexpr int kMostSequencesOfLarge = 4;
// Nice values of background work on a large model while it is served. A request's thread on the
// same core gets three and nine times as much of it.
constexpr int kNiceOfNumerics = 5;  // calls may wait for numerics
constexpr int kNiceOfCheck = 10;

class SelfCheck {
 public:
  SelfCheck(const Transformer& model, int max_rows, const StepFunction& step, StepThreadPool* team,
            const std::stop_token& stop)
      : model_(model),
        step_(step),
        stop_(stop),
        is_large_(model.num_parameters() > ModelLoader::kLargeParameters),
        most_rows_(std::min(max_rows, is_large_ ? kMostRowsOfLarge : kMostRows)),
        most_(std::min(most_rows_, is_large_ ? kMostSequencesOfLarge : kMostRows)),
        team_(team),
        workspace_(model.new_workspace(static_cast<std::size_t>(most_rows_))) {}

  bool passes() {
    // Compares outputs of batches, of several sizes and the largest, with those of single rows on
    // one thread. Products of matrices were proven by their shapes before (ProductLibrary). The
    // last row of each batch and some between are taken, since all would take most of the start.
    using Numbers = std::vector<int>;
    std::map<int, Outputs> alone;
    for (const int i :
         is_large_ ? Numbers{0, 2, most_ - 1} : Numbers{0, 1, 2, 6, 15, 30, 47, 64, most_ - 1}) {
      if (stop_.stop_requested()) return true;
      if (i < most_) alone[i] = last_outputs(i, 1);
    }
    for (const int count :
         is_large_ ? Numbers{3, most_} : Numbers{2, 3, 7, 16, 31, 48, 65, most_}) {
      if (stop_.stop_requested()) return true;
      if (count <= most_ && !agrees(last_outputs(0, count), count, alone)) return false;
    }
    const int count = std::min(most_, most_rows_ / kSteps);
    return count == 0 || agrees(in_one_step(count), count, alone);
  }

 private:
  using Outputs = std::vector<float>;  // [rows, num_outputs]

  std::int32_t token(int sequence, int step) const {
    return (17 * sequence + 5 * step + 1) % model_.config().vocab_size;
  }

  // Outputs of `count` sequences from `first` on, stepped together, after the last step.
  Outputs last_outputs(int first, int count) {
    workspace_.share_with(count == 1 ? nullptr : team_);
    Outputs outputs;
    for (int i = 0; i < count; ++i) sequence(i).reset();
    for (int step = 0; step < kSteps; ++step) {
      std::vector<BatchRow> rows;
      for (int i = 0; i < count; ++i) {
        rows.push_back({token(first + i, step), &sequence(i),
                        /*wants_output=*/step == kSteps - 1});
      }
      outputs = run(rows);
    }
    return outputs;
  }

  // Makes each state once: that of a large model takes as long as a step.
  SequenceState& sequence(int i) {
    while (sequences_.size() <= static_cast<std::size_t>(i)) {
      sequences_.push_back(model_.new_sequence());
    }
    return sequences_[static_cast<std::size_t>(i)];
  }

  // Runs the first sequences again, with all their tokens as rows of one step, as prompts are read.
  // Returns the outputs of the last token of each.
  Outputs in_one_step(int count) {
    std::vector<BatchRow> rows;
    for (int i = 0; i < count; ++i) {
      sequence(i).reset();
      for (int step = 0; step < kSteps; ++step) {
        rows.push_back({token(i, step), &sequence(i), /*wants_output=*/true});
      }
    }
    const Outputs all = run(rows);
    const auto width = static_cast<std::ptrdiff_t>(all.size() / rows.size());
    Outputs last;
    for (int i = 0; i < count; ++i) {
      const auto end = all.begin() + (i + 1) * kSteps * width;
      last.insert(last.end(), end - width, end);
    }
    return last;
  }

  Outputs run(std::span<const BatchRow> rows) {
    const MatrixView<const float> out = step_(rows, workspace_);
    Outputs outputs;
    for (std::size_t r = 0; r < out.rows(); ++r) {
      outputs.insert(outputs.end(), out.row(r).begin(), out.row(r).end());
    }
    return outputs;
  }

  static bool agrees(const Outputs& together, int count, const std::map<int, Outputs>& alone) {
    return std::ranges::all_of(alone, [&](const auto& entry) {
      const auto& [i, one] = entry;
      if (i >= count) return true;
      return same_bits(
          std::span(together).subspan(static_cast<std::size_t>(i) * one.size(), one.size()), one);
    });
  }

  static bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  }

  const Transformer& model_;
  const StepFunction& step_;
  const std::stop_token& stop_;
  const bool is_large_;
  const int most_rows_;  // of a step
  const int most_;       // sequences
  StepThreadPool* const team_;
  Workspace workspace_;
  std::deque<SequenceState> sequences_;
};

StepFunction step_of(const Transformer& model) {
  return [&model](std::span<const BatchRow> rows, Workspace& workspace) {
    return model.step(rows, workspace);
  };
}

}  // namespace

bool rows_are_independent(const Transformer& model, int max_rows, StepThreadPool* team) {
  return rows_are_independent(model, max_rows, step_of(model), team);
}

bool rows_are_independent(const Transformer& model, int max_rows, const StepFunction& step,
                          StepThreadPool* team, const std::stop_token& stop) {
  if (model.config().max_length != 0 && model.config().max_length < kSteps) return true;
  return SelfCheck(model, max_rows, step, team, stop).passes();
}

std::vector<std::string> warnings_of_check(const std::string& name,
                                           const std::function<bool()>& passes,
                                           const std::stop_token& stop) {
  std::string found;
  try {
    if (!passes()) {
      found = "on this machine the tokens of a request depend on what shares its batch";
    }
  } catch (const std::exception& error) {
    found = std::string(
                "whether the tokens of a request depend on what shares its batch is "
                "unknown: ") +
            error.what();
  }
  if (!found.empty()) {
    spdlog::error("model {}: {}", name, found);
    return {found};
  }
  if (!stop.stop_requested()) {
    spdlog::info("model {}: its tokens do not depend on what shares a batch (self-check)", name);
  }
  return {};
}

namespace {

// "271360 bytes a session", "KV cache bf16, at most ..."
std::string state_description(const Transformer& transformer) {
  const std::string cache =
      transformer.kv_type() ? "KV cache " + std::string(to_string(*transformer.kv_type())) + ", "
                            : "";
  const std::int64_t longest = transformer.config().served_length();
  const auto bytes = [&](std::int64_t tokens) {
    return std::to_string(transformer.state_bytes(tokens)) + " bytes a session";
  };
  if (transformer.constant_state()) return bytes(longest);
  if (longest > 0) return cache + "at most " + bytes(longest) + " of full length";
  const std::int64_t full = transformer.tokens_until_full();
  if (full != kNeverFull) return cache + "at most " + bytes(full);
  return cache + bytes(1000) + " of 1000 tokens, growing";
}

void log_loaded(const ModelSource& source, const Transformer& transformer) {
  spdlog::info(
      "model {} version {} from {}: {} parameters, {} weights in {} bytes, attention {}, {}, {}",
      source.name, source.version, source.directory.string(), transformer.num_parameters(),
      to_string(transformer.weight_type()), transformer.weight_bytes(),
      attention_names(transformer.config()), state_description(transformer), transformer.kernels());
  for (const std::string& warning : transformer.warnings()) {
    spdlog::warn("model {}: {}", source.name, warning);
  }
}

// The most rows of a step with drafts.
int most_draft_rows(const Scheduler::Options& scheduling) {
  return std::min(scheduling.speculation_rows,
                  std::max(scheduling.max_batch_rows, scheduling.most_rows_per_step));
}

// Calls work(team) with as many threads as may share a step while the model is served.
template <typename Work>
auto with_team(const Scheduler::Options& scheduling, const Work& work) {
  const int most = scheduling.step_threads > 0 ? scheduling.step_threads : usable_cores();
  const int threads = std::max(1, std::min(scheduling.workers, most));
  StepThreadPool team;
  const StepHelpers helpers(team, static_cast<std::size_t>(threads - 1));
  return work(&team);
}

// True if drafts or rows for prompts are chosen by the cost of a step, which is not measured for
// small models.
bool uses_cost(const Transformer& transformer, const Scheduler::Options& scheduling) {
  const bool is_asked =
      scheduling.speculation == Speculation::kAuto || scheduling.prefill_rows_per_step == 0;
  return is_asked && !transformer.recomputes() &&
         transformer.num_parameters() >= kLeastMeasuredParameters;
}

StepCost measure_cost(
    const Transformer& transformer, const Scheduler::Options& scheduling, const Clock& clock,
    const std::function<bool()>& ends = [] { return false; }) {
  // One stream of a large model is served by all threads.
  const auto measured = [&](StepThreadPool* team) {
    return measure_step_cost(transformer, most_draft_rows(scheduling), clock, team, ends);
  };
  return is_large(transformer) ? with_team(scheduling, measured) : measured(nullptr);
}

void log_cost(const std::string& name, const StepCost& cost) {
  const std::string more = cost.few_rows == 0 ? ""
                                              : fmt::format(", {:.1f} a row beyond {}",
                                                            1e6f * cost.more_row, cost.few_rows);
  const std::string head =
      cost.draft == 0.0f ? ""
                         : fmt::format(", {:.0f} a token of the draft head", 1e6f * cost.draft);
  spdlog::info("model {}: a step takes {:.0f} us, {:.1f} a row, {:.1f} a sequence{}{}", name,
               1e6f * cost.fixed, 1e6f * cost.row, 1e6f * cost.state, more, head);
}

ModelError there_twice(const ServedModel& model, const std::string& adapter) {
  return ModelError("adapter " + adapter + " of model " + model.name +
                    " is in the model's directory, and --adapter gives it, too");
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) throw ModelError(path.string() + " cannot be read");
  return text;
}

// The sampling that a GGUF file recommends; empty if it has no such keys, or their values are none
// of these.
SamplingDefaults sampling_defaults_of(const GgufFile& file) {
  SamplingDefaults defaults;
  const auto read = [&](const char* name, double least, double most) -> std::optional<float> {
    const GgufValue* const value = file.find_key(std::string("general.sampling.") + name);
    if (value == nullptr || value->is_array()) return std::nullopt;
    const auto integer = value->integer();
    const auto number = integer ? static_cast<double>(*integer) : value->number();
    if (!number || !(*number >= least && *number <= most)) return std::nullopt;
    return static_cast<float>(*number);
  };
  defaults.temperature = read("temp", 0.0, 100.0);
  defaults.top_p = read("top_p", 1e-6, 1.0);
  defaults.min_p = read("min_p", 0.0, 1.0);
  defaults.repetition_penalty = read("penalty_repeat", 0.01, 100.0);
  if (const auto top_k = read("top_k", 0.0, 1e6)) {
    defaults.top_k = static_cast<std::uint32_t>(*top_k);
  }
  return defaults;
}

SamplingDefaults sampling_defaults_of(const ModelFiles& files, const ModelSource& source) {
  const GgufFile* const gguf = files.family() == nullptr ? nullptr : files.checkpoint().gguf;
  return gguf != nullptr ? sampling_defaults_of(*gguf) : load_sampling_defaults(source.directory);
}

// Loads the chat template. One that is not served disables only chat for the model.
std::shared_ptr<const ChatModel> load_chat(ChatTemplateSources sources,
                                           const SamplingDefaults& defaults,
                                           const ModelSource& source, const ModelOptions& options) {
  for (const ChatTemplateFile& given : options.chat_templates) {
    if (given.model != source.name) continue;
    sources.templates.clear();
    sources.templates["default"] = read_text_file(given.path);
    resolve_template_names(sources, given.path.string());
  }
  std::optional<ToolDialect> dialect;
  for (const GivenToolDialect& given : options.tool_dialects) {
    if (given.model == source.name) dialect = given.dialect;
  }
  for (const std::string& note : sources.notes) {
    spdlog::warn("model {}: chat templates: {}", source.name, note);
  }
  auto chat = std::make_shared<const ChatModel>(
      compile_chat_templates(sources.templates, sources.special_tokens), defaults, dialect);
  for (const auto& [name, error] : chat->templates().failures) {
    spdlog::warn("model {}: chat template '{}' is not served: line {}: {}", source.name, name,
                 error.line(), error.what());
  }
  if (const ChatTemplate* const found = chat->find(/*has_tools=*/true)) {
    const TemplateTraits& traits = chat->traits(*found);
    spdlog::info("model {}: chat template of {} bytes{}{}", source.name, found->source().size(),
                 traits.tools ? ", calls of tools: " + std::string(name_of(traits.dialect)) : "",
                 traits.opens_thinking_on ? ", thinks" : "");
    if (traits.arguments == TemplateTraits::CallArguments::kNone) {
      // A warning if the template shows tools: otherwise a history seldom has calls.
      spdlog::log(
          traits.tools ? spdlog::level::warn : spdlog::level::info,
          "model {}: its chat template leaves calls of tools out: prompts do not show those of "
          "earlier turns",
          source.name);
    }
  }
  return chat;
}

// The progress of a load: for `on_progress`, and for a large model in a line on a terminal.
class LoadProgress {
 public:
  LoadProgress(std::string model, ModelLoader::OnProgress on_progress)
      : model_(std::move(model)), on_progress_(std::move(on_progress)) {}
  ~LoadProgress() { finish(); }
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  void show(std::uint64_t done, std::uint64_t total) {
    constexpr std::uint64_t kLeastBytes = 100'000'000;  // of a large model
    const auto percent = static_cast<int>(done * 100 / std::max<std::uint64_t>(total, 1));
    if (percent == percent_) return;
    percent_ = percent;
    const bool is_large = total >= kLeastBytes;
    const std::string progress =
        fmt::format("{} % of {:.1f} {} read", percent,
                    static_cast<double>(total) / (is_large ? 1e9 : 1e6), is_large ? "GB" : "MB");
    if (on_progress_) on_progress_(progress);
    if (!is_large || !is_terminal_) return;
    write(fmt::format("\r\033[Kmodel {}: {}", model_, progress));
    is_drawn_ = true;
  }
  // Clears the line: fewer bytes may have been read than there are.
  void finish() {
    if (std::exchange(is_drawn_, false)) write("\r\033[K");
  }

 private:
  static void write(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }

  const std::string model_;
  const ModelLoader::OnProgress on_progress_;
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  int percent_ = -1;  // last reported; -1: none
  bool is_drawn_ = false;
};

// A random fingerprint, which no other model has.
std::string unknown_fingerprint() {
  Sha256 hash;
  std::random_device random;
  for (int i = 0; i < 8; ++i) hash.add_length(random());
  return hash.hex();
}

}  // namespace

std::optional<StepCost> measure_when_idle(const Scheduler& scheduler, const Measure& measure,
                                          std::chrono::steady_clock::duration longest,
                                          const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kBetweenLooks{20};
  const auto end = std::chrono::steady_clock::now() + longest;
  const auto is_over = [&] { return stop.stop_requested() || scheduler.draining(); };
  while (!is_over() && std::chrono::steady_clock::now() < end) {
    if (scheduler.idle()) {
      const std::uint64_t steps = scheduler.stats().steps;
      const auto is_disturbed = [&] {
        return is_over() || !scheduler.idle() || scheduler.stats().steps != steps;
      };
      const StepCost cost = measure(is_disturbed);
      if (!is_disturbed()) return cost;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return {};
}

NumericsFingerprint identify(const std::string& name, const ModelFiles& files,
                             std::promise<std::string> fingerprint, const Transformer& transformer,
                             const std::stop_token& stop) {
  try {
    fingerprint.set_value(fingerprint_of(files, stop));
  } catch (const std::exception& error) {  // the files were written to meanwhile
    spdlog::error("model {}: {}: its sessions cannot be continued by a later load of it", name,
                  error.what());
    fingerprint.set_value(unknown_fingerprint());
  }
  if (stop.stop_requested()) return {};
  try {
    NumericsFingerprint numerics = numerics_of(transformer);
    spdlog::info("model {}: fingerprint {}, numerics {} ({})", name, transformer.fingerprint(),
                 numerics.hex, numerics.text);
    return numerics;
  } catch (const std::exception& error) {  // no memory
    spdlog::error("model {}: its numerics cannot be computed: {}", name, error.what());
    return {.hex = unknown_fingerprint(), .text = "unknown"};
  }
}

namespace {

// Measures the cost of a step, which was assumed so far.
void measure_later(const std::string& name, const Transformer& transformer, const Clock& clock,
                   Scheduler& scheduler, const std::stop_token& stop) {
  constexpr std::chrono::minutes kLongest{1};
  const Scheduler::Options& scheduling = scheduler.options();
  if (!uses_cost(transformer, scheduling)) return;
  try {
    const auto measure = [&](const std::function<bool()>& ends) {
      return measure_cost(transformer, scheduling, clock, ends);
    };
    const auto cost = measure_when_idle(scheduler, measure, kLongest, stop);
    if (cost) {
      log_cost(name, *cost);
      scheduler.set_step_cost(*cost);
    } else if (!stop.stop_requested() && !scheduler.draining()) {
      spdlog::info("model {}: the cost of a step is assumed, as requests came all the time", name);
    }
  } catch (const std::exception& error) {  // no memory
    spdlog::warn("model {}: the cost of a step is assumed: {}", name, error.what());
  }
}

}  // namespace

LoadPlan plan_as_asked(const ModelFiles& files, const ModelOptions& options) {
  if (options.strict_config) refuse_unknown_keys(files);
  TypeChoice choice{.text = {}, .most_bits_lost = options.weight_type_loss};
  if (!options.weight_type_text.empty()) {
    choice.text.resize(kMostTextBytes);
    std::ifstream file(options.weight_type_text, std::ios::binary);
    file.read(choice.text.data(), static_cast<std::streamsize>(choice.text.size()));
    choice.text.resize(static_cast<std::size_t>(file.gcount()));
    if (choice.text.empty()) {
      throw ModelError("--weight-type-text " + options.weight_type_text.string() +
                       " is empty or cannot be read");
    }
  }
  LoadPlan plan =
      plan_to_load(files, options.weight_type, options.attention, options.kv_type, choice);
  plan.options.context = options.context;
  return plan;
}

std::shared_ptr<ServedModel> ModelLoader::load(const ModelSource& source,
                                               OnProgress on_progress) const {
  auto opened = std::make_shared<ModelFiles>(source.directory);
  ModelFiles& files = *opened;
  const auto progress = std::make_shared<LoadProgress>(source.name, std::move(on_progress));
  files.report_reads(
      [progress](std::uint64_t done, std::uint64_t total) { progress->show(done, total); });
  LoadPlan plan = plan_as_asked(files, options_);
  std::promise<std::string> fingerprint;
  plan.options.fingerprint = fingerprint.get_future().share();
  ModelMemory::Reservation reservation = admit(source.name, plan.size);
  LoadedModel loaded = load_as_planned(files, plan);
  progress->finish();
  std::shared_ptr<const Transformer> transformer = std::move(loaded.transformer);
  plan.options.weight_type = transformer->weight_type();
  const std::size_t resident_bytes = measure_model(files, plan.options).resident_bytes;
  reservation.shrink_to(resident_bytes);
  log_loaded(source, *transformer);
  if (!loaded.reason.empty()) {
    spdlog::info("model {}: served in {}: {} (--weight-type auto)", source.name,
                 to_string(transformer->weight_type()), loaded.reason);
  }

  const int rows = batch_rows(*transformer);
  spdlog::info("model {}: {} workers of {} rows", source.name, options_.scheduling.workers, rows);
  std::vector<std::string> warnings = transformer->warnings();
  std::shared_ptr<const ChatModel> chat = load_chat(
      files.load_chat_template_sources(), sampling_defaults_of(files, source), source, options_);
  // Large models are served before they are checked and measured.
  const bool is_large = transformer->num_parameters() > large_parameters_;
  std::shared_ptr<ServedModel> served =
      serve(source, counted(std::move(transformer), std::move(reservation)), std::move(warnings),
            rows, std::move(loaded.reason), /*measures=*/!is_large);
  served->chat = std::move(chat);
  served->memory_bytes = resident_bytes;
  served->numerics_later =
      std::async(std::launch::async, [opened = std::move(opened), promise = std::move(fingerprint),
                                      transformer = served->transformer, name = source.name,
                                      is_large, stop = served->unloads.get_token()]() mutable {
        if (is_large) ::setpriority(PRIO_PROCESS, 0, kNiceOfNumerics);
        const std::shared_ptr<ModelFiles> held = std::move(opened);  // closed at the end
        return identify(name, *held, std::move(promise), *transformer, stop);
      }).share();
  const int most_rows = std::max(rows, most_prompt_rows(*served->transformer));
  served->later_warnings =
      std::async(std::launch::async, [scheduling = options_.scheduling, name = source.name,
                                      is_large, most_rows, transformer = served->transformer,
                                      numerics = served->numerics_later,
                                      stop = served->unloads.get_token()] {
        // Numerics come first: without them stored sessions cannot be continued.
        numerics.wait();
        // The threads that share the steps inherit the priority.
        if (is_large) ::setpriority(PRIO_PROCESS, 0, kNiceOfCheck);
        const auto passes = [&] {
          return with_team(scheduling, [&](StepThreadPool* team) {
            return rows_are_independent(*transformer, most_rows, step_of(*transformer), team, stop);
          });
        };
        return warnings_of_check(name, passes, stop);
      }).share();
  if (!is_large) {
    served->later_warnings.wait();
    return served;
  }
  try {
    served->cost_later = std::async(
        std::launch::async, [name = source.name, transformer = served->transformer, &clock = clock_,
                             &scheduler = *served->scheduler, checked = served->later_warnings,
                             stop = served->unloads.get_token()] {
          checked.wait();
          measure_later(name, *transformer, clock, scheduler, stop);
        });
  } catch (const std::system_error& error) {  // no thread
    spdlog::warn("model {}: the cost of a step is assumed: {}", source.name, error.what());
  }
  return served;
}

std::vector<AdapterSource> ModelLoader::adapter_sources(const ServedModel& model) const {
  std::vector<AdapterSource> sources = adapters_in(model.directory);
  for (const AdapterDirectory& given : options_.adapters) {
    if (given.model != model.name) continue;
    if (std::ranges::find(sources, given.name, &AdapterSource::name) != sources.end()) {
      throw there_twice(model, given.name);
    }
    sources.push_back({given.name, given.path});
  }
  if (sources.size() > AdapterTable::kMost) {
    throw ModelError("model " + model.name + " has " + std::to_string(sources.size()) +
                     " adapters, more than " + std::to_string(AdapterTable::kMost));
  }
  return sources;
}

std::optional<AdapterSource> ModelLoader::find_adapter(const ServedModel& model,
                                                       const std::string& name) const {
  std::optional<AdapterSource> found;
  for (const AdapterSource& source : adapters_in(model.directory)) {
    if (source.name == name) found = source;
  }
  for (const AdapterDirectory& given : options_.adapters) {
    if (given.model != model.name || given.name != name) continue;
    if (found) throw there_twice(model, name);
    found = AdapterSource{name, given.path};
  }
  return found;
}

SharedAdapter ModelLoader::load_adapter(const ServedModel& model,
                                        const AdapterSource& source) const {
  const std::string subject = "adapter " + source.name + " of model " + model.name;
  const auto load = [&]() -> std::shared_ptr<const Adapter> {
    try {
      const AdapterFiles files(source.directory, model.transformer->modules());
      const std::size_t peak_bytes = files.bytes() + files.loading_bytes();
      std::optional<ModelMemory::Reservation> reservation = memory_->reserve(peak_bytes);
      if (!reservation) refuse_memory(subject, peak_bytes, files.bytes());
      std::shared_ptr<const Adapter> weights = Adapter::load(files);
      reservation->shrink_to(weights->bytes());
      return counted(std::move(weights), *std::move(reservation));
    } catch (const OutOfModelMemory&) {
      throw;
    } catch (const ModelError& error) {
      throw ModelError(subject + " cannot be loaded: " + error.what());
    }
  };
  SharedAdapter adapter = model.adapters->add(source.name, load());
  if (adapter == nullptr) {
    throw ModelError(subject + " is one more than the " + std::to_string(AdapterTable::kMost) +
                     " that a model may have");
  }
  const Adapter& weights = *adapter->weights;
  spdlog::info("{} from {}: rank {}, {} modules in {} bytes, fingerprint {}", subject,
               source.directory.string(), weights.max_rank(), weights.modules().size(),
               weights.bytes(), weights.fingerprint());
  return adapter;
}

std::shared_ptr<ServedModel> ModelLoader::serve(
    const std::string& name, std::int64_t version,
    std::shared_ptr<const Transformer> transformer) const {
  const int rows = batch_rows(*transformer);
  std::vector<std::string> warnings = transformer->warnings();
  const ModelSource source{name, version, {}};
  std::shared_ptr<ServedModel> served =
      serve(source, std::move(transformer), std::move(warnings), rows, "", /*measures=*/true);
  served->chat = load_chat({}, SamplingDefaults(), source, options_);
  served->set_numerics(with_team(options_.scheduling, [&](StepThreadPool* team) {
    return numerics_of(*served->transformer, kNumericsTokens, team);
  }));
  return served;
}

ModelMemory::Reservation ModelLoader::admit(const std::string& name, const ModelSize& size) const {
  std::optional<ModelMemory::Reservation> reservation = memory_->reserve(size.peak_bytes());
  if (reservation) return *std::move(reservation);
  refuse_memory("model " + name, size.peak_bytes(), size.resident_bytes);
}

void ModelLoader::refuse_memory(const std::string& subject, std::size_t peak_bytes,
                                std::size_t resident_bytes) const {
  const std::string needs = subject + " needs " + std::to_string(peak_bytes) +
                            " bytes while it is loaded, " + std::to_string(resident_bytes) +
                            " of them afterwards, ";
  const std::string limit = std::to_string(memory_->limit_bytes());
  if (peak_bytes > memory_->limit_bytes()) {
    throw ModelError(needs + "more than the " + limit + " of --model-memory");
  }
  throw OutOfModelMemory(needs + "and " + std::to_string(memory_->free_bytes()) + " of " + limit +
                         " are left");
}

int ModelLoader::batch_rows(const Transformer& model) const {
  if (options_.scheduling.max_batch_rows > 0) return options_.scheduling.max_batch_rows;
  return batch_rows_for(model, options_.scheduling.workers, last_cache_bytes());
}

// The operator's number of rows, if given, applies to every step.
int ModelLoader::most_prompt_rows(const Transformer& model) const {
  if (options_.scheduling.max_batch_rows > 0) return options_.scheduling.max_batch_rows;
  return static_cast<int>(model.most_prompt_rows());
}

std::shared_ptr<ServedModel> ModelLoader::serve(const ModelSource& source,
                                                std::shared_ptr<const Transformer> transformer,
                                                std::vector<std::string> warnings, int batch_rows,
                                                std::string type_reason, bool measures) const {
  Scheduler::Options scheduling = options_.scheduling;
  scheduling.max_batch_rows = batch_rows;
  scheduling.prefill_rows_per_step = std::min(scheduling.prefill_rows_per_step, batch_rows);
  scheduling.most_rows_per_step = most_prompt_rows(*transformer);
  const PromptRows prompts =
      measure_prompt_rows(*transformer, scheduling.most_rows_per_step, clock_);
  scheduling.prompt_rows_per_step = prompts.rows;
  spdlog::info("model {}: prompts are read with {}", source.name, prompts.to_text());
  std::optional<StepCost> cost;
  if (measures && uses_cost(*transformer, scheduling)) {
    cost = measure_cost(*transformer, scheduling, clock_);
    log_cost(source.name, *cost);
  }
  auto served = std::make_shared<ServedModel>();
  served->name = source.name;
  served->version = source.version;
  served->scheduler = std::make_unique<Scheduler>(transformer, scheduling, clock_, prefixes_, cost);
  served->transformer = std::move(transformer);
  served->warnings = std::move(warnings);
  served->limits = options_.limits;
  served->limits.max_samples = std::min(served->limits.max_samples, batch_rows);
  served->directory = source.directory;
  served->weight_type_reason = std::move(type_reason);
  const int most_rows = std::max(scheduling.prompt_rows_per_step, scheduling.most_rows_per_step);
  const int drafting_rows = uses_drafts(scheduling.speculation, served->transformer->recomputes())
                                ? most_draft_rows(scheduling)
                                : 0;
  served->worker_bytes = static_cast<std::size_t>(std::max(scheduling.workers, 1)) *
                         worker_bytes(*served->transformer, std::max(most_rows, batch_rows),
                                      std::max(batch_rows, drafting_rows), drafting_rows);
  for (const AdapterSource& adapter : adapter_sources(*served)) load_adapter(*served, adapter);
  return served;
}

}  // namespace lintel
