// SPDX-License-Identifier: Apache-2.0
// Flags and the configuration file.
#include "server/app/options.h"

#include <fstream>

#include "server/config/flags.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

ServerOptions parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "lintel-server");
  ServerOptions options;
  std::string help;
  REQUIRE(parse_server_options(static_cast<int>(flags.size()), flags.data(), &options, &help));
  return options;
}

std::string refusal(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "lintel-server");
  ServerOptions options;
  std::string help;
  try {
    parse_server_options(static_cast<int>(flags.size()), flags.data(), &options, &help);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("defaults serve one model on the loopback") {
  const ServerOptions options = parse({"--model", "weights/digits/"});
  REQUIRE(options.models.directories.size() == 1);
  CHECK(options.models.directories[0].name == "digits");
  CHECK(options.listen.to_string(options.listen.port) == "127.0.0.1:50051");
  CHECK_FALSE(options.models.weight_type.has_value());
  CHECK(options.models.scheduling.workers >= 1);
  CHECK(options.models.scheduling.max_batch_rows == 0);
  CHECK(options.memory_limit_bytes == kAutoBytes);
  CHECK(options.sessions.session_memory_bytes == kAutoBytes);
  CHECK(options.prefixes.memory_bytes == kAutoBytes);
  CHECK(options.models.memory_bytes == kAutoBytes);
  CHECK(options.models.scheduling.max_queued_bytes == kAutoBytes);
  CHECK(options.request_memory_bytes == kAutoBytes);
  CHECK(options.sessions.idle_timeout == std::chrono::minutes(10));
  CHECK(options.models.drain_timeout_ms == std::chrono::seconds(30));
  CHECK_FALSE(options.logging.json);
}

TEST_CASE("no model, repository or configuration file: packaged models and HTTP on the loopback",
          "[threat-35]") {
  const ServerOptions options = parse({"--workers", "1"});
  CHECK(options.serves_packaged_models);
  std::vector<std::string> names;
  for (const ModelDirectory& model : options.models.directories) names.push_back(model.name);
  CHECK(names == std::vector<std::string>{"mnist-linear-small", "mnist-softmax-small",
                                          "mnist-lsh1-small", "mnist-lsh4-small",
                                          "text-linear-small", "text-rwkv7-small"});
  CHECK(options.http.listen.has_value());
  CHECK(options.listen.is_local());
  const ServerOptions elsewhere = parse({"--http-listen", "127.0.0.1:7"});
  CHECK(elsewhere.serves_packaged_models);
  CHECK(elsewhere.http.listen->port == 7);
}

TEST_CASE("HTTP is on loopback by default where gRPC is, and off where it is not",
          "[threat-35][threat-99]") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "server.toml";
  std::ofstream(file) << "model = [\"m\"]\n";
  const auto http = [&](std::vector<const char*> flags) -> std::string {
    const ServerOptions options = parse(flags);
    const auto& listen = options.http.listen;
    return (options.http_is_default ? "default " : "") +
           (listen ? listen->to_string(listen->port) : "off");
  };
  const std::string loopback = "default 127.0.0.1:8080";
  CHECK(http({"--workers", "1"}) == loopback);
  CHECK(http({"--model", "m"}) == loopback);
  CHECK(http({"--models", "r"}) == loopback);
  CHECK(http({"--config", file.c_str()}) == loopback);
  CHECK(http({"--model", "m", "--listen", "localhost:0"}) == loopback);
  CHECK(http({"--model", "m", "--listen", "[::1]:1"}) == loopback);
  CHECK(http({"--model", "m", "--listen", "127.9.9.9:1"}) == loopback);
  // The permissions of a socket are its access control; other addresses have none of their own.
  CHECK(http({"--model", "m", "--listen", "unix:/a"}) == "off");
  CHECK(http({"--listen", "unix:/a"}) == "off");
  CHECK(http({"--model", "m", "--listen", "0.0.0.0:1", "--insecure-public"}) == "off");
  CHECK(http({"--model", "m", "--listen", "[::]:1", "--tls-cert", "c", "--tls-key", "k"}) == "off");
  // A named address is used, also the default's own.
  CHECK(http({"--model", "m", "--http-listen", "off"}) == "off");
  CHECK(http({"--http-listen", "off"}) == "off");
  CHECK(http({"--model", "m", "--http-listen", "127.0.0.1:8080"}) == "127.0.0.1:8080");
  CHECK(http({"--model", "m", "--listen", "unix:/a", "--http-listen", "unix:/b"}) == "unix:/b");
  for (const char* const named : {"off", "127.0.0.1:7"}) {
    std::ofstream(file) << "model = [\"m\"]\nhttp-listen = \"" << named << "\"\n";
    CHECK(http({"--config", file.c_str()}) == named);
  }
  // Flags of HTTP are allowed with the default, too.
  CHECK(parse({"--model", "m", "--http-cors-origin", "*"}).http.cors_origins.size() == 1);
  CHECK_THAT(refusal({"--model", "m", "--http-listen", "off", "--http-cors-origin", "*"}),
             Catch::Contains("--http-cors-origin needs HTTP"));
  CHECK_THAT(refusal({"--model", "m", "--listen", "unix:/a", "--http-allowed-host", "a"}),
             Catch::Contains("--http-allowed-host"));
}

