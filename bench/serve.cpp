// SPDX-License-Identifier: Apache-2.0
// lintel-bench serve: throughput and waiting times of concurrent clients over gRPC, and their ratio
// to the speed in process.
#include <memory>

#include "bench/commands.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "bench/sequences.h"
#include "bench/throughput.h"
#include "client/cli/output.h"
#include "client/lib/client.h"
#include "server/observability/logging.h"

namespace lintel::bench {
namespace {

constexpr const char* kServeFooter = R"(
Each client has a connection of its own and streams whole sequences, one after the other; those of a
model of text, which have no end, of 1,024 tokens. Throughput
is counted with the server's own messages, which it fills for 10 ms, and longer from 4 clients a worker on;
times are taken with one token a message, where a stream's every token can be seen. Server, clients
and all that they share run on this machine, unless --target names a server elsewhere. In process:
the same number of sequences on the same number of workers, without server, sockets and messages.
Neither speculates; a server elsewhere follows its own configuration, and is asked for its model, weight type,
workers and rows.

Examples:
  lintel-bench serve --shape mnist-small --concurrency 1,16,64
  lintel-bench serve --model weights/mnist-linear-small --attention softmax
  lintel-bench serve --model weights/text-linear
  lintel-bench serve --shape mnist-small --concurrency 64 --http
  lintel-bench serve --model weights/text-linear --http --chat-template chat.jinja
  lintel-bench serve --target HOST:50051 --tls-ca ca.pem --token @alice.token)";

struct ServeFlags {
  RunFlags run;
  std::string target;
  Tls tls;  // to --target, as token
  std::string token;
  ModelFlags model;
  std::string attention;
  std::vector<int> concurrency = {1, 8, 64};
  double seconds = 2;
  bool http = false;
  std::filesystem::path chat_template;  // empty: no chats
  // Properties of the server of --target.
  std::string served_model;
  SequencePlan sequence;
};

struct Level {
  int clients = 0;
  Summary tokens_per_second;
  std::optional<Summary> in_process, http;
  std::optional<Summary> chat, http_chat;           // bytes of answers a second
  std::vector<double> first_token, between_tokens;  // seconds
};

Client client_of(const ServeFlags& flags) {
  try {
    Client::Options options;
    options.address = flags.target;
    options.tls = flags.tls;
    options.token = flags.token;
    return Client(options);
  } catch (const std::invalid_argument& error) {
    throw cli::UsageError(std::string(error.what()) +
                          "; see --tls-ca, --tls-cert, --tls-key and --token");
  }
}

// The flags with the properties of a server elsewhere in their places.
ServeFlags as_served(ServeFlags flags) {
  if (!flags.chat_template.empty() && !flags.http) {
    throw cli::UsageError("--chat-template goes with --http");
  }
  if (flags.target.empty()) return flags;
  if (flags.http) {
    throw cli::UsageError("--http: a server is started in this process, not with --target");
  }
  flags.token = cli::read_token(flags.token);
  const v1::Model model = client_of(flags).get_model();
  flags.run.workers = static_cast<int>(model.workers());
  flags.run.batch = {static_cast<int>(model.max_batch_rows())};
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    if (model.weight_type() == to_string(type)) flags.run.weight_type = type;
  }
  flags.served_model = model.name();
  flags.attention = model.attention();
  flags.sequence = sequence_plan(model);
  return flags;
}

class ServeExperiment {
 public:
  ServeExperiment(const ServeFlags& flags, cli::Console& console)
      : flags_(as_served(flags)),
        own_(flags.target.empty()),
        model_(own_ ? std::make_unique<LoadedModel>(flags.model, flags.run.weight_type,
                                                    flags.attention)
                    : nullptr),
        sequence_(own_ ? sequence_plan(model_->transformer->config()) : flags_.sequence),
        measurement_(flags_.run, "serve", own_ ? model_->description() : remote(), console),
        progress_(console, static_cast<std::int64_t>(flags.concurrency.size()) * flags.run.repeats,
                  "measurements") {
    set_up_logging({.level = "warn", .json = false});
    if (!own_) return;
    // Without speculation, which the sequences in process have not either.
    const OwnServer::Options options{.workers = flags.run.workers,
                                     .rows = flags.run.batch.back(),
                                     .speculation = Speculation::kOff,
                                     .http = flags.http,
                                     .chat_template = flags.chat_template};
    server_ = std::make_unique<OwnServer>(model_->transformer, options);
  }

