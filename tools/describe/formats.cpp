// SPDX-License-Identifier: Apache-2.0
#include "tools/describe/formats.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

namespace lintel::describe {

std::string HelpFormat::make_option_opts(const CLI::Option* option) const {
  std::istringstream in(CLI::Formatter::make_option_opts(option));
  std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
  for (const char* const label : {"Needs", "Excludes"}) {
    const auto is_label = [](const std::string& word) { return word.back() == ':'; };
    auto names = std::ranges::find(words, get_label(label) + ":");
    if (names == words.end()) continue;
    ++names;
    std::sort(names, std::find_if(names, words.end(), is_label));
  }
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return text;
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!out.empty()) out += "\n";
    if (line.size() <= width) {
      out += line;
      continue;
    }
    column = 0;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const bool fits = column + 1 + word.size() <= width;
      if (column > 0) out += fits ? " " : "\n";
      column = column > 0 && fits ? column + 1 + word.size() : word.size();
      out += word;
    }
  }
  return out;
}

std::string HelpFormat::make_option_desc(const CLI::Option* option) const {
  return wrapped(option->get_description(), kColumns - get_column_width());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  std::stringstream out;
  CLI::detail::format_help(out, command->get_name(),
                           wrapped(command->get_description(), kColumns - get_column_width()),
                           get_column_width());
  return out.str();
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  const std::string text = CLI::Formatter::make_description(app);
  return text.empty() ? "" : wrapped(text, kColumns) + "\n";
}

namespace {

// A command that is broken at blanks, as a shell takes it.
std::string continued(std::string line, std::size_t width) {
  constexpr std::string_view kIndent = "      ";
  std::string out;
  while (line.size() > width) {
    const std::size_t at = line.rfind(' ', width - 2);  // before " \"
    if (at == std::string::npos || at <= line.find_first_not_of(' ')) break;
    out += line.substr(0, at) + " \\\n";
    line.replace(0, at + 1, kIndent);
  }
  return out + line;
}

}  // namespace

std::string HelpFormat::make_footer(const CLI::App* app) const {
  std::istringstream lines(CLI::Formatter::make_footer(app));
  std::string out, paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) out += wrapped(paragraph, kColumns) + "\n";
    paragraph.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.front() != ' ') {
      paragraph += (paragraph.empty() ? "" : " ") + line;
      continue;
    }
    end_paragraph();
    out += continued(line, kColumns) + "\n";
  }
  end_paragraph();
  return out;
}

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

// Sets `values` or `kind` for an argument; empty: nothing is known of its values.
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

// Adds the patterns of a command by their offers: "PATH FLAG", and "PATH" of positional arguments.
void add_tokens(const Command& command, std::map<std::string, std::vector<std::string>>& cases) {
  const std::string path = path_of(command);
  for (const Argument& flag : command.flags) {
    for (const std::string& name : flag.names) {
      if (!offer(flag).empty()) cases[offer(flag)].push_back("'" + path + " " + name + "'");
    }
  }
  if (!command.arguments.empty() && !offer(command.arguments.front()).empty()) {
    cases[offer(command.arguments.front())].push_back("'" + path + "'");
  }
  for (const Command& sub : command.commands) add_tokens(sub, cases);
}

// `text` with `to` in place of each character of `from`.
std::string replaced(std::string text, std::string_view from, char to) {
  for (char& c : text) c = from.find(c) == from.npos ? c : to;
  return text;
}

// The name of a shell function: "_lintel_session" for "lintel session".
std::string function_name(const std::string& path) { return "_" + replaced(path, " -", '_'); }

}  // namespace

std::string bash_completion(const Command& program) {
  const std::string name = function_name(program.name);
  std::string script = "# bash completion for " + program.name + ", by: " + program.name +
                       " --completion bash\n\n# Of the command at a path.\n" + name +
                       "_at()\n{\n    case $1 in\n";
  add_commands(program, script);
  script += "    esac\n}\n\n# Of a flag's value, or of a command's argument.\n" + name +
            "_value()\n{\n    case $1 in\n";
  std::map<std::string, std::vector<std::string>> cases;
  add_tokens(program, cases);
  for (const auto& [offered, patterns] : cases) {
    script += "        " + join(patterns, "|") + ") " + offered + " ;;\n";
  }
  script += "        *) ;;\n    esac\n}\n\n" + name + "()";
  std::string walk = kWalk;
  for (std::size_t at; (at = walk.find("NAME")) != std::string::npos;) walk.replace(at, 4, name);
  return script + walk + "complete -F " + name + " " + program.name;
}

