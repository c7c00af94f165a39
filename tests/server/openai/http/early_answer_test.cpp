// SPDX-License-Identifier: Apache-2.0
// Streams that begin before their first token, and what they say until it comes.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/openai/http/response_server.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

const std::string kComment = ": waiting\n\n";

// Its model runs when the test says so, a few tokens a step.
struct HeldServer : ResponseServer {
  HeldServer()
      : ResponseServer([](ServerOptions& held) {
          held.models.scheduling.workers = 0;
          held.models.scheduling.max_batch_rows = 4;
          held.models.scheduling.prefill_rows_per_step = 4;
          held.models.scheduling.max_queued_requests = 1;
          held.http.heartbeat_ms = std::chrono::milliseconds(10);
        }) {}
  Scheduler& scheduler() const { return server->scheduler("m"); }
};

struct Interface {
  const char* path;
  ojson body;
  bool has_event_at_once = false;
};

std::vector<Interface> interfaces() {
  const std::string text(400, 'a');
  return {
      {"/v1/chat/completions",
       {{"model", "m"},
        {"messages", ojson::array({{{"role", "user"}, {"content", text}}})},
        {"max_tokens", 4},
        {"stream", true}}},
      {"/v1/completions", {{"model", "m"}, {"prompt", text}, {"max_tokens", 4}, {"stream", true}}},
      {"/v1/responses",
       {{"model", "m"}, {"input", text}, {"max_output_tokens", 16}, {"stream", true}},
       /*has_event_at_once=*/true},
      {"/v2/models/m/generate_stream",
       {{"text_input", text}, {"parameters", {{"max_tokens", 4}}}}}};
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
    ++count;
  }
  return count;
}

// Reads on until `part` has come so many times more.
void read_until(HttpClient& client, const std::string& part, std::size_t more, std::string& seen) {
  const std::size_t wanted = count_of(seen, part) + more;
  while (count_of(seen, part) < wanted) {
    const std::string byte = client.read_raw(1);
    INFO(seen);
    REQUIRE_FALSE(byte.empty());
    seen += byte;
  }
}

}  // namespace

TEST_CASE("a stream has its headers in the queue, and comments while it waits and reads") {
  for (const Interface& asked : interfaces()) {
    CAPTURE(asked.path);
    HeldServer server;
    HttpClient client(server.port());
    client.send(
        post_text(asked.path, asked.body.dump(), "application/json", "Connection: close\r\n"));
    std::string seen;
    read_until(client, "\r\n\r\n", 1, seen);
    CHECK(server.scheduler().stats().queued == 1);
    CHECK_THAT(seen,
               Catch::StartsWith("HTTP/1.1 200 OK") && Contains("content-type: text/event-stream"));
    read_until(client, kComment, 2, seen);
    CHECK((count_of(seen, "data: ") > 0) == asked.has_event_at_once);
    // One that does not get into the queue has its own status.
    const HttpReply refused = post(server.port(), asked.path, asked.body.dump());
    CHECK(refused.status == 429);

    server.scheduler().run_one_step();
    REQUIRE(server.scheduler().stats().running == 1);
    CHECK(server.scheduler().stats().generated_tokens == 0);
    const std::size_t events = count_of(seen, "data: ");
    read_until(client, kComment, 2, seen);
    CHECK(count_of(seen, "data: ") == events);

    run_until_idle(server.scheduler());
    for (std::string more; !(more = client.read_raw(1 << 20)).empty();) seen += more;
    CHECK(count_of(seen, "data: ") > events);
    CHECK_THAT(seen, Catch::EndsWith("0\r\n\r\n"));
  }
}

TEST_CASE("a stream that fails before its first token ends with its protocol's error event") {
  for (const Interface& asked : interfaces()) {
    CAPTURE(asked.path);
    HeldServer server;
    HttpClient client(server.port());
    client.send(
        post_text(asked.path, asked.body.dump(), "application/json", "Connection: close\r\n"));
    std::string seen;
    read_until(client, kComment, 1, seen);
    server.scheduler().stop();
    for (std::string more; !(more = client.read_raw(1 << 20)).empty();) seen += more;
    CHECK_THAT(seen, Contains(asked.has_event_at_once ? "response.failed" : "\"error\":"));
    CHECK_THAT(seen, Catch::EndsWith("0\r\n\r\n"));
    if (!asked.has_event_at_once) CHECK_THAT(seen, !Contains("[DONE]"));
  }
}

TEST_CASE("an answer whose events come often enough has no comments") {
  ResponseServer server([](ServerOptions& options) {
    options.http.heartbeat_ms = std::chrono::milliseconds(60'000);
  });
  for (const Interface& asked : interfaces()) {
    const HttpReply reply = post(server.port(), asked.path, asked.body.dump());
    CHECK(reply.status == 200);
    CHECK(count_of(reply.body, kComment) == 0);
  }
}

TEST_CASE("the events of a response in the background have their headers before the next of them") {
  HeldServer server;
  ojson body = interfaces()[2].body;
  body["stream"] = false;
  body["background"] = true;
  const std::string id = server.answered(body)["id"];
  HttpClient client(server.port());
  client.send("GET /v1/responses/" + id +
              "?stream=true&starting_after=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string seen;
  read_until(client, kComment, 2, seen);
  CHECK_THAT(seen, Catch::StartsWith("HTTP/1.1 200 OK"));
  CHECK(count_of(seen, "data: ") == 0);
  run_until_idle(server.scheduler());
  read_until(client, "[DONE]", 1, seen);
}

}  // namespace lintel::testing