  int run() {
    std::vector<Level> levels;
    for (const int clients : flags_.concurrency) levels.push_back(measure(clients));
    measurement_.add(table_of(levels));
    measurement_.add(plots_of(levels));
    return measurement_.publish();
  }

 private:
  std::string remote() const {
    return flags_.served_model + ", " + flags_.attention + " attention, on the server " +
           flags_.target + "; the machine named is the clients'";
  }

  Level measure(int clients) {
    ThroughputOptions load{.address = own_ ? server_->address() : flags_.target,
                           .tls = own_ ? Tls() : flags_.tls,
                           .token = own_ ? "" : flags_.token,
                           .sequence = sequence_,
                           .clients = clients,
                           .warm_up = std::chrono::duration<double>(flags_.seconds / 4),
                           .window = std::chrono::duration<double>(flags_.seconds)};
    Level level{.clients = clients};
    std::vector<double> served, in_process, http, chat, http_chat;
    for (int r = 0; r < flags_.run.repeats; ++r) {
      load.tokens_per_message = 0;
      served.push_back(measure_throughput(load).tokens_per_second);
      if (flags_.http) {
        ThroughputOptions over_http = load;
        over_http.http = true;
        over_http.address = server_->http_address();
        http.push_back(measure_throughput(over_http).tokens_per_second);
        if (!flags_.chat_template.empty()) {
          load.chat = over_http.chat = true;
          chat.push_back(measure_throughput(load).tokens_per_second);
          http_chat.push_back(measure_throughput(over_http).tokens_per_second);
          load.chat = false;
        }
      }
      load.tokens_per_message = 1;
      const Throughput seen = measure_throughput(load);
      level.first_token.insert(level.first_token.end(), seen.first_token_seconds.begin(),
                               seen.first_token_seconds.end());
      level.between_tokens.insert(level.between_tokens.end(), seen.between_tokens_seconds.begin(),
                                  seen.between_tokens_seconds.end());
      if (own_) in_process.push_back(tokens_in_process(clients));
      progress_.add(1);
    }
    level.tokens_per_second = summarize(served);
    if (own_) level.in_process = summarize(in_process);
    if (flags_.http) level.http = summarize(http);
    if (!chat.empty()) {
      level.chat = summarize(chat);
      level.http_chat = summarize(http_chat);
    }
    return level;
  }

