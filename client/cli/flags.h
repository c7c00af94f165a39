// SPDX-License-Identifier: Apache-2.0
// Flags that several sub-commands share, and helpers to declare them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/console.h"
#include "client/lib/client.h"

namespace lintel::cli {

// Parsers of flags' values. Every function throws UsageError naming the flag and what is wrong with
// it.

// UsageError: "FLAG 'TEXT': WHY"
[[noreturn]] void refuse_flag(std::string_view flag, std::string_view text, const std::string& why);

// `text` without the blanks and line ends around it.
std::string trimmed(const std::string& text);

// A whole number, or a finite decimal one, and nothing after it. `flag` is for the message.
std::int32_t parse_int32(std::string_view flag, std::string_view text);
std::int64_t parse_int64(std::string_view flag, std::string_view text);
std::uint32_t parse_uint32(std::string_view flag, std::string_view text);
std::uint64_t parse_uint64(std::string_view flag, std::string_view text);
float parse_float(std::string_view flag, std::string_view text);
double parse_double(std::string_view flag, std::string_view text);

// "0,0,12"
std::vector<std::int32_t> parse_ids(std::string_view flag, std::string_view text);

// "0-9" or "3,5,8" or both, "0-3,7": in the order written. Each must be below `count`.
std::vector<std::int64_t> parse_indices(std::string_view flag, std::string_view text,
                                        std::int64_t count);

// "12=-1.5"
std::pair<std::int32_t, float> parse_bias(std::string_view flag, std::string_view text);

struct GivenTokens {
  std::int64_t position = 0;
  std::vector<std::int32_t> tokens;
};
// "392=0,0,255": the tokens from position 392 on
GivenTokens parse_given(std::string_view flag, std::string_view text);

// "90s", "30m", "72h" or "30d"; more than 0, at most a hundred years.
std::chrono::seconds parse_duration(std::string_view flag, std::string_view text);

// The escapes \n \r \t \0 \\ \xHH; any other backslash is an error.
std::string unescape(std::string_view flag, std::string_view text);

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
// The value of --token: TOKEN, or the first line of the file in @FILE. Throws Failure.
std::string read_token(const std::string& given);

// The flags of the table of fields (proto/fields/request_fields.h), and --seed, whose help depends
// on the command. It has to outlive the CLI::App.
class FieldFlags {
 public:
  std::optional<std::uint64_t> seed;

  // Adds --seed and the flags of sampling. `unless_given`: what holds then, in place of the
  // defaults of the table.
  void add_sampling_to(CLI::App& app, const std::string& seed_help,
                       const std::string& unless_given = "");
  // Adds the other flags. for_session: without those that a session was created with.
  void add_others_to(CLI::App& app, bool for_session);

  // The fields whose flags were given, but for the seed.
  const v1::GenerateRequest& given() const { return given_; }
  // Adds them and the seed.
  void fill(v1::GenerateRequest& request) const;

  // Sets a field of sampling by the name of its flag without dashes, "top-p" or "top_p", as if the
  // flag had been given; without a text as if it had not. False: there is no such flag. Throws
  // UsageError, which names the field with `command` before it.
  bool set_sampling(const std::string& command, std::string name,
                    const std::optional<std::string>& text);

 private:
  void add(CLI::App& app, std::size_t field, const std::string& group,
           const std::string& unless_given = "");

  v1::GenerateRequest given_;
};

// Runs `call`, and again after the server's retry delay while a full queue refuses it
// (RESOURCE_EXHAUSTED with RetryInfo) and `untouched` says that nothing has come of it yet, for at
// most `patience`. Then the refusal is thrown.
void retry_when_full(Cancellation& cancellation, std::chrono::milliseconds patience,
                     const std::function<void()>& call, const std::function<bool()>& untouched);

}  // namespace lintel::cli
