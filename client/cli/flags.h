// Flags that several sub-commands share, and helpers to declare them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/flag_values.h"
#include "client/lib/client.h"

namespace lintel::cli {

// The command line of one run. A sub-command adds itself to the CLI::App and, when it was chosen
// and its flags are read, sets `run`.
struct CommandLine {
  Console& console;
  std::function<int()> run;  // returns an ExitCode
};

// Makes `run` what the command line does when `command` was chosen and its flags are read. Only
// then is the environment read: a command that was not chosen neither fails because of a variable
// nor overwrites a flag of its sibling with it.
void on_chosen(CLI::App& command, CommandLine& command_line, std::function<int()> run);

// Declares a flag whose value goes through one of the parse functions: strict about numbers, where
// CLI11 takes "-1" for a large unsigned one and "010" for eight. Of a repeated flag the last
// counts.
template <typename Target, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& flag, Target& target, Parse parse,
                        const std::string& type_name, const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag, [&target, parse, flag](const std::string& text) { target = parse(flag, text); },
          help)
      ->type_name(type_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& target,
                      const std::string& type_name, const std::string& help);
CLI::Option* add_repeated(CLI::App& app, const std::string& flag, std::vector<std::string>& target,
                          const std::string& type_name, const std::string& help);

// --address, --model, --deadline, --tls-ca, --tls-cert, --tls-key, --token, --proxy.
struct ConnectionFlags {
  std::string address = "127.0.0.1:50051";
  Tls tls;
  std::string token;  // or @FILE that holds it
  std::string proxy;
  std::string model;
  double deadline_seconds = 300;  // the default is what it holds when add_to() is called

  void add_to(CLI::App& app, bool with_model = true);
  // Throws UsageError or Failure naming the flag.
  Client connect() const;
  std::chrono::milliseconds deadline() const;
};

// --adapter: of the model that the command is about.
void add_adapter_flag(CLI::App& app, std::string& adapter);
// --tls-ca, --tls-cert, --tls-key and --token alone.
void add_security_flags(CLI::App& app, Tls& tls, std::string& token);
// What --token means: TOKEN, or the first line of the file in @FILE. Throws Failure.
std::string read_token(const std::string& given);

// How values are drawn.
struct SamplingFlags {
  std::optional<std::uint64_t> seed;
  std::optional<float> temperature;
  std::optional<std::uint32_t> top_k;
  std::optional<float> top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<std::uint32_t> penalty_window;
  std::vector<std::string> logit_bias;

  void add_to(CLI::App& app, const std::string& seed_help);
  void fill(v1::Sampling& sampling) const;
};

// Runs `call`, and again after the server's retry delay while a full queue refuses it
// (RESOURCE_EXHAUSTED with RetryInfo) and `untouched` says that nothing has come of it yet, for at
// most `patience`. Then the refusal is thrown.
void retry_when_full(Cancellation& cancellation, std::chrono::milliseconds patience,
                     const std::function<void()>& call, const std::function<bool()>& untouched);

}  // namespace lintel::cli
