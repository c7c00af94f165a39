// SPDX-License-Identifier: Apache-2.0
#include "client/hub/pull.h"

#include <memory>
#include <optional>

#include "client/cli/commands.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

constexpr const char* kPullFooter = R"text(
Files of the kinds *.safetensors *.gguf *.json *.jinja *.txt *.model go to the cache that the Python library
huggingface_hub has, too: HF_HUB_CACHE, else hub in HF_HOME, else ~/.cache/huggingface/hub. Each is used after
its hash was checked; what an earlier run left is continued. HF_ENDPOINT names another hub, HF_TOKEN is the
token for it, HF_HUB_OFFLINE=1 stands for --offline. The path is the only line on standard output.

Examples:
  lintel pull Qwen/Qwen3.5-0.8B
  lintel-server --model "qwen=$(lintel pull Qwen/Qwen3.5-0.8B)"
  lintel pull unsloth/Qwen3.5-4B-GGUF:Q4_K_M
  lintel pull ORG/NAME@v1.0 --file '*.json' --file 'model-*.safetensors')text";

constexpr std::uint64_t kMegabyte = 1'000'000;

struct PullFlags {
  std::string source;
  std::vector<std::string> globs;
  bool offline = false;
};

int run_pull(const PullFlags& flags, Console& console) {
  hub::PullSource source;
  try {
    source = hub::parse_pull_source(flags.source);
  } catch (const hub::HubError& error) {
    throw UsageError(error.what());
  }
  if (!source.quant.empty() && !flags.globs.empty()) {
    throw UsageError("--file does not go with :" + source.quant);
  }
  hub::PullOptions options;
  options.hub = hub::hub_settings_from_environment();
  options.hub.offline = options.hub.offline || flags.offline;
  options.globs = flags.globs;
  options.cancelled = [&console] { return console.cancellation().cancelled(); };
  std::optional<Progress> progress;
  std::uint64_t bytes = 0;  // that the bar does not show
  options.on_size = [&](std::uint64_t size) {
    if (size > 0) progress.emplace(console, static_cast<std::int64_t>(size / kMegabyte), "MB");
  };
  options.on_bytes = [&](std::uint64_t count) {
    bytes += count;
    if (progress) progress->add(static_cast<std::int64_t>(bytes / kMegabyte));
    bytes %= kMegabyte;
  };
  options.on_note = [&](const std::string& note) {
    console.err((console.err_is_terminal() ? "\r\x1b[K" : "") + ("lintel: " + note) + "\n");
  };
  const std::string path = hub::pull(source, options).string();
  progress.reset();
  console.out(path + "\n");
  return kOk;
}

}  // namespace

void add_pull(CLI::App& app, CommandLine& command_line) {
  CLI::App* command =
      app.add_subcommand("pull", "Download a model from a hub and print where it is");
  auto flags = std::make_shared<PullFlags>();
  command
      ->add_option(
          "REPO", flags->source,
          "ORG/NAME, @REVISION for a branch, tag or commit other than main, :QUANT for the "
          ".gguf file with this in its name: the path printed is then the file's, or that "
          "of its first part")
      ->required();
  add_repeated(*command, "--file", flags->globs, "GLOB",
               "Pull only files that match, by their paths in the repository [all]");
  command->add_flag("--offline", flags->offline, "Look in the cache alone");
  command->footer(kPullFooter);
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_pull(*flags, command_line.console); });
}

}  // namespace lintel::cli
