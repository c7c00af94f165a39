#include <sstream>

#include "tools/describe/formats.h"

namespace lintel::describe {
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

// What a flag may be given.
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

}  // namespace lintel::describe
