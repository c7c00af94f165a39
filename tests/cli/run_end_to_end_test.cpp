// SPDX-License-Identifier: Apache-2.0
// `lintel run`, and `lintel-server ORG/NAME`: models of a path or a hub, and whose server has them.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <regex>

#include "tests/cli/processes.h"
#include "tests/cli/terminal_process.h"
#include "tests/client/support/fake_hub.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr const char* kRunTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
const std::vector<std::string> kShortAnswer = {"--max-tokens", "8", "--seed", "3", "--json"};

// A model that chats, and an environment in which no server has it.
class RunFixture {
 public:
  RunFixture() {
    write_text_model(model);
    std::ofstream(model / "chat_template.jinja") << kRunTemplate;
    set("LINTEL_ADDRESS", "unix:" + (directory.path() / "nowhere").string());
    set("XDG_STATE_HOME", state.string());
    set("HF_HUB_CACHE", (directory.path() / "hub").string());
  }

  void set(const std::string& name, const std::string& value) {
    environment_.push_back(name + "=" + value);
  }
  std::vector<std::string> command(std::vector<std::string> words) const {
    words.insert(words.begin(), environment_.begin(), environment_.end());
    words.insert(words.begin(), "/usr/bin/env");
    return words;
  }
  std::vector<std::string> command_of_run(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {LINTEL_CLI, "run"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return command(words);
  }
  // Runs `lintel run MODEL QUESTION` for a short answer.
  Result ask(const std::string& of_model, const std::string& question,
             const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {of_model, question};
    arguments.insert(arguments.end(), kShortAnswer.begin(), kShortAnswer.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    Process process(command_of_run(arguments));
    const int code = process.wait();
    return {code, process.out(), process.err()};
  }
  std::vector<std::string> logs() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(state / "lintel")) {
      names.push_back(entry.path().string());
    }
    return names;
  }
  // The model as a repository of a hub.
  void fill(FakeHub& hub) const {
    for (const auto& entry : fs::directory_iterator(model)) {
      std::ifstream in(entry.path(), std::ios::binary);
      hub.add_file(entry.path().filename().string(), {std::istreambuf_iterator<char>(in), {}});
    }
  }

  const TemporaryDirectory directory;
  const fs::path model = directory.path() / "world", state = directory.path() / "state";

 private:
  std::vector<std::string> environment_;
};

// The children of a process.
std::vector<pid_t> children_of(pid_t pid) {
  const std::string id = std::to_string(pid);
  std::ifstream in("/proc/" + id + "/task/" + id + "/children");
  return {std::istream_iterator<pid_t>(in), {}};
}

bool runs(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  // One that was not waited for yet has ended, too.
  return !text.empty() && text.substr(text.rfind(')') + 2, 1) != "Z";
}

// "http://127.0.0.1:PORT/" of what `lintel run` says.
std::string page_of(const std::string& text) {
  std::smatch page;
  REQUIRE(
      std::regex_search(text, page, std::regex("page: (http://127\\.0\\.0\\.1:[0-9]+/), log: ")));
  return page[1];
}

std::string status_of_page(const std::string& page) {
  Process curl(
      {"/usr/bin/curl", "--noproxy", "*", "-s", "-o", "/dev/null", "-w", "%{http_code}", page});
  curl.wait();
  return curl.out();
}

}  // namespace

TEST_CASE_METHOD(RunFixture, "lintel run asks a model of a directory one question") {
  const Result asked = ask(model.string(), "What is it?");
  INFO(asked.err);
  REQUIRE(asked.code == 0);
  CHECK(asked.json()["message"]["role"] == "assistant");
  CHECK(asked.json()["usage"]["completion_tokens"] == 8);
  CHECK_THAT(asked.err, StartsWith("lintel: loading world\n"));
  CHECK_THAT(asked.err, Contains("lintel: world is served for this conversation, page: "));
  // Its server has ended, and with it the log.
  CHECK(status_of_page(page_of(asked.err)) == "000");
  CHECK(logs().empty());
  // Standard input is the question where there is no other.
  std::string words = "printf 'What is it?\\n' |";
  std::vector<std::string> arguments = {model.string()};
  arguments.insert(arguments.end(), kShortAnswer.begin(), kShortAnswer.end());
  for (const std::string& word : command_of_run(arguments)) words += " '" + word + "'";
  Process piped({"/bin/sh", "-c", words});
  CHECK(piped.wait() == 0);
  CHECK(piped.out() == asked.out);
  CHECK(ask(model.string() + "/", "What is it?").out == asked.out);
  CHECK_THAT(ask(model.string(), "a", {"--max-tokens", "1"}).err,
             Contains("the answer was cut after 1 token: --max-tokens 1"));
}

