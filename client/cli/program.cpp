// SPDX-License-Identifier: Apache-2.0
#include "client/cli/program.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/lib/channel.h"
#include "proto/fields/request_fields.h"
#include "tools/describe/flags.h"
#include "tools/describe/suggest.h"

namespace lintel::cli {
namespace {

// Fields that several flags stand for, or that are not of a request for tokens, where their flags
// are not called like them; by the start of their path.
struct Field {
  const char* path;
  std::vector<const char*> flags;  // the first that was given, else the first there is
};

const std::vector<Field>& renamed_fields() {
  static const std::vector<Field> fields = {
      {"model", {"--model", "NAME"}},
      {"name", {"NAME", "--model"}},
      {"id", {"ID"}},
      {"session_id", {"--session", "ID", "SESSION"}},
      {"level", {"LEVEL"}},
      {"prompt.tokens", {"--prompt-tokens", "--prompt-file"}},
      {"prompt", {"--prompt", "--prompt-tokens", "--prompt-file"}},
      {"checkpoints.every_tokens", {"--checkpoint-every"}},
      {"checkpoints.keep", {"--checkpoints"}},
      {"is_public", {"--public"}},
      {"from_position", {"--from"}},
      {"to_position", {"--to"}},
  };
  return fields;
}

// True if `field` is `path` or a part of it.
bool is_under(const std::string& field, const std::string& path) {
  return field.compare(0, path.size(), path) == 0 &&
         (field.size() == path.size() || field[path.size()] == '.' || field[path.size()] == '[');
}

std::string flag_of(const std::string& field, const CLI::App& command) {
  for (const Field& known : renamed_fields()) {
    if (!is_under(field, known.path)) continue;
    std::string found;
    for (const char* flag : known.flags) {
      const CLI::Option* option = command.get_option_no_throw(flag);
      if (option == nullptr) continue;
      if (option->count() > 0) return flag;
      if (found.empty()) found = flag;
    }
    if (!found.empty()) return found;
  }
  for (const RequestField& row : kRequestFields) {
    if (row.cli.text.empty() || !is_under(field, std::string(row.name))) continue;
    std::string flag(row.cli.text);
    if (command.get_option_no_throw(flag) != nullptr) return flag;
  }
  std::string name = field;
  for (const std::string message : {"sampling.", "header."}) {
    if (field.size() > message.size() && field.rfind(message, 0) == 0) {
      name.erase(0, message.size());
    }
  }
  name.erase(std::min(name.find_first_of(".["), name.size()));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string flag = "--" + name;
  return command.get_option_no_throw(flag) != nullptr ? flag : field;
}

// Replaces the server's names of fields and methods by the flags and commands for them.
std::string with_flags(std::string text, const CLI::App& command) {
  static const std::pair<std::string_view, std::string_view> kPhrases[] = {
      {"by its call_id", "with its --call-id"},
      {"by expected_position or Rewind", "with `lintel session rewind`"},
      {"(--chat-template)", "(lintel-server's --chat-template)"},
  };
  for (const auto& [said, here] : kPhrases) {
    const std::size_t at = text.find(said);
    if (at != std::string::npos) text.replace(at, said.size(), here);
  }
  // Words with an underscore, where the command has a flag of that name.
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t word = std::min(text.find_first_of(kLetters, at), text.size());
    const std::size_t end = std::min(text.find_first_not_of(kLetters, word), text.size());
    const std::string field = text.substr(word, end - word);
    out.append(text, at, word - at);
    out += field.find('_') == std::string::npos ? field : flag_of(field, command);
    at = end;
  }
  return out;
}

std::string unreached_text(const CallError& error) {
  std::string text = "no server answers at " + error.unreached() + ": " + error.reason();
  if (!error.hint().empty()) return text + "; " + error.hint();
  if (is_local_address(error.unreached())) {
    return text + "; start one with `lintel-server --model DIR --listen " + error.unreached() +
           "`, or name another with --address";
  }
  return text + "; is lintel-server running there, and is this its --address?";
}

std::string deadline_text(const CallError& error, const CLI::App& command) {
  const CLI::Option* option = command.get_option_no_throw("--deadline");
  if (option == nullptr) return error.message();
  const std::string seconds =
      option->count() > 0 ? option->results().back() : option->get_default_str();
  return "it took longer than --deadline " + seconds + " (seconds); give it more";
}

std::string message_of(const CallError& error, const CLI::App& command) {
  if (!error.unreached().empty()) return unreached_text(error);
  if (error.code() == grpc::StatusCode::DEADLINE_EXCEEDED) return deadline_text(error, command);
  std::string text;
  // Servers often repeat the details in the message: each thing is said once.
  const auto add = [&text](const std::string& part) {
    if (part.empty() || text.find(part) != std::string::npos) return;
    text += (text.empty() ? "" : "; ") + part;
  };
  for (const FieldViolation& violation : error.violations()) {
    add(flag_of(violation.field, command) + ": " + with_flags(violation.description, command));
  }
  if (error.violations().empty()) add(with_flags(error.message(), command));
  for (const ResourceProblem& resource : error.resources()) {
    if (text.find(resource.name) == std::string::npos) add(resource.type + " " + resource.name);
  }
  if (error.code() == grpc::StatusCode::UNAUTHENTICATED) {
    const CLI::Option* const token = command.get_option_no_throw("--token");
    if (token != nullptr && token->count() == 0) add("--token TOKEN or @FILE gives one");
  }
  if (error.retry_delay()) {
    add("try again in " + std::to_string(error.retry_delay()->count()) + " ms");
  }
  return text;
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> commands_of(const CLI::App& parent) {
  std::vector<std::string> names;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return text;
}

std::string with_suggestion(const std::string& text, const std::string& suggestion) {
  return suggestion.empty() ? text : text + "; did you mean " + suggestion + "?";
}

// "lintel session get"
std::string command_path(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : command_path(*parent) + " ") + command.get_name();
}

// Commands of other programs that serve models, and what does the same here.
std::string_view command_elsewhere(const std::string& path, const std::string& word) {
  struct Elsewhere {
    std::string_view path, word, here;
  };
  static constexpr Elsewhere kCommands[] = {
      {"lintel", "serve", "`lintel-server --model DIR` serves models"},
      {"lintel", "start", "`lintel-server --model DIR` serves models"},
      {"lintel", "list", "`lintel model list` shows the models"},
      {"lintel", "ls", "`lintel model list` shows the models"},
      {"lintel", "ps", "`lintel model list` shows the models"},
      {"lintel", "show", "`lintel model get NAME` shows a model"},
      {"lintel", "load", "`lintel model load NAME` loads a model"},
      {"lintel", "stop", "`lintel model unload NAME` takes a model out of service"},
      {"lintel", "rm",
       "`lintel model unload NAME` takes a model out of service; its files are yours to delete"},
      {"lintel model", "show", "`lintel model get NAME` shows a model"},
      {"lintel model", "ls", "`lintel model list` shows the models"},
      {"lintel model", "ps", "`lintel model list` shows the models"},
      {"lintel model", "rm", "`lintel model unload NAME` takes a model out of service"},
      {"lintel session", "show", "`lintel session get ID` shows a session"},
      {"lintel session", "ls", "`lintel session list` shows the sessions"},
      {"lintel session", "rm", "`lintel session delete ID` deletes a session"},
      {"lintel state", "ls", "`lintel state list` shows the states"},
      {"lintel state", "rm", "`lintel state delete NAME` deletes a state"},
  };
  for (const Elsewhere& command : kCommands) {
    if (command.path == path && command.word == word) return command.here;
  }
  return {};
}

// Flags of other programs likewise, with an argument or flag of `command`.
std::string_view flag_elsewhere(const std::string& flag, const CLI::App& command) {
  using enum describe::ForeignFlag;
  const auto has = [&](const char* argument) {
    return command.get_option_no_throw(argument) != nullptr;
  };
  switch (describe::foreign_flag(flag)) {
    case kModel:
      if (has("MODEL")) return "MODEL, the first argument, names the model";
      return has("--model") ? "--model NAME names the model" : "";
    case kHub:
      return has("MODEL") ? "ORG/NAME[:QUANT], the first argument, names a model of a hub"
                          : "`lintel run ORG/NAME[:QUANT]` takes a model of a hub";
    case kContext:
      return "the context is the model's own";
    case kProcessor:
      return describe::kProcessorHint;
    case kTokens:
      if (has("--max-tokens")) return "--max-tokens N bounds an answer";
      return has("--max-new-tokens") ? "--max-new-tokens N bounds an answer" : "";
    case kAddress:
      return has("--address") ? "--address HOST:PORT names the server" : "";
    case kThreads:
      return has("--workers") ? "--workers N sets the threads"
                              : "`lintel-server --workers N` sets the threads";
    case kSecret:
      return has("--token") ? "--token TOKEN or @FILE is what the server asks for" : "";
    case kNone:
      break;
  }
  return {};
}

// "no such flag: X" and what may have been meant. `word`: with a value after "=", or without.
std::string unknown_flag_text(const std::string& word, const CLI::App& command) {
  const std::string name = word.substr(0, word.find('='));
  const std::string_view here = flag_elsewhere(name, command);
  if (!here.empty()) return "no such flag: " + name + "; " + std::string(here);
  return with_suggestion("no such flag: " + name, describe::nearest_word(name, flags_of(command)));
}

// "no such command: X" and what may have been meant.
std::string unknown_command_text(const std::string& word, const CLI::App& parent) {
  const std::string_view here = command_elsewhere(command_path(parent), word);
  if (!here.empty()) return "no such command: " + word + "; " + std::string(here);
  return with_suggestion("no such command: " + word,
                         describe::nearest_word(word, commands_of(parent)));
}

// Puts CLI11's errors about values into the words of others: "--format 'xml': expected text, tokens
// or jsonl" of "--format: xml not in {text,tokens,jsonl}"; what it says of others as it is.
std::string value_error_text(const std::string& said) {
  constexpr std::string_view kNoNumber = "Could not convert: ", kIs = " = ", kNotIn = " not in {";
  const std::size_t is = said.find(kIs);
  if (said.starts_with(kNoNumber) && is != std::string::npos) {
    return said.substr(kNoNumber.size(), is - kNoNumber.size()) + " '" +
           said.substr(is + kIs.size()) + "': expected a number";
  }
  const std::size_t colon = said.find(": "), not_in = said.rfind(kNotIn);
  if (colon >= not_in || not_in == std::string::npos || !said.ends_with('}')) return said;
  std::istringstream list(said.substr(not_in + kNotIn.size()));
  std::vector<std::string> words;
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  words.back().pop_back();  // the brace
  return said.substr(0, colon) + " '" + said.substr(colon + 2, not_in - colon - 2) +
         "': expected " + joined(words);
}

std::string what_is_wrong(const CLI::ParseError& error, const CLI::App& app,
                          const CLI::App& command) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  // Not by get_name(): of a flag too many that is the command's.
  const auto is = [&error](CLI::ExitCodes code) {
    return error.get_exit_code() == static_cast<int>(code);
  };
  const bool required = is(CLI::ExitCodes::RequiredError);
  // CLI11 says of an unknown command or flag only that something else is missing.
  if (!unknown.empty() && (required || is(CLI::ExitCodes::ExtrasError))) {
    const std::string& word = unknown.front();
    if (word.size() > 1 && word.front() == '-') return unknown_flag_text(word, command);
    if (!commands_of(command).empty()) return unknown_command_text(word, command);
    return "one argument too many: " + word;
  }
  if (required && !commands_of(command).empty()) {
    return "a command is missing: " + joined(commands_of(command));
  }
  return value_error_text(error.what());
}

