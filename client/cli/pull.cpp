// SPDX-License-Identifier: Apache-2.0
#include "client/hub/pull.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

constexpr const char* kPullFooter = R"text(
Files of the kinds *.safetensors *.gguf *.json *.jinja *.txt *.model go to the cache that the Python library
huggingface_hub has, too: HF_HUB_CACHE, else hub in HF_HOME, else ~/.cache/huggingface/hub. Each is used after
its hash was checked; what an earlier run left is continued. HF_ENDPOINT names another hub, HF_TOKEN is the
token for it, HF_HUB_OFFLINE=1 stands for --offline. The path is the only line on standard output.

Of a repository of .gguf files one is pulled: that of :QUANT, else Q4_K_M, Q4_K_S, Q4_0, Q5_K_M or Q8_0, the
first of these that there is; the others are listed.

Examples:
  lintel pull Qwen/Qwen3.5-0.8B
  lintel-server --model "qwen=$(lintel pull Qwen/Qwen3.5-0.8B)"
  lintel pull unsloth/Qwen3.5-4B-GGUF:Q4_K_M
  lintel pull https://huggingface.co/unsloth/Qwen3.5-4B-GGUF
  lintel pull ORG/NAME@v1.0 --file '*.json' --file 'model-*.safetensors')text";

constexpr std::uint64_t kMegabyte = 1'000'000;

struct PullRequest {
  hub::PullSource source;
  std::vector<std::string> globs;  // PullOptions::globs
  bool offline = false;
  bool if_missing = false;  // the hub is asked only for what the cache lacks
};

struct PullFlags {
  std::string source;
  std::vector<std::string> globs;
  bool offline = false;
  bool if_missing = false;
};

// The speed of a download and the time left: "12.3 MB/s, 9 s left, FILE".
class Speed {
 public:
  void add(std::uint64_t bytes) {
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!marks_.empty() && now - marks_.back().first < kStep) return;
    marks_.emplace_back(now, done_);
    if (marks_.size() > kMarks) marks_.pop_front();
  }
  void set_file(std::string file) { file_ = std::move(file); }

  std::string text(std::uint64_t total) const {
    std::string text;
    if (const double rate = bytes_per_second(); rate > 0) {
      char number[32];
      std::snprintf(number, sizeof number, "%.1f MB/s, ", rate / kMegabyte);
      const double seconds = static_cast<double>(total - std::min(total, done_)) / rate;
      text = number + time_left(seconds) + " left, ";
    }
    return text + file_;
  }

 private:
  static constexpr std::chrono::milliseconds kStep{500};
  static constexpr std::size_t kMarks = 11;  // five seconds

  static std::string time_left(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::ceil(std::min(seconds, 1e9)));
    if (whole < 100) return std::to_string(whole) + " s";
    if (whole < 6000) return std::to_string((whole + 59) / 60) + " min";
    return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
  }
  // Over the last seconds; 0: too few have passed.
  double bytes_per_second() const {
    if (marks_.size() < 2) return 0;
    const auto& [from, before] = marks_.front();
    const auto& [to, after] = marks_.back();
    return static_cast<double>(after - before) / std::chrono::duration<double>(to - from).count();
  }

  std::uint64_t done_ = 0;
  std::deque<std::pair<std::chrono::steady_clock::time_point, std::uint64_t>> marks_;
  std::string file_;
};

// Pulls a model and returns its place. Throws HubError.
std::string pull_model(const PullRequest& request, Console& console) {
  hub::PullOptions options;
  options.hub = hub::hub_settings_from_environment();
  options.hub.offline = options.hub.offline || request.offline;
  options.globs = request.globs;
  options.cancelled = [&console] { return console.cancellation().cancelled(); };
  std::optional<Progress> progress;
  Speed speed;
  std::uint64_t total = 0;
  std::uint64_t bytes = 0;  // not shown by the bar
  options.on_size = [&](std::uint64_t size) {
    total = size;
    if (size > 0) progress.emplace(console, static_cast<std::int64_t>(size / kMegabyte), "MB");
  };
  options.on_file = [&](const std::string& file) { speed.set_file(file); };
  options.on_bytes = [&](std::uint64_t count) {
    bytes += count;
    speed.add(count);
    if (progress) {
      progress->set_note(speed.text(total));
      progress->add(static_cast<std::int64_t>(bytes / kMegabyte));
    }
    bytes %= kMegabyte;
  };
  options.on_note = [&](const std::string& note) {
    console.err((console.err_is_terminal() ? "\r\x1b[K" : "") + ("lintel: " + note) + "\n");
  };
  if (request.if_missing) {
    if (const auto cached = hub::find_in_cache(request.source, options)) return cached->string();
  }
  return hub::pull(request.source, options).string();
}

int run_pull(const PullFlags& flags, Console& console) {
  const PullRequest request{.source = parse_source(flags.source),
                            .globs = flags.globs,
                            .offline = flags.offline,
                            .if_missing = flags.if_missing};
  if (!request.source.quant.empty() && !flags.globs.empty()) {
    throw UsageError("--file does not go with :" + request.source.quant);
  }
  if (request.if_missing && !flags.globs.empty()) {
    throw UsageError("--file does not go with --if-missing, which looks for a whole model");
  }
  console.out(pull_model(request, console) + "\n");
  console.flush();
  // For people: a script that takes the path knows what it is for.
  if (console.out_is_terminal() && console.err_is_terminal() && flags.globs.empty()) {
    std::string name = hub::name_of(request.source);
    if (const std::string& revision = request.source.revision; revision != "main") {
      name.insert(request.source.repo.size(), "@" + revision);
    }
    console.err("lintel: `lintel run " + name + "` talks to it, `lintel-server " + name +
                "` serves it\n");
  }
  return kOk;
}

}  // namespace

hub::PullSource parse_source(const std::string& text) {
  try {
    return hub::parse_pull_source(text, hub::endpoint_from_environment());
  } catch (const hub::HubError& error) {
    throw UsageError(error.what());
  }
}

std::string pull_if_missing(const hub::PullSource& source, bool offline, Console& console) {
  return pull_model({.source = source, .globs = {}, .offline = offline, .if_missing = true},
                    console);
}

void add_pull(CLI::App& app, CommandLine& command_line) {
  CLI::App* command =
      app.add_subcommand("pull", "Download a model from a hub and print where it is");
  auto flags = std::make_shared<PullFlags>();
  command
      ->add_option(
          "REPO", flags->source,
          "ORG/NAME, or the address of its page, @REVISION for a branch, tag or commit other "
          "than main, :QUANT for the .gguf file with this in its name: the path printed is then "
          "the file's, or that of its first part")
      ->required();
  add_repeated(*command, "--file", flags->globs, "GLOB",
               "Pull only files that match, by their paths in the repository [all]");
  command->add_flag("--offline", flags->offline, "Look in the cache alone");
  command->add_flag("--if-missing", flags->if_missing,
                    "Ask the hub only if the cache has no whole model of this name");
  command->footer(kPullFooter);
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_pull(*flags, command_line.console); });
}

}  // namespace lintel::cli
