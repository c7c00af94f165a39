// SPDX-License-Identifier: Apache-2.0
// lintel chat against the real server, with a pipe and in a terminal.
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "tests/cli/processes.h"
#include "tests/cli/terminal_process.h"
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

TEST_CASE("lintel chat refuses an empty question, and takes flags of the connection before it") {
  const ChatModelFiles files;
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  for (const char* const question : {"", "  \t"}) {
    const Result asked = ask(server, question, {});
    CHECK(asked.code == 2);
    CHECK(asked.out.empty());
    CHECK_THAT(asked.err, Catch::Contains("standard input is empty: a question is expected"));
  }
  const std::string body =
      server.write("r.json", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  Process before(
      {LINTEL_CLI, "--address", server.address(), "--model=world", "chat", "--render", body});
  CHECK(before.wait() == 0);
  CHECK(before.out() == "[user]Hi\n[assistant]");
  Process nested({LINTEL_CLI, "--address=" + server.address(), "model", "get", "world", "--json"});
  CHECK(nested.wait() == 0);
  CHECK_THAT(nested.out(), Catch::Contains("world"));
  Process none({LINTEL_CLI, "--address", server.address()});
  CHECK(none.wait() == 2);
  CHECK_THAT(none.err(), Catch::Contains("a command is missing"));
}

TEST_CASE("lintel chat without --model talks to the only model that chats") {
  const ChatModelFiles files;
  const ServerProcess server({TinyModel::kImage, TinyModel::kTokens},
                             {"--model", (files.directory.path() / "world").string()});
  const Result asked = ask(server, "What is it?", {});
  INFO(asked.err);
  CHECK(asked.code == 0);
  CHECK(asked.json()["usage"]["completion_tokens"] == 16);
  const ServerProcess silent({TinyModel::kImage, TinyModel::kTokens});
  const Result refused = ask(silent, "What is it?", {});
  CHECK(refused.code == 1);
  CHECK_THAT(refused.err,
             Catch::Contains("lintel: --model: none of the models has a chat template") &&
                 Catch::Contains("image, tokens"));
}

TEST_CASE("lintel chat sends its sampling flags, and says where an answer was cut") {
  const ChatModelFiles files;
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  for (const bool is_stored : {false, true}) {
    const auto content = [&](const std::string& seed, const std::string& temperature) {
      std::vector<std::string> flags = {"--seed", seed, "--temperature", temperature};
      if (is_stored) flags.push_back("--store");
      const Result asked = ask(server, "What?", flags);
      INFO(asked.err);
      REQUIRE(asked.code == 0);
      CHECK_THAT(asked.err, Catch::Contains("the answer was cut after 16 tokens: --max-tokens 16"));
      CHECK(asked.json()["finish_reason"] == "length");
      return asked.json()["message"]["content"].get<std::string>();
    };
    CHECK(content("1", "0") == content("2", "0"));  // the most likely tokens
    CHECK(content("1", "1.5") != content("2", "1.5"));
  }
  const std::string text =
      ask(server, "What?", {"--temperature", "0"}).json()["message"]["content"];
  const std::string stop = text.substr(0, 1);
  CHECK(ask(server, "What?", {"--temperature", "0", "--stop", stop}).json()["message"]["content"] ==
        "");
  CHECK(ask(server, "What?", {"--temperature", "hot"}).code == 2);
}

TEST_CASE("lintel chat --tools takes a list, one tool or a request, of both forms") {
  const ChatModelFiles files;
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  const std::string flat = R"({"type": "function", "name": "f", "parameters": {}})";
  const std::string nested = R"({"type": "function", "function": {"name": "f"}})";
  for (const std::string& tools :
       {flat, nested, "[" + flat + ", " + nested + "]", R"({"tools": [)" + nested + "]}"}) {
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--store"}}) {
      std::vector<std::string> flags = {"--tools", server.write("tools.json", tools)};
      flags.insert(flags.end(), more.begin(), more.end());
      const Result asked = ask(server, "What?", flags);
      CHECK(asked.code == 1);
      // The functions came as tools, which this template does not show.
      CHECK_THAT(asked.err, Catch::Contains("the model's chat template does not show them"));
    }
  }
  const Result wrong = ask(server, "What?", {"--tools", server.write("tools.json", R"(["f"])")});
  CHECK(wrong.code == 1);
  CHECK_THAT(wrong.err, Catch::Contains("tool 1 is neither"));
}