TEST_CASE("a start with a configuration file or with a model to load needs models") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "server.toml";
  std::ofstream(file) << "workers = 1\n";
  CHECK_FALSE(parse({"--model", "m"}).serves_packaged_models);
  CHECK_FALSE(parse({"--model-repository", "r"}).serves_packaged_models);
  CHECK_THAT(refusal({"--config", file.c_str()}), Catch::Contains("--model is required"));
  CHECK_THAT(refusal({"--load-model", "a"}), Catch::Contains("--model-repository"));
}

TEST_CASE("a model is named by its flag or by the last component of its directory") {
  CHECK(parse_model_directory("a/b").name == "b");
  CHECK(parse_model_directory("a/b/").name == "b");
  CHECK(parse_model_directory("/x/y/../z").name == "z");
  CHECK(parse_model_directory("n=a/b").name == "n");
  CHECK(parse_model_directory("n=a/b").path == "a/b");
  CHECK(parse_model_directory("a=1/b").name == "a");
  CHECK(parse_model_directory("./a=1/b").name == "b");
  CHECK(parse_model_directory("org/n=a/b=c").name == "org/n");
  CHECK(parse_model_directory("org/n=a/b=c").path == "a/b=c");
  CHECK(parse_model_directory("org/n:Q8_0=b.gguf").name == "org/n:Q8_0");
  CHECK_THROWS_AS(parse_model_directory("a/b/n=1"), UsageError);
  CHECK_THROWS_AS(parse_model_directory(""), UsageError);
  CHECK_THROWS_AS(parse_model_directory("n="), UsageError);
  CHECK_THROWS_AS(parse_model_directory("=a"), UsageError);
  CHECK_THROWS_AS(parse_model_directory("a b=c"), UsageError);
  CHECK_THROWS_AS(parse_model_directory("/"), UsageError);
}

TEST_CASE("a model's path that exists is no name and path") {
  const TemporaryDirectory files;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(files.path() / "org" / "n=1" / "b");
  std::filesystem::create_directories(files.path() / "1" / "b");
  std::filesystem::current_path(files.path());
  CHECK(parse_model_directory("org/n=1/b").name == "b");
  CHECK(parse_model_directory("org/n=1/b").path == "org/n=1/b");
  std::ofstream("a=b.jinja") << "x";
  CHECK(parse_chat_template_file("a=b.jinja").model.empty());
  CHECK(parse_chat_template_file("org/n=b.jinja").model == "org/n");
  std::filesystem::current_path(before);
  CHECK(parse_model_directory("org/n=1/b").name == "org/n");
  const AdapterDirectory adapter = parse_adapter_directory("org/n:Q8_0:mine=dir");
  CHECK(adapter.model == "org/n:Q8_0");
  CHECK(adapter.name == "mine");
}

