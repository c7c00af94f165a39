#include <map>

#include "tools/describe/formats.h"

namespace lintel::describe {
namespace {

// The walk over the words before the one to complete: `path` becomes the sub-command's, `pending`
// the flag whose value is being written. bash has made words of "=" and ":", too.
constexpr const char* kWalk = R"(
{
    local current=${COMP_WORDS[COMP_CWORD]} path= pending= last= word i
    local commands= flags= takes= values= kind=
    COMPREPLY=()
    NAME_at ''
    for ((i = 1; i < COMP_CWORD; ++i)); do
        word=${COMP_WORDS[i]}
        if [[ $word == = ]]; then
            pending=$last
        elif [[ $word == : ]]; then
            ((++i))
        elif [[ -n $pending ]]; then
            pending=
        elif [[ " $takes " == *" $word "* ]]; then
            pending=$word last=$word
        elif [[ $word != -* && " $commands " == *" $word "* ]]; then
            path+=" $word" last=
            NAME_at "$path"
        fi
    done
    case $current in
        :) return ;;
        =) pending=$last current= ;;
    esac
    if [[ -n $pending ]]; then
        NAME_value "$path $pending"
    elif [[ $current == -* ]]; then
        values=$flags
    elif [[ -n $commands ]]; then
        values=$commands
    else
        NAME_value "$path"
    fi
    if [[ -n $kind ]]; then
        compopt -o filenames 2>/dev/null || :  # outside a completion there is nothing to tell
        mapfile -t COMPREPLY < <(compgen -A "$kind" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
    fi
}
)";

// A path without the program's name, as the script has it: "" or " session create".
std::string path_of(const Command& command) {
  const std::size_t space = command.path.find(' ');
  return space == std::string::npos ? "" : command.path.substr(space);
}

// What sets `values` or `kind` for an argument; empty: nothing is known of its values.
std::string offer(const Argument& argument) {
  if (!argument.choices.empty()) return "values='" + join(argument.choices) + "'";
  if (argument.is_directory()) return "kind=directory";
  if (argument.is_file()) return "kind=file";
  return "";
}

void add_commands(const Command& command, std::string& script) {
  std::vector<std::string> commands, flags, takes;
  for (const Command& sub : command.commands) commands.push_back(sub.name);
  for (const Argument& flag : command.flags) {
    flags.insert(flags.end(), flag.names.begin(), flag.names.end());
    if (!flag.value.empty()) takes.insert(takes.end(), flag.names.begin(), flag.names.end());
  }
  script += "        '" + path_of(command) + "') commands='" + join(commands) + "' flags='" +
            join(flags) + "' takes='" + join(takes) + "' ;;\n";
  for (const Command& sub : command.commands) add_commands(sub, script);
}

// By what they offer: the patterns "PATH FLAG", and "PATH" of positional arguments.
void add_values(const Command& command, std::map<std::string, std::vector<std::string>>& cases) {
  const std::string path = path_of(command);
  for (const Argument& flag : command.flags) {
    for (const std::string& name : flag.names) {
      if (!offer(flag).empty()) cases[offer(flag)].push_back("'" + path + " " + name + "'");
    }
  }
  if (!command.arguments.empty() && !offer(command.arguments.front()).empty()) {
    cases[offer(command.arguments.front())].push_back("'" + path + "'");
  }
  for (const Command& sub : command.commands) add_values(sub, cases);
}

// The name of a shell function: "_lintel_server".
std::string bash_function_name(const std::string& program) {
  std::string name = "_" + program;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

}  // namespace

std::string bash_completion(const Command& program) {
  const std::string name = bash_function_name(program.name);
  std::string script = "# bash completion for " + program.name + ", by: " + program.name +
                       " --completion bash\n\n# Of the command at a path.\n" + name +
                       "_at()\n{\n    case $1 in\n";
  add_commands(program, script);
  script += "    esac\n}\n\n# Of a flag's value, or of a command's argument.\n" + name +
            "_value()\n{\n    case $1 in\n";
  std::map<std::string, std::vector<std::string>> cases;
  add_values(program, cases);
  for (const auto& [offered, patterns] : cases) {
    script += "        " + join(patterns, "|") + ") " + offered + " ;;\n";
  }
  script += "        *) ;;\n    esac\n}\n\n" + name + "()";
  std::string walk = kWalk;
  for (std::size_t at; (at = walk.find("NAME")) != std::string::npos;) walk.replace(at, 4, name);
  return script + walk + "complete -F " + name + " " + program.name;
}

}  // namespace lintel::describe