TEST_CASE_METHOD(RunFixture, "lintel run takes a packaged model by its name") {
  const Result asked = ask("text-rwkv7-small", "What news?");
  INFO(asked.err);
  CHECK(asked.code == 0);
  CHECK_THAT(asked.err, Contains("lintel: text-rwkv7-small is served for this conversation"));
}

TEST_CASE_METHOD(RunFixture, "lintel run ends with a status and a reason for what fails") {
  const Result missing = ask("./nowhere", "a");
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Contains("MODEL: ./nowhere: No such file or directory"));
  // A name of a hub that looks like a path: its first part is a folder here.
  const fs::path folder = fs::current_path() / directory.path().filename();
  fs::create_directory(folder);
  const std::string typo = folder.filename().string() + "/typo";
  const Result path = ask(typo, "a", {"--offline"});
  fs::remove(folder);
  CHECK(path.code == 1);
  CHECK_THAT(path.err, Contains("lintel: " + typo +
                                " is no file or folder here; taken for a "
                                "model of the hub\n"));
  CHECK_THAT(ask("org/typo", "a", {"--offline"}).err, !Contains("taken for"));
  const Result no_packaged = ask("gpt2", "a");
  CHECK(no_packaged.code == 2);
  CHECK_THAT(no_packaged.err, Contains("nor a packaged model: ") && Contains("text-rwkv7-small"));
  CHECK(ask("org/na me", "a").code == 2);

  std::ofstream(model / "config.json", std::ios::app) << "}";
  const Result broken = ask(model.string(), "a");
  CHECK(broken.code == 1);
  CHECK(broken.out.empty());
  CHECK_THAT(broken.err, Contains("lintel: the server did not start: ") &&
                             Contains("config.json") && Contains("(log: " + logs().at(0) + ")"));

  // A server that serves and a question that fails.
  write_random_model(directory.path() / "mute", tiny_config(TinyModel::kBytes), /*seed=*/7);
  const Result mute = ask((directory.path() / "mute").string(), "a");
  CHECK(mute.code == 1);
  CHECK(mute.out.empty());
  CHECK_THAT(mute.err, Contains("chat template (lintel-server's --chat-template)"));
  // Its log is kept, beside that of the server that did not start.
  REQUIRE(logs().size() == 2);
  CHECK((mute.err.find("the server's log is kept: " + logs()[0] + "\n") != std::string::npos ||
         mute.err.find("the server's log is kept: " + logs()[1] + "\n") != std::string::npos));
}

TEST_CASE_METHOD(RunFixture,
                 "a server of lintel run talks on a terminal until the conversation ends") {
  TerminalProcess first(command_of_run({model.string(), "--max-tokens", "4"}));
  const std::string start = first.read_until(".log");
  const std::string page = page_of(start);
  CHECK(status_of_page(page) == "200");
  REQUIRE(logs().size() == 1);
  first.read_until("> ");
  first.type("What is it?\n");
  first.read_until("> ");
  // Another run has a server of its own.
  TerminalProcess second(command_of_run({model.string()}));
  const std::string other = page_of(second.read_until(".log"));
  CHECK(other != page);
  CHECK(status_of_page(other) == "200");
  second.read_until("> ");
  second.type("\x04");
  CHECK(second.wait() == 0);
  CHECK(status_of_page(other) == "000");
  CHECK(status_of_page(page) == "200");
  first.type("\x04");
  CHECK(first.wait() == 0);
  CHECK(status_of_page(page) == "000");
  CHECK(logs().empty());
}

