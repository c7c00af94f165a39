// SPDX-License-Identifier: Apache-2.0
// Bodies of JSON that cost much more than they are long, over HTTP.
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/http/connect/rpc_format.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using nlohmann::json;

constexpr std::size_t kBombBytes = 1'800'000;

std::string repeated(std::string text, const std::string& piece, const std::string& end) {
  while (text.size() + piece.size() + end.size() < kBombBytes) text += piece;
  return text + end;
}

std::string of_names(std::string text, const std::string& end) {
  for (int i = 0; text.size() + 32 < kBombBytes; ++i) {
    text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  }
  return text + end;
}

double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST_CASE("JSON bombs in every protocol over HTTP cost little CPU time and leave no memory",
          "[threat-31]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  struct Bomb {
    const char* name;
    std::string body;
  };
  const Bomb bombs[] = {
      {"depth", std::string(kBombBytes, '[')},
      {"depth of objects", repeated("", "{\"a\":", "")},
      {"objects", repeated(R"({"given":[{})", ",{}", "]}")},
      {"objects after numbers",
       repeated(repeated(R"({"inputs":[0)", ",0", "").substr(0, kBombBytes / 2), ",{}", "]}")},
      {"names", of_names("{", "}")},
      {"names of logit_bias", of_names(R"({"model":"bytes","prompt":"a","logit_bias":{)", "}}")},
      {"names of logitBias",
       of_names(R"({"prompt":{"text":"a"},"sampling":{"logitBias":{)", "}}}")},
      {"names of parameters", of_names(R"({"text_input":"a","parameters":{)", "}}")}};
  const std::string connect = "application/connect+json", plain = "application/json";
  struct Target {
    std::string path, type;
  };
  const Target targets[] = {{kGeneratePath, plain},
                            {kGeneratePath, connect},
                            {"/lintel.v1.GenerationService/Score", connect},
                            {"/lintel.v1.ModelService/List", plain},
                            {"/v1/completions", plain},
                            {"/v2/models/bytes/infer", plain},
                            {"/v2/models/bytes/generate", plain}};
  std::uint64_t number = 0;
  for (const Bomb& bomb : bombs) {
    for (const Target& target : targets) {
      if (!is_drawn(number++, 2)) continue;
      INFO(bomb.name << " at " << target.path << " as " << target.type);
      const double before = process_cpu_seconds();
      const HttpReply reply =
          post(port, target.path, target.type == connect ? envelope(0, bomb.body) : bomb.body,
               target.type);
      INFO(reply.status << " " << reply.body.substr(0, 300));
      CHECK(reply.whole);
      const int refused = target.path.ends_with("/generate") ? 422 : 400;
      CHECK((reply.status == refused || (target.type == connect && reply.status == 200)));
      CHECK(reply.body.find("json.exception") == std::string::npos);
      // A list that is searched for each name takes 20 s.
      CHECK(process_cpu_seconds() - before < 5);
    }
  }
  CHECK(comes_to(server, "lintel_http_body_bytes", 0));
  CHECK(post(port, kGeneratePath, R"({"prompt":{"text":"a"},"maxNewTokens":1})").status == 200);
}

TEST_CASE("a chat of 10,000 messages is read over HTTP") {
  TestServer server({"bytes"}, with_http());
  json body = {{"model", "bytes"}, {"prompt", "a"}, {"messages", json::array()}};
  for (int i = 0; i < 10'000; ++i) {
    body["messages"].push_back({{"role", "user"}, {"content", "message " + std::to_string(i)}});
  }
  const HttpReply reply = post(server.server().http_port(), "/v1/completions", body.dump());
  CHECK(reply.status == 200);
  CHECK(reply.header("lintel-ignored") == "messages");  // of which /v1/completions has none
}

TEST_CASE("bodies whose trees find no memory are refused with a time to retry", "[threat-31]") {
  ServerOptions options = with_http();
  options.http.memory_bytes = 200'000;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  std::string body = R"({"model":"bytes","prompt":[)" + std::string(60'000, ' ');
  for (int i = 0; i < 10'000; ++i) body += i > 0 ? ",1" : "1";
  const HttpReply reply = post(port, "/v1/completions", body + "]}");
  CHECK(reply.status == 503);
  CHECK_FALSE(reply.header("retry-after").empty());
  CHECK_FALSE(json::parse(reply.body)["error"]["message"].get<std::string>().empty());
  CHECK(comes_to(server, "lintel_http_body_bytes", 0));
}

TEST_CASE("clients that go while their long bodies are read leave nothing behind", "[threat-32]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const std::string body = repeated(R"({"prompt":[1)", ",1", "]}");
  for (int i = 0; i < 8; ++i) {
    HttpClient client(port);
    client.send(post_text("/v1/completions", body, "application/json"));
  }
  CHECK(comes_to(server, "lintel_http_body_bytes", 0));
  CHECK(comes_to(server, "lintel_http_connections", 0));
  CHECK(post(port, kGeneratePath, R"({"prompt":{"text":"a"},"maxNewTokens":1})").status == 200);
}

}  // namespace lintel::testing
