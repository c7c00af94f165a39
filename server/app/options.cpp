// SPDX-License-Identifier: Apache-2.0
#include "server/app/options.h"

#include <google/protobuf/descriptor.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/packaged_models.h"
#include "proto/fields/request_fields.h"
#include "server/api/params/generate_params.h"
#include "server/config/flags.h"
#include "server/config/option_values.h"
#include "server/config/server_options.h"
#include "server/core/threads.h"
#include "server/models/model_repository.h"
#include "server/sessions/storage/redis/redis_servers.h"
#include "tools/describe/flags.h"
#include "tools/describe/suggest.h"

namespace lintel {

// The file of --config: flags as keys.

// Reads the syntax that TOML and INI files share, and the part of TOML that flags need:
//
//   # a comment, or one that begins with ;
//   model = ["weights/a", 'other=weights/b']   # a list, also over several lines
//   session-memory = "512MiB"                  # or without quotes, where it is one word
//   workers = 4
//   insecure-public = true
//
// No sections. CLI11's own reader takes nearly anything for a value, up to the end of the file
// where a bracket is missing; this one says what is wrong, and in which line.
class ConfigFile final : public CLI::ConfigTOML {
 public:
  // `app` declares the flags and --config; it is asked while a file is read.
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  // Throws UsageError: "FILE, line N: ...".
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // "FILE, line N" where a flag ("--workers") was set, else empty.
  std::string place_of(const std::string& flag) const;
  // The value in the file, "" if it has none; set even if the file is refused for something else.
  const std::string& log_format() const { return log_format_; }

 private:
  const CLI::App& app_;
  // Results of the last file; mutable because CLI11 declares from_config const. It is called once.
  mutable std::map<std::string, std::string> places_;  // by key
  mutable std::string log_format_;
};

namespace {

// One file's text, read from its beginning to its end.
class Reader {
 public:
  Reader(std::string text, std::string file) : text_(std::move(text)), file_(std::move(file)) {}

  std::string place(int line) const { return file_ + ", line " + std::to_string(line); }
  [[noreturn]] void fail(int line, const std::string& why) const {
    throw UsageError(place(line) + ": " + why);
  }
  int line() const { return line_; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\n' : text_[at_]; }
  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  bool takes(char c) {
    if (at_end() || text_[at_] != c) return false;
    take();
    return true;
  }
  void skip_spaces() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) take();
  }
  void skip_line() {
    while (!at_end() && take() != '\n') {
    }
  }
  // Spaces, line ends and comments, as between the elements of a list.
  void skip_blank() {
    while (!at_end()) {
      skip_spaces();
      if (peek() == '#') {
        skip_line();
      } else if (!takes('\n')) {
        return;
      }
    }
  }
  // Takes text until one of these or the end of the line, without the spaces at its end.
  std::string take_until(std::string_view stops) {
    std::string text;
    while (!at_end() && peek() != '\n' && stops.find(peek()) == std::string_view::npos) {
      text.push_back(take());
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
      text.pop_back();
    }
    return text;
  }

