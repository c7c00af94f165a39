// SPDX-License-Identifier: Apache-2.0
// lintel-server: loads models, serves until SIGTERM or SIGINT, drains.
// Exit codes: 0 after a drain, 1 when a model or the address fails, 2 for invalid flags; of
// --check-config 0 or 2.
#include <signal.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>

#include "model/config/config.h"
#include "model/core/errors.h"
#include "model/ops/weight_type.h"
#include "server/app/lintel_server.h"
#include "server/app/options.h"
#include "server/app/startup.h"
#include "server/observability/logging.h"

namespace lintel {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// Waits for the first signal; before serving there is nothing to drain and it ends the process.
class Termination {
 public:
  void serve() { serving_ = true; }
  void operator()(int signal) {
    if (!serving_) std::_Exit(EXIT_SUCCESS);
    signal_.set_value(signal);
  }
  int wait() { return signal_.get_future().get(); }

 private:
  std::atomic<bool> serving_{false};
  std::promise<int> signal_;
};

// Ends a start whose failure nothing caught, as that of a thread among several, with a line that
// says so. Returns the handler that was set before.
std::terminate_handler end_start_on_terminate(const LogOptions& options) {
  static LogOptions log;
  log = options;
  return std::set_terminate([] {
    std::string text = "a thread or memory was missing";
    try {
      if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    } catch (const std::exception& error) {
      text = text_of_failure(error);
    } catch (...) {
    }
    std::cerr << last_words(log, one_line(text)) << std::flush;
    std::_Exit(EXIT_FAILURE);
  });
}

// The last line of a start with HTTP: where both protocols and the page are.
std::string where_it_serves(const ServerOptions& options, const LintelServer& server) {
  const std::string grpc = "gRPC on " + server.address();
  const ListenAddress& http = *options.http.listen;
  if (!server.serves_http())
    return grpc + ", no HTTP: " + http.to_string(http.port) + " cannot be used";
  const bool has_page = http.unix_path.empty();  // browsers reach no unix socket
  return grpc + ", HTTP on " + server.http_address() +
         (has_page ? ", page: " + server.http_url() + "/" : "");
}

int serve(ServerOptions options) {
  const std::terminate_handler before = end_start_on_terminate(options.logging);
  check_address_space(options);
  check_threads(options);
  Termination termination;
  SignalWatcher signals([&termination](int signal) { termination(signal); });
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // of a log that may not grow any more: it is lost, nothing else is
  set_up_logging(options.logging);

  check_before_loading(options);
  pull_model(options);
  const SteadyClock clock;
  LintelServer server(options, clock);
  check_address_space(options);  // models take theirs first
  server.start();
  std::set_terminate(before);
  termination.serve();
  spdlog::info("serving on {}", server.address());
  // Scripts wait for this line.
  std::cout << "lintel-server ready on " << server.address() << std::endl;
  if (options.http.listen) std::cout << where_it_serves(options, server) << std::endl;

  const int received = termination.wait();
  spdlog::info("signal {}: draining for at most {} ms; a second signal ends it at once", received,
               options.models.drain_timeout_ms.count());
  const bool all_ended = server.drain(options.models.drain_timeout_ms);
  spdlog::info("stopped{}", all_ended ? "" : "; streams were cut short");
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lintel

int main(int argc, char** argv) {
  lintel::ServerOptions options;
  const auto fail = [&options](const std::exception& error, int exit_code) {
    std::cerr << lintel::last_words(options.logging,
                                    lintel::one_line(lintel::text_of_failure(error)))
              << std::flush;
    return exit_code;
  };
  try {
    std::string help;
    if (!lintel::parse_server_options(argc, argv, &options, &help)) {
      std::cout << help;
      return EXIT_SUCCESS;
    }
  } catch (const lintel::UsageError& error) {
    const int exit_code = fail(error, lintel::kExitUsage);
    if (!options.logging.json) std::cerr << "Try lintel-server --help\n";
    return exit_code;
  }
  try {
    lintel::choose_kernels(options.models.kernels);
    if (options.check_config) {
      lintel::set_up_logging(options.logging);
      lintel::check_files(options);
      std::cout << "the configuration is valid\n";
      return EXIT_SUCCESS;
    }
    if (options.print_numerics) {
      lintel::pull_model(options);
      lintel::print_numerics(options.models, std::cout);
      return EXIT_SUCCESS;
    }
    return lintel::serve(options);
  } catch (const std::exception& error) {
    return fail(error, options.check_config ? lintel::kExitUsage : lintel::kExitFailed);
  }
}
