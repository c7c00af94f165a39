#include <cctype>

#include "tools/describe/formats.h"

namespace lintel::describe {
namespace {

// The first sentence, without what quotes and brackets mean to zsh.
std::string brief(const std::string& help) {
  std::string text = help.substr(0, help.find_first_of(";\n"));
  for (std::size_t at = 0; (at = text.find(". ", at)) != std::string::npos; ++at) {
    if (std::isupper(static_cast<unsigned char>(text[at + 2]))) text.resize(at);  // not "e.g. "
  }
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      quoted += std::string("\\") + c;
    } else {
      quoted += c;
    }
  }
  return quoted;
}

// "_lintel_session" of "lintel session".
std::string zsh_function_name(const std::string& path) {
  std::string name = "_" + path;
  for (char& c : name) c = c == ' ' || c == '-' ? '_' : c;
  return name;
}

// ":FILE:_files", as _arguments wants a value.
std::string value_of(const Argument& argument) {
  std::string action = " ";
  if (!argument.choices.empty()) {
    action = "(" + join(argument.choices) + ")";
  } else if (argument.is_directory()) {
    action = "_files -/";
  } else if (argument.is_file()) {
    action = "_files";
  }
  return ":" + brief(argument.value) + ":" + action;
}

void add_function(const Command& command, std::string& script) {
  for (const Command& sub : command.commands) add_function(sub, script);
  script += zsh_function_name(command.path) + "() {\n";
  if (!command.commands.empty()) script += "  local state line ret=1\n";
  script += command.commands.empty() ? "  _arguments" : "  _arguments -C";
  for (const Argument& flag : command.flags) {
    for (const std::string& name : flag.names) {
      const bool takes = !flag.value.empty();
      script += " \\\n    '" + std::string(flag.repeated ? "*" : "") + name +
                (takes && name.rfind("--", 0) == 0 ? "=" : "") + "[" + brief(flag.help) + "]" +
                (takes ? value_of(flag) : "") + "'";
    }
  }
  if (command.commands.empty()) {
    for (const Argument& argument : command.arguments) {
      const std::string value = value_of(argument);
      script +=
          " \\\n    ':" + brief(argument.names.front()) + value.substr(value.rfind(':')) + "'";
    }
    script += "\n}\n\n";
    return;
  }
  script += " \\\n    '1:command:->command' '*::argument:->argument' && ret=0\n";
  script += "  case $state in\n    command)\n      local -a commands=(\n";
  for (const Command& sub : command.commands) {
    script += "        '" + sub.name + ":" + brief(sub.description) + "'\n";
  }
  script += "      )\n      _describe -t commands command commands && ret=0\n      ;;\n";
  script += "    argument)\n      case $line[1] in\n";
  for (const Command& sub : command.commands) {
    script += "        " + sub.name + ") " + zsh_function_name(sub.path) + " && ret=0 ;;\n";
  }
  script += "      esac\n      ;;\n  esac\n  return ret\n}\n\n";
}

}  // namespace

std::string zsh_completion(const Command& program) {
  const std::string name = zsh_function_name(program.name);
  std::string script = "#compdef " + program.name + "\n# zsh completion for " + program.name +
                       ", by: " + program.name + " --completion zsh\n\n";
  add_function(program, script);
  // Found in $fpath as _NAME it is the function's body; sourced it defines it.
  return script + "if [[ $funcstack[1] == _" + program.name + " ]]; then\n  " + name +
         " \"$@\"\nelse\n  compdef " + name + " " + program.name + "\nfi";
}

}  // namespace lintel::describe
