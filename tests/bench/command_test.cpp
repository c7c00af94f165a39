// SPDX-License-Identifier: Apache-2.0
// Every sub-command from its arguments to its tables, on models of a few hundred weights.
#include <nlohmann/json.hpp>

#include "bench/attentions.h"
#include "bench/report.h"
#include "server/app/lintel_server.h"
#include "tests/bench/bench_program.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

void check_facts(const std::string& out) {
  INFO(out);
  for (const char* fact : {"run ", "weights f32", "workers", "batch", "cores"}) {
    CHECK(out.find(fact) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("help teaches: the program and every sub-command have examples") {
  const Bench bench;
  CHECK(bench.run({"--help"}).out.find("Examples") != std::string::npos);
  for (const char* command : {"paper", "length", "large", "serve", "occlusion", "speed", "adapters",
                              "sessions", "fleet"}) {
    const Result result = bench.run({command, "--help"});
    CHECK(result.code == 0);
    CHECK(result.out.find("Example") != std::string::npos);
    CHECK(result.out.find("--repeats") != std::string::npos);
  }
}

TEST_CASE("a command line that makes no sense is exit status 2, and says why") {
  const Bench bench;
  const std::vector<std::vector<std::string>> lines = {{},
                                                       {"nonsense"},
                                                       {"paper", "--shape", "nonsense"},
                                                       {"paper", "--repeats", "0"},
                                                       {"paper", "--positions", "1"},
                                                       {"paper", "--batch", "0"},
                                                       {"paper", "--weight-type", "f64"},
                                                       {"length", "--attention", "nonsense"},
                                                       {"length", "--budget", "x"},
                                                       {"large", "--shape", "nonsense"},
                                                       {"large", "--peer", "llama"},
                                                       {"large", "--context", "0"},
                                                       {"large", "--kv-type", "f16"},
                                                       {"large", "--peer-root", "."},
                                                       {"serve", "--seconds", "0"},
                                                       {"adapters", "--rank", "1025"},
                                                       {"sessions", "--count", "0"},
                                                       {"sessions", "--only", "memory,all"},
                                                       {"fleet", "--replicas", "0"},
                                                       {"fleet", "--idle", "x"},
                                                       {"fleet", "--script-time", "0"},
                                                       {"occlusion"}};
  for (const auto& line : lines) {
    const Result result = bench.run(line);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK_FALSE(result.err.empty());
    CHECK(result.out.empty());
  }
}

TEST_CASE("speed names every figure, in every weight type") {
  const Bench bench;
  for (const char* type : {"f32", "bf16", "int8"}) {
    const Result result =
        bench.succeed({"speed", "--model", bench.model("linear"), "--weight-type", type,
                       "--repeats", "2", "--batch", "2,3", "--workers", "2", "--seconds", "0.01",
                       "--images", bench.idx("images", {4, 6, 5}), "--json"});
    const auto json = nlohmann::json::parse(result.out);
    CHECK(json["weight_type"] == type);
    CHECK(json["workers"] == 2);
    CHECK((json["rows_per_worker"] == 2 || json["rows_per_worker"] == 3));
    for (const char* name : {"images_per_s", "tokens_per_s", "bound_tokens_per_s", "ratio_to_bound",
                             "grpc_tokens_per_s", "grpc_share", "grpc_cpu_us_per_token",
                             "grpc_cpu_share", "alone_us_per_token", "alone_bound_us_per_token",
                             "alone_speculation_us_per_token", "prompt_rows", "prompt_tokens_per_s",
                             "prompt_over_decode", "prompt_over_bound", "bits_per_dim"}) {
      CAPTURE(type, name);
      CHECK(json[name] > 0);
    }
    CHECK(json["images_per_s"].get<double>() ==
          Approx(json["tokens_per_s"].get<double>() / 29).epsilon(0.01));
    CHECK(json["tables"].size() == 5);
  }
}

namespace {

void check_large(const nlohmann::json& json) {
  for (const char* name : {"context_90", "context_640"}) {
    CAPTURE(name);
    CHECK(json[name]["prompt_tokens_per_s"] > 0);
    CHECK(json[name]["alone_tokens_per_s"] > 0);
  }
  for (const char* name :
       {"alone_1_thread", "alone", "seqs_4", "seqs_16", "seqs_64", "prompt_512"}) {
    CAPTURE(name);
    CHECK(json[name]["tokens_per_s"] > 0);
    CHECK(json[name]["share_of_bound"] > 0);
    CHECK_FALSE(json[name].contains("over_peer"));
  }
  for (const char* name : {"alone", "seqs_16", "seqs_64"}) {
    CAPTURE(name);
    CHECK(json[name]["grpc_tokens_per_s"] > 0);
    CHECK(json[name]["http_share"] > 0);
  }
  for (const char* name : {"drafts_repeating", "drafts_new_text"}) {
    CAPTURE(name);
    CHECK(json[name]["tokens_per_s"] > 0);
    CHECK(json[name]["off_tokens_per_s"] > 0);
  }
  CHECK(json["weight_bytes"] > 0);
  CHECK(json["load_seconds"] > 0);
}

}  // namespace

// A hundred million weights take half a minute of CPU.
TEST_CASE("large names every figure of a checkpoint's shape, at night") {
  if (!runs_every_case()) return;
  const Bench bench;
  const Result result =
      bench.succeed({"large", "--shape", "rwkv7-0.1b", "--weight-type", "int4", "--repeats", "1",
                     "--workers", "2", "--context", "90,640", "--seconds", "0.15", "--json"});
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["weight_type"] == "int4");
  check_large(json);
  CHECK(json["drafts_repeating"]["over_off"] > 1.3);
  CHECK(json["weight_bytes"].get<double>() == Approx(212e6).epsilon(0.05));
}

TEST_CASE("large without the peer's libraries fails and says how to install them") {
  const Bench bench;
  const Result result = bench.run(
      {"large", "--shape", "rwkv7-0.1b", "--peer", "llama", "--peer-root", "/nonexistent"});
  CHECK(result.code == 1);
  CHECK(result.err.find("npm i --ignore-scripts @node-llama-cpp/linux-x64") != std::string::npos);
  CHECK(result.out.empty());
}

TEST_CASE("large of a model of our own format names the command for it") {
  const Bench bench;
  const Result result =
      bench.run({"large", "--model", LINTEL_TEST_DATA "/../weights/mnist-linear-small"});
  CHECK(result.code == 1);
  CHECK(result.err.find("lintel-bench speed") != std::string::npos);
}

TEST_CASE("large names every figure of given weights, and the bits that their type loses") {
  const Bench bench;
  const Result result = bench.succeed(
      {"large", "--model", LINTEL_TEST_DATA "/../weights/text-rwkv7-small", "--weight-type", "int8",
       "--repeats", "1", "--workers", "2", "--context", "90,640", "--seconds", "0.01", "--json"});
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["weight_type"] == "int8");
  check_large(json);
  CHECK(json["bits_lost"] > 0);
  CHECK(json["bits_lost"] < 0.01);
}

TEST_CASE("checkpoints of other projects are refused by name") {
  const Bench bench;
  const std::string model = LINTEL_TEST_DATA "/golden/families/rwkv7";
  for (const char* command : {"speed", "serve", "sessions"}) {
    const Result result = bench.run({command, "--model", model});
    CAPTURE(command, result.err);
    CHECK(result.code == 1);
    CHECK(result.err.find(model + ": a checkpoint of family rwkv7") != std::string::npos);
    CHECK(result.out.empty());
  }
}

TEST_CASE("adapters reports the cost of each number of adapters and rows") {
  const Bench bench;
  const Result result =
      bench.succeed({"adapters", "--shape", "mnist-small", "--repeats", "2", "--batch", "1,3",
                     "--adapters", "1,2", "--rank", "4", "--steps", "2", "--workers", "2", "--json",
                     bench.path("adapters.json")});
  check_facts(result.out);
  const bench::Report report = bench::read_report(bench.path("adapters.json"));
  REQUIRE(report.tables.size() == 1);
  REQUIRE(report.tables[0].rows.size() == 4);
  for (const auto& row : report.tables[0].rows) {
    // 4 layers of 4 (4 * 256 + 2 * 640) numbers, and little more.
    CHECK(*row[1].value() >= 4 * 4 * 2304 * 4);
    CHECK(*row[1].value() <= 4 * 8 * 2304 * 4 * 1.2);
    for (const std::size_t column : {3, 4, 5}) CHECK(*row[column].value() > 0);
  }
}

TEST_CASE("sessions names every figure, with its target") {
  const Bench bench;
  const Result result =
      bench.succeed({"sessions", "--model", bench.model("linear"), "--repeats", "2", "--count", "3",
                     "--sessions", "70", "--directory", bench.path(""), "--streams", "3",
                     "--seconds", "0.2", "--json", bench.path("sessions.json")});
  check_facts(result.out);
  const auto json = nlohmann::json::parse(content_of(bench.path("sessions.json")));
  for (const char* name :
       {"snapshot_us", "snapshot_image_us", "snapshot_write_us", "restore_us", "restore_read_us",
        "fork_us", "rewind_us", "beside_state_percent", "snapshot_call_us", "prefix_misses",
        "token_bytes_a_value", "restore_call_us", "commit_us", "commit_p99_us", "put_state_us",
        "wake_slot_ms", "wake_slot_p99_ms", "wake_values_ms", "open_after_kill_ms"}) {
    CAPTURE(name);
    CHECK(json[name] > 0);
  }
  for (const char* name :
       {"open_more_ms", "none_lost_percent", "call_lost_percent", "input_lost_percent",
        "token_lost_percent", "input_first_token_ms", "token_first_token_ms",
        "token_between_tokens_ms", "input_bytes_a_value"}) {
    CAPTURE(name);
    CHECK(json.contains(name));
  }
  CHECK(result.out.find("70 sessions, 64 interrupted") != std::string::npos);
  CHECK(result.out.find("memcpy") != std::string::npos);
  CHECK(result.out.find("fdatasync") != std::string::npos);
  CHECK(result.out.find("llama.cpp") != std::string::npos);
  // A tiny model's session beside its tiny state is more than is promised of large ones.
  CHECK(result.out.find("Missed: memory of an open session beside its state.") !=
        std::string::npos);
  // The measured model is removed.
  CHECK_FALSE(std::ranges::any_of(
      std::filesystem::directory_iterator(bench.path("")), [](const auto& entry) {
        return entry.path().filename().string().starts_with("lintel-bench");
      }));

  const Result some =
      bench.succeed({"sessions", "--model", bench.model("linear"), "--repeats", "1", "--count", "1",
                     "--only", "memory,commits", "--directory", bench.path(""), "--json"});
  const auto these = nlohmann::json::parse(some.out);
  CHECK(these.contains("snapshot_us"));
  CHECK(these.contains("commit_us"));
  CHECK_FALSE(these.contains("snapshot_call_us"));
  CHECK_FALSE(these.contains("wake_slot_ms"));

  const Result nowhere = bench.run({"sessions", "--model", bench.model("linear"), "--repeats", "1",
                                    "--count", "1", "--directory", bench.path("none")});
  CHECK(nowhere.code == 1);
  CHECK(nowhere.err.find("none") != std::string::npos);
}

TEST_CASE("paper measures every kind of attention, and what memory gives") {
  const Bench bench;
  const Result result =
      bench.succeed({"paper", "--model", bench.model("linear"), "--repeats", "2", "--batch", "1,3",
                     "--workers", "2", "--positions", "4", "--json", bench.path("paper.json"),
                     "--attention", "linear,softmax,lsh1,lsh4"});
  check_facts(result.out);
  const bench::Report report = bench::read_report(bench.path("paper.json"));
  REQUIRE(report.tables.size() == 2);
  REQUIRE(report.tables[0].rows.size() == 7);
  for (const auto& row : report.tables[0].rows) {
    INFO(row[0].to_text());
    CHECK(*row[2].value() > 0);  // images/s
    CHECK(*row[4].value() > 0);  // s/image alone
    CHECK(*row[5].value() > 0);  // bytes
  }
  CHECK(report.tables[0].rows.back()[6].value() == Approx(1));
  CHECK(result.out.find("Measured at 4 positions spread over the sequence and integrated: softmax "
                        "recompute, LSH-1 recompute, LSH-4 recompute.") != std::string::npos);
  CHECK(*report.tables[1].rows[0][1].value() > 0);
  CHECK(*report.tables[1].rows[1][1].value() > 0);
}

TEST_CASE(
    "paper measures longer sequences at positions too, and reports bits/dim of trained weights") {
  const Bench bench;
  const std::string model = bench.model("linear");
  const Result result =
      bench.run({"paper", "--model", model, "--repeats", "1", "--batch", "2", "--workers", "1",
                 "--positions", "3", "--whole-up-to", "10", "--attention", "linear,lsh1,lsh4"});
  REQUIRE(result.code == 0);
  CHECK(result.out.find("LSH-1, LSH-4, linear.\n\nAlone") != std::string::npos);
}

TEST_CASE("length goes through the positions, and says why it stops") {
  const Bench bench;
  const Result result =
      bench.succeed({"length", "--shape", "mnist-small", "--positions", "5,40", "--repeats", "2",
                     "--attention", "linear,lsh1", "--csv", bench.path("length.csv")});
  check_facts(result.out);
  CHECK(result.out.find("| attention | at 5 | at 40 |") != std::string::npos);
  CHECK(content_of(bench.path("length.csv")).find(",lsh1,at 40,") != std::string::npos);

  const Result stopped = bench.run({"length", "--shape", "mnist-small", "--positions", "5,4000",
                                    "--repeats", "1", "--attention", "softmax", "--budget", "0"});
  REQUIRE(stopped.code == 0);
  CHECK(stopped.out.find("softmax stopped at 0 s of reading") != std::string::npos);
}

TEST_CASE("serve counts what clients see and what the server keeps") {
  const Bench bench;
  const Result result =
      bench.succeed({"serve", "--model", bench.model("linear"), "--concurrency", "1,3", "--repeats",
                     "1", "--seconds", "0.2", "--json", bench.path("serve.json")});
  check_facts(result.out);
  const bench::Report report = bench::read_report(bench.path("serve.json"));
  REQUIRE(report.tables.at(0).rows.size() == 2);
  for (const auto& row : report.tables[0].rows) {
    for (std::size_t i = 1; i < row.size(); ++i) CHECK(*row[i].value() > 0);
  }
}

TEST_CASE("a remote server is named by what it reports of itself") {
  const Bench bench;
  ServerOptions options;
  options.listen.port = 0;
  options.models.weight_type = WeightType::kInt8;
  options.models.scheduling.workers = 1;
  options.models.scheduling.max_batch_rows = 5;
  options.models.directories = {{"theirs", bench.model("linear")}};
  const SteadyClock clock;
  LintelServer server(options, clock);
  server.start();
  bench.succeed({"serve", "--target", server.address(), "--seconds", "0.1", "--repeats", "1",
                 "--concurrency", "1", "--workers", "3", "--json", bench.path("target.json")});
  const bench::Run run = bench::read_report(bench.path("target.json")).run;
  CHECK(run.weight_type == "int8");
  CHECK(run.workers == 1);
  CHECK(run.batch == "5");
  CHECK_THAT(run.model, Catch::Contains("theirs") && Catch::Contains("linear"));
}

TEST_CASE("no server to measure is exit status 3") {
  const Bench bench;
  const Result result = bench.run({"serve", "--target", "127.0.0.1:1", "--seconds", "0.1",
                                   "--repeats", "1", "--concurrency", "1"});
  CHECK(result.code == 3);
  CHECK_FALSE(result.err.empty());
}

TEST_CASE("occlusion reports seconds and accuracy of every model") {
  const Bench bench;
  const Result result = bench.succeed({"occlusion",
                                       "--images",
                                       bench.idx("images", {9, 6, 5}),
                                       "--labels",
                                       bench.idx("labels", {9}),
                                       "--model",
                                       bench.model("linear"),
                                       "--model",
                                       bench.model("softmax"),
                                       "--classifier",
                                       bench.classifier(),
                                       "--counts",
                                       "2,4",
                                       "--judge",
                                       "9",
                                       "--batch",
                                       "2",
                                       "--repeats",
                                       "1",
                                       "--json",
                                       bench.path("occlusion.json")});
  check_facts(result.out);
  const bench::Report report = bench::read_report(bench.path("occlusion.json"));
  REQUIRE(report.tables.size() == 4);
  for (const std::size_t i : {0, 1}) {
    REQUIRE(report.tables[i].rows.size() == 2);
    CHECK(report.tables[i].rows[1][1].to_text() == "softmax");
    CHECK(report.tables[i].rows[0].back().value() == Approx(1));
    CHECK(report.tables[i].notes.at(0).starts_with("15 tokens of each image are given"));
  }
  CHECK(report.tables[2].rows.size() == 4);
  CHECK_FALSE(report.tables[3].measured_here);

  const Result text = bench.run({"occlusion", "--images", bench.path("images"), "--model",
                                 bench.endless_model(), "--counts", "2", "--judge", "2"});
  CHECK(text.code == 2);
  const Result nothing = bench.run({"occlusion", "--images", bench.path("images"), "--weights",
                                    bench.path("none"), "--counts", "2", "--judge", "2"});
  CHECK(nothing.code == 1);
  CHECK(nothing.err.find("no mnist-NAME-small") != std::string::npos);
}

TEST_CASE("occlusion finds the small models by itself, linear first") {
  const Bench bench;
  for (const char* name : {"linear", "efficient", "softmax"}) {
    const std::string model = bench.model(name);
    std::filesystem::create_directories(bench.path("weights"));
    std::filesystem::rename(model, bench.path("weights/mnist-" + std::string(name) + "-small"));
  }
  const Result result =
      bench.succeed({"occlusion", "--images", bench.idx("images", {4, 6, 5}), "--weights",
                     bench.path("weights"), "--counts", "2", "--judge", "2", "--repeats", "1"});
  const std::size_t linear = result.out.find("| mnist-linear-small | linear |");
  const std::size_t efficient = result.out.find("| mnist-efficient-small | efficient |");
  REQUIRE(linear != std::string::npos);
  REQUIRE(efficient != std::string::npos);
  CHECK(linear < efficient);
}

TEST_CASE("every type of attention has a row") {
  const auto all = bench::compared_attentions(bench::find_shape("mnist"));
  for (const std::string& type : attention_types()) {
    CAPTURE(type);
    CHECK(std::ranges::any_of(all, [&](const auto& a) { return bench::type_of(a.spec) == type; }));
  }
  for (const auto& attention : all) {
    CAPTURE(attention.spec);
    CHECK_NOTHROW(parse_attention_spec(attention.spec));
    CHECK(parse_attention_spec(bench::recomputing(attention.spec)).recompute);
  }
}

TEST_CASE("numbers are compared within a run, and another run is refused before it measures") {
  const Bench bench;
  const std::string model = bench.model("linear");
  const std::string json = bench.path("a.json");
  const std::vector<std::string> line = {"serve", "--model",   model, "--concurrency",
                                         "1",     "--repeats", "1",   "--seconds",
                                         "0.1",   "--run",     "same"};
  const auto with = [&line](std::vector<std::string> more) {
    std::vector<std::string> all = line;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  REQUIRE(bench.run(with({"--json", json})).code == 0);
  const Result compared = bench.succeed(with({"--against", json, "--weight-type", "bf16"}));
  CHECK(compared.out.find("ratio to f32") != std::string::npos);

  const Result refused = bench.run(with({"--against", json, "--run", "another"}));
  CHECK(refused.code == 2);
  CHECK(refused.out.empty());
  CHECK(refused.err.find("run: another here, same there") != std::string::npos);
}

}  // namespace lintel::testing