TEST_CASE("values of flags are set in their options") {
  const ServerOptions options = parse({"--model",
                                       "a",
                                       "--model",
                                       "second=b",
                                       "--listen",
                                       "[::1]:0",
                                       "--session-idle-timeout",
                                       "30s",
                                       "--max-connection-age",
                                       "10m",
                                       "--max-message-size",
                                       "1MB",
                                       "--identity-memory",
                                       "13KiB",
                                       "--speculation",
                                       "off",
                                       "--weight-type",
                                       "bf16",
                                       "--attention",
                                       "lsh:rounds=4,bits=32,chunk_size=29,seed=7",
                                       "--log-format",
                                       "json",
                                       "--metrics-listen",
                                       "0.0.0.0:9464"});
  REQUIRE(options.models.directories.size() == 2);
  CHECK(options.models.directories[1].name == "second");
  CHECK(options.listen.to_string(5) == "[::1]:5");
  CHECK(options.sessions.idle_timeout == std::chrono::seconds(30));
  CHECK(options.connections.max_age_ms == std::chrono::minutes(10));
  CHECK(options.connections.max_message_bytes == 1'000'000);
  CHECK(options.sessions.bytes_per_owner == 13 * 1024);
  CHECK(options.models.scheduling.speculation == Speculation::kOff);
  CHECK(options.models.weight_type == WeightType::kBf16);
  REQUIRE(options.models.attention.has_value());
  CHECK(options.models.attention->type == "lsh");
  CHECK(options.models.attention->seed == 7u);
  CHECK(options.logging.json);
  REQUIRE(options.monitoring.metrics_listen.has_value());
  CHECK(options.monitoring.metrics_listen->to_string(1) == "0.0.0.0:1");
}

TEST_CASE("an invalid value of a flag is refused by the flag's name") {
  const std::vector<std::vector<const char*>> refused = {
      {"--listen", "localhost"},
      {"--listen", "localhost:70000"},
      {"--listen", "localhost:x"},
      {"--listen", ":80"},
      {"--listen", "::1:80"},
      {"--listen", "unix:"},
      {"--workers", "0"},
      {"--workers", "-1"},
      {"--workers", "two"},
      {"--max-batch-rows", "0"},
      {"--max-batch-rows", "automatic"},
      {"--max-queued-requests", "0"},
      {"--max-queued-bytes", "0"},
      {"--speculation", "perhaps"},
      {"--speculation-rows", "0"},
      {"--prefill-rows", "65", "--max-batch-rows", "64"},
      {"--max-sessions", "-1"},
      {"--session-memory", "0"},
      {"--session-memory", "automatic"},
      {"--memory-limit", "1MiB"},
      {"--http-memory", "-1"},
      {"--session-memory", "12 parsecs"},
      {"--session-memory", "99999999TiB"},
      {"--session-idle-timeout", "10"},
      {"--session-idle-timeout", "1500ms"},
      {"--session-idle-timeout", "-5s"},
      {"--session-store", ""},
      {"--session-durability", "input"},  // of no store
      {"--session-durability", "disk", "--session-store", "d"},
      {"--session-commit-interval", "5"},
      {"--session-park-tokens", "-1"},
      {"--session-store-size", "1KiB"},
      {"--session-store-threads", "0"},
      {"--session-load-queue", "0"},
      {"--session-expire", "0"},
      {"--max-prompt-tokens", "0"},
      {"--max-new-tokens", "1e3x"},
      {"--drain-timeout", "soon"},
      {"--drain-handover", "later"},
      {"--replica-id", ""},
      {"--replica-id", "a b"},
      {"--replica-id", "über"},
      {"--replica-id", "12345678901234567890123456789012345678901234567890123456789012345"},
      {"--weight-type", "int3"},
      {"--weight-type", ""},
      {"--weight-type-loss", "-0.1"},
      {"--weight-type-loss", "nan"},
      {"--weight-type-loss", "0.1 bits"},
      {"--weight-type-text", "t.txt", "--weight-type", "int8"},
      {"--attention", "quadratic"},
      {"--attention", "softmax:scale=-1"},
      {"--attention", "softmax:rounds=4"},
      {"--attention", "linear:recompute=maybe"},
      {"--log-level", "loud"},
      {"--log-format", "xml"},
      {"--listen", "0.0.0.0:50051"},
      {"--listen", "[::]:50051"},
      {"--listen", "example.org:50051"},
      {"--listen", "128.0.0.1:50051"},
      {"--tls-cert", "c.pem"},
      {"--tls-key", "k.pem"},
      {"--tls-client-ca", "ca.pem"},
      {"--max-metadata-size", "100"},
      {"--max-connection-streams", "0"},
      {"--max-connection-age", "1"},
      {"--identity-token-burst", "5"},  // of no rate
      {"--identity-memory", "-1"},
      {"--identity-stored", "-1"},
      {"--identity-stored", "1MiB", "--session-store", "redis://host:6379"},
      {"--metrics-listen", "unix:/a"},
      {"--metrics-listen", "9464"},
      {"--metrics-listen", "[::1]:9464"},  // IPv4 only
      {"--no-such-flag", "1"},
      {"--model", "other/m"},  // a name twice
  };
  for (std::vector<const char*> flags : refused) {
    const std::string name = flags.front();
    flags.insert(flags.begin(), {"--model", "m"});
    INFO(name << " " << flags.back());
    CHECK(refusal(flags).find(name) != std::string::npos);
  }
  CHECK(refusal({"--model", "m", "--weight-type", "fp8"}).find("int8") != std::string::npos);
}

