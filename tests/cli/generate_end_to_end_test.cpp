// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include "model/tokenizer/text_stream.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

// The numbers as they were printed: equal only when every bit is.
std::string text_of(const nlohmann::json& json) { return json.dump(); }

nlohmann::json joined(nlohmann::json first, const nlohmann::json& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST_CASE("a seed repeats its tokens, and the server says which one it drew") {
  const ServerProcess server({TinyModel::kImage});
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "generate", "--prompt-tokens", "0,0,12", "--max-new-tokens", "16", "--format", "jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = server.lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    REQUIRE(result.lines().size() == 1);
    return result.lines()[0];
  };
  const auto first = generate({"--seed", "7"});
  CHECK(first["tokens"].size() == 16);
  CHECK(first["log2_probs"].size() == 16);
  CHECK(first["finish_reason"] == "length");
  CHECK(first["seed"] == 7);
  CHECK(first["prompt_tokens"] == 3);
  CHECK(first["generated_tokens"] == 16);
  const auto again = generate({"--seed", "7"});
  CHECK(again["tokens"] == first["tokens"]);
  CHECK(text_of(again["log2_probs"]) == text_of(first["log2_probs"]));
  CHECK(generate({"--seed", "8"})["tokens"] != first["tokens"]);

  const auto drawn = generate({});
  const auto repeated = generate({"--seed", std::to_string(drawn["seed"].get<std::uint64_t>())});
  CHECK(repeated["tokens"] == drawn["tokens"]);
}

TEST_CASE("sample i of seed s equals sample 0 of seed s + i") {
  const ServerProcess server({TinyModel::kTokens});
  const auto samples =
      server
          .lintel({"generate", "--prompt-tokens", "3,1,4", "--max-new-tokens", "20", "--seed",
                   "18446744073709551615", "--samples", "3", "--format", "jsonl"})
          .lines();
  REQUIRE(samples.size() == 3);
  CHECK(samples[1]["seed"] == 0);
  const auto alone = server.lintel({"generate", "--prompt-tokens", "3,1,4", "--max-new-tokens",
                                    "20", "--seed", "1", "--format", "jsonl"});
  CHECK(alone.lines()[0]["tokens"] == samples[2]["tokens"]);
}

TEST_CASE("score finds the probabilities that generate reported") {
  const ServerProcess server({TinyModel::kImage, TinyModel::kTokens});
  for (const std::string model : {"image", "tokens"}) {
    INFO(model);
    const Result result =
        server.lintel({"generate", "--model", model, "--prompt-tokens", "0,7,12",
                       "--max-new-tokens", "20", "--seed", "5", "--echo", "--format", "jsonl"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    const auto sample = result.lines()[0];
    const auto sequence = joined(sample["prompt"], sample["tokens"]);
    auto expected = joined(sample["prompt_log2_probs"], sample["log2_probs"]);
    REQUIRE(expected[0].is_null());
    expected.erase(0);

    const std::string input = server.write("in.jsonl", sequence.dump() + "\n[1,2,3]\n");
    const Result scored = server.lintel(
        {"score", "--model", model, "--input", input, "--output", server.path("out.jsonl")});
    INFO(scored.err);
    REQUIRE(scored.code == 0);
    CHECK(scored.out.empty());
    CHECK_THAT(scored.err, Catch::Contains("2 sequences, 24 tokens"));
    std::ifstream out(server.path("out.jsonl"));
    std::string line;
    REQUIRE(std::getline(out, line));
    const auto score = nlohmann::json::parse(line);
    CHECK(text_of(score["log2_probs"]) == text_of(expected));
    double sum = 0;
    for (const auto& log2_prob : expected) sum += log2_prob.get<double>();
    CHECK(score["bits_per_dim"].get<double>() ==
          Approx(-sum / static_cast<double>(expected.size())).epsilon(1e-6));
  }
}

TEST_CASE("the windows of a text count each of its bytes once, from half a window before it") {
  const ServerProcess server({TinyModel::kBytes});
  std::string text;
  for (int i = 0; i < 50; ++i) text += static_cast<char>(i * 37 % 256);
  const auto windows = [&](const std::string& part, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"score", "--text", server.write("text", part)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = server.lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return result;
  };
  const Result scored = windows(text, {"--context", "10"});
  CHECK_THAT(scored.err, Catch::Contains("9 windows, 49 tokens"));
  CHECK_THAT(scored.err, Catch::Contains("nats/byte"));
  const auto lines = scored.lines();
  REQUIRE(lines.size() == 9);
  std::size_t counted = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    // The window as a text of its own.
    const auto alone = windows(text.substr(5 * i, 11), {"--context", "10"}).lines();
    REQUIRE(alone.size() == 1);
    auto all = alone[0]["log2_probs"];
    if (i > 0) all.erase(all.begin(), all.begin() + 5);
    CHECK(text_of(lines[i]["log2_probs"]) == text_of(all));
    counted += all.size();
  }
  CHECK(counted == 49);
  const auto refused = [&](std::vector<std::string> arguments, const std::string& why) {
    const Result result = server.lintel(std::move(arguments));
    CHECK(result.code != 0);
    CHECK_THAT(result.err, Catch::Contains(why));
  };
  const std::string file = server.write("text", text);
  refused({"score", "--text", file, "--context", "100000"}, "takes at most");
  refused({"score", "--text", file, "--context", "0"}, "--context 0");
  refused({"score", "--text", server.write("short", "a")}, "at least 2 bytes");
  refused({"score", "--text", file, "--images", file}, "one of them");
}

TEST_CASE("a session continued is one call, however it is cut") {
  const ServerProcess server({TinyModel::kTokens});
  const auto whole = server
                         .lintel({"generate", "--prompt-tokens", "3,1,4", "--max-new-tokens", "12",
                                  "--seed", "9", "--format", "jsonl"})
                         .lines()[0];
  const Result created = server.lintel({"session", "create"});
  REQUIRE(created.code == 0);
  const std::string id = created.out.substr(0, created.out.size() - 1);
  const auto go_on = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"session", "continue", id,      "--seed",
                                          "9",       "--format", "jsonl", "--max-new-tokens"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = server.lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return result.lines()[0];
  };
  const auto first = go_on({"5", "--prompt-tokens", "3,1,4"});
  const auto second = go_on({"1"});
  const auto third = go_on({"6"});
  const auto all = joined(joined(first["tokens"], second["tokens"]), third["tokens"]);
  CHECK(all == whole["tokens"]);
  CHECK(text_of(joined(joined(first["log2_probs"], second["log2_probs"]), third["log2_probs"])) ==
        text_of(whole["log2_probs"]));
  CHECK(third["reused_tokens"].get<int>() > 0);

  const auto session = server.lintel({"session", "get", id, "--json"}).json();
  CHECK(session["position"] == 15);
  CHECK(session["busy"] == false);
  CHECK(server.lintel({"session", "list", "--json"}).json().size() == 1);
  CHECK(server.lintel({"session", "delete", id}).code == 0);
  CHECK(server.lintel({"session", "get", id}).code == 1);
}

