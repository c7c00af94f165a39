#include <algorithm>
#include <sstream>

#include "client/cli/commands.h"
#include "client/image/image.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  lintel health
  lintel generate --prompt "Once upon a time" --max-new-tokens 200
  lintel complete --images t10k-images-idx3-ubyte.gz --index 0-9 --occlude bottom:14 --watch
  lintel score --input sequences.jsonl --output scores.jsonl

LINTEL_ADDRESS, LINTEL_MODEL and LINTEL_DEADLINE stand for the flags of these names.
Exit status: 0 done, 1 failed, 2 the command line makes no sense, 3 no server or not serving.
`lintel COMMAND --help` explains a command.)";

int report(Console& console, const CallError& error) {
  if (error.code() == grpc::StatusCode::CANCELLED && console.cancellation().cancelled()) {
    console.err("lintel: cancelled\n");
    return kFailed;
  }
  console.err("lintel: " + std::string(error.what()) + "\n");
  return error.code() == grpc::StatusCode::UNAVAILABLE ? kUnavailable : kFailed;
}

int run(std::vector<std::string> arguments, Console& console) {
  CLI::App app("Talks to a Lintel server: streams from linear transformers over gRPC.", "lintel");
  CommandLine command_line{console, nullptr};
  app.set_version_flag("--version", "lintel " LINTEL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  add_generate(app, command_line);
  add_complete(app, command_line);
  add_score(app, command_line);
  add_session(app, command_line);
  add_model(app, command_line);
  add_health(app, command_line);
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
      console.err("lintel: no such command: " + unknown.front() + "\n" +
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

int run_command_line(std::vector<std::string> arguments, Console& console) {
  try {
    return run(std::move(arguments), console);
  } catch (const OutputClosed&) {
    return kOk;
  } catch (const UsageError& error) {
    console.err("lintel: " + std::string(error.what()) + "\n");
    return kUsage;
  } catch (const CallError& error) {
    // What was received before the call ended is the user's.
    try {
      console.flush();
    } catch (...) {
    }
    return report(console, error);
  } catch (const std::exception& error) {
    console.err("lintel: " + std::string(error.what()) + "\n");
    return kFailed;
  }
}

}  // namespace lintel::cli