// The sub-command that was chosen, or the program where none was.
const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// The error of a command line that CLI11 could not read: one line without a newline.
std::string parse_error_text(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App& command = chosen_command(app);
  return what_is_wrong(error, app, command) + " (see " + command_path(command) + " --help)";
}

}  // namespace

std::string call_error_text(const CallError& error, const CLI::App& command) {
  const std::string text = message_of(error, command);
  const std::string code = status_code_name(error.code());
  return text.empty() ? code : text + " (" + code + ")";
}

namespace {

constexpr const char* kProgramFooter = R"(
Examples:
  lintel run Qwen/Qwen3.5-0.8B
  lintel health
  lintel chat
  lintel generate --prompt "Once upon a time" --max-new-tokens 200
  lintel complete --images t10k-images-idx3-ubyte.gz --index 0-9 --occlude bottom:14 --watch
  lintel score --input sequences.jsonl --output scores.jsonl

LINTEL_ADDRESS, LINTEL_MODEL, LINTEL_DEADLINE, LINTEL_TOKEN, LINTEL_TLS_CA, LINTEL_TLS_CERT,
LINTEL_TLS_KEY and LINTEL_PROXY stand for the flags of these names, which win over them.
Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 no server or not serving. A command
that Ctrl-C or another signal ends dies of it: 130 in a shell. A second signal ends it at once.
`lintel COMMAND --help` or `lintel help COMMAND` explains a command.)";

}  // namespace