 private:
  const std::string text_, file_;
  std::size_t at_ = 0;
  int line_ = 1;
};

// "..." with TOML's escapes, or '...' as it is. REQUIRES: at a quote.
std::string read_quoted(Reader& in, const std::string& key) {
  const int line = in.line();
  const char quote = in.take();
  std::string value;
  while (!in.at_end() && in.peek() != '\n') {
    const char c = in.take();
    if (c == quote) return value;
    if (c != '\\' || quote == '\'') {
      value.push_back(c);
      continue;
    }
    const char escaped = in.peek();
    static constexpr std::string_view kNames = "\"\\nt", kMeant = "\"\\\n\t";
    const std::size_t at = kNames.find(escaped);
    if (at == std::string_view::npos) {
      in.fail(line,
              key + ": '\\" + std::string(1, escaped) +
                  "' is not \\\\, \\\", \\n or \\t; a text in single quotes is taken as it is");
    }
    in.take();
    value.push_back(kMeant[at]);
  }
  in.fail(line, key + ": the " + std::string(1, quote) + " at the end is missing");
}

// A value without quotes: one word.
std::string read_word(Reader& in, const std::string& key, std::string_view stops) {
  const int line = in.line();
  const std::string word = in.take_until(stops);
  if (word.find_first_of(" \t,") != std::string::npos) {
    in.fail(line, key + ": '" + word + "' needs quotes, or as a list brackets: [\"a\", \"b\"]");
  }
  if (word.find_first_of("\"'[]{}=") != std::string::npos) {
    in.fail(line, key + ": '" + word + "' is not a number, a word or a text in quotes");
  }
  return word;
}

std::string read_scalar(Reader& in, const std::string& key, std::string_view stops) {
  const bool quoted = in.peek() == '"' || in.peek() == '\'';
  return quoted ? read_quoted(in, key) : read_word(in, key, stops);
}

// REQUIRES: after its "[".
std::vector<std::string> read_list(Reader& in, const std::string& key) {
  const int line = in.line();
  std::vector<std::string> values;
  while (true) {
    in.skip_blank();
    if (in.takes(']')) return values;
    if (in.at_end()) in.fail(line, key + ": the ] of its list is missing");
    values.push_back(read_scalar(in, key, ",]#="));
    in.skip_blank();
    if (in.takes(',') || in.peek() == ']') continue;
    // The end of the file, or a word that can only be the next key.
    in.fail(line, key + ": the ] of its list is missing, or a comma before '" +
                      in.take_until(" #,]") + "' in line " + std::to_string(in.line()));
  }
}

// Reads the text between "=" and the end of the line. A comment may follow.
std::vector<std::string> read_value(Reader& in, const std::string& key) {
  const int line = in.line();
  in.skip_spaces();
  std::vector<std::string> values;
  if (in.takes('[')) {
    values = read_list(in, key);
  } else {
    const bool quoted = in.peek() == '"' || in.peek() == '\'';
    values.push_back(read_scalar(in, key, "#"));
    if (!quoted && values.front().empty()) in.fail(line, key + ": a value is missing after =");
  }
  in.skip_spaces();
  if (in.peek() != '\n' && in.peek() != '#') {
    in.fail(in.line(), key + ": '" + in.take_until("#") + "' stands after the value");
  }
  in.skip_line();
  return values;
}

std::vector<std::string> keys_of(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_configurable()) keys.push_back(option->get_single_name());
  }
  return keys;
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  std::ostringstream all;
  all << input.rdbuf();
  static const std::regex kLogFormat("(?:^|\n)[ \t]*log-format[ \t]*=[ \t]*[\"']?([a-z]+)");
  const std::string text = all.str();
  if (std::smatch match; std::regex_search(text, match, kLogFormat)) log_format_ = match[1];

  Reader in(text, app_["--config"]->as<std::string>());
  std::vector<CLI::ConfigItem> found;
  while (!in.at_end()) {
    in.skip_blank();
    if (in.at_end()) break;
    const int line = in.line();
    if (in.peek() == ';') {
      in.skip_line();
      continue;
    }
    if (in.peek() == '[') {
      in.skip_line();
      in.fail(line, "there are no sections, only keys");
    }
    const std::string key = in.take_until("=#");
    const CLI::Option* const option = app_.get_option_no_throw("--" + key);
    if (option == nullptr || !option->get_configurable()) {
      in.fail(line, "there is no key " + key + describe::did_you_mean(key, keys_of(app_)) +
                        (option != nullptr ? ": it is for the command line"
                                           : " Keys are the flags without the dashes in front"));
    }
    CLI::ConfigItem item;
    item.name = key;
    const bool is_switch = option->get_expected_max() == 0;
    if (in.takes('=')) {
      item.inputs = read_value(in, key);
    } else {
      if (!is_switch) in.fail(line, key + ": a value is missing: " + key + " = ...");
      in.skip_line();
      item.inputs = {"true"};
    }
    if (is_switch && item.inputs != std::vector<std::string>{"true"} &&
        item.inputs != std::vector<std::string>{"false"}) {
      in.fail(line, key + ": is true or false");
    }
    if (!is_switch && option->get_expected_max() == 1 && item.inputs.size() != 1) {
      in.fail(line, key + ": takes one value, not a list of " + std::to_string(item.inputs.size()));
    }
    const auto [first, is_new] = places_.emplace(key, in.place(line));
    if (!is_new) in.fail(line, key + ": is given twice, first in " + first->second);
    if (!item.inputs.empty()) found.push_back(std::move(item));
  }
  return found;
}

