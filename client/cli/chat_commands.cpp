// SPDX-License-Identifier: Apache-2.0
// `lintel chat` on a terminal: what is typed, and the conversations that are kept in files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/chat_turns.h"
#include "client/cli/line_editor.h"
#include "client/cli/program.h"

namespace lintel::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string counted_turns(std::size_t turns) {
  return std::to_string(turns) + (turns == 1 ? " turn" : " turns");
}

// Files of conversations: NAME is one of the user's own, a name with a slash is a path.

// $XDG_DATA_HOME/lintel/chats. Throws Failure where neither that nor HOME says where.
fs::path chats_directory() {
  const auto environment = [](const char* name) {
    const char* const value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  // A relative one is not valid, by the specification.
  if (const fs::path data = environment("XDG_DATA_HOME"); data.is_absolute()) {
    return data / "lintel/chats";
  }
  const fs::path home = environment("HOME");
  if (home.empty()) throw Failure("neither XDG_DATA_HOME nor HOME is set; a path has a slash");
  return home / ".local/share/lintel/chats";
}

fs::path chat_file(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  if (name.starts_with('.')) throw UsageError("'" + name + "' is no name: it begins with a dot");
  constexpr std::size_t kMostBytes = 200;
  if (name.size() > kMostBytes) throw UsageError("a name has at most 200 bytes");
  return chats_directory() / (name + ".json");
}

std::vector<std::string> chat_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(chats_directory(), none)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void fail_to_save(const fs::path& path, int error) {
  throw Failure(path.string() + ": cannot be written: " + std::strerror(error));
}

// Replaces the file by one that its owner alone can read, whole or not at all.
void write_private(const fs::path& path, const std::string& text) {
  std::string part = path.string() + ".XXXXXX";
  const int file = mkstemp(part.data());  // mode 0600
  if (file < 0) fail_to_save(path, errno);
  int error = 0;
  for (std::size_t at = 0; at < text.size() && error == 0;) {
    const ssize_t written = write(file, text.data() + at, text.size() - at);
    if (written >= 0) at += static_cast<std::size_t>(written);
    if (written < 0 && errno != EINTR) error = errno;
  }
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(part.c_str());
  fail_to_save(path, error);
}

void make_chats_directory(const fs::path& directory) {
  std::error_code error;
  if (fs::create_directories(directory.parent_path(), error); error) {
    fail_to_save(directory, error.value());
  }
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail_to_save(directory, errno);
}

constexpr const char* kCommandHelp =
    R"(A line is a question. Several lines: paste them, end a line with \, or put """
before the first and after the last. A line that begins with // is text with one
/ less. Ctrl-C stops the answer, and what came of it is kept; while you type it
clears the line. Ctrl-D ends.

/undo              back to the turn before; the next question begins a branch
/tree              all turns, with numbers
/branch N          continue after turn N
/system [TEXT]     another system message; without TEXT none
/think WORD        on, off or an effort: minimal, low, medium, high, xhigh, max
/set NAME [VALUE]  sampling from now on, as the flags: temperature, top-p, seed,
                   max-tokens ...; without VALUE the model's own
/stats             of the last answer: tokens cached, read, written, a second
/save NAME         keep the conversation; a NAME with / is a path
/load [NAME]       continue a conversation that was kept; without NAME list them
/help              this text
/bye               end, as /exit and Ctrl-D do
)";

class Talk {
 public:
  Talk(Chat& chat, ChatFlags& flags, const ServerEnd& server_end, Console& console)
      : chat_(chat), flags_(flags), server_end_(server_end), console_(console), editor_(console) {}

  int run() {
    greet();
    while (!is_over_) {
      const std::optional<Typed> typed = read();
      if (!typed) break;
      if (trimmed(typed->text).empty()) continue;
      attempt([&] { typed->is_command ? obey(typed->text) : ask(typed->text); });
    }
    return kOk;
  }