TEST_CASE_METHOD(RunFixture, "Ctrl-C ends an answer of lintel run, and its server serves on") {
  TerminalProcess run(command_of_run({model.string(), "--max-tokens", "8000"}));
  const std::string page = page_of(run.read_until(".log"));
  run.read_until("> ");
  run.type("What is it?\n");
  run.read_until("\n");
  run.type("\x03");
  run.read_until("> ");
  CHECK(status_of_page(page) == "200");
  run.type("\x04");
  CHECK(run.wait() == 0);
  CHECK(status_of_page(page) == "000");
}

TEST_CASE_METHOD(RunFixture, "the server of lintel run ends when that is killed") {
  TerminalProcess run(command_of_run({model.string()}));
  const std::string page = page_of(run.read_until(".log"));
  const std::vector<pid_t> servers = children_of(run.pid());
  REQUIRE(servers.size() == 1);
  CHECK(runs(servers[0]));
  CHECK(status_of_page(page) == "200");
  run.send(SIGKILL);
  const bool has_ended = eventually([&] { return !runs(servers[0]); });
  CHECK(has_ended);
  CHECK(status_of_page(page) == "000");
  if (!has_ended) kill(servers[0], SIGKILL);
}

TEST_CASE_METHOD(RunFixture, "a conversation of lintel run ends with its server, and says why") {
  TerminalProcess run(command_of_run({model.string(), "--max-tokens", "4"}));
  run.read_until("> ");
  const std::vector<pid_t> servers = children_of(run.pid());
  REQUIRE(servers.size() == 1);
  kill(servers[0], SIGKILL);
  run.type("What is it?\n");
  const std::string end =
      "lintel: the server of this conversation was killed (signal 9); is there "
      "enough memory? (log: " +
      logs().at(0) + ")";
  CHECK_THAT(run.read_until(end), Contains(end));
  CHECK(run.wait() == 1);
}

TEST_CASE_METHOD(RunFixture, "a conversation of lintel run waits for no end after other errors") {
  std::ofstream(model / "chat_template.jinja")
      << "{% if messages[-1].content == 'no' %}{{ raise_exception('not that') }}{% endif %}"
      << kRunTemplate;
  TerminalProcess run(command_of_run({model.string(), "--max-tokens", "4"}));
  run.read_until("> ");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) {
    run.type("no\n");
    CHECK_THAT(run.read_until("not that"), Contains("not that"));
    run.read_until("> ");
  }
  // 40 times 200 ms, in which a server may end.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
  run.type("\x04");
  CHECK(run.wait() == 0);
}

TEST_CASE_METHOD(RunFixture, "lintel run says how its server ended before or with the question") {
  // A copy of the program, with another one in the place of the server beside it.
  const fs::path bin = directory.path() / "bin";
  fs::create_directory(bin);
  fs::copy_file(LINTEL_CLI, bin / "lintel");
  const auto ask_beside = [&](const std::string& script) {
    std::ofstream(bin / "lintel-server") << "#!/bin/sh\n" << script;
    fs::permissions(bin / "lintel-server", fs::perms::owner_all);
    Process run(command({(bin / "lintel").string(), "run", model.string(), "a"}));
    const int code = run.wait();
    CHECK(code == 1);
    CHECK(run.out().empty());
    return run.err();
  };
  const std::string killed = ask_beside("echo 'lintel-server: a line' >&2\nkill -9 $$\n");
  CHECK(
      killed ==
      "lintel: loading world\n"
      "lintel: the server did not start: it was killed (signal 9); is there enough memory? (log: " +
          logs().at(0) + ")\n");
  CHECK_THAT(ask_beside("echo 'lintel-server ready on 127.0.0.1:1'\n"
                        "echo 'page: http://127.0.0.1:1/'\nexit 3\n"),
             Contains("lintel: the server of this conversation ended with status 3 (log: ") &&
                 !Contains("start one with"));
}