std::string ConfigFile::place_of(const std::string& flag) const {
  const auto found = places_.find(flag.substr(std::min<std::size_t>(2, flag.size())));
  return found == places_.end() ? "" : found->second;
}

// Error texts for flags that CLI11 refuses.

// CLI11's error in the words of ours: the flag, what was given, what is taken, and what may have
// been meant; for a value of the configuration file, the file and line in front. argc, argv: as
// they were parsed.
std::string in_words(const CLI::ParseError& error, const CLI::App& app, const ConfigFile& config,
                     int argc, const char* const* argv);

// True if --log-format on the command line asks for errors as lines of JSON, wherever the parsing
// stopped.
bool asks_for_json(int argc, const char* const* argv, const ConfigFile& config);

namespace {

// The value of --NAME VALUE or --NAME=VALUE; the last one counts.
std::optional<std::string> given(const std::string& flag, int argc, const char* const* argv) {
  std::optional<std::string> value;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag) value = i + 1 < argc ? argv[i + 1] : "";
    if (word.starts_with(flag + "=")) value = word.substr(flag.size() + 1);
  }
  return value;
}

std::string belongs_to_no_flag(const std::string& word) {
  return "'" + word + "' belongs to no flag" +
         (std::filesystem::exists(word) ? ": a model's directory or file is given by --model" : "");
}

// The flag that does the same here as one of another server.
std::string_view flag_elsewhere(std::string_view flag) {
  using enum describe::ForeignFlag;
  switch (describe::foreign_flag(flag)) {
    case kModel:
      return "--model PATH names a model";
    case kHub:
      return "ORG/NAME[:QUANT] of a hub is given without a flag: lintel-server ORG/NAME";
    case kContext:
      return "the context is the model's own; --max-prompt-tokens and --session-memory bound "
             "requests";
    case kProcessor:
      return describe::kProcessorHint;
    case kTokens:
      return "--max-new-tokens N bounds what a request may ask for";
    case kAddress:
      return "--http-listen HOST:PORT is the address of HTTP, --listen HOST:PORT that of gRPC";
    case kThreads:
      return "--workers N sets the threads";
    case kSecret:
      return "--auth-tokens FILE has the tokens that clients send";
    case kNone:
      break;
  }
  return {};
}

std::string unknown_flag(const std::string& word, const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : app.get_options()) {
    flags.push_back(option->get_single_name());
  }
  const std::string flag = word.substr(0, word.find('='));
  const std::string_view here = flag_elsewhere(flag);
  if (!here.empty()) return "there is no flag " + flag + ": " + std::string(here);
  const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  return "there is no flag " + flag + describe::did_you_mean(name, flags, "--");
}

std::string unknown_words(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words) {
    if (word.starts_with("-") && word.size() > 1) return unknown_flag(word, app);
  }
  const std::string word = words.empty() ? "" : words.front();
  return belongs_to_no_flag(word);
}

// Says why a configuration file cannot be opened.
std::string unreadable(const std::string& file) {
  if (std::filesystem::is_directory(file)) return std::strerror(EISDIR);
  errno = 0;
  const std::ifstream in(file);
  return std::strerror(errno == 0 ? ENOENT : errno);
}

}  // namespace

std::string in_words(const CLI::ParseError& error, const CLI::App& app, const ConfigFile& config,
                     int argc, const char* const* argv) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unknown_words(app);
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr) {
    const std::string file = app["--config"]->as<std::string>();
    return "--config: " + file + ": " + unreadable(file);
  }
  const std::string flag = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr || option->get_expected_max() == 0) return text;
    const std::string wanted = flag + " " + option->get_type_name();
    return option->count() > 1 ? flag + ": is given more than once"
                               : flag + ": a value is missing: " + wanted;
  }
  const std::string place = config.place_of(flag);
  return place.empty() || given(flag, argc, argv) ? text : place + ": " + text;
}

bool asks_for_json(int argc, const char* const* argv, const ConfigFile& config) {
  return given("--log-format", argc, argv).value_or(config.log_format()) == "json";
}

// The text of --help around the flags, and its layout.

// Gives `app`, whose flags are declared, its introduction and examples.
void lay_out_help(CLI::App& app);
// --help of the flags `rows`: without those that few people set.
std::string common_help(CLI::App& app, const std::vector<Flag>& rows);

