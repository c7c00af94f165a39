// SPDX-License-Identifier: Apache-2.0
// lintel run.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/hub/pull.h"
#include "model/core/child_process.h"
#include "model/core/packaged_models.h"
#include "model/core/sha256.h"

namespace lintel::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFooter = R"(
MODEL is a model's directory, a GGUF file, the name of a packaged model, as text-rwkv7-small, or ORG/NAME[:QUANT] of a
hub, which is pulled unless the cache has it (`lintel pull --help`). A server at --address that has the model already,
under any name, is used and left alone; no model is loaded into it. Else a server is started for this conversation, on
free ports of this machine, and ended with it; a line says where its page and its log are, which is kept where something
failed. PROMPT is the only question, and so is standard input where that is no terminal; the exit status says how it
went. On a terminal the conversation is that of `lintel chat`.

Examples:
  lintel run Qwen/Qwen3.5-0.8B
  lintel run unsloth/Qwen3.5-4B-GGUF:Q8_0 "What is 17 * 3?"
  lintel run ./my-model <question.txt)";

constexpr std::chrono::milliseconds kLookUpDeadline{2000};
constexpr std::chrono::milliseconds kEndPatience{5000};
constexpr std::chrono::milliseconds kEndDelay{200};  // of a process whose connections have ended
constexpr std::chrono::hours kLogLife{7 * 24};

struct RunFlags {
  std::string model, prompt;
  bool has_prompt = false;
  bool offline = false;
  ConnectionFlags connection;  // of the server that may have the model
};

// The model that MODEL names.
struct Wanted {
  std::string name;                       // in requests
  fs::path path;                          // empty: of a hub
  std::optional<hub::PullSource> source;  // of the hub
};

bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

// A server's name for a path: its last component, of a GGUF file without its ending and the number
// of its part; what no name may have as '-'.
std::string name_of_path(const fs::path& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // a slash at the end
  std::string name =
      whole.extension() == ".gguf" ? whole.stem().string() : whole.filename().string();
  name = name.substr(0, name.find("-00001-of-"));
  std::ranges::replace_if(
      name, [](char c) { return !is_of_name(c); }, '-');
  constexpr std::size_t kMaxName = 128;
  name = name.substr(std::min(name.find_first_not_of('.'), name.size())).substr(0, kMaxName);
  return name.empty() ? "model" : name;
}

// Throws UsageError. Says so where `text` may be meant as a path and is taken for a model of a hub.
Wanted parse_model(const std::string& text, Console& console) {
  std::error_code error;
  if (fs::exists(text, error)) return {.name = name_of_path(text), .path = text, .source = {}};
  const bool is_path = text.starts_with('/') || text.starts_with('.') || text.starts_with('~') ||
                       (text.ends_with(".gguf") && text.find("://") == std::string::npos) ||
                       std::ranges::count(text, '/') > 1;
  if (is_path && text.find("://") == std::string::npos && !text.starts_with("huggingface.co/") &&
      !text.starts_with("hf.co/")) {
    throw UsageError("MODEL: " + text + ": " + std::strerror(ENOENT));
  }
  std::string packaged;  // the names
  for (PackagedModel& model : packaged_models(program_directory())) {
    if (model.name == text) return {.name = text, .path = std::move(model.directory), .source = {}};
    packaged += (packaged.empty() ? "" : ", ") + model.name;
  }
  hub::PullSource source = parse_source(text);
  if (source.repo.find('/') == std::string::npos) {
    throw UsageError("MODEL: " + text + " is neither a directory or file nor ORG/NAME of a hub" +
                     (packaged.empty() ? "" : ", nor a packaged model: " + packaged));
  }
  if (text.find("://") == std::string::npos && fs::is_directory(text.substr(0, text.find('/')))) {
    console.err("lintel: " + text + " is no file or folder here; taken for a model of the hub\n");
  }
  return {.name = hub::name_of(source), .path = {}, .source = std::move(source)};
}

// Adds a file as the fingerprint of a model has it.
void add_file(const fs::path& path, Cancellation& cancellation, Sha256& hash) {
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  hash.add_length(fs::file_size(path, error));
  std::vector<char> piece(std::size_t{1} << 20);
  while (in && !cancellation.cancelled()) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.add({piece.data(), static_cast<std::size_t>(in.gcount())});
  }
}