TEST_CASE_METHOD(RunFixture, "lintel run refuses blank questions and wrong flags before it pulls") {
  FakeHub hub;
  fill(hub);
  set("HF_ENDPOINT", hub.url());
  for (const std::string question : {"", "  "}) {
    const Result blank = ask("org/world", question);
    CHECK(blank.code == 2);
    CHECK_THAT(blank.err, Contains("PROMPT is empty: a question is expected"));
  }
  const std::string nowhere = (directory.path() / "nowhere").string();
  for (const auto& [flag, value] :
       {std::pair("--think", std::string("maybe")), std::pair("--system", "@" + nowhere),
        std::pair("--tools", nowhere), std::pair("--temperature", std::string("-1"))}) {
    const Result wrong = ask("org/world", "a", {flag, value});
    CHECK(wrong.code != 0);
    CHECK_THAT(wrong.err, Contains(flag));
  }
  std::string words = "printf ' \\n' |";
  for (const std::string& word : command_of_run({"org/world"})) words += " '" + word + "'";
  Process piped({"/bin/sh", "-c", words});
  CHECK(piped.wait() == 2);
  CHECK_THAT(piped.err(), Contains("standard input is empty"));
  CHECK(hub.requests().empty());
}

TEST_CASE_METHOD(RunFixture, "lintel run says that the chat template leaves a system message out") {
  const std::string note = "lintel: the model's chat template leaves system messages out\n";
  CHECK_THAT(ask(model.string(), "a", {"--system", "Be brief."}).err, !Contains(note));
  std::ofstream(model / "chat_template.jinja") << "{% for m in messages %}{% if m.role != 'system' "
                                                  "%}{{ m.content }}\n{% endif %}{% endfor %}";
  const Result asked = ask(model.string(), "a", {"--system", "Be brief."});
  CHECK(asked.code == 0);
  CHECK_THAT(asked.err, Contains(note));
}

TEST_CASE_METHOD(RunFixture, "lintel run uses a server that has the model, and leaves it alone") {
  const ServerProcess server({TinyModel::kTokens}, {"--model", model.string()});
  const std::string question = "What is it?";
  const Result own = ask(model.string(), question);
  const std::vector<std::string> there = {"--address", server.address()};
  const Result used = ask(model.string(), question, there);
  INFO(used.err);
  CHECK(used.code == 0);
  CHECK_THAT(used.err, StartsWith("lintel: the server at " + server.address() + " has world\n"));
  CHECK(used.out == own.out);
  // Another model of the same name is not that one.
  write_text_model(directory.path() / "other" / "world", /*vocab_size=*/301);
  std::ofstream(directory.path() / "other/world/chat_template.jinja") << kRunTemplate;
  const Result other = ask((directory.path() / "other" / "world").string(), question, there);
  CHECK(other.code == 0);
  CHECK_THAT(other.err, Contains("served for this conversation"));
  CHECK(server.lintel({"health"}).code == 0);
}

TEST_CASE_METHOD(RunFixture, "lintel run finds a model that a server has under another name") {
  const ServerProcess server({TinyModel::kTokens}, {"--model", "rw=" + model.string()});
  const std::vector<std::string> there = {"--address", server.address()};
  const std::string has_it = "lintel: the server at " + server.address() + " has rw\n";
  const Result used = ask(model.string(), "What is it?", there);
  INFO(used.err);
  CHECK(used.code == 0);
  CHECK_THAT(used.err, StartsWith(has_it));
  // A model of a hub is compared by its files in the cache.
  FakeHub hub;
  fill(hub);
  set("HF_ENDPOINT", hub.url());
  Process pull(command({LINTEL_CLI, "pull", "org/world"}));
  REQUIRE(pull.wait() == 0);
  const Result cached = ask("org/world", "What is it?", there);
  CHECK_THAT(cached.err, StartsWith(has_it));
  // The second prompt is cached.
  const auto without_cached = [](const Result& result) {
    return std::regex_replace(result.out, std::regex("\"cached_tokens\":[0-9]+,"), "");
  };
  CHECK(without_cached(cached) == without_cached(used));
}