 private:
  // Prints the name of the model that answers. Throws the error that keeps the server from
  // answering.
  void greet() {
    const v1::Model model = chat_.check();
    const std::int64_t most = model.max_length();
    say(model.name() +
        (most > 0 ? ", a context of " + std::to_string(most) + " tokens"
                  : ", a context without a limit") +
        "; /help says what can be typed, Ctrl-D ends");
    attempt([this] { warn_of_system(); });
  }

  void warn_of_system() {
    if (chat_.system().empty() || chat_.shows_system()) return;
    say("the model's chat template leaves system messages out");
  }

  // A line that was typed, or lines that were pasted, which are no command.
  struct Typed {
    std::string text;
    bool is_command = false;
  };

  // Nothing: it is the end. Ctrl-C on any of its lines leaves it.
  std::optional<Typed> read() {
    constexpr std::string_view kQuotes = "\"\"\"";
    bool is_left = false;
    std::optional<std::string> line = editor_.read(">>> ", &is_left);
    if (!line) return std::nullopt;
    std::string text = *line;
    const bool is_quoted = text.starts_with(kQuotes);
    if (is_quoted) text.erase(0, kQuotes.size());
    const auto goes_on = [&] {
      return is_quoted ? !trimmed(text).ends_with(kQuotes) : text.ends_with('\\');
    };
    while (!is_left && goes_on()) {
      line = editor_.read("... ", &is_left);
      if (!line) break;
      if (!is_quoted) text.pop_back();
      text += "\n" + *line;
    }
    if (is_left) {
      if (!std::exchange(is_told_how_to_end_, true)) say("Ctrl-D or /bye ends");
      return Typed();
    }
    if (is_quoted) {
      text.erase(std::min(text.rfind(kQuotes), text.size()));
      // Lines that have the quotes alone are none of the text.
      if (text.starts_with('\n')) text.erase(0, 1);
      if (text.ends_with('\n')) text.pop_back();
      return Typed{text};
    }
    const bool is_line = text.find('\n') == std::string::npos;
    while (text.ends_with('\n')) text.pop_back();  // pasted
    if (is_line && text.starts_with("//")) return Typed{text.substr(1)};
    return Typed{text, is_line && text.starts_with('/')};
  }

  // Runs `body` and prints the error of a call that fails; the conversation continues unless its
  // server has ended: throws Failure, which says so.
  template <typename Body>
  void attempt(const Body& body) {
    std::optional<std::string> end;  // of the server
    const auto error = error_of_turn(console_, *flags_.command, [&] {
      try {
        body();
      } catch (const CallError& failed) {
        if (server_end_ && !console_.cancellation().cancelled()) end = server_end_(failed);
        throw;
      }
    });
    if (end) throw Failure(*end);
    if (error) say(*error);
  }

  void ask(const std::string& question) {
    Console::Interruptible interruptible(console_);
    chat_.ask(question, interruptible.cancellation());
    const std::string cut = chat_.cut_text();
    if (!cut.empty()) say(cut + "; /set max-tokens N asks for another number");
    if (!chat_.last().was_stopped) return;
    say(chat_.last().bytes > 0
            ? "stopped; the turn is kept, and /undo takes it back"
            : "stopped before the answer began: the question is not kept, the arrow up has it");
  }

