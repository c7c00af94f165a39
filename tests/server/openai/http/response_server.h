// SPDX-License-Identifier: Apache-2.0
// ResponseServer: a server of /v1/responses, for tests of it over HTTP and WebSockets.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/support/http_client.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {

using ojson = nlohmann::ordered_json;

// A model with Llama's tokens, which have an end, and a template that shows tools.
struct ResponseServer {
  explicit ResponseServer(const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {
  }) {
    const auto path = files.path() / "chat.jinja";
    std::ifstream golden(std::filesystem::path(LINTEL_TEST_DATA) /
                         "golden/chat/templates/qwen2_5.json");
    std::ofstream(path) << ojson::parse(golden)["template"].get<std::string>();
    options.models.chat_templates = {{"m", path}};
    change(options);
    begin();
  }
  // Adds a session store.
  static void store(ServerOptions& options) {
    options.durable.store = options.models.chat_templates.at(0).path.parent_path() / "store";
  }

  void begin() {
    server = std::make_unique<TestServer>(options, clock, GivenModels{{"m", llama_text_model()}});
  }
  void restart() {
    server.reset();
    begin();
  }
  int port() const { return server->server().http_port(); }

  HttpReply create(const ojson& body, const std::string& headers = "") const {
    return post(port(), "/v1/responses", body.dump(), "application/json", headers);
  }
  ojson answered(const ojson& body, const std::string& headers = "") const {
    const HttpReply reply = create(body, headers);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  }
  HttpReply ask(const std::string& method, const std::string& path,
                const std::string& headers = "") const {
    return request(port(), method + " /v1/responses/" + path + " HTTP/1.1\r\nHost: localhost\r\n" +
                               headers + "\r\n");
  }

  const TemporaryDirectory files;
  SteadyClock clock;
  ServerOptions options = with_http();
  std::unique_ptr<TestServer> server;
};

inline ojson asked_for(const ojson& input, int max_tokens = 16) {
  return {{"model", "m"}, {"input", input}, {"max_output_tokens", max_tokens}, {"seed", 7}};
}

inline std::string text_of_response(const ojson& response) {
  std::string text;
  for (const ojson& item : response["output"]) {
    if (item["type"] == "message") text += item["content"][0]["text"];
  }
  return text;
}

}  // namespace lintel::testing
