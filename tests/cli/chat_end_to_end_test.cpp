// SPDX-License-Identifier: Apache-2.0
// lintel chat against the real server.
#include <fstream>
#include <string>

#include "model/tokenizer/tokenizer.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

struct ChatModelFiles {
  ChatModelFiles() {
    write_text_model(directory.path() / "world");
    std::ofstream(directory.path() / "world" / "chat_template.jinja") << kTemplate;
  }
  const TemporaryDirectory directory;
};

TEST_CASE("lintel chat --render prints the prompt of a request, byte for byte, or its ids") {
  const ChatModelFiles files;
  const ServerProcess server({TinyModel::kTokens},
                             {"--model", (files.directory.path() / "world").string()});
  const std::string messages = R"("messages": [{"role": "system", "content": "Be brief."},
                                               {"role": "user", "content": "Hi\u00e9\n"}])";
  const std::string expected = "[system]Be brief.\n[user]Hi\xc3\xa9\n\n[assistant]";
  const std::string named = server.write("named.json", R"({"model": "world", )" + messages + "}");
  const std::string bare = server.write("bare.json", "{" + messages + "}");

  const Result rendered = server.lintel({"chat", "--render", named});
  INFO(rendered.err);
  CHECK(rendered.code == 0);
  CHECK(rendered.out == expected);
  CHECK(server.lintel({"chat", "--model", "world", "--render", bare}).out == expected);
  const auto ids = server.lintel({"chat", "--model", "world", "--render", bare, "--render-ids"});
  CHECK(nlohmann::json::parse(ids.out).get<std::vector<std::int32_t>>() ==
        text_model()->tokenizer()->encode(expected, {.add_special = false}));
  CHECK(ids.out.back() == ']');

  // A refused request prints nothing.
  const std::string wrong = server.write("wrong.json", R"({"model": "world", "messages": []})");
  const Result refused = server.lintel({"chat", "--render", wrong});
  CHECK(refused.code == 1);
  CHECK(refused.out.empty());
  CHECK_THAT(refused.err, Catch::Contains("messages"));
  CHECK(server.lintel({"chat", "--render-ids"}).code == 2);
}

// Runs lintel chat with a question on its standard input.
Result ask(const ServerProcess& server, const std::string& question,
           const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"chat", "--max-tokens", "16", "--seed", "3", "--json"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::string command = "echo '" + question + "' |";
  for (const std::string& word : server.command(arguments)) command += " '" + word + "'";
  Process asked({"/bin/sh", "-c", command});
  const int code = asked.wait();
  return {code, asked.out(), asked.err()};
}

TEST_CASE("lintel chat answers the question of standard input") {
  const ChatModelFiles files;
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  const Result asked = ask(server, "What is it?", {});
  CHECK(asked.code == 0);
  const auto answer = asked.json();
  CHECK(answer["message"]["role"] == "assistant");
  CHECK(answer["usage"]["completion_tokens"] == 16);
  CHECK_FALSE(answer.contains("response"));
  const Result without = server.lintel({"chat", "--think", "hard"});
  CHECK(without.code == 2);
}

TEST_CASE("lintel chat --resume continues a stored response, also of a server that was restarted") {
  const ChatModelFiles files;
  const std::vector<std::string> flags = {"--model", (files.directory.path() / "world").string(),
                                          "--session-store",
                                          (files.directory.path() / "store").string()};
  std::string first;
  nlohmann::json expected;
  {
    ServerProcess server({}, flags);
    const Result asked = ask(server, "What is it?", {"--store", "--system", "Be brief."});
    INFO(asked.err);
    REQUIRE(asked.code == 0);
    first = asked.json()["response"];
    CHECK(first.starts_with("resp_"));
    CHECK_THAT(asked.err, Catch::Contains("continue with: lintel chat --resume " + first));
    const Result again = ask(server, "And then?", {"--resume", first, "--system", "Be brief."});
    REQUIRE(again.code == 0);
    expected = again.json()["message"];
    CHECK(again.json()["usage"]["cached_tokens"] > 0);
    CHECK(server.stop() == 0);
  }
  const ServerProcess server({}, flags);
  const Result again = ask(server, "And then?", {"--resume", first, "--system", "Be brief."});
  INFO(again.err);
  REQUIRE(again.code == 0);
  CHECK(again.json()["message"] == expected);
  CHECK(again.json()["usage"]["cached_tokens"] > 0);
  const Result unknown = ask(server, "Hm?", {"--resume", "resp_" + std::string(32, '0')});
  CHECK(unknown.code == 1);
  CHECK(unknown.out.empty());
}

}  // namespace
}  // namespace lintel::testing