namespace {

constexpr std::size_t kNameColumns = 26;  // of a flag's name, to the left of its text

// The flags that people set: --help has these, --help-all has all.
constexpr std::string_view kCommonFlags[] = {
    "--model",
    "--models",
    "--model-repository",
    "--model-idle-unload",
    "--load-model",
    "--adapter",
    "--chat-template",
    "--model-memory",
    "--weight-type",
    "--kv-type",
    "--listen",
    "--drain-timeout",
    "--http-listen",
    "--http-cors-origin",
    "--http-allowed-host",
    "--tls-cert",
    "--tls-key",
    "--tls-client-ca",
    "--auth-tokens",
    "--insecure-public",
    "--identity-max-streams",
    "--identity-tokens-per-second",
    "--workers",
    "--max-batch-rows",
    "--max-queued-requests",
    "--request-memory",
    "--session-memory",
    "--session-idle-timeout",
    "--prefix-cache-memory",
    "--session-store",
    "--max-new-tokens",
    "--chat-max-tokens",
    "--log-level",
    "--log-format",
    "--metrics-listen",
};

constexpr const char* kIntroduction =
    "Serves linear transformers, such as Qwen3.5 and RWKV-7, over gRPC and HTTP.\n\n"
    "Without --model, --models, --model-repository and --config it serves the small\n"
    "models that come with it. gRPC is on 127.0.0.1:50051 by default, HTTP and the\n"
    "web page on http://127.0.0.1:8080/.\n"
    "BYTES are 1048576, 512MiB or 2GB; a DURATION is 250ms, 30s, 10m or 2h.\n"
    "--help has the flags that people set, --help-all has all.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  lintel-server\n"
    "      to try it; then: lintel chat (a model of 8 MB of Shakespeare)\n"
    "  lintel-server --model weights/mnist-linear-small\n"
    "      for this machine; then: lintel complete --unconditional 4\n"
    "  lintel-server unsloth/Qwen3.5-4B-GGUF:Q4_K_M\n"
    "      of a hub; then: lintel chat\n"
    "  lintel-server --model DIR --listen 0.0.0.0:50051 --tls-cert server.pem \\\n"
    "      --tls-key server.key --auth-tokens tokens --metrics-listen 127.0.0.1:9464\n"
    "      for others, with tokens of `lintel token new`, and watched by Prometheus\n"
    "  lintel-server --config server.toml\n"
    "      with flags as keys: model = [\"DIR\"], listen = \"0.0.0.0:50051\", ...\n\n"
    "When it serves it says so in a line of standard output, \"lintel-server ready on\n"
    "ADDRESS\", for scripts, and with HTTP in a second and last one, which names both\n"
    "addresses and the page; the rest is logged to standard error.\n"
    "After SIGTERM or SIGINT what runs may end (--drain-timeout), and a second one\n"
    "ends it at once. Exit status: 0 after a drain, 1 when a model, a file or the\n"
    "address cannot be used, 2 when flags make no sense.\n";

}  // namespace

void lay_out_help(CLI::App& app) {
  app.description(kIntroduction);
  app.footer(kExamples);
  app.get_formatter()->column_width(kNameColumns);
}

std::string common_help(CLI::App& app, const std::vector<Flag>& rows) {
  for (const Flag& flag : rows) {
    if (std::ranges::count(kCommonFlags, flag.name) == 0) app.get_option(flag.name)->group("");
  }
  return app.help();
}

// Checks of combinations of flags.

// Throws UsageError.
void check_together(ServerOptions& options);

