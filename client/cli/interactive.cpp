// SPDX-License-Identifier: Apache-2.0
// `lintel generate --interactive`.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "client/cli/generate.h"
#include "client/cli/generate_output.h"
#include "client/cli/line_editor.h"
#include "client/cli/output.h"
#include "client/cli/program.h"
#include "client/lib/call_error.h"

namespace lintel::cli {
namespace {

// A session that is talked to, turn by turn. A turn is what was typed and what came of it. All that
// talks to the server throws CallError.
//
// Threads: one at a time.
class Conversation {
 public:
  // Continues the session of --session, or makes one. `request`: how each turn is generated;
  // its prompt is ignored.
  Conversation(const InteractiveSetting& setting, v1::GenerateRequest request, Console& console);

  // Sends the prompt, which may be empty, and prints what the model generates. Ctrl-C ends the turn
  // and keeps what had come. Any other failure is thrown, once the session's position is known.
  void say(const v1::Values& prompt);

  // Continues in a copy of the session; the original stays as it is.
  void fork();
  // Takes back the last turns. Throws UsageError where fewer were made here.
  void take_back(std::uint64_t turns);
  // Takes back what came from this position on.
  void rewind(std::int64_t position);
  // Continues another session of the model.
  void change_to(const std::string& session);
  void save(const std::string& file) const;  // as a snapshot
  // Deletes the sessions that it made.
  void end();

  v1::Sampling& sampling() { return *request_.mutable_sampling(); }
  const std::string& session() const { return session_; }
  std::int64_t position() const { return position_; }
  // True if the default limit of new tokens ended a turn.
  bool ended_by_default() const { return ended_by_default_; }
  std::uint32_t most_tokens() const { return request_.max_new_tokens(); }

 private:
  std::string new_session() const;
  // Waits until the server is done with the last call, and looks where it ended.
  void look();

  const InteractiveSetting setting_;
  Console& console_;
  v1::GenerateRequest request_;
  std::string session_;
  std::vector<std::string> made_;    // sessions
  std::int64_t position_ = 0;        // of the session
  std::vector<std::int64_t> turns_;  // the beginning of each
  bool ended_by_default_ = false;
};

Conversation::Conversation(const InteractiveSetting& setting, v1::GenerateRequest request,
                           Console& console)
    : setting_(setting), console_(console), request_(std::move(request)) {
  // The session has them.
  request_.clear_model();
  request_.clear_adapter();
  request_.clear_initial_state();
  request_.clear_window();
  request_.clear_prompt();
  if (setting_.flags.session_id.empty()) {
    session_ = new_session();
    made_.push_back(session_);
  } else {
    session_ = setting_.flags.session_id;
  }
  look();
}

std::string Conversation::new_session() const {
  const GenerateFlags& flags = setting_.flags;
  v1::CreateSessionRequest create;
  create.set_model(setting_.model.name());
  create.set_adapter(flags.adapter);
  const v1::GenerateRequest& fields = flags.fields.given();
  create.set_initial_state(fields.initial_state());
  if (fields.has_window()) create.set_window(fields.window());
  const v1::Session made = setting_.client.create_session(create, &console_.cancellation());
  if (!fields.has_window() && made.window() > 0 && !flags.quiet) {
    console_.err(window_note(made.window()));
  }
  return made.id();
}

void Conversation::say(const v1::Values& prompt) {
  v1::GenerateRequest request = request_;
  request.set_session_id(session_);
  *request.mutable_prompt() = prompt;
  const std::int64_t begin = position_;
  ended_by_default_ = false;
  Console::Interruptible interruptible(console_);
  try {
    const auto finishes = generate_in_view(setting_.client, request, setting_.view, console_,
                                           interruptible.cancellation());
    // On a terminal, and of ids, the line is ended.
    if (setting_.view.print.format == "text" && !console_.out_is_terminal()) console_.out("\n");
    console_.flush();
    position_ = finishes.front().position();
    ended_by_default_ = !setting_.flags.max_new_tokens && request.has_max_new_tokens() &&
                        finishes.front().reason() == v1::FINISH_REASON_LENGTH;
  } catch (const CallError&) {
    console_.out("\n");
    console_.flush();
    if (console_.cancellation().cancelled()) throw;
    const bool interrupted = interruptible.cancellation().cancelled();
    try {
      look();
    } catch (const CallError&) {  // the first failure says more
    }
    if (position_ > begin) turns_.push_back(begin);
    if (!interrupted) throw;
    console_.err("lintel: stopped at position " + std::to_string(position_) + "\n");
    return;
  }
  turns_.push_back(begin);
}

void Conversation::look() {
  constexpr std::chrono::milliseconds kPause{20};
  constexpr int kMostPauses = 500;
  v1::Session session = setting_.client.get_session(session_, &console_.cancellation());
  for (int i = 0; i < kMostPauses && session.busy(); ++i) {
    console_.cancellation().wait_for(kPause);
    session = setting_.client.get_session(session_, &console_.cancellation());
  }
  if (session.model() != setting_.model.name()) {
    throw UsageError("session " + session_ + " is one of model " + session.model() + ", not of " +
                     setting_.model.name());
  }
  position_ = session.position();
}

void Conversation::fork() {
  v1::ForkSessionRequest request;
  request.set_id(session_);
  request.set_count(1);
  session_ = setting_.client.fork_session(request, &console_.cancellation()).front().id();
  made_.push_back(session_);
}

void Conversation::rewind(std::int64_t position) {
  v1::RewindSessionRequest request;
  request.set_id(session_);
  request.set_position(position);
  position_ = setting_.client.rewind_session(request, &console_.cancellation()).position();
  while (!turns_.empty() && turns_.back() >= position_) turns_.pop_back();
}

void Conversation::take_back(std::uint64_t turns) {
  if (turns == 0) return;
  if (turns > turns_.size()) {
    throw UsageError(std::to_string(turns_.size()) +
                     " turns were made here; /rewind @P takes back all from position P on");
  }
  rewind(turns_[turns_.size() - turns]);
}

void Conversation::change_to(const std::string& session) {
  const std::string before = std::exchange(session_, session);
  try {
    look();
  } catch (...) {
    session_ = before;
    throw;
  }
  turns_.clear();
}

void Conversation::save(const std::string& file) const {
  OutputFile out("/save", file);
  v1::SnapshotSessionRequest request;
  request.set_id(session_);
  out.write(setting_.client.snapshot_session(request, &console_.cancellation()));
}

void Conversation::end() {
  for (const std::string& session : made_) {
    try {
      setting_.client.delete_session(session, &console_.cancellation());
    } catch (const CallError& error) {  // it may be gone already
      if (error.code() != grpc::StatusCode::NOT_FOUND) throw;
    }
  }
  made_.clear();
}

constexpr const char* kHelp =
    R"(The model reads what you type and continues from there; an empty line continues
without input. A line that ends with \ continues on the next, with a newline
between them; so does what is pasted. One that begins with // is text with one /
less. Of a model without a tokenizer: ids, as 3,1,4. Ctrl-C stops the model, not
the program.

/fork              continue in a copy; /session ID goes back to the one before
/rewind [N]        take back the last N turns, what you typed and what came [1]
/rewind @P         take back all from position P on
/seed [N]          draw with this seed from now on; without N one for each turn
/temperature [X]   draw with this temperature from now on; without X as the model
/session [ID]      print this session's id and position; with ID continue that
/save FILE         write a snapshot of the session: see lintel session restore
/detach            leave, and leave the sessions that were made here
/quit, Ctrl-D      leave; sessions that were made here are deleted
)";

class Interactive {
 public:
  Interactive(const InteractiveSetting& setting, v1::GenerateRequest request, Console& console)
      : setting_(setting),
        console_(console),
        editor_(console.in_is_terminal() && console.err_is_terminal()
                    ? std::make_unique<LineEditor>(console)
                    : nullptr),
        first_(request.prompt()),
        conversation_(setting, std::move(request), console) {}