TEST_CASE("a byte model's text streams, stops at a text, and is found by its model's name") {
  const ServerProcess server({TinyModel::kBytes, TinyModel::kTokens});
  const std::vector<std::string> generate = {"generate", "--model", "bytes", "--max-new-tokens",
                                             "20",       "--seed",  "3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), generate.begin(), generate.end());
    return server.lintel(more);
  };
  const Result text = with({"--prompt", "Once", "--format", "text"});
  REQUIRE(text.code == 0);
  REQUIRE(text.out.size() == 20);
  CHECK(with({"--prompt", "Once"}).out == text.out);  // the default for byte models
  CHECK(with({"--prompt-file", server.write("prompt", "Once")}).out == text.out);
  CHECK(with({"--prompt", "Once", "--echo"}).out == "Once" + text.out);

  // Stop where the text has its 8th and 9th byte.
  std::string stop;
  for (const char c : text.out.substr(7, 2)) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
    stop += escaped;
  }
  const std::size_t at = text.out.find(text.out.substr(7, 2));
  CHECK(with({"--prompt", "Once", "--stop", stop}).out == text.out.substr(0, at));
  CHECK(with({"--prompt", "Once", "--stop", stop, "--include-stop"}).out ==
        text.out.substr(0, at + 2));

  // Two models are loaded: which one must be said.
  const Result ambiguous = server.lintel({"generate", "--prompt-tokens", "1", "--format", "jsonl"});
  CHECK(ambiguous.code == 1);
  CHECK(ambiguous.out.empty());
  CHECK(server.lintel({"generate", "--model", "tokens", "--prompt", "text", "--format", "jsonl"})
            .code == 1);
  CHECK(server.lintel({"generate", "--model", "tokens", "--prompt-tokens", "1", "--format", "text"})
            .code == 2);
}

