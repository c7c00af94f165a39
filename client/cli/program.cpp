#include "client/cli/program.h"

#include <algorithm>
#include <sstream>

#include "client/cli/error_text.h"

namespace lintel::cli {
namespace {

bool is_help_flag(const std::string& word) { return word == "--help" || word == "-h"; }

// "help session get" -> "session get --help"; "help --help" stays what it is.
std::vector<std::string> asked_for_help(std::vector<std::string> arguments, const CLI::App& app) {
  if (arguments.size() == 2 && is_help_flag(arguments.back())) return arguments;
  arguments.erase(arguments.begin());
  std::erase_if(arguments, is_help_flag);
  const CLI::App* command = &app;
  for (const std::string& word : arguments) {
    const auto found = command->get_subcommands(
        [&word](const CLI::App* candidate) { return candidate->get_name() == word; });
    if (found.empty()) throw UsageError(unknown_command_text(word, *command));
    command = found.front();
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

int run(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments) {
  Console& console = command_line.console;
  try {
    if (!arguments.empty() && arguments.front() == "help") {
      arguments = asked_for_help(std::move(arguments), app);
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
    app.parse(std::move(arguments));
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
    // What was received before the call ended is the user's.
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
