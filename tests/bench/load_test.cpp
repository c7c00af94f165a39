// SPDX-License-Identifier: Apache-2.0
// `lintel-bench load`: its counts, of turns whose times are known, the streams that answers are
// read from, and its command line. load_test.py runs it at servers.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/chat_client.h"
#include "bench/load_counts.h"
#include "tests/bench/bench_program.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using bench::ChatAnswer;
using bench::LoadCounts;
using bench::TurnRecord;
using Outcome = bench::ChatAnswer::Outcome;

LoadCounts::Clock::time_point at_second(double seconds) {
  return LoadCounts::Clock::time_point(std::chrono::duration_cast<LoadCounts::Clock::duration>(
      std::chrono::duration<double>(seconds)));
}

// A turn that was sent when it was due, with a message at each of `arrivals`, of two tokens each.
TurnRecord turn_at(double due, const std::vector<double>& arrivals, double end) {
  TurnRecord record{.due = at_second(due), .sent = at_second(due), .end = at_second(end)};
  for (const double arrival : arrivals) record.answer.arrivals.push_back(at_second(arrival));
  record.answer.outcome = Outcome::kAnswered;
  record.answer.prompt_tokens = 100;
  record.answer.cached_tokens = 25;
  record.answer.generated_tokens = 2 * static_cast<std::int64_t>(arrivals.size());
  return record;
}

TurnRecord refusal_at(double due, const std::string& status) {
  TurnRecord record = turn_at(due, {}, due + 0.001);
  record.answer.outcome = Outcome::kRefused;
  record.answer.status = status;
  record.answer.error = "the queue is full";
  return record;
}

// The report of a load as --json has it.
nlohmann::json report_of(const LoadCounts& counts) {
  const Bench program;
  bench::RunFlags flags;
  flags.repeats = 0;
  flags.json = program.path("load.json");
  const int nowhere = open("/dev/null", O_WRONLY);
  cli::Console console(STDIN_FILENO, nowhere, nowhere);
  bench::Measurement measurement(flags, "load", "a model", console);
  counts.add_to(measurement, "2 users", /*cpu_seconds=*/1);
  measurement.publish();
  close(nowhere);
  return nlohmann::json::parse(content_of(flags.json));
}

double figure_of(const nlohmann::json& report, const char* name, const char* part = nullptr) {
  const nlohmann::json& figure = report.at(name);
  return part == nullptr ? figure.get<double>() : figure.at(part).get<double>();
}

template <typename Stream>
ChatAnswer answer_of(const std::vector<std::pair<std::string, std::string>>& events) {
  ChatAnswer answer;
  Stream stream(answer);
  double now = 1;
  for (const auto& [name, data] : events) stream.add({name, data}, at_second(now++));
  stream.finish();
  return answer;
}

std::string piece_of(const std::string& delta) {
  return R"({"choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":null}],"usage":null})";
}

}  // namespace

TEST_CASE("samples beyond the bound on memory still have their count, mean, most and quantiles") {
  bench::SampleSet samples;
  const std::int64_t count = 3 * static_cast<std::int64_t>(bench::SampleSet::kKept);
  for (std::int64_t i = 1; i <= count; ++i) samples.add(static_cast<double>(i));
  CHECK(samples.count() == count);
  CHECK(samples.mean() == Approx(static_cast<double>(count + 1) / 2));
  CHECK(samples.most() == static_cast<double>(count));
  CHECK(samples.sorted().size() == bench::SampleSet::kKept);
  for (const double share : {0.1, 0.5, 0.9, 0.99}) {
    CHECK(samples.quantile_at(share) == Approx(share * static_cast<double>(count)).epsilon(0.02));
  }
}