TEST_CASE("flag --session-durability above none is refused without --session-store") {
  const std::vector<const char*> model = {"--model", "m"};
  CHECK(parse(model).durable.store.empty());
  CHECK_FALSE(parse(model).durable.durability.has_value());
  CHECK(parse({"--model", "m", "--session-durability", "none"}).durable.durability ==
        Durability::kNone);
  const ServerOptions stored =
      parse({"--model", "m", "--session-store", "d", "--session-durability", "token",
             "--session-commit-interval", "20ms", "--session-expire", "24h"});
  CHECK(stored.durable.store == "d");
  CHECK(stored.durable.durability == Durability::kToken);
  CHECK(stored.durable.commit_interval_ms == std::chrono::milliseconds(20));
  CHECK(stored.durable.expire == std::chrono::hours(24));
  for (const char* level : {"call", "input", "token"}) {
    CHECK_THAT(refusal({"--model", "m", "--session-durability", level}),
               Catch::Contains("--session-durability") && Catch::Contains("--session-store"));
  }
}

TEST_CASE(
    "a drain hands calls over if other servers share the store, unless a flag says otherwise") {
  const auto after = [](const std::vector<const char*>& flags) {
    ServerOptions options;
    options.durable.store = flags.at(0);
    if (flags.size() > 1) {
      for (const Flag& flag : server_flags(options)) {
        if (flag.name == "--drain-handover") flag.set(flags[1]);
      }
    }
    return handover_after(options.durable);
  };
  CHECK(after({"redis://host:6379"}) == std::chrono::seconds(5));
  CHECK(after({"rediss://host:6379,other:6379"}) == std::chrono::seconds(5));
  CHECK(after({"/var/lib/redis"}) > std::chrono::hours(24 * 366));
  CHECK(after({"redis://host:6379", "off"}) > std::chrono::hours(24 * 366));
  CHECK(after({"/var/lib/lintel", "0"}) == std::chrono::seconds(0));
}