// v1::Model.fingerprint of a checkpoint's directory or a GGUF file, as the server computes it. Of
// models that it computes it for in another way something else, which no server's is equal to.
std::string fingerprint_of(const fs::path& path, Cancellation& cancellation) {
  Sha256 hash;
  std::error_code error;
  std::vector<fs::path> files;
  const std::string first = path.filename().string();
  const bool is_directory = fs::is_directory(path, error);
  // The other parts of a file have its beginning.
  const std::size_t part = first.find("-00001-of-");
  const std::string beginning = first.substr(0, part);
  for (fs::directory_iterator at(is_directory ? path : fs::absolute(path).parent_path(), error),
       end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_part = part == std::string::npos
                             ? name == first
                             : name.starts_with(beginning + "-") && name.ends_with(".gguf");
    if (is_directory ? name.ends_with(".safetensors") : is_part) files.push_back(at->path());
  }
  std::ranges::sort(files);
  if (is_directory) add_file(path / "config.json", cancellation, hash);
  for (const fs::path& file : files) add_file(file, cancellation, hash);
  return hash.hex();
}

// False if the model's configuration shows that it was not loaded from the path, so that no weights
// have to be read to find that out.
bool may_be_from(const v1::Model& model, const fs::path& path) {
  const nlohmann::json served =
      nlohmann::json::parse(model.config_json(), nullptr, /*allow_exceptions=*/false);
  if (!served.is_object()) return true;
  const bool is_of_gguf = served.contains("general.architecture");
  std::ifstream in(path / "config.json");
  if (!in.is_open()) return is_of_gguf;
  const nlohmann::json own = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  return own.is_discarded() || own == served;
}

// The model of a hub among those of a server, by its name.
std::optional<std::string> served_name_of_hub(const Wanted& wanted,
                                              const std::vector<v1::Model>& models) {
  if (!wanted.source || wanted.source->revision != "main") return std::nullopt;
  const auto is_ready = [&](const std::string& name) {
    return std::ranges::any_of(models, [&](const v1::Model& model) {
      return model.name() == name && model.state() == v1::MODEL_STATE_READY;
    });
  };
  if (is_ready(wanted.name)) return wanted.name;
  if (!wanted.source->quant.empty()) return std::nullopt;
  for (const std::string_view quant : hub::kDefaultQuants) {
    const std::string name = wanted.name + ":" + std::string(quant);
    if (is_ready(name)) return name;
  }
  return std::nullopt;
}

// The place of the model on this machine; nothing: it has to be pulled.
std::optional<fs::path> local_path(const Wanted& wanted) {
  if (!wanted.source) return wanted.path;
  try {
    hub::PullOptions options;
    options.hub = hub::hub_settings_from_environment();
    return hub::find_in_cache(*wanted.source, options);
  } catch (const hub::HubError&) {  // there is no cache
    return std::nullopt;
  }
}

// The name under which a server has the model, ready to be asked; nothing: it does not have it. The
// server may call it by any name: the files are compared.
std::optional<std::string> served_name(const Wanted& wanted, const std::vector<v1::Model>& models,
                                       Cancellation& cancellation) {
  if (auto name = served_name_of_hub(wanted, models)) return name;
  const std::optional<fs::path> path = local_path(wanted);
  if (!path) return std::nullopt;
  std::string fingerprint;  // computed where a model may have it
  std::optional<std::string> found;
  for (const v1::Model& model : models) {
    if (model.state() != v1::MODEL_STATE_READY || model.fingerprint().empty()) continue;
    if (!may_be_from(model, *path)) continue;
    if (fingerprint.empty()) fingerprint = fingerprint_of(*path, cancellation);
    if (model.fingerprint() != fingerprint) continue;
    // The model's own name is preferred to others.
    if (!found || model.name() == wanted.name) found = model.name();
  }
  return found;
}

// The same of the server at the address of the flags, if there is one that lets this caller in.
std::optional<std::string> name_at_server(const Wanted& wanted, ConnectionFlags connection,
                                          Cancellation& cancellation) {
  connection.deadline_seconds =
      std::min(connection.deadline_seconds, std::chrono::duration<double>(kLookUpDeadline).count());
  try {
    const Client client = connection.connect();
    return served_name(wanted, client.list_models(&cancellation), cancellation);
  } catch (const CallError&) {
    if (cancellation.cancelled()) throw;
    return std::nullopt;
  }
}

// Logs of servers that were started here: one file a run.

std::string environment_or(const char* name, const std::string& other) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? other : value;
}