TEST_CASE(
    "turns count where they are due in the window, and rates have the tokens that come within it") {
  LoadCounts counts(at_second(10), at_second(20), {});
  counts.add(turn_at(9, {9.5, 10.5}, 10.6));        // due before, ends within
  counts.add(turn_at(11, {12, 12.1, 12.3}, 12.4));  // within
  counts.add(turn_at(19, {19.5, 21}, 21.1));        // ends after
  counts.add(turn_at(20, {20.1, 20.2}, 20.3));      // due after
  counts.add(refusal_at(13, "429"));
  counts.add(refusal_at(9.9, "429"));
  CHECK(counts.turns() == 3);
  CHECK(counts.answered() == 2);
  CHECK(counts.refused() == 1);
  CHECK(counts.first_error() == "429: the queue is full");
  const auto report = report_of(counts);
  CHECK(figure_of(report, "seconds") == 10);
  CHECK(figure_of(report, "requests_per_s") == Approx(0.2));
  CHECK(figure_of(report, "tokens") == 2 * (1 + 3 + 1));
  CHECK(figure_of(report, "tokens_per_s") == 1);
  CHECK(figure_of(report, "prompt_tokens") == 200);
  CHECK(figure_of(report, "cached_tokens") == 50);
  CHECK(report["statuses"]["429"] == 1);
  CHECK(figure_of(report, "ttft_ms", "most") == Approx(1000));
  CHECK(figure_of(report, "ttft_ms", "p50") == Approx(750));
  CHECK(figure_of(report, "itl_ms", "most") == Approx(1500));
  CHECK(figure_of(report, "request_ms", "most") == Approx(2100));
  // 5 further tokens in 300 ms, 3 in 1500 ms.
  CHECK(figure_of(report, "tpot_ms", "p50") == Approx((60 + 500) / 2.0));
  CHECK(report["run"]["command"] == "load");
  CHECK_FALSE(report.contains("weight_type"));
  CHECK_FALSE(report.contains("within_bounds"));
}

TEST_CASE("times begin when a turn is due, not when it is sent") {
  LoadCounts counts(at_second(0), at_second(10), {});
  TurnRecord late = turn_at(1, {5}, 6);
  late.sent = at_second(4);
  counts.add(late);
  const auto report = report_of(counts);
  CHECK(figure_of(report, "ttft_ms", "p50") == Approx(4000));
  CHECK(figure_of(report, "request_ms", "p50") == Approx(5000));
  CHECK(figure_of(report, "late_ms", "p50") == Approx(3000));
}

TEST_CASE("goodput counts answers within both bounds, and all other turns as misses") {
  LoadCounts counts(at_second(0), at_second(10), {.first_token = 0.5, .per_token = 0.1});
  counts.add(turn_at(1, {1.4, 1.5, 1.6}, 1.7));  // 0.4 s, 40 ms a token
  counts.add(turn_at(2, {2.6, 2.7}, 2.8));       // first token late
  counts.add(turn_at(3, {3.1, 4.1}, 4.2));       // 333 ms a token
  counts.add(turn_at(4, {4.2}, 4.3));            // one message
  counts.add(refusal_at(5, "503"));
  TurnRecord unfinished = turn_at(6, {6.1}, 9);
  unfinished.answer.outcome = Outcome::kUnfinished;
  counts.add(unfinished);
  const auto report = report_of(counts);
  CHECK(figure_of(report, "requests") == 6);
  CHECK(figure_of(report, "unfinished") == 1);
  CHECK(figure_of(report, "within_bounds") == 2);
  CHECK(figure_of(report, "goodput_requests_per_s") == Approx(0.2));
  CHECK(figure_of(report, "requests_per_s") == Approx(0.4));
}

TEST_CASE("a window that ends early has the rates of its length") {
  LoadCounts counts(at_second(0), at_second(100), {});
  counts.add(turn_at(1, {2}, 3));
  counts.end_at(at_second(4));
  CHECK(counts.seconds() == Approx(4));
  CHECK(counts.tokens_per_second() == Approx(0.5));
}