TEST_CASE("sizes that follow from the memory limit can be asked for by name") {
  const ServerOptions options =
      parse({"--session-memory", "1GiB", "--prefix-cache-memory", "auto", "--memory-limit", "2GiB",
             "--http-memory", "auto", "--model-memory", "0", "--max-queued-bytes", "auto"});
  CHECK(options.sessions.session_memory_bytes == std::size_t{1} << 30);
  CHECK(options.prefixes.memory_bytes == kAutoBytes);
  CHECK(options.memory_limit_bytes == std::size_t{2} << 30);
  CHECK(options.http.memory_bytes == static_cast<std::int64_t>(kAutoBytes));
  CHECK(options.models.memory_bytes == 0);
  CHECK(options.models.scheduling.max_queued_bytes == kAutoBytes);
}

TEST_CASE("a repository replaces --model, and --load-model names the models of the start") {
  const ServerOptions options = parse({"--model-repository", "models", "--load-model", "a",
                                       "--load-model", "b", "--model-memory", "2GiB"});
  CHECK(options.models.directories.empty());
  CHECK(options.models.repository == "models");
  CHECK(options.models.load == std::vector<std::string>{"a", "b"});
  CHECK(options.models.memory_bytes == std::size_t{2} << 30);
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({"--model", "m", "--load-model", "a"}), Contains("--model-repository"));
  CHECK_THAT(refusal({"--model-repository", "r", "--load-model", "../a"}), Contains("../a"));
  CHECK_THAT(refusal({"--model-repository", "r", "--load-model", "a", "--load-model", "a"}),
             Contains("twice"));
  CHECK_THAT(refusal({"--model-repository", "r", "--model", "d/a", "--load-model", "a"}),
             Contains("'a'"));
  CHECK_THAT(refusal({"--model", "m", "--model-memory", "much"}), Contains("--model-memory"));
}

TEST_CASE("--models names models that requests load, in place of a repository") {
  const ServerOptions options =
      parse({"--models", "m", "--load-model", "org/a:Q8_0", "--model-idle-unload", "30m"});
  CHECK(options.models.loads_on_request());
  CHECK(options.models.models_directory() == "m");
  CHECK(options.models.idle_unload_ms == std::chrono::minutes(30));
  CHECK_FALSE(parse({"--model", "m"}).models.loads_on_request());
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({"--models", "m", "--model-repository", "r"}), Contains("give one"));
  CHECK_THAT(refusal({"--model", "m", "--model-idle-unload", "5s"}), Contains("needs --models"));
}

TEST_CASE("an adapter names its model, unless one model is served") {
  const auto adapters = [](const std::vector<const char*>& flags) {
    std::vector<std::string> all;
    for (const AdapterDirectory& adapter : parse(flags).models.adapters) {
      all.push_back(adapter.model + ":" + adapter.name + "=" + adapter.path.string());
    }
    return all;
  };
  using Names = std::vector<std::string>;
  CHECK(adapters({"--model", "d/m", "--adapter", "a=x/y", "--adapter", "m:b=z:1=2"}) ==
        Names{"m:a=x/y", "m:b=z:1=2"});
  CHECK(adapters({"--model", "m", "--model", "n", "--adapter", "m:a=x", "--adapter", "n:a=x"}) ==
        Names{"m:a=x", "n:a=x"});
  CHECK(adapters({"--model-repository", "r", "--load-model", "m", "--adapter", "a=x"}) ==
        Names{"m:a=x"});
  CHECK(adapters({"--model-repository", "r", "--adapter", "later:a=x"}) == Names{"later:a=x"});

  const auto refused = [](std::vector<const char*> flags, const std::string& why) {
    flags.insert(flags.begin(), {"--model", "m"});
    CHECK_THAT(refusal(flags), Catch::Contains("--adapter") && Catch::Contains(why));
  };
  refused({"--adapter", "a"}, "'a' is not NAME=DIR or MODEL:NAME=DIR");
  refused({"--adapter", "a="}, "names no directory");
  refused({"--adapter", "=x"}, "cannot name an adapter");
  refused({"--adapter", "../a=x"}, "cannot name an adapter");
  refused({"--adapter", "m:=x"}, "cannot name an adapter");
  refused({"--adapter", ":a=x"}, "cannot name a model");
  refused({"--adapter", "n:a=x"}, "no --model is named 'n'");
  refused({"--model", "n", "--adapter", "a=x"}, "--adapter MODEL:a=DIR");
  refused({"--adapter", "a=x", "--adapter", "m:a=y"}, "'a' of model 'm' is given twice");
  CHECK_THAT(refusal({"--model-repository", "r", "--load-model", "*", "--adapter", "a=x"}),
             Catch::Contains("--adapter MODEL:a=DIR"));
}

