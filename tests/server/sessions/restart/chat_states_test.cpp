// SPDX-License-Identifier: Apache-2.0
// Conversations of clients that keep the history themselves, over a server that is killed.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/server/sessions/restart/server_process.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

struct ChatFiles {
  ChatFiles() {
    write_text_model(model);
    std::ifstream golden(std::filesystem::path(LINTEL_TEST_DATA) /
                         "golden/chat/templates/chatml.json");
    std::ofstream(model / "chat_template.jinja")
        << ojson::parse(golden)["template"].get<std::string>();
  }
  std::vector<std::string> flags(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {LINTEL_SERVER_BINARY, "--model",     "m=" + model.string(),
                                    "--listen",           "127.0.0.1:0", "--http-listen",
                                    "127.0.0.1:0",        "--workers",   "1",
                                    "--session-store",    store,         "--metrics-listen",
                                    "127.0.0.1:0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  const TemporaryDirectory directory;
  const std::filesystem::path model = directory.path() / "text";
  const std::string store = directory.path() / "store";
};

ojson answer_of(const Server& server, const ojson& messages) {
  const ojson body = {{"model", "m"}, {"messages", messages}, {"max_tokens", 12}, {"seed", 7}};
  const HttpReply reply = post(server.http_port(), "/v1/chat/completions", body.dump());
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  return ojson::parse(reply.body);
}

int cached_of(const ojson& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

// Three turns; returns the messages with the last answer, and the prompt's tokens of the last turn.
struct Talk {
  ojson messages = ojson::array();
  int last_prompt = 0;

  void ask(const Server& server, const std::string& question) {
    messages.push_back({{"role", "user"}, {"content", question}});
    const ojson answer = answer_of(server, messages);
    last_prompt = answer["usage"]["prompt_tokens"];
    messages.push_back(answer["choices"][0]["message"]);
  }
};

std::size_t stored_sessions(const Server& server) {
  v1::ListSessionsResponse listed;
  grpc::ClientContext context;
  REQUIRE(server.sessions->List(&context, {}, &listed).ok());
  return static_cast<std::size_t>(listed.sessions_size());
}

double spilled(const Server& server) {
  std::smatch port, value;
  REQUIRE(std::regex_search(server.process.err(), port,
                            std::regex("metrics on http://127.0.0.1:([0-9]+)/")));
  const std::string page = get(std::stoi(port[1]), "/metrics").body;
  REQUIRE(
      std::regex_search(page, value, std::regex("\nlintel_chat_states_spilled_total ([0-9.]+)")));
  return std::stod(value[1]);
}

TEST_CASE("after a kill the next turn of a client without a session reads itself alone") {
  const ChatFiles files;
  const std::vector<std::string> spills = {"--chat-spill", "--chat-spill-idle", "0s"};
  Talk talk;
  {
    Server server(files.flags(spills));
    for (const char* const question : {"One?", "Two?", "Three?"}) talk.ask(server, question);
    // The states are written behind the answers.
    REQUIRE(eventually([&] { return spilled(server) == 3; }));
  }
  talk.messages.push_back({{"role", "user"}, {"content", "Four?"}});
  ojson expected;
  {
    // The answer of a server that had nothing.
    Server fresh(ChatFiles().flags());
    expected = answer_of(fresh, talk.messages);
    CHECK(cached_of(expected) == 0);
  }
  Server server(files.flags(spills));
  CHECK(stored_sessions(server) == 0);
  // Another third question starts where the second turn ended. It comes first: the state of a
  // fourth turn takes the place of the second turn's.
  ojson other = talk.messages;
  other.erase(other.end() - 2, other.end());
  other.back()["content"] = "Another question.";
  CHECK(cached_of(answer_of(server, other)) > 0);
  const ojson got = answer_of(server, talk.messages);
  // The boundary is before the prompt's last token at the latest.
  CHECK(cached_of(got) == talk.last_prompt - 1);
  CHECK(got["choices"] == expected["choices"]);
}

TEST_CASE("without --chat-spill nothing of a conversation is on the disk") {
  const ChatFiles files;
  Talk talk;
  {
    Server server(files.flags());
    talk.ask(server, "One?");
  }
  talk.messages.push_back({{"role", "user"}, {"content", "Two?"}});
  Server server(files.flags());
  CHECK(cached_of(answer_of(server, talk.messages)) == 0);
}

}  // namespace
}  // namespace lintel::testing
