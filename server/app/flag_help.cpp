#include "server/app/flag_help.h"

#include <sstream>
#include <string>

namespace lintel {
namespace {

// Of a line of the help, and of a flag's name to the left of its text.
constexpr std::size_t kColumns = 80;
constexpr std::size_t kNameColumns = 26;

constexpr const char* kIntroduction =
    "Serves autoregressive linear transformers over gRPC.\n\n"
    "Without --model, --model-repository and --config it serves the small models that\n"
    "come with it, on 127.0.0.1:50051 and with their page on http://127.0.0.1:8080/.\n"
    "BYTES are 1048576, 512MiB or 2GB; a DURATION is 250ms, 30s, 10m or 2h.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  lintel-server\n"
    "      to try it; then: lintel generate --model text-linear-small --prompt 'The '\n"
    "  lintel-server --model weights/mnist-linear-small\n"
    "      for this machine; then: lintel complete --unconditional 4\n"
    "  lintel-server --model DIR --listen 0.0.0.0:50051 --tls-cert server.pem \\\n"
    "      --tls-key server.key --auth-tokens tokens --metrics-listen 127.0.0.1:9464\n"
    "      for others, with tokens of `lintel token new`, and watched by Prometheus\n"
    "  lintel-server --config server.toml\n"
    "      with flags as keys: model = [\"DIR\"], listen = \"0.0.0.0:50051\", ...\n\n"
    "When it serves it says so in a line of standard output, and when no model is\n"
    "named in a second one where the page is; the rest is logged to standard error.\n"
    "After SIGTERM or SIGINT what runs may end (--drain-timeout), and a second one\n"
    "ends it at once. Exit status: 0 after a drain, 1 when a model, a file or the\n"
    "address cannot be used, 2 when flags make no sense.\n";

// Lines of at most `width` bytes, broken between words.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= width;
    if (column > 0) out += fits ? " " : "\n";
    column = column > 0 && fits ? column + 1 + word.size() : word.size();
    out += word;
  }
  return out;
}

}  // namespace

void lay_out_help(CLI::App& app) {
  app.description(kIntroduction);
  app.footer(kExamples);
  app.get_formatter()->column_width(kNameColumns);
  for (CLI::Option* const option : app.get_options()) {
    option->description(wrapped(option->get_description(), kColumns - kNameColumns));
  }
}

}  // namespace lintel