TEST_CASE("answers without a usage count a token a message, and the report says so") {
  LoadCounts counts(at_second(0), at_second(10), {});
  TurnRecord record = turn_at(1, {2, 3, 4}, 5);
  record.answer.generated_tokens.reset();
  record.answer.cached_tokens.reset();
  counts.add(record);
  const auto report = report_of(counts);
  CHECK(figure_of(report, "tokens") == 3);
  CHECK(figure_of(report, "answers_without_usage") == 1);
  const std::string notes = report["tables"][0]["notes"].dump();
  CHECK_THAT(notes, Catch::Contains("Of 1 answers the server did not count the tokens") &&
                        Catch::Contains("does not say which tokens of prompts were cached"));
}

TEST_CASE("turns that all found no server are unreached, and refused ones are not") {
  LoadCounts counts(at_second(0), at_second(10), {});
  CHECK_FALSE(counts.all_unreached());
  TurnRecord record = refusal_at(1, "connection");
  record.answer.outcome = Outcome::kFailed;
  counts.add(record);
  CHECK(counts.all_unreached());
  counts.add(refusal_at(2, "429"));
  CHECK_FALSE(counts.all_unreached());
}

TEST_CASE("statuses that a server invents take a bounded number of rows", "[threat-140]") {
  LoadCounts counts(at_second(0), at_second(10), {});
  for (int i = 0; i < 1000; ++i) counts.add(refusal_at(1, "status " + std::to_string(i)));
  const auto statuses = report_of(counts)["statuses"];
  CHECK(statuses.size() == 33);
  CHECK(statuses["others"] == 1000 - 32);
}

TEST_CASE("a stream of chat completions is an answer with its text, times and usage") {
  const ChatAnswer answer = answer_of<bench::OpenAiStream>(
      {{"", piece_of(R"({"role":"assistant","content":""})")},
       {"", piece_of(R"({"reasoning_content":"hm"})")},
       {"", piece_of(R"({"content":"Hel"})")},
       {"", piece_of(R"({"content":"lo"})")},
       {"", R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})"},
       {"", R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,)"
            R"("prompt_tokens_details":{"cached_tokens":6}}})"},
       {"", "[DONE]"}});
  CHECK(answer.outcome == Outcome::kAnswered);
  CHECK(answer.text == "Hello");
  REQUIRE(answer.arrivals.size() == 3);
  CHECK(answer.arrivals.front() == at_second(2));
  CHECK(answer.prompt_tokens.value() == 9);
  CHECK(answer.cached_tokens.value() == 6);
  CHECK(answer.generated_tokens.value() == 4);
}

TEST_CASE("streams of other servers may have llama.cpp's timings, null members and no usage") {
  const ChatAnswer timed = answer_of<bench::OpenAiStream>(
      {{"", R"({"choices":[{"delta":{"role":"assistant","content":null}}]})"},
       {"", R"({"choices":[{"delta":{"content":"a"},"finish_reason":"length"}],)"
            R"("timings":{"cache_n":7,"prompt_n":2}})"}});
  CHECK(timed.outcome == Outcome::kAnswered);
  CHECK(timed.cached_tokens.value() == 7);
  CHECK_FALSE(timed.generated_tokens);
  CHECK(timed.arrivals.size() == 1);
}

TEST_CASE("streams that break off, hold errors or are no JSON are no answers") {
  const auto of = [](const std::string& name, const std::string& data) {
    return answer_of<bench::OpenAiStream>(
        {{"", piece_of(R"({"content":"a"})")}, {name, data}, {"", "[DONE]"}});
  };
  const ChatAnswer cut = answer_of<bench::OpenAiStream>({{"", piece_of(R"({"content":"a"})")}});
  CHECK(cut.outcome == Outcome::kFailed);
  CHECK(cut.status == "broken");
  CHECK(cut.arrivals.size() == 1);
  const ChatAnswer failed = of("", R"({"error":{"message":"no\nroom","type":"server_error"}})");
  CHECK(failed.outcome == Outcome::kFailed);
  CHECK(failed.status == "server_error");
  CHECK(failed.error == R"(no\nroom)");
  const ChatAnswer refused = of("error", R"({"error":{"code":503,"message":"busy"}})");
  CHECK(refused.outcome == Outcome::kRefused);
  CHECK(refused.status == "503");
  CHECK(of("", R"({"error":{"type":"rate_limit_error"}})").outcome == Outcome::kRefused);
  CHECK(of("", "nonsense").status == "stream");
  CHECK(of("", "\xff").error == R"(an event is no JSON object: \xff)");
  CHECK(of("", "[1]").status == "stream");
}

