// SPDX-License-Identifier: Apache-2.0
// lintel chat against the real server.
#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "model/tokenizer/tokenizer.h"
#include "tests/cli/processes.h"
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

TEST_CASE("lintel chat answers the question of standard input") {
  const ChatModelFiles files;
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  std::string command = "echo 'What is it?' |";
  for (const std::string& word :
       server.command({"chat", "--max-tokens", "8", "--seed", "3", "--json"})) {
    command += " '" + word + "'";
  }
  Process asked({"/bin/sh", "-c", command});
  CHECK(asked.wait() == 0);
  const auto answer = nlohmann::json::parse(asked.out());
  CHECK(answer["message"]["role"] == "assistant");
  CHECK(answer["usage"]["completion_tokens"] == 8);
  const Result without = server.lintel({"chat", "--think", "hard"});
  CHECK(without.code == 2);
}

}  // namespace
}  // namespace lintel::testing
