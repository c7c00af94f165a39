#include "client/cli/interactive.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "client/cli/error_text.h"
#include "client/cli/flag_values.h"
#include "client/cli/line_editor.h"

namespace lintel::cli {
namespace {

constexpr const char* kHelp =
    R"(The model reads what you type and continues from there; an empty line continues without input. A line that
ends with \ continues on the next, with a newline between them; one that begins with // is text with one
/ less. Of a model whose values are no bytes: ids, as 3,1,4. Ctrl-C stops the model, not the program.

/fork              continue in a copy; /session ID goes back to the one before
/rewind [N]        take back the last N turns, what you typed and what came [1]
/rewind @P         take back all from position P on
/seed [N]          draw with this seed from now on; without N the server draws one for each turn
/temperature [X]   draw with this temperature from now on; without X the model's distribution
/session [ID]      print this session's id and position; with ID continue that one
/save FILE         write a snapshot of the session: see lintel session restore
/detach            leave, and leave the sessions that were made here
/quit, Ctrl-D      leave; sessions that were made here are deleted
)";

class Interactive {
 public:
  Interactive(const Conversation::Setting& setting, v1::GenerateRequest request, Console& console)
      : setting_(setting),
        console_(console),
        editor_(console),
        first_(request.prompt()),
        conversation_(setting, std::move(request), console) {}

  int run() {
    if (editor_.edits() && !setting_.flags.quiet) {
      console_.err("lintel: " + setting_.model.name() + ", session " + conversation_.session() +
                   "; /help says what can be typed, Ctrl-D ends\n");
    }
    catch_interrupts();
    if (first_.has_text() || first_.has_tokens()) {
      attempt([this] { say(first_); });
    }
    while (!done_) {
      const std::optional<std::string> line = read();
      if (!line) break;
      attempt([&] { take(*line); });
    }
    if (!detached_) conversation_.end();
    return failed_ && !editor_.edits() ? kFailed : kOk;
  }

 private:
  // Between turns Ctrl-C, which is a key while a line is edited, ends nothing: who types is there.
  void catch_interrupts() {
    if (editor_.edits()) idle_.emplace(console_);
  }

  // Lines up to one that does not end with a backslash.
  std::optional<std::string> read() {
    std::string all;
    for (const char* prompt = ">>> ";; prompt = "... ") {
      const std::optional<std::string> line = editor_.read(prompt);
      if (!line) return all.empty() ? line : std::move(all);
      all += *line;
      if (all.empty() || all.back() != '\\') return all;
      all.back() = '\n';
    }
  }

  // What fails is said, and the next line may do better.
  template <typename Body>
  void attempt(Body&& body) {
    std::string text;
    try {
      return body();
    } catch (const CallError& error) {
      if (console_.cancellation().cancelled()) throw;
      text = call_error_text(error, *setting_.flags.command);
    } catch (const UsageError& error) {
      text = error.what();
    } catch (const Failure& error) {
      text = error.what();
    }
    console_.flush();
    console_.err("lintel: " + text + "\n");
    failed_ = true;
  }

  void take(const std::string& line) {
    if (line.rfind("//", 0) == 0) return say_line(line.substr(1));
    if (line.rfind("/", 0) == 0) return obey(line);
    say_line(line);
  }

  void say_line(const std::string& line) {
    v1::Values values;
    if (!line.empty()) {
      values = setting_.model.modality() == "bytes" ? text_values(line)
                                                    : token_values(parse_ids("ids", line));
    } else if (conversation_.position() == 0 && !setting_.model.has_image()) {
      return;  // there is nothing to continue
    }
    say(values);
  }

  void say(const v1::Values& values) {
    idle_.reset();  // from here on it is the turn's
    try {
      conversation_.say(values);
    } catch (...) {
      catch_interrupts();
      throw;
    }
    catch_interrupts();
    if (!conversation_.ended_by_default() || told_limit_ || setting_.flags.quiet) return;
    told_limit_ = true;  // once
    console_.err("lintel: stopped after " + std::to_string(conversation_.most_values()) +
                 " values; an empty line continues, --max-new-tokens N asks for another number\n");
  }