TEST_CASE("plain text on a public address is refused without --insecure-public",
          "[threat-1][threat-18]") {
  for (const char* local : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/a"}) {
    INFO(local);
    CHECK(parse({"--model", "m", "--listen", local}).listen.is_local());
  }
  const std::vector<const char*> anywhere = {"--model", "m", "--listen", "0.0.0.0:1"};
  CHECK_THAT(refusal(anywhere),
             Catch::Contains("--tls-cert") && Catch::Contains("--insecure-public"));
  auto allowed = anywhere;
  allowed.push_back("--insecure-public");
  CHECK(parse(allowed).security.insecure_public);
  allowed.insert(allowed.end(), {"--auth-tokens", "t"});
  CHECK_THAT(refusal(allowed), Catch::Contains("--auth-tokens") && Catch::Contains("plain text"));
  auto encrypted = anywhere;
  encrypted.insert(encrypted.end(), {"--tls-cert", "c", "--tls-key", "k"});
  CHECK(parse(encrypted).security.tls());
}

TEST_CASE("plain HTTP on a public address is refused without --insecure-public", "[threat-18]") {
  for (const char* local : {"127.0.0.1:1", "localhost:1", "[::1]:1"}) {
    INFO(local);
    CHECK(parse({"--model", "m", "--http-listen", local}).http.listen->is_local());
  }
  const std::vector<const char*> anywhere = {"--model", "m", "--http-listen", "0.0.0.0:1"};
  CHECK_THAT(refusal(anywhere),
             Catch::Contains("--http-listen 0.0.0.0:1") && Catch::Contains("--insecure-public"));
  auto allowed = anywhere;
  allowed.push_back("--insecure-public");
  CHECK(parse(allowed).security.insecure_public);
  allowed.insert(allowed.end(), {"--auth-tokens", "t"});
  CHECK_THAT(refusal(allowed), Catch::Contains("--auth-tokens") && Catch::Contains("plain text"));
  auto encrypted = anywhere;
  encrypted.insert(encrypted.end(), {"--tls-cert", "c", "--tls-key", "k", "--auth-tokens", "t"});
  CHECK(parse(encrypted).security.tls());
}

TEST_CASE("certificates are given the role admin in mutual TLS, where no tokens decide") {
  std::vector<const char*> flags = {
      "--model", "m", "--admin-certificate", "alice", "--admin-certificate", "bob"};
  CHECK_THAT(refusal(flags), Catch::Contains("--tls-client-ca"));
  flags.insert(flags.end(), {"--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca"});
  CHECK(parse(flags).security.admin_certificates == std::vector<std::string>{"alice", "bob"});
  flags.insert(flags.end(), {"--auth-tokens", "t"});
  CHECK_THAT(refusal(flags), Catch::Contains("--admin-certificate") && Catch::Contains("tokens"));
}

TEST_CASE("rows of prompts beside answers follow from the cost, or are given") {
  const auto rows = [](std::vector<const char*> flags) {
    flags.insert(flags.begin(), {"--model", "m", "--max-batch-rows", "8"});
    return parse(flags).models.scheduling.prefill_rows_per_step;
  };
  CHECK(rows({}) == 0);
  CHECK(rows({"--prefill-rows", "auto"}) == 0);
  CHECK(rows({"--prefill-rows", "8"}) == 8);
}

