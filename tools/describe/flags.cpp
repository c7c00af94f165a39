#include "tools/describe/flags.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>

#include "tools/describe/formats.h"
#include "tools/describe/help_format.h"

namespace lintel::describe {
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

}  // namespace

void add_flags(CLI::App& app, const std::vector<std::string>& machine_defaults) {
  app.formatter(std::make_shared<HelpFormat>());
  // As pages have it, which are read on other machines.
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

CLI::Validator offers(const std::vector<std::string>& values) {
  CLI::Validator validator([](std::string&) { return std::string(); }, "");
  validator.name("{" + join(values, ",") + "}");
  return validator;
}

CLI::Validator takes(const std::string& range) {
  CLI::Validator validator([](std::string&) { return std::string(); }, "");
  validator.name("[" + range + "]");
  return validator;
}

}  // namespace lintel::describe