TEST_CASE("a stream of Anthropic's messages is an answer with its text, times and usage") {
  const ChatAnswer answer = answer_of<bench::AnthropicStream>(
      {{"message_start", R"({"type":"message_start","message":{"usage":{"input_tokens":11,)"
                         R"("cache_read_input_tokens":0,"output_tokens":1}}})"},
       {"ping", R"({"type":"ping"})"},
       {"content_block_delta", R"({"type":"content_block_delta","index":0,)"
                               R"("delta":{"type":"thinking_delta","thinking":"hm"}})"},
       {"content_block_delta", R"({"type":"content_block_delta","index":1,)"
                               R"("delta":{"type":"text_delta","text":"Hi"}})"},
       {"message_delta", R"({"type":"message_delta","delta":{"stop_reason":"end_turn"},)"
                         R"("usage":{"input_tokens":1,"cache_read_input_tokens":10,)"
                         R"("output_tokens":4}})"},
       {"message_stop", R"({"type":"message_stop"})"}});
  CHECK(answer.outcome == Outcome::kAnswered);
  CHECK(answer.text == "Hi");
  CHECK(answer.arrivals.size() == 2);
  CHECK(answer.prompt_tokens.value() == 11);
  CHECK(answer.cached_tokens.value() == 10);
  CHECK(answer.generated_tokens.value() == 4);
  const ChatAnswer overloaded = answer_of<bench::AnthropicStream>(
      {{"error", R"({"type":"error","error":{"type":"overloaded_error","message":"later"}})"}});
  CHECK(overloaded.outcome == Outcome::kRefused);
  CHECK(overloaded.status == "overloaded_error");
  CHECK(overloaded.error == "later");
  CHECK(answer_of<bench::AnthropicStream>({}).status == "broken");
}

TEST_CASE("load refuses flags that make no sense, and its help has examples and exit statuses") {
  const Bench program;
  const std::vector<std::vector<std::string>> lines = {
      {"--users", "0"},
      {"--users", "2", "--rate", "1"},
      {"--rate", "0"},
      {"--duration", "0"},
      {"--warm-up", "-1"},
      {"--api", "smoke"},
      {"--turns", "0"},
      {"--answer-tokens", "5-2"},
      {"--target", "ftp://h"},
      {"--body", "[]"},
      {"--itl-bound", "x"},
      {"--api", "grpc", "--target", "http://h:1"},
      {"--token", "a b"},
      {"--target", "http://192.0.2.1:1", "--token", "secret"},
      {"--rate", "1000", "--duration", "600000"},
      {"--api", "generate", "--body", "{}"}};
  for (std::vector<std::string> line : lines) {
    line.insert(line.begin(), "load");
    const Result result = program.run(line);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK_FALSE(result.err.empty());
    CHECK(result.out.empty());
  }
  const Result help = program.run({"load", "--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Catch::Contains("Examples:") && Catch::Contains("Exit status:") &&
                           Catch::Contains("--shared-prefix"));
  const Result missing = program.run({"load", "--conversations", program.path("none")});
  CHECK(missing.code == 1);
  CHECK_THAT(missing.err, Catch::Contains("--conversations"));
}

TEST_CASE("load without a server is exit status 3, over HTTP and gRPC") {
  const Bench program;
  for (const char* api : {"openai", "anthropic", "grpc", "generate"}) {
    const Result result =
        program.run({"load", "--api", api, "--target", "127.0.0.1:1", "--duration", "0.1"});
    CAPTURE(api, result.err);
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Catch::Contains("no server answers at"));
    CHECK(result.out.empty());
  }
}

}  // namespace lintel::testing