namespace {

// Text as roff takes it: a dot that begins a line is no request.
std::string plain(const std::string& text) {
  std::string escaped;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if (c == '`') {
      escaped += "\\(ga";
    } else {
      escaped += c;
    }
    begins = c == '\n';
  }
  return escaped;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string page_name(const Command& command) { return replaced(command.path, " ", '-'); }

// The text with the full stop that --help leaves out.
std::string sentence(const std::string& text) {
  if (text.empty() || text.back() == '.') return plain(text) + "\n";
  return plain(text) + ".\n";
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The first line of a description; a page's name needs one.
std::string headline(const Command& command) {
  std::string line = command.description.substr(0, command.description.find('\n'));
  while (!line.empty() && line.back() == '.') line.pop_back();
  return line;
}

// Blocks between blank lines. One that is indented, or whose first line ends with a colon, is kept
// line by line; "Examples:" becomes a heading of the page, or of a part of it.
std::string text_blocks(const std::string& text, bool of_page = true) {
  std::string page;
  std::istringstream in(text);
  std::vector<std::string> block;
  const auto end_block = [&] {
    if (block.empty()) return;
    std::size_t from = 0;
    if (block.front().back() == ':' && block.size() > 1 && block[1][0] == ' ') {
      const std::string title = plain(block.front().substr(0, block.front().size() - 1));
      page += of_page ? ".SH " + upper(title) + "\n" : ".PP\n" + title + ":\n";
      from = 1;
    } else {
      page += ".PP\n";
    }
    const bool as_is = block[from][0] == ' ';
    if (as_is) page += ".nf\n";
    for (std::size_t i = from; i < block.size(); ++i) page += plain(block[i]) + "\n";
    if (as_is) page += ".fi\n";
    block.clear();
  };
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) {
      end_block();
    } else {
      block.push_back(line);
    }
  }
  end_block();
  return page;
}

void add_flags(const Command& command, std::string& page, const char* heading) {
  std::string group = "Options";
  for (const Argument& flag : command.flags) {
    if (flag.group != group) page += std::string(heading) + " " + plain(flag.group) + "\n";
    group = flag.group;
    page += ".TP\n";
    std::string names;
    for (const std::string& name : flag.names) names += (names.empty() ? "" : ", ") + bold(name);
    page += names + (flag.value.empty() ? "" : " " + italic(flag.value)) + "\n";
    page += sentence(flag.help);
    if (!flag.choices.empty()) page += "One of: " + plain(join(flag.choices, ", ")) + ".\n";
    if (!flag.range.empty()) page += "From " + plain(flag.range) + ".\n";
    if (!flag.initial.empty()) page += "Default: " + bold(flag.initial) + ".\n";
    if (!flag.variable.empty()) page += "Environment: " + bold(flag.variable) + ".\n";
  }
}

std::string synopsis(const Command& command) {
  std::string line = bold(command.path) + " [" + italic("OPTIONS") + "]";
  for (const Argument& argument : command.arguments) {
    const std::string name = italic(argument.names.front());
    line += argument.required ? " " + name : " [" + name + "]";
  }
  if (!command.commands.empty()) line += " " + italic("COMMAND") + " ...";
  return line + "\n";
}

void add_arguments(const Command& command, std::string& page) {
  for (const Argument& argument : command.arguments) {
    page += ".TP\n" + italic(argument.names.front()) + "\n" + sentence(argument.help);
  }
}