// A terminal in which lintel chat runs, whose conversations are kept in a directory of the test.
class ChatTerminal {
 public:
  explicit ChatTerminal(const std::vector<std::string>& flags = {"--max-tokens", "8"},
                        const std::vector<std::string>& server_flags = {})
      : server_({}, with_model(files_, server_flags)),
        terminal_(command(server_, kept_.path().string(), flags)) {}

  // Types a line, and returns what came up to the next prompt.
  std::string say(const std::string& line) {
    terminal_.type(line + "\r");
    terminal_.read_until("\x1b[?2004l");  // the line was taken: a paste draws the prompt again
    return terminal_.read_until(">>> ");
  }
  nlohmann::json conversation() {
    const std::string file = path("now.json");
    CHECK_THAT(say("/save " + file), Catch::Contains("lintel: saved to " + file));
    std::ifstream in(file);
    return nlohmann::json::parse(in);
  }
  std::vector<std::string> questions() {
    std::vector<std::string> all;
    for (const nlohmann::json& message : conversation()) {
      if (message["role"] == "user") all.push_back(message["content"]);
    }
    return all;
  }
  std::string path(const std::string& name) const { return (kept_.path() / name).string(); }
  TerminalProcess& terminal() { return terminal_; }
  const ServerProcess& server() const { return server_; }

 private:
  static std::vector<std::string> with_model(const ChatModelFiles& files,
                                             std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model", (files.directory.path() / "world").string(),
                               "--max-new-tokens", "1000000000"});
    return flags;
  }
  static std::vector<std::string> command(const ServerProcess& server, const std::string& kept,
                                          const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"/usr/bin/env", "XDG_DATA_HOME=" + kept};
    std::vector<std::string> chat = {"chat", "--seed", "3"};
    chat.insert(chat.end(), flags.begin(), flags.end());
    for (const std::string& word : server.command(chat)) words.push_back(word);
    return words;
  }

  const ChatModelFiles files_;
  const TemporaryDirectory kept_;
  const ServerProcess server_;
  TerminalProcess terminal_;
};

TEST_CASE("in a terminal lintel chat names model, context and help, and asks once for each line") {
  ChatTerminal chat;
  CHECK_THAT(chat.terminal().read_until(">>> "),
             Catch::Contains("lintel: world, a context without a limit; /help says what can be"));
  CHECK_THAT(chat.say("One?"), Catch::Contains("the answer was cut after 8 tokens"));
  chat.say("   ");  // no question
  chat.say("Two?");
  CHECK(chat.questions() == std::vector<std::string>{"One?", "Two?"});
  CHECK_THAT(chat.say("/help"), Catch::Contains("/set NAME [VALUE]") && Catch::Contains("/bye"));
  CHECK_THAT(chat.say("/branch 2"), Catch::Contains("/branch 2: the last turn is 1"));
  CHECK_THAT(chat.say("/undo"), Catch::Contains("follows the answer to: One?"));
  CHECK(chat.questions() == std::vector<std::string>{"One?"});
  CHECK_THAT(chat.say("/undo"), Catch::Contains("the next question is the first"));
  CHECK_THAT(chat.say("/undo"), Catch::Contains("there is no turn to go back from"));
  chat.terminal().type("/bye\r");
  CHECK(chat.terminal().wait() == 0);
}

TEST_CASE("a paste in a terminal is one question, and so are lines that belong together") {
  ChatTerminal chat;
  chat.terminal().read_until(">>> ");
  // Pasted text with the line ends of terminals, a tab, characters of several bytes, and bytes that
  // no text has.
  chat.say("see: \x1b[200~one\rtwo\r\tthr\u00fce\x1b[31m\x07\x1b[201~!");
  chat.say("\x1b[200~/no/command\rbut a text\x1b[201~");
  CHECK_THAT(chat.say("\x1b[200~// text\rmore\r\x1b[201~"), !Catch::Contains("no such command"));
  chat.terminal().type("first \\\r");
  chat.terminal().read_until("... ");
  chat.say("second");
  chat.terminal().type("\"\"\"\r");
  chat.terminal().read_until("... ");
  chat.terminal().type("/a\r");
  chat.terminal().read_until("... ");
  chat.say("b\"\"\"");
  chat.say("\"\"\"c\"\"\"");
  chat.say("//x");
  CHECK(chat.questions() == std::vector<std::string>{"see: one\ntwo\n\tthr\u00fce[31m!",
                                                     "/no/command\nbut a text", "// text\nmore",
                                                     "first \nsecond", "/a\nb", "c", "/x"});
}