TEST_CASE_METHOD(RunFixture, "lintel run takes a GGUF file, or the first of its parts") {
  const fs::path folder = fs::path(LINTEL_TEST_DATA) / "golden" / "gguf";
  for (const std::string file : {"qwen35-q8_0-00001-of-00003.gguf", "rwkv7-q8_0.gguf"}) {
    const std::string path = (folder / file).string(),
                      name = file.substr(0, file.find("-q8_0") + 5);
    // These small files have no tokenizer: their servers start, and say so.
    const Result own = ask(path, "a");
    CHECK(own.code == 1);
    CHECK_THAT(own.err, Contains("lintel: " + name + " is served for this conversation") &&
                            Contains("has no tokenizer"));
    const ServerProcess server({}, {"--model", path});
    const Result used = ask(path, "a", {"--address", server.address()});
    CHECK_THAT(used.err, Contains("lintel: the server at " + server.address() + " has " + name));
  }
}

TEST_CASE_METHOD(RunFixture, "lintel run loads no model into a server that others started") {
  fs::create_directories(directory.path() / "models");
  fs::copy(model, directory.path() / "models" / "world");
  const ServerProcess server({}, {"--models", (directory.path() / "models").string()});
  const Result asked = ask(model.string(), "What is it?", {"--address", server.address()});
  CHECK(asked.code == 0);
  CHECK_THAT(asked.err, Contains("served for this conversation"));
  CHECK_THAT(server.lintel({"model", "list"}).out, Contains("loads on request"));
}

TEST_CASE_METHOD(RunFixture, "lintel run pulls a model of a hub once") {
  FakeHub hub;
  fill(hub);
  set("HF_ENDPOINT", hub.url());
  const Result pulled = ask("org/world", "What is it?");
  INFO(pulled.err);
  REQUIRE(pulled.code == 0);
  CHECK_THAT(pulled.err, Contains("lintel: org/world is served for this conversation"));
  CHECK(pulled.out == ask(model.string(), "What is it?").out);
  const std::size_t requests = hub.requests().size();
  CHECK(requests > 0);
  CHECK(ask("org/world", "What is it?").out == pulled.out);
  CHECK(ask(hub.url() + "/org/world", "What is it?").out == pulled.out);
  CHECK(hub.requests().size() == requests);
  // A server that has it under this name is used, as one that has it as a path's.
  const ServerProcess server({}, {"--model", "org/world=" + model.string()});
  const Result used = ask("org/world", "What is it?", {"--address", server.address()});
  CHECK_THAT(used.err,
             StartsWith("lintel: the server at " + server.address() + " has org/world\n"));
  CHECK(used.out == pulled.out);
  const Result offline = ask("org/absent", "a", {"--offline"});
  CHECK(offline.code == 1);
  CHECK_THAT(offline.err, Contains("org/absent is not in the cache"));
}

TEST_CASE_METHOD(RunFixture,
                 "a download shows speed, time left and file on a terminal, then what to do") {
  FakeHub hub;
  hub.add_file("config.json", "{}", false);
  hub.add_file("model.safetensors", std::string(30'000'000, 'w'));
  // The rest of the file comes after a while: only of time that has passed there is a speed.
  hub.add_fault({});
  hub.add_fault({.cut_after = 20'000'000});
  set("HF_ENDPOINT", hub.url());
  TerminalProcess pull(command({LINTEL_CLI, "pull", "org/name"}));
  const std::string shown = pull.read_until("`lintel-server org/name` serves it");
  CHECK_THAT(shown, Catch::Contains("/30 MB, ") && Catch::Contains(" MB/s, ") &&
                        Catch::Contains(" s left, model.safetensors"));
  CHECK_THAT(shown, Catch::Contains("`lintel run org/name` talks to it"));
  CHECK(pull.wait() == 0);
}