TEST_CASE("text of a model with a tokenizer: generate, stop strings and scores") {
  const TemporaryDirectory directory;
  write_text_model(directory.path() / "world");
  const ServerProcess server({TinyModel::kTokens},
                             {"--model", (directory.path() / "world").string()});
  const Tokenizer& tokenizer = *text_model()->tokenizer();
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "--model", "world", "--max-new-tokens",
                                          "40",       "--seed",  "3",     "--prompt",
                                          "Hello",    "--format"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = server.lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return result;
  };
  const auto sample = with({"jsonl"}).lines()[0];
  const auto ids = sample["tokens"].get<std::vector<std::int32_t>>();
  std::string bytes;
  for (const std::int32_t id : ids) bytes += tokenizer.bytes_of(id);
  CHECK(with({"text"}).out == bytes);
  CHECK(sample["text"] == to_text(tokenizer, ids, false));
  CHECK(sample["prompt_tokens"] == tokenizer.encode("Hello").size());
  CHECK(with({"text", "--echo"}).out == "Hello" + bytes);
  std::string stop;
  for (const char c : bytes.substr(9, 3)) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
    stop += escaped;
  }
  CHECK(with({"text", "--stop", stop}).out == bytes.substr(0, bytes.find(bytes.substr(9, 3))));
  const std::string file = server.write("prompt", "Hello");
  const Result from_file = server.lintel({"generate", "--model", "world", "--prompt-file", file,
                                          "--max-new-tokens", "40", "--seed", "3"});
  CHECK(from_file.out == bytes);

  // A session is continued in text unless ids are given or asked for.
  const Result created = server.lintel({"session", "create", "--model", "world"});
  REQUIRE(created.code == 0);
  const std::string id = created.out.substr(0, created.out.find('\n'));
  std::size_t seed = 5;
  const auto continued = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "session", "continue", id, "--max-new-tokens", "4", "--seed", std::to_string(seed++)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = server.lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return result.out;
  };
  const auto is_ids = [](const std::string& out) {
    return out.find_first_not_of("0123456789,\n") == std::string::npos;
  };
  const auto last_text = [&] {
    const Result history = server.lintel({"session", "history", id, "--format", "jsonl"});
    std::string text;
    std::vector<std::int32_t> tokens;
    for (const auto& chunk : history.lines()) {
      for (const auto& token : chunk["tokens"]) tokens.push_back(token.get<std::int32_t>());
    }
    for (std::size_t i = tokens.size() - 4; i < tokens.size(); ++i) {
      text += tokenizer.bytes_of(tokens[i]);
    }
    return text;
  };
  const std::string first = continued({"--prompt", "Hello"});
  CHECK(first == last_text());
  const std::string second = continued({});
  CHECK(second == last_text());
  CHECK(is_ids(continued({"--format", "tokens"})));
  CHECK(is_ids(continued({"--prompt-tokens", "7"})));

  // A text and its ids have the same probabilities, and the text's are named.
  const std::string text = "there, there you \u4f60";
  const auto encoded = tokenizer.encode(text);
  const std::string lines = nlohmann::json{{"text", text}}.dump() + "\n" +
                            nlohmann::json{{"tokens", encoded}}.dump() + "\n";
  const Result scored =
      server.lintel({"score", "--model", "world", "--input", server.write("in.jsonl", lines)});
  INFO(scored.err);
  REQUIRE(scored.code == 0);
  const auto of_text = scored.lines()[0], of_ids = scored.lines()[1];
  CHECK(text_of(of_text["log2_probs"]) == text_of(of_ids["log2_probs"]));
  CHECK(of_text["tokens"] == encoded);
  CHECK(of_text["texts"].size() == encoded.size());
  CHECK(of_text["texts"][0] == std::string(tokenizer.bytes_of(encoded[0])));
  CHECK_FALSE(of_ids.contains("texts"));

  // A file in windows of tokens.
  std::string story;
  for (int i = 0; i < 30; ++i) story += "there the ab";
  const std::size_t tokens = tokenizer.encode(story).size();
  const Result windows = server.lintel(
      {"score", "--model", "world", "--context", "20", "--text", server.write("story", story)});
  CHECK(windows.code == 0);
  CHECK_THAT(windows.err, Catch::Contains(std::to_string(tokens - 1) + " tokens") &&
                              Catch::Contains("nats/token"));
  const Result refused =
      server.lintel({"score", "--model", "tokens", "--text", server.write("story", story)});
  CHECK(refused.code == 1);
  CHECK_THAT(refused.err, Catch::Contains("model tokens has no tokenizer"));
}

TEST_CASE("model list and health print what the server reports") {
  ServerProcess server({TinyModel::kImage, TinyModel::kBytes});
  const auto models = server.lintel({"model", "list", "--json"}).json();
  REQUIRE(models.size() == 2);
  CHECK(models[0]["name"] == "bytes");
  CHECK(models[1]["name"] == "image");
  const auto image = server.lintel({"model", "get", "image", "--json"}).json();
  CHECK(image["image"]["height"] == 6);
  CHECK(image["config"]["d_model"] == 16);
  CHECK(image["weight_type"] == "f32");
  CHECK(server.lintel({"model", "get", "none"}).code == 1);
  CHECK(server.lintel({"health"}).code == 0);
  CHECK(server.lintel({"health", "--service", "lintel.v1.GenerationService"}).code == 0);
  CHECK(server.lintel({"health", "--service", "lintel.v1.Nothing"}).code == 1);
  CHECK(server.stop() == 0);
  CHECK(server.out() == "lintel-server ready on " + server.address() + "\n");
  CHECK(server.lintel({"health"}).code == 3);
  CHECK(server.lintel({"generate", "--prompt-tokens", "0"}).code == 3);
}

}  // namespace lintel::testing