// A page for `command`. `program`: whose page it points at; itself for the program's own, which
// only names its sub-commands.
ManPage page_of(const Command& command, const Command& program, const std::string& version,
                const std::string& date) {
  const std::string name = page_name(command);
  const bool is_program = command.path == program.path;
  std::string page = ".TH " + upper(plain(name)) + " 1 " + date + " \"" + program.name + " " +
                     version + "\" \"User Commands\"\n";
  page += ".nh\n.ad l\n";  // names are not cut in two
  page += ".SH NAME\n" + plain(name) + " \\- " + plain(headline(command)) + "\n";
  page += ".SH SYNOPSIS\n" + synopsis(command);
  page += ".SH DESCRIPTION\n" + plain(headline(command)) + ".\n";
  if (const std::size_t rest = command.description.find('\n'); rest != std::string::npos) {
    page += text_blocks(command.description.substr(rest));
  }
  if (!command.arguments.empty()) page += ".SH ARGUMENTS\n";
  add_arguments(command, page);
  page += ".SH OPTIONS\n";
  add_flags(command, page, ".SS");
  if (!command.commands.empty()) page += ".SH COMMANDS\n";
  for (const Command& sub : command.commands) {
    if (is_program) {
      page += ".TP\n" + bold(sub.name) + "\n" + sentence(sub.description);
      page += "See " + bold(page_name(sub)) + "(1).\n";
      continue;
    }
    page += ".SS " + plain(sub.path) + "\n" + synopsis(sub) + ".PP\n" + sentence(sub.description);
    add_arguments(sub, page);
    add_flags(sub, page, ".PP\n.I");
    page += text_blocks(sub.footer, /*of_page=*/false);
  }
  page += text_blocks(command.footer);
  page += ".SH SEE ALSO\n";
  std::vector<std::string> others;
  if (!is_program) others.push_back(bold(page_name(program)) + "(1)");
  for (const Command& sub : program.commands) {
    if (page_name(sub) != name) others.push_back(bold(page_name(sub)) + "(1)");
  }
  for (const char* const other : {"lintel", "lintel-server", "lintel-convert", "lintel-bench"}) {
    if (other != program.name) others.push_back(bold(other) + "(1)");
  }
  return {name, page + join(others, ",\n") + "\n"};
}

}  // namespace

std::vector<ManPage> man_pages(const Command& program, const std::string& version,
                               const std::string& date) {
  std::vector<ManPage> pages = {page_of(program, program, version, date)};
  for (const Command& sub : program.commands) {
    pages.push_back(page_of(sub, program, version, date));
  }
  return pages;
}

namespace {

// Text in a cell of a table: on one line, and what could be read as markup as it stands.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '<') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string code(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

// The values that a flag takes.
std::string taken(const Argument& flag) {
  if (!flag.choices.empty()) return cell(join(flag.choices, ", "));
  return cell(flag.range);
}

std::string row(const Argument& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back(code(name));
  const std::string value = flag.value.empty() ? "" : " " + code(flag.value);
  return "| " + join(names, ", ") + value + " | " + code(flag.initial) + " | " + taken(flag) +
         " | " + cell(flag.help) + " |\n";
}

}  // namespace

std::string markdown_page(const Command& program) {
  std::ostringstream page;
  page << "# Flags of " << program.name << "\n\n"
       << "<!-- " << program.name << " --help-markdown -->\n\n"
       << program.description;
  std::string group;
  for (const Argument& flag : program.flags) {
    if (flag.group != group) {
      page << "\n## " << flag.group << "\n\n"
           << "| flag | default | values | what it does |\n|---|---|---|---|\n";
    }
    group = flag.group;
    page << row(flag);
  }
  return page.str();
}

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
  script += function_name(command.path) + "() {\n";
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
    script += "        " + sub.name + ") " + function_name(sub.path) + " && ret=0 ;;\n";
  }
  script += "      esac\n      ;;\n  esac\n  return ret\n}\n\n";
}

}  // namespace

std::string zsh_completion(const Command& program) {
  const std::string name = function_name(program.name);
  std::string script = "#compdef " + program.name + "\n# zsh completion for " + program.name +
                       ", by: " + program.name + " --completion zsh\n\n";
  add_function(program, script);
  // Found in $fpath as _NAME it is the function's body; sourced it defines it.
  return script + "if [[ $funcstack[1] == _" + program.name + " ]]; then\n  " + name +
         " \"$@\"\nelse\n  compdef " + name + " " + program.name + "\nfi";
}

}  // namespace lintel::describe
