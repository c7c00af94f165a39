// SPDX-License-Identifier: Apache-2.0
// The table of flags: every row is set from its text, and no option is forgotten.
#include "server/config/flags.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "server/app/options.h"
#include "tests/server/config/fields.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Options that no flag sets by itself, and why.
const std::map<std::string, std::string> kWithoutFlag = {
    {"models.scheduling.prompt_rows_per_step", "follows from --max-batch-rows and the model"},
    {"models.scheduling.most_rows_per_step", "follows from --speculation-rows and the model"},
    {"models.scheduling.mask_budget", "a bound of the engine's own; tests have others"},
    {"http.heartbeat_ms", "clients wait longer than ten seconds; tests do not"},
    {"pulled_model", "the word without a flag"},
    {"serves_packaged_models", "follows from what is not given"},
    {"http_is_default", "follows from --listen and what is not given"},
    {"prefixes.least_tokens", "shorter beginnings save no more than a step; tests have short ones"},
};

// Flags that are not called as their members, for operators do not know what those are members of.
const std::map<std::string, std::string> kOtherName = {
    {"--model", "models.directories"},
    {"--models", "models.on_request"},
    {"--load-model", "models.load"},
    {"--adapter", "models.adapters"},
    {"--chat-template", "models.chat_templates"},
    {"--tool-dialect", "models.tool_dialects"},
    {"--model-alias", "model_aliases"},
    {"--unknown-members", "refuses_unknown_members"},
    {"--max-message-size", "connections.max_message_bytes"},
    {"--http-cors-origin", "http.cors_origins"},
    {"--http-allowed-host", "http.allowed_hosts"},
    {"--http-max-header-size", "http.max_header_bytes"},
    {"--max-metadata-size", "connections.max_metadata_bytes"},
    {"--max-connection-streams", "connections.max_streams"},
    {"--max-connection-age", "connections.max_age_ms"},
    {"--max-connection-age-grace", "connections.max_age_grace_ms"},
    {"--admin-certificate", "security.admin_certificates"},
    {"--identity-max-sessions", "sessions.max_sessions_per_owner"},
    {"--identity-memory", "sessions.bytes_per_owner"},
    {"--prefix-cache-memory", "prefixes.memory_bytes"},
    {"--chat-read-ahead", "prefixes.reads_ahead"},
    {"--initial-states", "initial_states.directory"},
    {"--session-numerics", "durable.takes_other_numerics"},
    {"--prefill-rows", "models.scheduling.prefill_rows_per_step"},
    {"--log-format", "logging.json"},
};

// True if a flag that is not in kOtherName may set this member: "--session-idle-timeout" sets
// "sessions.idle_timeout", and "--model-memory" sets "models.memory_bytes".
bool is_called_as(const std::string& flag, const std::string& field) {
  std::string name = field.substr(field.rfind('.') + 1);
  std::ranges::replace(name, '_', '-');
  for (const std::string unit : {"", "-bytes", "-ms"}) {
    if (!name.ends_with(unit)) continue;
    if (flag.ends_with("-" + name.substr(0, name.size() - unit.size()))) return true;
  }
  return false;
}

using CommandLine = std::map<std::string, std::string>;

// Flags that make each flag legal that needs another.
const CommandLine kBase = {
    {"--model", "m"},          {"--model-repository", "r"}, {"--tls-cert", "c"},
    {"--tls-key", "k"},        {"--tls-client-ca", "ca"},   {"--identity-tokens-per-second", "5"},
    {"--initial-states", "i"}, {"--session-store", "s"},    {"--http-listen", "127.0.0.1:7"},
};

// The same for a store that servers share, and for a directory of models that requests load.
CommandLine base_of(const Flag& flag) {
  CommandLine base = kBase;
  if (flag.name == "--models" || flag.name == "--model-idle-unload") {
    base.erase("--model-repository");
    base["--models"] = "r";
  }
  if (flag.group.find("servers share") != std::string::npos) {
    base["--session-store"] = "rediss://a";
    base["--session-store-cert"] = "c";
    base["--session-store-key"] = "k";
  }
  return base;
}