TEST_CASE("sizes and durations have units") {
  CHECK(parse_bytes("1048576") == 1048576);
  CHECK(parse_bytes("2GB") == 2'000'000'000);
  CHECK(parse_bytes("3kib") == 3072);
  CHECK(parse_duration("0").count() == 0);
  CHECK(parse_duration("250ms").count() == 250);
  CHECK(parse_duration("10m") == std::chrono::minutes(10));
  CHECK(parse_duration("2h") == std::chrono::hours(2));
  for (const char* wrong : {"", "5", "ms", "-1s", "1.5s", "99999999999999999999s", "400000d"}) {
    CHECK_THROWS_AS(parse_duration(wrong), UsageError);
  }
}

TEST_CASE("an alias names a pattern and a model that may be served") {
  const ServerOptions options =
      parse({"--model", "o/m=d", "--model-alias", "claude-*=o/m", "--model-alias", "a=b*=o/m"});
  REQUIRE(options.model_aliases.size() == 2);
  CHECK(options.model_aliases[0].pattern == "claude-*");
  CHECK(options.model_aliases[0].model == "o/m");
  CHECK(options.model_aliases[1].pattern == "a=b*");
  CHECK(parse({"--models", "r", "--model-alias", "*=later"}).model_aliases.size() == 1);
  using Catch::Contains;
  const auto refused = [](std::vector<const char*> aliases) {
    std::vector<const char*> flags = {"--model", "m=d"};
    for (const char* const alias : aliases) flags.insert(flags.end(), {"--model-alias", alias});
    return refusal(flags);
  };
  CHECK_THAT(refused({"claude"}), Contains("--model-alias") && Contains("is not PATTERN=NAME"));
  CHECK_THAT(refused({"=m"}), Contains("1 to 256 characters"));
  CHECK_THAT(refused({"a b=m"}), Contains("without blanks"));
  CHECK_THAT(refused({(std::string(257, 'a') + "=m").c_str()}), Contains("1 to 256 characters"));
  CHECK_THAT(refused({"a=../m"}), Contains("'../m' cannot name a model"));
  CHECK_THAT(refused({"a="}), Contains("'' cannot name a model"));
  CHECK_THAT(refused({"a=other"}), Contains("no --model is named 'other'"));
  CHECK_THAT(refused({"m=m"}), Contains("'m' is the name of a model"));
  CHECK_THAT(refused({"a*=m", "a*=m"}), Contains("a* is given twice"));
}

TEST_CASE("the log level is parsed from the words that help shows") {
  CHECK(parse({"--model", "m", "--log-level", "warn"}).logging.level == "warn");
  CHECK(parse({"--model", "m", "--log-level", "warning"}).logging.level == "warning");
}

TEST_CASE("a configuration file sets flags, the command line wins, an unknown key is refused") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "server.toml";
  std::ofstream(file) << "model = [\"a\", \"other=b\"]\nworkers = 5\nmax-batch-rows = 8\n"
                         "session-memory = \"64MiB\"\n"
                         "attention = \"lsh:rounds=4,bits=32,chunk_size=29\"\n";
  const ServerOptions options = parse({"--config", file.c_str(), "--workers", "2"});
  CHECK(options.models.directories.size() == 2);
  CHECK(options.models.scheduling.workers == 2);
  CHECK(options.models.scheduling.max_batch_rows == 8);
  CHECK(options.sessions.session_memory_bytes == 64u << 20);
  REQUIRE(options.models.attention.has_value());
  CHECK(options.models.attention->text == "lsh:rounds=4,bits=32,chunk_size=29");
  std::ofstream(file) << "model = \"a\"\nwrokers = 5\n";
  CHECK(refusal({"--config", file.c_str()}).find("wrokers") != std::string::npos);
  std::ofstream(file) << "model = \"a\"\nmax_batch_rows = 5\n";
  CHECK_THAT(refusal({"--config", file.c_str()}), Catch::Contains(file) &&
                                                      Catch::Contains("no key max_batch_rows") &&
                                                      Catch::Contains("max-batch-rows"));
  CHECK(refusal({"--config", "/no/such/file", "--model", "m"}).find("/no/such/file") !=
        std::string::npos);
}

}  // namespace
}  // namespace lintel::testing