namespace {

// The name of the only model of a server that starts with these words.
struct StartedServer {
  explicit StartedServer(const std::vector<std::string>& words) : process(words) {
    const std::string out = process.read_out_until("\n");
    INFO(out << process.err());
    REQUIRE(out.starts_with("lintel-server ready on "));
    address = out.substr(out.rfind(' ') + 1, out.size() - out.rfind(' ') - 2);
  }
  std::string models() const {
    Process list({LINTEL_CLI, "model", "list", "--json", "--address", address});
    list.wait();
    return list.out();
  }
  Process process;
  std::string address;
};

}  // namespace

TEST_CASE_METHOD(RunFixture, "lintel-server ORG/NAME pulls a model and serves it under this name") {
  FakeHub hub;
  fill(hub);
  set("HF_ENDPOINT", hub.url());
  const std::vector<std::string> words =
      command({LINTEL_SERVER, "--listen", "127.0.0.1:0", "--http-listen", "off", "org/world"});
  {
    const StartedServer server(words);
    CHECK_THAT(server.models(), Contains("\"org/world\""));
  }
  const std::size_t requests = hub.requests().size();
  CHECK(requests > 0);
  CHECK_THAT(StartedServer(words).models(), Contains("\"org/world\""));
  CHECK(hub.requests().size() == requests);  // the cache has it
}

TEST_CASE_METHOD(RunFixture, "lintel-server ORG/NAME ends with the reason of a pull that failed") {
  FakeHub hub;
  hub.set_list("{}");
  set("HF_ENDPOINT", hub.url());
  Process server(command(
      {LINTEL_SERVER, "--listen", "127.0.0.1:0", "--http-listen", "off", "org/world:Q8_0"}));
  CHECK(server.wait() == 1);
  CHECK(server.out().empty());
  CHECK_THAT(server.err(),
             Contains("lintel: org/world: its list names no commit") &&
                 Contains("lintel-server: lintel pull org/world:Q8_0 ended with status 1"));
}

TEST_CASE_METHOD(RunFixture, "a service and a configuration file pull nothing, and say what to run",
                 "[threat-100]") {
  FakeHub hub;
  fill(hub);
  set("HF_ENDPOINT", hub.url());
  const auto run = [&](const std::vector<std::string>& words) {
    Process server(command(words));
    const int code = server.wait();
    CHECK(server.out().empty());
    return Result{code, server.out(), server.err()};
  };
  // Starts it as systemd does, with the process in this variable.
  const std::string serve =
      std::string("exec '") + LINTEL_SERVER + "' --listen 127.0.0.1:0 --http-listen off org/world";
  const Result service = run({"/bin/sh", "-c", "export SYSTEMD_EXEC_PID=$$; " + serve});
  CHECK(service.code == 2);  // which its unit does not try again
  CHECK_THAT(service.err, Contains("HF_HUB_CACHE=/var/lib/lintel/hub lintel pull org/world`"));
  // The log is in the journal.
  const std::string log = (directory.path() / "journal").string();
  const Result journal =
      run({"/bin/sh", "-c",
           "exec 2>" + log + "; export JOURNAL_STREAM=$(stat -c %d:%i " + log + "); " + serve});
  CHECK(journal.code == 2);
  // A terminal of systemd's is no service.
  const StartedServer terminal(command(
      {"/bin/sh", "-c", "export SYSTEMD_EXEC_PID=1 JOURNAL_STREAM=8:1 INVOCATION_ID=a; " + serve}));
  CHECK_THAT(terminal.models(), Contains("org/world"));

  const std::size_t requests = hub.requests().size();
  const std::string file = (directory.path() / "server.toml").string();
  for (const std::string name : {"org/other", "org/other:Q8_0"}) {
    std::ofstream(file) << "model = [\"" << name << "\"]\nlisten = \"127.0.0.1:0\"\n";
    const Result configured = run({LINTEL_SERVER, "--http-listen", "off", "--config", file});
    CHECK(configured.code != 0);
    CHECK_THAT(configured.err, Contains("`lintel pull " + name + "` downloads it"));
  }
  std::ofstream(file) << "MODEL = \"org/other\"\n";
  CHECK(run({LINTEL_SERVER, "--config", file}).code == 2);
  CHECK(hub.requests().size() == requests);
}

}  // namespace lintel::testing
