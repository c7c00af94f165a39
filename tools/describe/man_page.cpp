#include <cctype>

#include "tools/describe/formats.h"

namespace lintel::describe {
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

std::string page_name(const Command& command) {
  std::string name = command.path;
  for (char& c : name) c = c == ' ' ? '-' : c;
  return name;
}

// With the full stop that --help leaves out.
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

}  // namespace lintel::describe