int run_command_line(std::vector<std::string> arguments, Console& console) {
  CLI::App app("Talks to models: at a Lintel server, or from files and hubs (lintel run).",
               "lintel");
  CommandLine command_line{console, nullptr};
  app.set_version_flag("--version", "lintel " LINTEL_VERSION);
  describe::add_flags(app);
  app.require_subcommand(1);
  app.footer(kProgramFooter);
  add_run(app, command_line);
  add_generate(app, command_line);
  add_complete(app, command_line);
  add_score(app, command_line);
  add_session(app, command_line);
  add_state(app, command_line);
  add_model(app, command_line);
  add_health(app, command_line);
  add_admin(app, command_line);
  add_chat(app, command_line);
  add_tokenize(app, command_line);
  add_token(app, command_line);
  add_pull(app, command_line);
  return run_program(app, command_line, std::move(arguments));
}

namespace {

const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  const auto found = app.get_subcommands(
      [&name](const CLI::App* candidate) { return candidate->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

bool is_help_flag(const std::string& word) { return word == "--help" || word == "-h"; }

// "help session get" -> "session get --help"; "help --help" stays what it is.
std::vector<std::string> asked_for_help(std::vector<std::string> arguments, const CLI::App& app) {
  if (arguments.size() == 2 && is_help_flag(arguments.back())) return arguments;
  arguments.erase(arguments.begin());
  std::erase_if(arguments, is_help_flag);
  const CLI::App* command = &app;
  for (const std::string& word : arguments) {
    const CLI::App* const found = command_of(*command, word);
    if (found == nullptr) throw UsageError(unknown_command_text(word, *command));
    command = found;
  }
  arguments.push_back("--help");
  return arguments;
}

int report(const CLI::App& app, Console& console, const CallError& error) {
  const std::string program = app.get_name() + ": ";
  if (error.code() == grpc::StatusCode::CANCELLED && console.cancellation().cancelled()) {
    console.err(program + "cancelled\n");
    return kFailed;
  }
  console.err(program + call_error_text(error, chosen_command(app)) + "\n");
  return error.code() == grpc::StatusCode::UNAVAILABLE ? kUnavailable : kFailed;
}

// "--address A session list" -> "session list --address A": flags of the connection may stand
// before the command, too.
std::vector<std::string> with_command_first(std::vector<std::string> arguments,
                                            const CLI::App& app) {
  CLI::App known;
  known.set_help_flag();
  ConnectionFlags connection;
  connection.add_to(known);
  std::size_t flags = 0;  // of the words at the beginning
  while (flags < arguments.size()) {
    const std::string& word = arguments[flags];
    const std::size_t equals = word.find('=');
    if (!word.starts_with("--") || !known.get_option_no_throw(word.substr(0, equals))) break;
    flags += equals == std::string::npos ? 2 : 1;
  }
  if (flags == 0) return arguments;
  flags = std::min(flags, arguments.size());
  std::size_t end = flags;  // of the command
  for (const CLI::App* at = &app; end < arguments.size(); ++end) {
    at = command_of(*at, arguments[end]);
    if (at == nullptr) break;
  }
  const auto begin = arguments.begin();
  const auto middle = begin + static_cast<std::ptrdiff_t>(flags);
  // Without a command that is what is wrong.
  if (end == flags) {
    arguments.erase(begin, middle);
  } else {
    std::rotate(begin, middle, begin + static_cast<std::ptrdiff_t>(end));
  }
  return arguments;
}

int run(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments) {
  Console& console = command_line.console;
  try {
    arguments = with_command_first(std::move(arguments), app);
    if (!arguments.empty() && arguments.front() == "help") {
      arguments = asked_for_help(std::move(arguments), app);
    }
    describe::parse(app, std::move(arguments));
  } catch (const describe::UnknownFlag& flag) {
    const CLI::App& command = chosen_command(app);
    throw UsageError(unknown_flag_text(flag.what(), command) + " (see " + command_path(command) +
                     " --help)");
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    if (app.exit(error, out, err) == 0) {  // --help or --version
      console.out(out.str());
      console.flush();
      return kOk;
    }
    console.err(app.get_name() + ": " + parse_error_text(error, app) + "\n");
    return kUsage;
  }
  const int code = command_line.run();
  console.flush();
  return code;
}

}  // namespace

int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments) {
  Console& console = command_line.console;
  const std::string program = app.get_name();
  on_chosen(*app.add_subcommand("help", "Explain a command: `" + program + " help COMMAND`"),
            command_line, [&app, &console] {
              console.out(app.help());
              return kOk;
            });
  try {
    return run(app, command_line, std::move(arguments));
  } catch (const OutputClosed&) {
    return kOk;
  } catch (const UsageError& error) {
    console.err(program + ": " + error.what() + "\n");
    return kUsage;
  } catch (const CallError& error) {
    // Output from before the call's end is the user's.
    try {
      console.flush();
    } catch (...) {
    }
    return report(app, console, error);
  } catch (const std::exception& error) {
    console.err(program + ": " + error.what() + "\n");
    return kFailed;
  }
}

}  // namespace lintel::cli