namespace {

// Plain text leaves this machine only with --insecure-public, and never with tokens.
void check_plain_text(const std::string& flag, const ListenAddress& address,
                      const SecurityOptions& security) {
  if (security.tls() || address.is_local()) return;
  if (!security.auth_tokens.empty()) {
    throw UsageError("--auth-tokens: tokens would travel in plain text to " +
                     address.to_string(address.port) + ": give --tls-cert and --tls-key");
  }
  if (!security.insecure_public) {
    throw UsageError(flag + " " + address.to_string(address.port) +
                     " would serve plain text to other machines: give --tls-cert and --tls-key, "
                     "or --insecure-public if something else protects the way");
  }
}

// Checks the options for encryption and tokens.
void check_security(const ServerOptions& options) {
  const SecurityOptions& security = options.security;
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    throw UsageError("--tls-cert and --tls-key belong together");
  }
  if (!security.tls_client_ca.empty() && !security.tls()) {
    throw UsageError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (!security.admin_certificates.empty()) {
    if (security.tls_client_ca.empty())
      throw UsageError("--admin-certificate needs --tls-client-ca");
    if (!security.auth_tokens.empty()) {
      throw UsageError("--admin-certificate: with --auth-tokens the tokens' roles decide");
    }
  }
  check_plain_text("--listen", options.listen, security);
  if (options.http.listen) check_plain_text("--http-listen", *options.http.listen, security);
}

// Checks the options of the place where sessions outlive the server.
void check_store(const ServerOptions& options) {
  const ServerOptions::DurableOptions& durable = options.durable;
  const ServerOptions::SharedStoreOptions& shared = options.shared;
  const ServerOptions defaults;
  const std::string store = durable.store.string();
  const bool is_redis = is_redis_url(store);
  if (store.empty() && durable.durability.value_or(Durability::kNone) != Durability::kNone) {
    throw UsageError("--session-durability needs --session-store, but for none");
  }
  const bool hands_over =
      durable.drain_handover_ms && handover_after(durable) != ServerOptions::DurableOptions::kNever;
  if (store.empty() && hands_over) {
    throw UsageError("--drain-handover needs --session-store, but for off");
  }
  std::string why;
  const std::optional<RedisUrl> url = is_redis ? parse_redis_url(store, &why) : std::nullopt;
  if (is_redis && !url) throw UsageError("--session-store: " + why);
  if (!is_redis && store.find("://") != std::string::npos) {
    throw UsageError("--session-store: '" + store +
                     "' is neither a directory nor redis:// nor rediss://");
  }
  if (store.empty() && durable.chat_spill) throw UsageError("--chat-spill needs --session-store");
  if (is_redis && durable.store_size_bytes != defaults.durable.store_size_bytes) {
    throw UsageError(
        "--session-store-size is of a directory: a Redis server is bounded by its own maxmemory");
  }
  if (is_redis && durable.identity_stored_bytes != 0) {
    throw UsageError(
        "--identity-stored is of responses in a directory or in memory: a Redis server is bounded "
        "by its own maxmemory");
  }
  const std::pair<const char*, bool> of_redis[] = {
      {"--session-lease", shared.lease_ms != defaults.shared.lease_ms},
      {"--session-store-wait-replicas", shared.wait_replicas.has_value()},
      {"--session-store-wait", shared.wait_ms != defaults.shared.wait_ms},
      {"--session-store-credentials", !shared.credentials.empty()}};
  for (const auto& [flag, is_given] : of_redis) {
    if (is_given && !is_redis) {
      throw UsageError(std::string(flag) + " needs --session-store redis:// or rediss://");
    }
  }
  const std::pair<const char*, bool> of_tls[] = {{"--session-store-ca", !shared.ca.empty()},
                                                 {"--session-store-cert", !shared.cert.empty()},
                                                 {"--session-store-key", !shared.key.empty()}};
  for (const auto& [flag, is_given] : of_tls) {
    if (is_given && !(url && url->is_encrypted)) {
      throw UsageError(std::string(flag) + " needs --session-store rediss://");
    }
  }
  if (shared.cert.empty() != shared.key.empty()) {
    throw UsageError("--session-store-cert and --session-store-key belong together");
  }
}

// Each names a model that may be served, and no name is there twice.
void check_adapters(ModelOptions& models) {
  std::vector<std::string> served;
  for (const auto& model : models.directories) served.push_back(model.name);
  served.insert(served.end(), models.load.begin(), models.load.end());
  std::set<std::pair<std::string, std::string>> names;
  for (AdapterDirectory& adapter : models.adapters) {
    if (adapter.model.empty()) {
      if (served.size() != 1 || served.front() == "*") {
        throw UsageError("--adapter: name the model of '" + adapter.name +
                         "', as in --adapter MODEL:" + adapter.name + "=DIR");
      }
      adapter.model = served.front();
    }
    // One of the repository may be loaded later.
    if (models.models_directory().empty() &&
        std::find(served.begin(), served.end(), adapter.model) == served.end()) {
      throw UsageError("--adapter: no --model is named '" + adapter.model + "'");
    }
    if (!names.emplace(adapter.model, adapter.name).second) {
      throw UsageError("--adapter: '" + adapter.name + "' of model '" + adapter.model +
                       "' is given twice");
    }
  }
}

// Each names a model that may be served, one each.
template <typename Given>
void check_of_models(const char* flag, const ModelOptions& models, std::vector<Given>& all) {
  std::vector<std::string> served;
  for (const auto& model : models.directories) served.push_back(model.name);
  served.insert(served.end(), models.load.begin(), models.load.end());
  std::set<std::string> names;
  for (Given& given : all) {
    const std::string name = flag;
    if (given.model.empty()) {
      if (served.size() != 1 || served.front() == "*") {
        throw UsageError(name + ": name the model, as in " + name + " MODEL=...");
      }
      given.model = served.front();
    }
    if (models.models_directory().empty() &&
        std::find(served.begin(), served.end(), given.model) == served.end()) {
      throw UsageError(name + ": no --model is named '" + given.model + "'");
    }
    if (!names.insert(given.model).second) {
      throw UsageError(name + ": model '" + given.model + "' has two");
    }
  }
}

// Each means a model that may be served, and can mean it.
void check_aliases(const ServerOptions& options) {
  const ModelOptions& models = options.models;
  const auto is_served = [&](const std::string& name) {
    return std::ranges::count(models.directories, name, &ModelDirectory::name) > 0;
  };
  std::set<std::string> patterns;
  for (const ModelAlias& alias : options.model_aliases) {
    if (models.models_directory().empty() && !is_served(alias.model)) {
      throw UsageError("--model-alias: no --model is named '" + alias.model + "'");
    }
    if (is_served(alias.pattern)) {
      throw UsageError("--model-alias: '" + alias.pattern + "' is the name of a model");
    }
    if (!patterns.insert(alias.pattern).second) {
      throw UsageError("--model-alias: " + alias.pattern + " is given twice");
    }
  }
}

}  // namespace