  // "/rewind 3": the command and its argument.
  void obey(const std::string& line) {
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    std::string argument = line.substr(space);
    argument.erase(0, argument.find_first_not_of(' '));
    argument.erase(argument.find_last_not_of(' ') + 1);
    for (const Command& command : kCommands) {
      if (name != command.name) continue;
      if (command.argument == Argument::kNone && !argument.empty()) {
        throw UsageError(name + ": takes nothing after it");
      }
      if (command.argument == Argument::kNeeded && argument.empty()) {
        throw UsageError(name + ": expected a file's name");
      }
      return (this->*command.run)(argument);
    }
    throw UsageError("no such command: " + name + "; /help has them all");
  }

  void answer(const std::string& text) { console_.err("lintel: " + text + "\n"); }
  void answer_where() {
    answer("session " + conversation_.session() + " at position " +
           std::to_string(conversation_.position()));
  }

  void help(const std::string&) { console_.err(kHelp); }
  void quit(const std::string&) { done_ = true; }
  void detach(const std::string&) {
    done_ = detached_ = true;
    answer("`lintel generate --interactive --session " + conversation_.session() +
           "` continues it, `lintel session delete` deletes it");
  }
  void fork(const std::string&) {
    const std::string before = conversation_.session();
    conversation_.fork();
    answer("this is a copy now, " + conversation_.session() + "; /session " + before +
           " goes back");
  }
  void rewind(const std::string& argument) {
    if (argument.rfind('@', 0) == 0) {
      conversation_.go_back_to(parse_int64("/rewind", argument.substr(1)));
    } else {
      conversation_.take_back(argument.empty() ? 1 : parse_uint64("/rewind", argument));
    }
    answer_where();
  }
  void seed(const std::string& argument) {
    if (argument.empty()) return conversation_.sampling().clear_seed();
    conversation_.sampling().set_seed(parse_uint64("/seed", argument));
  }
  void temperature(const std::string& argument) {
    if (argument.empty()) return conversation_.sampling().clear_temperature();
    conversation_.sampling().set_temperature(parse_float("/temperature", argument));
  }
  void session(const std::string& argument) {
    if (!argument.empty()) conversation_.change_to(argument);
    answer_where();
  }
  void save(const std::string& argument) {
    conversation_.save(argument);
    answer("`lintel session restore " + argument + "` makes a session of it");
  }

  enum class Argument { kNone, kMay, kNeeded };
  struct Command {
    const char* name;
    Argument argument;
    void (Interactive::*run)(const std::string& argument);
  };
  static const Command kCommands[10];

  const Conversation::Setting setting_;
  Console& console_;
  LineEditor editor_;
  const v1::Values first_;  // --prompt
  Conversation conversation_;
  std::optional<Console::Interruptible> idle_;
  bool done_ = false, detached_ = false, failed_ = false, told_limit_ = false;
};

const Interactive::Command Interactive::kCommands[10] = {
    {"/help", Argument::kNone, &Interactive::help},
    {"/quit", Argument::kNone, &Interactive::quit},
    {"/bye", Argument::kNone, &Interactive::quit},  // as elsewhere
    {"/detach", Argument::kNone, &Interactive::detach},
    {"/fork", Argument::kNone, &Interactive::fork},
    {"/rewind", Argument::kMay, &Interactive::rewind},
    {"/seed", Argument::kMay, &Interactive::seed},
    {"/temperature", Argument::kMay, &Interactive::temperature},
    {"/session", Argument::kMay, &Interactive::session},
    {"/save", Argument::kNeeded, &Interactive::save},
};

}  // namespace

void check_interactive(const GenerateFlags& flags) {
  const auto refuse = [](bool given, const char* flag) {
    if (given) throw UsageError(std::string(flag) + " does not go with --interactive");
  };
  refuse(flags.samples.value_or(1) != 1, "--samples");
  refuse(!flags.given.empty(), "--given");
  refuse(flags.echo, "--echo");
  refuse(flags.format == "jsonl", "--format jsonl");
  refuse(flags.prompt_file == "-", "--prompt-file -");
}

int run_interactive(const Conversation::Setting& setting, v1::GenerateRequest request,
                    Console& console) {
  return Interactive(setting, std::move(request), console).run();
}

}  // namespace lintel::cli