TEST_CASE("Ctrl-C in a terminal drops the line that is typed, and Ctrl-D ends") {
  ChatTerminal chat;
  chat.terminal().read_until(">>> ");
  chat.terminal().type("never\x03");
  CHECK_THAT(chat.terminal().read_until(">>> "), Catch::Contains("Ctrl-D or /bye ends"));
  chat.terminal().type("\"\"\"never\r");
  chat.terminal().read_until("... ");
  chat.terminal().type("sent\x03");
  chat.terminal().read_until(">>> ");
  chat.say("asked");
  CHECK(chat.questions() == std::vector<std::string>{"asked"});
  chat.terminal().type("\x04");
  CHECK(chat.terminal().wait() == 0);
}

TEST_CASE("in a terminal Ctrl-C stops an answer, and the turn is kept") {
  const bool is_stored = GENERATE(false, true);
  // Without the token that ends a text.
  std::vector<std::string> flags = {"--max-tokens", "100000000", "--logit-bias", "0=-1000"};
  if (is_stored) flags.push_back("--store");
  ChatTerminal chat(flags);
  chat.terminal().read_until(">>> ");
  chat.terminal().type("On and on?\r");
  chat.terminal().read_until("On and on?\r\n");
  chat.terminal().read_until("Z");  // of the answer
  chat.terminal().type("\x03");
  CHECK_THAT(chat.terminal().read_until(">>> "), Catch::Contains("stopped; the turn is kept"));
  CHECK_THAT(chat.say("/stats"), Catch::Contains("stopped after"));
  const nlohmann::json first = chat.conversation();
  REQUIRE(first.size() == 2);
  CHECK(first[0]["content"] == "On and on?");
  CHECK_FALSE(first[1]["content"].get<std::string>().empty());
  CHECK_THAT(chat.say("/set max-tokens 16"), Catch::Contains("max-tokens is 16"));
  CHECK_THAT(chat.say("And then?"), Catch::Contains("cut after 16 tokens"));
  const nlohmann::json second = chat.conversation();
  REQUIRE(second.size() == 4);
  CHECK(second[1] == first[1]);
  // The server read the answer as far as it came.
  const std::string stats = chat.say("/stats");
  std::smatch counts;
  REQUIRE(std::regex_search(stats, counts, std::regex(R"((\d+) tokens cached, (\d+) read)")));
  CHECK(std::stoul(counts[1]) + std::stoul(counts[2]) >
        first[1]["content"].get<std::string>().size() / 4);
  chat.terminal().type("\x04");
  CHECK(chat.terminal().wait() == 0);
}

TEST_CASE("in a terminal /set changes sampling from the next turn on") {
  ChatTerminal chat;
  chat.terminal().read_until(">>> ");
  const auto answer = [&] {
    chat.say("What?");
    const std::string content = chat.conversation().back()["content"];
    chat.say("/undo");
    return content;
  };
  const std::string drawn = answer();
  CHECK_THAT(chat.say("/set temperature 0"), Catch::Contains("lintel: temperature is 0"));
  const std::string likely = answer();
  CHECK_THAT(chat.say("/set seed 4"), Catch::Contains("lintel: seed is 4"));
  CHECK(answer() == likely);
  CHECK_THAT(chat.say("/set temperature"), Catch::Contains("temperature is the model's own"));
  const std::string other = answer();
  chat.say("/set seed 3");
  CHECK(answer() == drawn);
  CHECK(other != drawn);
  CHECK_THAT(chat.say("/set temperature hot"), Catch::Contains("/set temperature 'hot'"));
  CHECK_THAT(chat.say("/set temperature -1"),
             Catch::Contains("/set temperature '-1': expected a number from 0 to 1000"));
  CHECK_THAT(chat.say("/set top-p 0"),
             Catch::Contains("/set top-p '0': expected a number more than 0 and at most 1"));
  CHECK_THAT(chat.say("/set nonsense 3"), Catch::Contains("/set: there is no 'nonsense'"));
  CHECK_THAT(chat.say("/set"), Catch::Contains("/set: expected a name and a value"));
  CHECK_THAT(chat.say("/nonsense"), Catch::Contains("no such command: /nonsense; /help"));
}