void check_together(ServerOptions& options) {
  check_security(options);
  if (!options.http.listen && !options.http.cors_origins.empty()) {
    throw UsageError("--http-cors-origin needs HTTP: --http-listen ADDRESS");
  }
  if (!options.http.allowed_hosts.empty() && !options.http.listen &&
      !options.monitoring.metrics_listen) {
    throw UsageError("--http-allowed-host needs --http-listen ADDRESS or --metrics-listen");
  }
  if (!options.models.load.empty() && options.models.models_directory().empty()) {
    throw UsageError("--load-model needs --models or --model-repository");
  }
  if (options.models.loads_on_request() && !options.models.repository.empty()) {
    throw UsageError(
        "--models and --model-repository: give one, whose models requests load, or operators");
  }
  if (options.models.idle_unload_ms.count() > 0 && !options.models.loads_on_request()) {
    throw UsageError("--model-idle-unload needs --models, from which a model is loaded again");
  }
  if (options.models.directories.empty() && options.models.models_directory().empty()) {
    throw UsageError("--model is required, or --models, or --model-repository");
  }
  std::set<std::string> names;
  for (const std::string& name : options.models.load) {
    if (name != "*" && !is_repository_name(name)) {
      throw UsageError("--load-model: '" + name + "' cannot name a model");
    }
    if (!names.insert(name).second) throw UsageError("--load-model: " + name + " is given twice");
  }
  for (const auto& model : options.models.directories) {
    if (!names.insert(model.name).second) {
      throw UsageError("--model: two models are named '" + model.name +
                       "'; give one another name with NAME=PATH");
    }
  }
  check_adapters(options.models);
  if (options.models.weight_type && !options.models.weight_type_text.empty()) {
    throw UsageError("--weight-type-text goes with --weight-type auto");
  }
  check_of_models("--chat-template", options.models, options.models.chat_templates);
  check_of_models("--tool-dialect", options.models, options.models.tool_dialects);
  check_aliases(options);
  if (options.initial_states.accept_other_numerics && options.initial_states.directory.empty()) {
    throw UsageError("--accept-other-numerics needs --initial-states");
  }
  check_store(options);
  if (options.identity.token_burst > 0 && options.identity.tokens_per_second == 0) {
    throw UsageError("--identity-token-burst needs --identity-tokens-per-second");
  }
  const Scheduler::Options& scheduling = options.models.scheduling;
  if (scheduling.max_batch_rows > 0 &&
      scheduling.prefill_rows_per_step > scheduling.max_batch_rows) {
    throw UsageError("--prefill-rows " + std::to_string(scheduling.prefill_rows_per_step) +
                     " is more than --max-batch-rows " + std::to_string(scheduling.max_batch_rows));
  }
}

