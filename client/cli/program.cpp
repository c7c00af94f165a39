#include "client/cli/program.h"

#include <algorithm>
#include <sstream>

namespace lintel::cli {
namespace {

// The request's field as people write it: "name" or "model" of the wire is --model of commands.
std::string in_flags(const CallError& error) {
  std::string text = error.what();
  for (const FieldViolation& violation : error.violations()) {
    if (violation.description.rfind("several models are loaded", 0) != 0) continue;
    const std::string said = violation.field + ": " + violation.description;
    const std::size_t at = text.find(said);
    if (at != std::string::npos) text.replace(at, violation.field.size(), "--model");
  }
  return text;
}

int report(const std::string& program, Console& console, const CallError& error) {
  if (error.code() == grpc::StatusCode::CANCELLED && console.cancellation().cancelled()) {
    console.err(program + ": cancelled\n");
    return kFailed;
  }
  console.err(program + ": " + in_flags(error) + "\n");
  return error.code() == grpc::StatusCode::UNAVAILABLE ? kUnavailable : kFailed;
}

int run(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments) {
  Console& console = command_line.console;
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const bool help = app.exit(error, out, err) == 0;
    console.out(out.str());
    console.flush();
    // CLI11 says of an unknown command only that one is missing.
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    if (error.get_name() == "RequiredError" && !unknown.empty()) {
      console.err(app.get_name() + ": no such command: " + unknown.front() + "\n" +
                  "Run with --help for more information.\n");
    } else {
      console.err(err.str());
    }
    return help ? kOk : kUsage;
  }
  const int code = command_line.run();
  console.flush();
  return code;
}

}  // namespace

int run_program(CLI::App& app, CommandLine& command_line, std::vector<std::string> arguments) {
  Console& console = command_line.console;
  const std::string program = app.get_name();
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
    return report(program, console, error);
  } catch (const std::exception& error) {
    console.err(program + ": " + error.what() + "\n");
    return kFailed;
  }
}

}  // namespace lintel::cli