// The text that the flags print instead of parsing, if they do.
std::string parse(const CommandLine& flags, ServerOptions* options) {
  std::vector<std::string> words = {"lintel-server"};
  for (const auto& [name, value] : flags) {
    words.push_back(name);
    if (!value.empty()) words.push_back(value);
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::string printed;
  parse_server_options(static_cast<int>(argv.size()), argv.data(), options, &printed);
  return printed;
}

// A number of the flag's kind, in text.
std::string number_text(const Flag& flag, const std::string& number) {
  return flag.type == Flag::Type::kDuration ? number + "ms" : number;
}

// A value that is neither the default nor in kBase.
std::string sample(const Flag& flag) {
  switch (flag.type) {
    case Flag::Type::kNumber:
    case Flag::Type::kBytes:
    case Flag::Type::kDuration:
      return number_text(flag, std::to_string(flag.high));
    case Flag::Type::kChoice:
      return flag.words.back();
    case Flag::Type::kSwitch:
      return "";
    default:
      break;
  }
  static const std::map<std::string, std::string> samples = {
      {"FILE", "other.pem"},
      {"[MODEL=]FILE", "m=chat.jinja"},
      {"[MODEL=]NAME", "m=xml"},
      {"PATTERN=NAME", "claude-*=m"},
      {"DIR", "elsewhere"},
      {"[NAME=]PATH", "other=elsewhere"},
      {"[MODEL:]NAME=DIR", "m:other=elsewhere"},
      {"ADDRESS", "127.0.0.1:77"},
      {"SPEC", "softmax:scale=2"},
      {"BITS", "0.5"},
      {"NAME", "other"},
      {"ID", "other.replica-2"},
      {"DURATION", "77s"},
      {"ORIGIN", "https://example.org"},
      {"HOST", "proxy.example"},
      {"ID", "other.replica-2"},
      {"N", "3"},
  };
  return samples.at(flag.value);
}

std::string on_one_line(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  for (std::string word; in >> word;) line += (line.empty() ? "" : " ") + word;
  return line;
}

TEST_CASE("every flag sets its option and no other") {
  ServerOptions initial;
  const std::vector<Field> defaults = fields_of(initial);
  for (const Flag& flag : server_flags(initial)) {
    CommandLine flags = base_of(flag);
    ServerOptions base_options;
    parse(flags, &base_options);
    const std::vector<Field> before = fields_of(base_options);
    flags[flag.name] = sample(flag);
    INFO(flag.name << " " << flags[flag.name]);
    ServerOptions options;
    REQUIRE_NOTHROW(parse(flags, &options));
    const std::vector<Field> after = fields_of(options);
    int of_flag = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      INFO(after[i].name << " was " << before[i].value << " and is " << after[i].value);
      const bool is_member = defaults[i].address == flag.member;
      of_flag += is_member;
      CHECK((after[i].value != before[i].value) == is_member);
      if (is_member) CHECK(after[i].value != defaults[i].value);
    }
    CHECK(of_flag == 1);
  }
}

TEST_CASE("every option has a flag, or is known to have none") {
  ServerOptions options;
  const std::vector<Flag> flags = server_flags(options);
  for (const Field& field : fields_of(options)) {
    INFO(field.name);
    const auto rows = std::ranges::count_if(
        flags, [&](const Flag& flag) { return flag.member == field.address; });
    CHECK(rows == (kWithoutFlag.contains(field.name) ? 0 : 1));
  }
  std::set<std::string> names;
  for (const Flag& flag : flags) CHECK(names.insert(flag.name).second);
}

TEST_CASE("a flag sets the option of its name, or the one in the list of exceptions") {
  ServerOptions options;
  const std::vector<Field> fields = fields_of(options);
  for (const Flag& flag : server_flags(options)) {
    const auto field = std::ranges::find(fields, flag.member, &Field::address);
    REQUIRE(field != fields.end());
    INFO(flag.name << " sets " << field->name);
    const auto other = kOtherName.find(flag.name);
    CHECK((other == kOtherName.end() ? is_called_as(flag.name, field->name)
                                     : other->second == field->name));
  }
}