namespace {

// The flag's member holds the default and takes the value.
void declare(CLI::App& app, const Flag& flag) {
  // Errors of a row get the flag's name.
  const auto set = [&flag](const std::string& text) {
    try {
      flag.set(text);
    } catch (const UsageError& error) {
      throw CLI::ValidationError(flag.name, error.what());
    }
  };
  CLI::Option* option = nullptr;
  switch (flag.type) {
    case Flag::Type::kSwitch:
      option = app.add_flag(flag.name, *static_cast<bool*>(flag.member), flag.help);
      break;
    case Flag::Type::kList:
      option = app.add_option_function<std::vector<std::string>>(
          flag.name,
          [set](const std::vector<std::string>& texts) { std::ranges::for_each(texts, set); },
          flag.help);
      break;
    default:
      option = app.add_option_function<std::string>(flag.name, set, flag.help);
      option->default_str(flag.shown());
  }
  option->group(flag.group);
  if (!flag.value.empty()) option->type_name(flag.value);
  if (!flag.words.empty()) option->check(describe::offers(flag.words));
  if (!flag.range().empty()) option->check(describe::takes(flag.range()));
}

const char* name_of(FieldType type) {
  switch (type) {
    case FieldType::kFlag:
      return "flag";
    case FieldType::kCount:
      return "count";
    case FieldType::kPosition:
      return "position";
    case FieldType::kSeed:
      return "seed";
    case FieldType::kNumber:
      return "number";
    case FieldType::kText:
      return "text";
    case FieldType::kTexts:
      return "texts";
    case FieldType::kTokens:
      return "tokens";
    case FieldType::kBiases:
      return "biases";
    case FieldType::kSpans:
      return "spans";
    case FieldType::kValues:
      return "values";
    case FieldType::kSeconds:
      return "seconds";
  }
  return "";
}

// The table of the fields of requests, as JSON.
std::string fields_as_json() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < std::size(kRequestFields); ++i) {
    const RequestField& field = kRequestFields[i];
    nlohmann::ordered_json row = {{"name", field.name}, {"type", name_of(field.type)}};
    // True if a request can leave the field out, rather than only set its empty value.
    row["optional"] = api::wire_field(i).field->has_presence();
    if (field.range.is_given()) {
      // Floats are shown as the decimal that they were written as.
      const auto decimal = [](float value) {
        char text[32] = {};
        std::to_chars(text, text + sizeof text - 1, value);
        return std::strtod(text, nullptr);
      };
      row["low"] = decimal(field.range.low);
      row["high"] = decimal(field.range.high);
      row["is_above_low"] = field.range.is_above_low;
    }
    const auto add = [&row](const char* name, std::string_view text) {
      if (!text.empty()) row[name] = text;
    };
    add("values", field.values);
    add("default", field.default_value);
    add("help", field.help);
    const std::pair<const char*, FieldName> names[] = {{"completions", field.completions},
                                                       {"chat", field.chat},
                                                       {"responses", field.responses},
                                                       {"kserve", field.kserve},
                                                       {"cli", field.cli},
                                                       {"python", field.python},
                                                       {"page", field.page}};
    nlohmann::ordered_json by_hand = nlohmann::ordered_json::array();
    for (const auto& [api, name] : names) {
      add(api, name.text);
      if (name.is_read_by_hand) by_hand.push_back(api);
    }
    // The APIs that read it with another field, or in another form.
    row["by_hand"] = std::move(by_hand);
    row["changes_answer"] = field.changes_answer;
    rows.push_back(std::move(row));
  }
  return rows.dump(1);
}

// Serves the packaged models if no model is named. Throws UsageError.
void use_packaged_models(ServerOptions& options) {
  for (PackagedModel& model : packaged_models(program_directory())) {
    options.models.directories.push_back({std::move(model.name), std::move(model.directory)});
  }
  if (options.models.directories.empty()) {
    throw UsageError(
        "--model is required, or --model-repository: the models of the package are not in "
        "../share/lintel/models next to the program");
  }
  options.serves_packaged_models = true;
}