// XDG_STATE_HOME/lintel, or where nothing can be written there the system's temporary directory.
fs::path log_directory() {
  const std::string home = environment_or("HOME", "");
  const fs::path state =
      environment_or("XDG_STATE_HOME", home.empty() ? "" : home + "/.local/state");
  std::error_code error;
  if (!state.empty() && state.is_absolute()) {
    fs::create_directories(state / "lintel", error);
    if (!error && ::access((state / "lintel").c_str(), W_OK) == 0) return state / "lintel";
  }
  return fs::temp_directory_path(error);
}

constexpr std::string_view kLogStart = "run-", kLogEnd = ".log";

void remove_old_logs(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(kLogStart) || !name.ends_with(kLogEnd)) continue;
    if (fs::file_time_type::clock::now() - at->last_write_time(ignored) > kLogLife) {
      fs::remove(at->path(), ignored);
    }
  }
}

// The log of one server: removed once that and the conversation have ended well.
class LogFile {
 public:
  LogFile() {
    const fs::path directory = log_directory();
    remove_old_logs(directory);
    std::string name = directory / (std::string(kLogStart) + "XXXXXX" + std::string(kLogEnd));
    file_ = ::mkostemps(name.data(), static_cast<int>(kLogEnd.size()), O_CLOEXEC);
    if (file_ < 0) throw Failure(name + ": the log cannot be made: " + std::strerror(errno));
    path_ = name;
  }
  ~LogFile() { ::close(file_); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  int file() const { return file_; }
  const fs::path& path() const { return path_; }
  void remove() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  // Without the name of the program in front; empty: there is none.
  std::string last_line() const {
    std::ifstream in(path_);
    std::string last;
    for (std::string line; std::getline(in, line);) {
      if (!line.empty()) last = line;
    }
    constexpr std::string_view kProgram = "lintel-server: ";
    return last.starts_with(kProgram) ? last.substr(kProgram.size()) : last;
  }

 private:
  int file_ = -1;
  fs::path path_;
};

// A server of one model for this command alone, on free ports of this machine.
class OwnServer {
 public:
  // Starts it, and returns once it serves. Throws Failure with what its log says, CallError with
  // CANCELLED.
  OwnServer(const std::string& name, const fs::path& path, Console& console)
      : console_(console),
        child_({program_beside("lintel-server").string(), "--model",
                name + "=" + fs::absolute(path).string(), "--listen", "127.0.0.1:0",
                "--http-listen", "127.0.0.1:0", "--drain-timeout", "1s"},
               {.error = log_.file(), .has_group = true}) {
    const std::string lines = read_start(name);
    address_ = between(lines, "ready on ", "\n");
    page_ = between(lines, "page: ", "\n");
    if (!address_.empty() && !page_.empty()) return;
    const int status = child_.end(kEndPatience);
    // The log of a server that a signal ended does not say so.
    std::string why = status < kFirstSignal ? log_.last_line() : "";
    if (why.empty()) {
      why = status == 127 ? "lintel-server is neither beside lintel nor on the PATH"
                          : "it " + end_text(status);
    }
    throw Failure("the server did not start: " + why + log_text());
  }
  ~OwnServer() {
    const int status = child_.end(kEndPatience);
    if (has_said_end_) return;
    if (status != 0) {
      console_.err("lintel: the server " + end_text(status) + log_text() + "\n");
    } else if (has_failed_) {
      console_.err("lintel: the server's log is kept: " + log_.path().string() + "\n");
    } else {
      log_.remove();
    }
  }
  OwnServer(const OwnServer&) = delete;
  OwnServer& operator=(const OwnServer&) = delete;

  // Says how it ended, after a call to it failed; nothing: it runs. Waits for its end where the
  // call was lost.
  std::optional<std::string> end(const CallError& error) {
    const bool is_lost = error.code() == grpc::StatusCode::UNAVAILABLE ||
                         error.code() == grpc::StatusCode::CANCELLED;
    const std::optional<int> status =
        child_.wait_for(is_lost ? kEndDelay : std::chrono::milliseconds(0));
    if (!status) return std::nullopt;
    has_said_end_ = true;
    return "the server of this conversation " + end_text(*status) + log_text();
  }

  // The conversation ends with an error: the log is kept, and named at the end.
  void note_failure() { has_failed_ = true; }

  const std::string& address() const { return address_; }
  const std::string& page() const { return page_; }
  const fs::path& log() const { return log_.path(); }