TEST_CASE("in a terminal a conversation is saved under a name, for its owner alone, and loaded") {
  ChatTerminal chat({"--max-tokens", "8", "--system", "Be brief."});
  chat.terminal().read_until(">>> ");
  chat.say("One?");
  const nlohmann::json one = chat.conversation();
  REQUIRE(one.size() == 3);
  const std::string file = chat.path("lintel/chats/first.json");
  CHECK_THAT(chat.say("/save first"), Catch::Contains("first.json"));
  struct stat status {};
  REQUIRE(stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(stat(chat.path("lintel/chats").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  chat.say("Two?");
  CHECK_THAT(chat.say("/load"), Catch::Contains("saved: first"));
  CHECK_THAT(chat.say("/load first"), Catch::Contains("1 turn of") && Catch::Contains("to: One?"));
  CHECK(chat.conversation() == one);
  chat.say("Three?");
  CHECK(chat.questions() == std::vector<std::string>{"One?", "Three?"});
  CHECK_THAT(chat.say("/save"), Catch::Contains("/save: expected a name"));
  CHECK_THAT(chat.say("/save .hidden"), Catch::Contains("begins with a dot"));
  CHECK_THAT(chat.say("/save /no/such/file"), Catch::Contains("cannot be written: No such file"));
  CHECK_THAT(chat.say("/load nothing"),
             Catch::Contains("nothing.json") && Catch::Contains("cannot be read: No such file"));
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense", "no JSON"},
           {"3", "no list of messages"},
           {R"([{"role": "user", "content": "a"}])", "the last message is not the assistant's"},
           {R"([{"role": "tool", "content": "a"}])", "message 1 has role \"tool\""},
           {R"([{"role": "user", "content": [3]}])", "message 1: its content is not text"}}) {
    std::ofstream(chat.path("wrong.json")) << text;
    CHECK_THAT(chat.say("/load " + chat.path("wrong.json")), Catch::Contains(said));
  }
  CHECK(chat.questions() == std::vector<std::string>{"One?", "Three?"});  // as it was
  // A request that has messages, with parts.
  std::ofstream(chat.path("request.json"))
      << R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                          {"role": "assistant", "content": "b"}]})";
  chat.say("/load " + chat.path("request.json"));
  CHECK(chat.questions() == std::vector<std::string>{"a"});
}

TEST_CASE("statistics of an answer that came at once have no rate") {
  ChatTerminal chat({"--max-tokens", "1"});
  chat.terminal().read_until(">>> ");
  CHECK_THAT(chat.say("/stats"), Catch::Contains("no answer has come yet"));
  chat.say("One?");
  CHECK_THAT(chat.say("/stats"),
             Catch::Contains(" 1 written (0 of reasoning) in ") && !Catch::Contains("a second"));
}

TEST_CASE("in a terminal lintel chat checks server and model before the first question") {
  const ChatModelFiles files;
  const ServerProcess server({TinyModel::kImage},
                             {"--model", (files.directory.path() / "world").string()});
  const auto refusal = [](const std::vector<std::string>& command, int code) {
    TerminalProcess terminal(command);
    const std::string said = terminal.read_until("\n");
    CHECK(terminal.wait() == code);
    CHECK_THAT(said, !Catch::Contains(">>> "));
    return said;
  };
  CHECK_THAT(refusal(server.command({"chat", "--model", "nope"}), 1),
             Catch::Contains("lintel: no model is named nope") && Catch::Contains("NOT_FOUND"));
  CHECK_THAT(refusal(server.command({"chat", "--model", "image"}), 1),
             Catch::Contains("lintel: --model: the model has no"));
  CHECK_THAT(refusal({LINTEL_CLI, "chat", "--address", "unix:" + server.path("none")}, 3),
             Catch::Contains("lintel: no server answers"));
}

TEST_CASE("in a terminal a system message that the template leaves out is named") {
  const ChatModelFiles files;
  std::ofstream(files.directory.path() / "world" / "chat_template.jinja")
      << "{% for m in messages if m.role != 'system' %}{{ m.content }}\n{% endfor %}";
  const ServerProcess server({}, {"--model", (files.directory.path() / "world").string()});
  TerminalProcess terminal(server.command({"chat", "--system", "Be brief."}));
  const std::string warning = "the model's chat template leaves system messages out";
  CHECK_THAT(terminal.read_until(">>> "), Catch::Contains(warning));
  terminal.type("/system Be loud.\r");
  CHECK_THAT(terminal.read_until(">>> "), Catch::Contains(warning));
  terminal.type("/system\r");
  CHECK_THAT(terminal.read_until(">>> "), !Catch::Contains(warning));
  terminal.type("/bye\r");
  CHECK(terminal.wait() == 0);
}

}  // namespace
}  // namespace lintel::testing
