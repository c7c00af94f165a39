#include "tools/describe/command.h"

#include <algorithm>
#include <regex>

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

bool Argument::is_file() const { return value.find("FILE") != std::string::npos; }
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
  // As --help has them: together by group, in the order in which groups first come.
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

}  // namespace lintel::describe