 private:
  static constexpr int kFirstSignal = 128;  // of ChildProcess::wait()

  static std::string end_text(int status) {
    if (status < kFirstSignal) return "ended with status " + std::to_string(status);
    const int signal = status - kFirstSignal;
    if (signal == SIGKILL) return "was killed (signal 9); is there enough memory?";
    return "was ended by signal " + std::to_string(signal);
  }
  std::string log_text() const { return " (log: " + log_.path().string() + ")"; }

  static std::string between(const std::string& text, std::string_view begin,
                             std::string_view end) {
    const std::size_t at = text.find(begin);
    if (at == std::string::npos) return "";
    const std::size_t from = at + begin.size();
    return text.substr(from, text.find(end, from) - from);
  }

  // The two lines that say where it serves, or what came before its end.
  std::string read_start(const std::string& name) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    auto next_note = begin + std::chrono::seconds(1);
    bool noted = false;
    std::string text;
    if (!console_.err_is_terminal()) console_.err("lintel: loading " + name + "\n");
    while (std::ranges::count(text, '\n') < 2) {
      if (console_.cancellation().cancelled()) {
        log_.remove();
        throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
      }
      if (console_.err_is_terminal() && Clock::now() >= next_note) {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin);
        console_.err("\r\x1b[Klintel: loading " + name + ", " + std::to_string(seconds.count()) +
                     " s");
        next_note += std::chrono::seconds(1);
        noted = true;
      }
      pollfd waiting{child_.out(), POLLIN, 0};
      if (::poll(&waiting, 1, 100) <= 0) continue;
      char bytes[512];
      const ssize_t got = ::read(child_.out(), bytes, sizeof bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(bytes, static_cast<std::size_t>(got));
    }
    if (noted) console_.err("\r\x1b[K");
    return text;
  }

  Console& console_;
  LogFile log_;
  ChildProcess child_;
  std::string address_, page_;
  bool has_said_end_ = false, has_failed_ = false;
};

int run_model(const RunFlags& flags, const PrepareTalk& prepare, Console& console) {
  Wanted wanted = parse_model(flags.model, console);
  std::optional<std::string> question;
  if (flags.has_prompt) {
    if (trimmed(flags.prompt).empty()) {
      throw UsageError("PROMPT is empty: a question is expected");
    }
    question = flags.prompt;
  }
  const TalkOver talk = prepare(std::move(question));
  ConnectionFlags connection = flags.connection;
  if (const auto served = name_at_server(wanted, connection, console.cancellation())) {
    console.err("lintel: the server at " + connection.address + " has " + *served + "\n");
    connection.model = *served;
    return talk(connection, nullptr);
  }
  if (wanted.source) {
    wanted.path = pull_if_missing(*wanted.source, flags.offline, console);
  }
  OwnServer server(wanted.name, wanted.path, console);
  console.err("lintel: " + wanted.name + " is served for this conversation, page: " +
              server.page() + ", log: " + server.log().string() + "\n");
  ConnectionFlags own;
  own.address = server.address();
  own.model = wanted.name;
  own.deadline_seconds = flags.connection.deadline_seconds;
  try {
    return talk(own, [&server](const CallError& error) { return server.end(error); });
  } catch (const CallError& error) {
    if (console.cancellation().cancelled()) throw;
    if (const auto end = server.end(error)) throw Failure(*end);
    server.note_failure();
    throw;
  } catch (const Failure&) {
    server.note_failure();
    throw;
  }
}

}  // namespace

void add_run(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command =
      app.add_subcommand("run", "Talk to a model: of a file, or of a hub, pulled where needed");
  command
      ->add_option("MODEL", flags->model,
                   "Directory, GGUF file, packaged model, or ORG/NAME[:QUANT] of a hub")
      ->required();
  const CLI::Option* const prompt =
      command->add_option("PROMPT", flags->prompt, "The only question");
  command->add_flag("--offline", flags->offline, "Look in the cache alone");
  const PrepareTalk prepare = add_talk_flags(*command, command_line.console);
  flags->connection.add_to(*command, /*with_model=*/false);
  command->footer(kRunFooter);
  on_chosen(*command, command_line, [flags, prepare, prompt, &command_line] {
    flags->has_prompt = prompt->count() > 0;
    return run_model(*flags, prepare, command_line.console);
  });
}

}  // namespace lintel::cli
