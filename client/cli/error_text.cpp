#include "client/cli/error_text.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "client/lib/address.h"
#include "tools/describe/suggest.h"

namespace lintel::cli {
namespace {

// Fields whose flags are not called like them, by the start of their path.
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
      {"num_samples", {"--samples"}},
      {"stop.token_ids", {"--stop-token"}},
      {"stop.strings", {"--stop"}},
      {"top_log2_probs", {"--top-log-probs"}},
      {"max_tokens_per_message", {"--tokens-per-message"}},
      {"log2_probs", {"--log-probs"}},
      {"echo_prompt", {"--echo"}},
      {"checkpoints.every_tokens", {"--checkpoint-every"}},
      {"checkpoints.keep", {"--checkpoints"}},
      {"is_public", {"--public"}},
      {"from_position", {"--from"}},
      {"to_position", {"--to"}},
  };
  return fields;
}

// Whether `field` is `path` or a part of it.
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

// What the server says of fields and methods, as what stands for them here.
std::string with_flags(std::string text, const CLI::App& command) {
  static const std::pair<std::string_view, std::string_view> kPhrases[] = {
      {"by its call_id", "with its --call-id"},
      {"by expected_position or Rewind", "with `lintel session rewind`"},
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

// Commands of other programs that serve models, and what does the same here.
std::string_view command_elsewhere(const std::string& word) {
  static constexpr std::pair<std::string_view, std::string_view> kCommands[] = {
      {"chat", "`lintel generate --interactive` types to a session"},
      {"run", "`lintel generate --prompt TEXT` runs a model that a server has"},
      {"serve", "`lintel-server --model DIR` serves models"},
      {"start", "`lintel-server --model DIR` serves models"},
      {"list", "`lintel model list` shows the models"},
      {"ls", "`lintel model list` shows the models"},
      {"ps", "`lintel model list` shows the models"},
      {"show", "`lintel model get NAME` shows a model"},
      {"load", "`lintel model load NAME` loads a model"},
      {"stop", "`lintel model unload NAME` takes a model out of service"},
  };
  for (const auto& [name, here] : kCommands) {
    if (name == word) return here;
  }
  return {};
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
    if (word.size() > 1 && word.front() == '-') {
      const std::string name = word.substr(0, word.find('='));
      return with_suggestion("no such flag: " + name,
                             describe::nearest_word(name, flags_of(command)));
    }
    if (!commands_of(command).empty()) return unknown_command_text(word, command);
    return "one argument too many: " + word;
  }
  if (required && !commands_of(command).empty()) {
    return "a command is missing: " + joined(commands_of(command));
  }
  return error.what();
}

}  // namespace

const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string command_path(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : command_path(*parent) + " ") + command.get_name();
}

std::string call_error_text(const CallError& error, const CLI::App& command) {
  const std::string text = message_of(error, command);
  const std::string code = status_code_name(error.code());
  return text.empty() ? code : text + " (" + code + ")";
}

std::string unknown_command_text(const std::string& word, const CLI::App& parent) {
  if (parent.get_parent() == nullptr && parent.get_name() == "lintel") {
    const std::string_view here = command_elsewhere(word);
    if (!here.empty()) return "no such command: " + word + "; " + std::string(here);
  }
  return with_suggestion("no such command: " + word,
                         describe::nearest_word(word, commands_of(parent)));
}

std::string parse_error_text(const CLI::ParseError& error, const CLI::App& app) {
  const CLI::App& command = chosen_command(app);
  return what_is_wrong(error, app, command) + " (see " + command_path(command) + " --help)";
}

}  // namespace lintel::cli