// True if systemd runs this process as a service: the progress of a download is not seen there, and
// systemd ends a start that takes minutes.
bool is_service() {
  const char* const process = std::getenv("SYSTEMD_EXEC_PID");
  if (process != nullptr && process == std::to_string(::getpid())) return true;
  // Before systemd 248, or through a script: standard error is the journal's.
  const char* const journal = std::getenv("JOURNAL_STREAM");
  struct stat error {};
  return journal != nullptr && ::fstat(STDERR_FILENO, &error) == 0 &&
         journal == std::to_string(error.st_dev) + ":" + std::to_string(error.st_ino);
}

// The model of a hub that the command line names. Throws UsageError.
void use_pulled_model(const std::string& source, ServerOptions& options) {
  const std::optional<std::string> name = name_of_pulled(source);
  if (!name || std::filesystem::exists(source)) throw UsageError(belongs_to_no_flag(source));
  if (is_service()) {
    throw UsageError("'" + source +
                     "': a service downloads no model: give --model, or model in its "
                     "file, the path that `HF_HUB_CACHE=/var/lib/lintel/hub lintel pull " +
                     source + "` prints");
  }
  options.pulled_model = source;
  options.models.directories.push_back({*name, ""});
}

// Serves HTTP on loopback, if gRPC is there and no flag names an address. A unix socket's
// permissions say who may call, which a port would get round.
void use_default_http(ServerOptions& options) {
  if (!options.listen.unix_path.empty() || !options.listen.is_local()) return;
  options.http.listen = ListenAddress{.port = kDefaultHttpPort};
  options.http_is_default = true;
}

}  // namespace

bool parse_server_options(int argc, const char* const* argv, ServerOptions* options,
                          std::string* help) {
  ServerOptions parsed;
  parsed.models.scheduling.workers = usable_cores();
  CLI::App app("", "lintel-server");
  app.set_help_flag("-h,--help", "Print the flags that people set, and exit");
  app.set_help_all_flag("--help-all", "Print all flags, and exit");
  app.set_version_flag("--version", "lintel-server " LINTEL_VERSION);
  app.set_config("--config", "",
                 "File with the flags below as keys without the dashes, TOML or INI: workers = 4; "
                 "flags win")
      ->type_name("FILE");
  const std::vector<Flag> flags = server_flags(parsed);
  std::vector<std::string> machine_defaults;
  for (const Flag& flag : flags) {
    if (flag.default_of_machine) machine_defaults.push_back(flag.name);
  }
  describe::add_flags(app, machine_defaults);
  app.add_flag_callback(
      "--print-fields", [] { throw CLI::CallForVersion(fields_as_json(), 0); },
      "Prints the fields of requests as JSON, with their names in each API, and exits");
  const auto config = std::make_shared<ConfigFile>(app);
  app.config_formatter(config);
  for (const Flag& flag : flags) declare(app, flag);
  std::string pulled;
  app.add_option("MODEL", pulled,
                 "ORG/NAME[:QUANT] of a hub: pulled by the lintel beside this program unless the "
                 "cache has it, and served under this name. On the command line alone, and not of "
                 "a service")
      ->type_name("")
      ->configurable(false);
  lay_out_help(app);
  try {
    describe::parse(app, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const CLI::CallForHelp&) {
    *help = common_help(app, flags);
    return false;
  } catch (const CLI::CallForAllHelp&) {
    *help = app.help();
    return false;
  } catch (const CLI::CallForVersion& text) {  // or a description
    *help = std::string(text.what()) + "\n";
    return false;
  } catch (const CLI::ParseError& error) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw UsageError(in_words(error, app, *config, argc, argv));
  } catch (const describe::UnknownFlag& flag) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw UsageError(unknown_flag(flag.what(), app));
  } catch (const UsageError&) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw;
  }
  options->logging = parsed.logging;  // also for what is found wrong from here on
  if (!pulled.empty()) use_pulled_model(pulled, parsed);
  const ModelOptions& models = parsed.models;
  const bool names_no_model =
      models.directories.empty() && models.models_directory().empty() && models.load.empty();
  if (names_no_model && app.count("--config") == 0) use_packaged_models(parsed);
  if (app.count("--http-listen") == 0) use_default_http(parsed);
  check_together(parsed);
  *options = std::move(parsed);
  return true;
}

}  // namespace lintel