  void obey(const std::string& line) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, blank);
    const std::string argument = trimmed(line.substr(blank));
    for (const Command& command : kCommands) {
      if (name != command.name) continue;
      if (command.argument == Argument::kNone && !argument.empty()) {
        throw UsageError(name + ": takes nothing after it");
      }
      if (command.argument == Argument::kNeeded && argument.empty()) {
        throw UsageError(name + ": expected " + command.expected);
      }
      return (this->*command.run)(argument);
    }
    throw UsageError("no such command: " + name + "; /help has them all");
  }

  void say(const std::string& text) { console_.err("lintel: " + text + "\n"); }
  void say_where() {
    const std::optional<std::string> question = chat_.question();
    say(question ? "the next question follows the answer to: " + *question
                 : "the next question is the first");
  }

  void help(const std::string&) { console_.err(kCommandHelp); }
  void end(const std::string&) { is_over_ = true; }
  void undo(const std::string&) {
    chat_.undo();
    say_where();
  }
  void tree(const std::string&) { console_.err(chat_.tree()); }
  void branch(const std::string& argument) {
    chat_.go_to(parse_uint32("/branch", argument));
    say_where();
  }
  void system(const std::string& argument) {
    chat_.set_system(argument);
    say(argument.empty() ? "no system message" : "the system message is set");
    warn_of_system();
  }
  void think(const std::string& argument) { chat_.set_think(argument); }
  void stats(const std::string&) { console_.err(chat_.stats()); }

  void set(const std::string& argument) {
    const std::size_t blank = std::min(argument.find_first_of(" ="), argument.size());
    std::string name = argument.substr(0, blank);
    std::ranges::replace(name, '_', '-');
    const std::string given = blank == argument.size() ? "" : argument.substr(blank + 1);
    const std::string text = trimmed(given);
    const auto value = text.empty() ? std::nullopt : std::optional(text);
    if (name == "max-tokens") {
      flags_.max_tokens =
          value ? std::optional(parse_uint32("/set max-tokens", *value)) : std::nullopt;
    } else if (!flags_.fields.set_sampling("/set", name, value)) {
      throw UsageError("/set: there is no " + (name.empty() ? "name" : "'" + name + "'") +
                       "; names are those of the flags of `lintel chat --help`: temperature, "
                       "top-k, top-p, min-p, seed, max-tokens ...");
    }
    say(name + (value ? " is " + *value : " is the model's own"));
  }

  void save(const std::string& argument) {
    const fs::path path = chat_file(argument);
    if (argument.find('/') == std::string::npos) make_chats_directory(path.parent_path());
    const Json messages = chat_.messages();
    write_private(path, messages.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    say("saved to " + path.string());
  }

  void load(const std::string& argument) {
    if (argument.empty()) {
      std::string names;
      for (const std::string& name : chat_names()) names += (names.empty() ? "" : ", ") + name;
      say(names.empty() ? "no conversation was saved" : "saved: " + names);
      return;
    }
    const fs::path path = chat_file(argument);
    const std::string text = console_.read_file("/load", path.string());
    const std::size_t turns = chat_.load(parse_json(text, path.string()), path.string());
    say(counted_turns(turns) + " of " + path.string());
    say_where();
  }

  enum class Argument { kNone, kMay, kNeeded };
  struct Command {
    const char* name;
    Argument argument;
    void (Talk::*run)(const std::string& argument);
    const char* expected = "";  // of kNeeded
  };
  static const Command kCommands[14];

  Chat& chat_;
  ChatFlags& flags_;
  const ServerEnd& server_end_;
  Console& console_;
  LineEditor editor_;
  bool is_over_ = false, is_told_how_to_end_ = false;
};

const Talk::Command Talk::kCommands[14] = {
    {"/help", Argument::kNone, &Talk::help},
    {"/?", Argument::kNone, &Talk::help},
    {"/bye", Argument::kNone, &Talk::end},
    {"/exit", Argument::kNone, &Talk::end},
    {"/quit", Argument::kNone, &Talk::end},
    {"/undo", Argument::kNone, &Talk::undo},
    {"/tree", Argument::kNone, &Talk::tree},
    {"/branch", Argument::kNeeded, &Talk::branch, "a turn's number; /tree shows them"},
    {"/system", Argument::kMay, &Talk::system},
    {"/think", Argument::kNeeded, &Talk::think,
     "on, off, minimal, low, medium, high, xhigh or max"},
    {"/stats", Argument::kNone, &Talk::stats},
    {"/set", Argument::kNeeded, &Talk::set, "a name and a value: /set temperature 0.7"},
    {"/save", Argument::kNeeded, &Talk::save, "a name; one with / is a path"},
    {"/load", Argument::kMay, &Talk::load},
};

}  // namespace

int talk(Chat& chat, ChatFlags& flags, const ServerEnd& server_end, Console& console) {
  return Talk(chat, flags, server_end, console).run();
}

}  // namespace lintel::cli