TEST_CASE("a number is taken from its lowest to its highest, and neither below nor above") {
  int rows = 0;
  ServerOptions options;
  for (const Flag& flag : server_flags(options)) {
    if (flag.low == flag.high) continue;
    ++rows;
    for (const std::int64_t bound : {flag.low, flag.high}) {
      const std::string text = number_text(flag, std::to_string(bound));
      INFO(flag.name << " " << text);
      REQUIRE_NOTHROW(flag.set(text));
      const std::string shown = flag.shown();
      REQUIRE_NOTHROW(flag.set(shown));  // a shown value is accepted
      CHECK(flag.shown() == shown);
    }
    const std::string above =
        flag.high == kMostBytes ? "9223372036854775808" : std::to_string(flag.high + 1);
    for (const std::string& outside : {std::to_string(flag.low - 1), above}) {
      const std::string text = number_text(flag, outside);
      INFO(flag.name << " " << text);
      CHECK_THROWS_AS(flag.set(text), UsageError);
    }
  }
  CHECK(rows > 30);
}

TEST_CASE("a choice takes each of its words and no other") {
  ServerOptions options;
  for (const Flag& flag : server_flags(options)) {
    for (const std::string& word : flag.words) {
      INFO(flag.name << " " << word);
      REQUIRE_NOTHROW(flag.set(word));
      CHECK(flag.shown() == word);
    }
    if (!flag.words.empty()) CHECK_THROWS_AS(flag.set("another"), UsageError);
  }
}

TEST_CASE("help has the flags that people set, in 80 columns") {
  ServerOptions options;
  const std::string help = parse({{"--help", ""}}, &options);
  const std::string all = parse({{"--help-all", ""}}, &options);
  std::size_t shown = 0;
  for (const Flag& flag : server_flags(options)) {
    const std::string line = "\n  " + flag.name + " ";
    INFO(flag.name);
    CHECK(all.find(line) != std::string::npos);
    if (help.find(line) != std::string::npos) ++shown;
  }
  CHECK(shown == 35);
  for (const char* const name : {"--model", "--listen", "--session-store", "--metrics-listen"}) {
    CHECK(help.find("\n  " + std::string(name) + " ") != std::string::npos);
  }
  CHECK(help.find("--session-load-queue") == std::string::npos);
  for (const std::string& text : {help, all}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      CHECK(line.size() <= 80);
    }
  }
}

TEST_CASE("all of help has every flag with its default and its whole text") {
  ServerOptions options;
  const std::string help = on_one_line(parse({{"--help-all", ""}}, &options));
  for (const Flag& flag : server_flags(options)) {
    const std::string initial = flag.default_of_machine ? "" : flag.shown();
    const std::string text = on_one_line(flag.help);
    INFO(flag.name);
    if (flag.default_of_machine) {
      const std::string begin = " " + flag.name + " " + flag.value;
      CHECK((help.find(begin + "=") != std::string::npos ||
             help.find(begin + " [") != std::string::npos));
      CHECK(help.find(" " + text + " ") != std::string::npos);
      continue;
    }
    std::string value = flag.value.empty() ? "" : " " + flag.value;
    if (flag.type == Flag::Type::kList) value += " ...";
    // CLI11 2.1 shows a default by "=", 2.4 in brackets.
    const std::string shown = initial.empty() ? "" : "=" + initial;
    const std::string bracketed = initial.empty() ? "" : " [" + initial + "]";
    const auto has = [&](const std::string& form) {
      return help.find(" " + flag.name + value + form + " " + text + " ") != std::string::npos;
    };
    CHECK((has(shown) || has(bracketed)));
    CHECK(help.find(" " + flag.group + ": --") != std::string::npos);
  }
  CHECK(help.find(" --config FILE File with the flags below") != std::string::npos);
}

TEST_CASE("docs/flags.md is the table of flags") {
  std::ifstream in(LINTEL_TEST_DATA "/../docs/flags.md");
  const std::string page(std::istreambuf_iterator<char>(in), {});
  ServerOptions options;
  // Else: lintel-server --help-markdown > docs/flags.md
  CHECK(parse({{"--help-markdown", ""}}, &options) == page);
}

}  // namespace
}  // namespace lintel::testing