  int run() {
    if (editor_ && !setting_.flags.quiet) {
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
    return failed_ && !editor_ ? kFailed : kOk;
  }

 private:
  // Between turns Ctrl-C, which is a key while a line is edited, ends nothing: who types is there.
  void catch_interrupts() {
    if (editor_) idle_.emplace(console_);
  }

  // Lines up to one that does not end with a backslash.
  std::optional<std::string> read() {
    std::string all;
    for (const char* prompt = ">>> ";; prompt = "... ") {
      const std::optional<std::string> line =
          editor_ ? editor_->read(prompt) : console_.read_line();
      if (!line) return all.empty() ? line : std::move(all);
      all += *line;
      if (all.empty() || all.back() != '\\') return all;
      all.back() = '\n';
    }
  }

  // Runs `body` and prints the error of a call that fails; the next line is read.
  template <typename Body>
  void attempt(Body&& body) {
    const auto error = error_of_turn(console_, *setting_.flags.command, std::forward<Body>(body));
    if (!error) return;
    console_.err("lintel: " + *error + "\n");
    failed_ = true;
  }

  void take(const std::string& line) {
    if (line.rfind("//", 0) == 0) return say_line(line.substr(1));
    if (line.rfind("/", 0) == 0) return obey(line);
    say_line(line);
  }

  void say_line(const std::string& line) {
    v1::Values prompt;
    if (!line.empty()) {
      const bool has_text =
          setting_.model.modality() == "bytes" || !setting_.model.tokenizer().empty();
      prompt = has_text ? text_values(line) : token_values(parse_ids("ids", line));
    } else if (conversation_.position() == 0 && !setting_.model.has_image()) {
      return;  // there is nothing to continue
    }
    say(prompt);
  }

  void say(const v1::Values& prompt) {
    idle_.reset();  // from here on it is the turn's
    try {
      conversation_.say(prompt);
    } catch (...) {
      catch_interrupts();
      throw;
    }
    catch_interrupts();
    if (!conversation_.ended_by_default() || told_limit_ || setting_.flags.quiet) return;
    told_limit_ = true;  // once
    console_.err("lintel: stopped after " + std::to_string(conversation_.most_tokens()) +
                 " tokens; an empty line continues, --max-new-tokens N asks for another number\n");
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
      conversation_.rewind(parse_int64("/rewind", argument.substr(1)));
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

  const InteractiveSetting setting_;
  Console& console_;
  const std::unique_ptr<LineEditor> editor_;  // null: lines as they are, and no prompt is shown
  const v1::Values first_;                    // --prompt
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

int run_interactive(const InteractiveSetting& setting, v1::GenerateRequest request,
                    Console& console) {
  return Interactive(setting, std::move(request), console).run();
}

}  // namespace lintel::cli
