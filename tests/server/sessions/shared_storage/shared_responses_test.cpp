// SPDX-License-Identifier: Apache-2.0
// Responses of several servers with one store.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/sessions/shared_storage/shared_servers.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;

struct ResponseFleet {
  ResponseFleet() {
    const auto path = files.path() / "chat.jinja";
    std::ifstream golden(std::filesystem::path(LINTEL_TEST_DATA) /
                         "golden/chat/templates/chatml.json");
    std::ofstream(path) << ojson::parse(golden)["template"].get<std::string>();
    for (const char* const name : {"one", "two"}) {
      ServerOptions options = with_http();
      options.models.chat_templates = {{"m", path}};
      options.durable.store = url_of(redis.endpoint());
      options.durable.response_resume = std::chrono::seconds(5);
      options.durable.chat_spill = true;
      options.durable.chat_spill_idle = std::chrono::seconds(0);
      options.replica_id = name;
      servers.push_back(
          std::make_unique<TestServer>(options, clock, GivenModels{{"m", llama_text_model()}}));
    }
  }
  HttpReply create(std::size_t at, const ojson& body, const std::string& headers = "") {
    return post(servers[at]->server().http_port(), "/v1/responses", body.dump(), "application/json",
                headers);
  }
  HttpReply ask(std::size_t at, const std::string& id, const std::string& method = "GET") {
    return request(servers[at]->server().http_port(),
                   method + " /v1/responses/" + id + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }

  const TemporaryDirectory files;
  RedisServer redis;
  SteadyClock clock;
  std::vector<std::unique_ptr<TestServer>> servers;
};

TEST_CASE("responses: another server of the store reads, continues, repeats and deletes them") {
  ResponseFleet fleet;
  const std::string key = "Idempotency-Key: one\r\n";
  const ojson body = {{"model", "m"}, {"input", "Hello"}, {"max_output_tokens", 20}};
  const HttpReply first = fleet.create(0, body, key);
  INFO(first.body);
  REQUIRE(first.status == 200);
  const std::string id = ojson::parse(first.body)["id"];
  CHECK(fleet.ask(1, id).body == first.body);
  CHECK(fleet.create(1, body, key).body == first.body);
  ojson next = {{"model", "m"}, {"input", "More"}, {"max_output_tokens", 20}, {"seed", 3}};
  next["previous_response_id"] = id;
  const HttpReply here = fleet.create(0, next), there = fleet.create(1, next);
  REQUIRE(there.status == 200);
  CHECK(ojson::parse(here.body)["output"][0]["content"] ==
        ojson::parse(there.body)["output"][0]["content"]);
  CHECK(fleet.ask(1, id, "DELETE").status == 200);
  CHECK(fleet.ask(0, id).status == 404);
  CHECK(fleet.create(0, next).status == 400);
  next["previous_response_id"] = ojson::parse(there.body)["id"];
  CHECK(fleet.create(0, next).status == 200);  // it has the deleted one's items
}

TEST_CASE("responses: one in the background continues at another server, once its own is gone") {
  ResponseFleet fleet;
  ojson body = {{"model", "m"},
                {"input", "Hello"},
                {"max_output_tokens", runs_every_case() ? 50'000 : 12'000},
                {"seed", 7},
                {"logit_bias", {{std::to_string(kLlamaEnd), -100}}}};
  const ojson whole = ojson::parse(fleet.create(1, body).body);
  body["background"] = true;
  const std::string id = ojson::parse(fleet.create(0, body).body)["id"];
  fleet.servers[0].reset();
  ojson found = ojson::parse(fleet.ask(1, id).body);
  CHECK(found["status"] == "in_progress");
  REQUIRE(eventually([&] {
    found = ojson::parse(fleet.ask(1, id).body);
    return found["status"] != "in_progress";
  }));
  CHECK(found["status"] == "incomplete");
  CHECK(found["output"][0]["content"] == whole["output"][0]["content"]);
}

TEST_CASE("chat: a turn that one server stores is not read again by another that runs") {
  ResponseFleet fleet;
  const auto chat = [&](std::size_t at, const ojson& messages) {
    const ojson body = {{"model", "m"}, {"messages", messages}, {"max_tokens", 5}, {"seed", 7}};
    const HttpReply reply =
        post(fleet.servers[at]->server().http_port(), "/v1/chat/completions", body.dump());
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ojson::parse(reply.body);
  };
  ojson messages = ojson::array({{{"role", "user"}, {"content", "What is the word?"}}});
  const ojson first = chat(0, messages);
  REQUIRE(eventually(
      [&] { return values(fleet.servers[1]->server()).at("lintel_chat_states_stored") == 1; }));
  messages.push_back(first["choices"][0]["message"]);
  messages.push_back({{"role", "user"}, {"content", "And the next?"}});
  const ojson next = chat(1, messages);
  CHECK(next["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>() > 10);
}

TEST_CASE("responses: one that runs at a server of the store is in progress at the others") {
  ResponseFleet fleet;
  const std::string key = "Idempotency-Key: one\r\n";
  const ojson body = {{"model", "m"},
                      {"input", "Hello"},
                      {"max_output_tokens", runs_every_case() ? 30'000 : 12'000},
                      {"stream", true},
                      {"logit_bias", {{std::to_string(kLlamaEnd), -100}}}};
  HttpClient client(plain_wire(fleet.servers[0]->server().http_port(), 8192));
  client.send(post_text("/v1/responses", body.dump(), "application/json", key));
  const std::string seen = client.read_raw(2000);
  const std::string id = seen.substr(seen.find("resp_"), 37);
  CHECK(ojson::parse(fleet.ask(1, id).body)["status"] == "in_progress");
  CHECK(fleet.create(1, body, key).status == 409);
  client.close();
  // Cut off, it is repeated by any of them.
  REQUIRE(eventually([&] { return ojson::parse(fleet.ask(1, id).body)["status"] == "cancelled"; }));
  const HttpReply repeated = fleet.create(1, body, key);
  CHECK(repeated.status == 200);
  CHECK(repeated.body.find(id) != std::string::npos);
  CHECK(ojson::parse(fleet.ask(0, id).body)["status"] == "incomplete");
}

}  // namespace
}  // namespace lintel::testing