  // Tokens a second of `count` sequences that the workers share, whole sequences one after the
  // other.
  double tokens_in_process(int count) const {
    const int workers = std::min(flags_.run.workers, count);
    const std::int64_t steps = sequence_.tokens;
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(workers));
    std::vector<std::unique_ptr<Sequences>> sequences;
    const auto share = [&](int w) { return count * (w + 1) / workers - count * w / workers; };
    for (int w = 0; w < workers; ++w) {
      sequences.push_back(
          std::make_unique<Sequences>(*model_->transformer, static_cast<std::size_t>(share(w))));
    }
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(flags_.seconds);
    const double seconds = run_on_workers(workers, [&](int w) {
      const auto rows = static_cast<std::size_t>(share(w));
      std::int64_t at = steps;
      while (std::chrono::steady_clock::now() < end) {
        if (at == steps) {
          sequences[w]->start(rows, static_cast<std::uint64_t>(w) << 32);
          at = 0;
        }
        const std::int64_t next = std::min<std::int64_t>(16, steps - at);
        sequences[w]->generate(next);
        at += next;
        tokens[w] += next * share(w);
      }
    });
    std::int64_t total = 0;
    for (const std::int64_t t : tokens) total += t;
    return static_cast<double>(total) / seconds;
  }

  Table table_of(const std::vector<Level>& levels) const {
    Table table{.title = "Through gRPC, by concurrent clients",
                .columns = {"clients", "tokens/s", "in process, tokens/s", "share kept",
                            "first token, ms: p50", "p90", "p99", "between tokens, ms: p50", "p90 ",
                            "p99 "}};
    if (flags_.http) {
      table.columns.insert(table.columns.end(), {"through HTTP, tokens/s", "share of gRPC's"});
    }
    if (!flags_.chat_template.empty()) {
      table.columns.insert(table.columns.end(), {"chat through gRPC, bytes/s",
                                                 "through HTTP, bytes/s", "share of gRPC's "});
    }
    for (const Level& level : levels) {
      std::vector<Cell> row = {Cell::text(std::to_string(level.clients)),
                               Cell::measured(level.tokens_per_second)};
      row.push_back(level.in_process ? Cell::measured(*level.in_process) : Cell::none());
      row.push_back(level.in_process
                        ? Cell::number(level.tokens_per_second.median / level.in_process->median, 2)
                        : Cell::none());
      for (const std::vector<double>* seconds : {&level.first_token, &level.between_tokens}) {
        for (const double share : {0.5, 0.9, 0.99}) {
          row.push_back(seconds->empty() ? Cell::none()
                                         : Cell::number(1000 * quantile(*seconds, share)));
        }
      }
      if (level.http) {
        row.push_back(Cell::measured(*level.http));
        row.push_back(Cell::number(level.http->median / level.tokens_per_second.median, 2));
      }
      if (level.chat) {
        row.push_back(Cell::measured(*level.chat));
        row.push_back(Cell::measured(*level.http_chat));
        row.push_back(Cell::number(level.http_chat->median / level.chat->median, 2));
      }
      table.rows.push_back(std::move(row));
    }
    table.notes.push_back("Windows of " + format_number(flags_.seconds, 2) +
                          " s. tokens/s with messages as the server fills them; times with one "
                          "token a message, over all repeats: where the cores are busy a client is "
                          "woken for several tokens at a time, of which all but the first come "
                          "after no time." +
                          (own_ ? " Clients and server share the machine's cores." : ""));
    return table;
  }

  static std::vector<Plot> plots_of(const std::vector<Level>& levels) {
    Plot speed{
        "Throughput", "concurrent clients", "tokens/s", {{"through gRPC", {}}, {"in process", {}}}};
    Plot wait{
        "Time between tokens", "concurrent clients", "ms", {{"p50", {}}, {"p90", {}}, {"p99", {}}}};
    for (const Level& level : levels) {
      speed.series[0].points.emplace_back(level.clients, level.tokens_per_second.median);
      if (level.in_process) {
        speed.series[1].points.emplace_back(level.clients, level.in_process->median);
      }
      if (level.between_tokens.empty()) continue;
      const double shares[] = {0.5, 0.9, 0.99};
      for (std::size_t i = 0; i < 3; ++i) {
        wait.series[i].points.emplace_back(level.clients,
                                           1000 * quantile(level.between_tokens, shares[i]));
      }
    }
    return {speed, wait};
  }

  const ServeFlags flags_;
  const bool own_;
  const std::unique_ptr<LoadedModel> model_;  // null with --target
  const SequencePlan sequence_;
  Measurement measurement_;
  cli::Progress progress_;
  std::unique_ptr<OwnServer> server_;  // null with --target
};

}  // namespace

void add_serve(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<ServeExperiment, ServeFlags>(
      app, command_line, "serve", "Throughput and waiting times of concurrent clients over gRPC",
      kServeFooter);
  cli::add_text(command, "--target", flags->target, "HOST:PORT",
                "A server that runs [one is started in this process]");
  flags->model.add_to(command);
  cli::add_text(command, "--attention", flags->attention, "SPEC",
                "In place of the model's own, as lintel-server takes it");
  command.add_flag("--http", flags->http,
                   "Also through HTTP, as Connect's streams have it; not with --target");
  command
      .add_option("--chat-template", flags->chat_template,
                  "With --http: also chat completions, of a model of text with this template, "
                  "over gRPC and HTTP; the bytes of their answers are counted")
      ->type_name("FILE");
  cli::add_parsed(command, "--concurrency", flags->concurrency, parse_counts, "N[,N...]",
                  "Clients at a time [1,8,64]");
  cli::add_parsed(command, "--seconds", flags->seconds, positive_number(), "SECONDS",
                  "Length of each measurement [2]");
  flags->run.add_plot_to(command);
  cli::add_security_flags(command, flags->tls, flags->token);
  flags->run.repeats = 3;
  flags->run.add_to(command, {64}, "Rows of a worker's step, at most");
}

}  // namespace lintel::bench
