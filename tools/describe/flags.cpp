// SPDX-License-Identifier: Apache-2.0
#include "tools/describe/flags.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <regex>
#include <utility>

#include "tools/describe/formats.h"

namespace lintel::describe {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

// CLI11 has no list of an option's validators, only one by its number.
std::vector<CLI::Validator*> validators_of(CLI::Option& option) {
  std::vector<CLI::Validator*> found;
  try {
    for (int i = 0;; ++i) found.push_back(option.get_validator(i));
  } catch (const CLI::OptionNotFound&) {
  }
  return found;
}

Argument read_option(CLI::Option& option) {
  Argument argument;
  if (option.get_positional()) {
    argument.names.push_back(option.get_name(/*positional=*/true));
  } else {
    for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
  }
  argument.initial = option.get_default_str();
  argument.variable = option.get_envname();
  argument.group = option.get_group();
  argument.help = option.get_description();
  argument.repeated = option.get_expected_max() > 1;
  argument.required = option.get_required();
  if (option.get_items_expected_max() == 0) return argument;  // a switch
  // get_type_name() has ":DESCRIPTION" of each validator behind the name.
  std::string behind;
  static const std::regex kSet(R"(^\{(.*)\}$)");
  static const std::regex kRange(R"( in \[(\S+) - (\S+)\]$)");
  static const std::regex kTaken(R"(^\[(.*)\]$)");  // of takes()
  for (CLI::Validator* const validator : validators_of(option)) {
    const std::string description = validator->get_description();
    if (!description.empty()) behind += ":" + description;
    std::smatch match;
    for (const std::string& text : {validator->get_name(), description}) {
      if (std::regex_match(text, match, kSet)) argument.choices = split(match[1], ',');
    }
    if (std::regex_search(description, match, kRange)) {
      argument.range = match[1].str() + " to " + match[2].str();
    }
    const std::string name = validator->get_name();
    if (std::regex_match(name, match, kTaken)) argument.range = match[1];
  }
  const std::string type = option.get_type_name();
  argument.value = type.substr(0, type.size() - behind.size());
  if (argument.value.empty()) argument.value = "VALUE";
  return argument;
}

}  // namespace

bool Argument::is_file() const {
  return value.find("FILE") != std::string::npos || value.find("PATH") != std::string::npos;
}
bool Argument::is_directory() const { return value.find("DIR") != std::string::npos; }

Command read_command(const CLI::App& app, const std::string& parent) {
  Command command;
  command.name = app.get_name();
  command.path = parent.empty() ? command.name : parent + " " + command.name;
  command.description = app.get_description();
  command.footer = app.get_footer();
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_group().empty()) continue;  // as --help
    // Reading validators by number is not const, though it changes nothing.
    const Argument argument = read_option(const_cast<CLI::Option&>(*option));
    (option->get_positional() ? command.arguments : command.flags).push_back(argument);
  }
  // Groups in the order of --help, in which they first come.
  std::vector<std::string> groups;
  for (const Argument& flag : command.flags) {
    if (std::ranges::count(groups, flag.group) == 0) groups.push_back(flag.group);
  }
  std::ranges::stable_sort(command.flags, {}, [&groups](const Argument& flag) {
    return std::ranges::find(groups, flag.group) - groups.begin();
  });
  for (const CLI::App* const sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_group().empty()) command.commands.push_back(read_command(*sub, command.path));
  }
  return command;
}

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

namespace {

// Today, or the day of SOURCE_DATE_EPOCH: the same sources give the same pages.
std::string date() {
  const char* const epoch = std::getenv("SOURCE_DATE_EPOCH");
  const std::time_t time = epoch ? static_cast<std::time_t>(std::atoll(epoch)) : std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

// Returns the names of the files.
std::string write_man_pages(const Command& program, const std::string& directory) {
  std::string written;
  for (const auto& [name, text] : man_pages(program, LINTEL_VERSION, date())) {
    const std::string file = directory + "/" + name + ".1";
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << text << std::flush;
    if (!out) throw CLI::ValidationError("--man-pages", "cannot write to " + file);
    written += (written.empty() ? "" : "\n") + file;
  }
  return written;
}

// Accepts everything: its name is for read_option.
CLI::Validator named(const std::string& name) {
  CLI::Validator validator([](std::string&) { return std::string(); }, "");
  validator.name(name);
  return validator;
}

}  // namespace

void add_flags(CLI::App& app, const std::vector<std::string>& machine_defaults) {
  app.formatter(std::make_shared<HelpFormat>());
  // Reads the program as pages have it, which are read on other machines.
  const auto read_program = [&app, machine_defaults] {
    Command program = read_command(app);
    for (Argument& flag : program.flags) {
      for (const std::string& name : flag.names) {
        if (std::ranges::count(machine_defaults, name) != 0) flag.initial.clear();
      }
    }
    return program;
  };
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string& shell) {
           const Command program = read_command(app);
           throw CLI::CallForVersion(
               shell == "zsh" ? zsh_completion(program) : bash_completion(program), 0);
         },
         "Print completions for a shell, bash or zsh, and exit, e.g. source <(" + app.get_name() +
             " --completion bash)")
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->configurable(false);
  app.add_option_function<std::string>(
         "--man-pages",
         [read_program](const std::string& directory) {
           throw CLI::CallForVersion(write_man_pages(read_program(), directory), 0);
         },
         "Write man pages into this directory")
      ->type_name("DIR")
      ->group("")
      ->configurable(false);
  app.add_flag_callback(
         "--help-markdown",
         [read_program] { throw CLI::CallForVersion(markdown_page(read_program()), 0); },
         "Print the flags as a page in Markdown")
      ->group("")
      ->configurable(false);
}

namespace {

// The word that CLI11 takes for -h and more flags. Empty: none, or help is asked for, too.
std::string word_taken_for_help(const std::vector<std::string>& arguments) {
  std::string found;
  for (const std::string& word : arguments) {
    if (word == "--") break;
    if (word == "-h" || word == "--help") return "";
    if (found.empty() && word.size() > 2 && word.starts_with("-h")) found = word;
  }
  return found;
}

}  // namespace

void parse(CLI::App& app, std::vector<std::string> arguments) {
  const std::string run_together = word_taken_for_help(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    if (run_together.empty()) throw;
    throw UnknownFlag(run_together);
  }
}

ForeignFlag foreign_flag(std::string_view flag) {
  using enum ForeignFlag;
  static constexpr std::pair<std::string_view, ForeignFlag> kFlags[] = {
      {"-m", kModel},
      {"--model", kModel},
      {"-hf", kHub},
      {"-hfr", kHub},
      {"--hf-repo", kHub},
      {"-c", kContext},
      {"--ctx-size", kContext},
      {"--max-model-len", kContext},
      {"-ngl", kProcessor},
      {"--n-gpu-layers", kProcessor},
      {"--gpu-layers", kProcessor},
      {"-n", kTokens},
      {"--n-predict", kTokens},
      {"--host", kAddress},
      {"--port", kAddress},
      {"--url", kAddress},
      {"-t", kThreads},
      {"--threads", kThreads},
      {"--api-key", kSecret},
  };
  for (const auto& [name, asks_for] : kFlags) {
    if (name == flag) return asks_for;
  }
  return kNone;
}

CLI::Validator offers(const std::vector<std::string>& values) {
  return named("{" + join(values, ",") + "}");
}

CLI::Validator takes(const std::string& range) { return named("[" + range + "]"); }

}  // namespace lintel::describe
