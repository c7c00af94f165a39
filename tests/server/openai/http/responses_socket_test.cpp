// SPDX-License-Identifier: Apache-2.0
// /v1/responses over a WebSocket.
#include "server/openai/http/responses_socket.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lintel/v1/response.grpc.pb.h"
#include "server/openai/http/connection_turns.h"
#include "tests/server/http/transport/tls_client.h"
#include "tests/server/openai/http/response_server.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/server/support/websocket_client.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kPath = "/v1/responses";

ojson turn(const ojson& input, int max_tokens = 16) {
  ojson body = {{"type", "response.create"}, {"store", false}};
  body.update(asked_for(input, max_tokens));
  return body;
}

ojson endless_turn() {
  ojson body = turn("Hello", 1'000'000'000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  return body;
}

void allow_endless(ServerOptions& options) { options.models.limits.max_new_tokens = 1'000'000'000; }

bool is_last(const ojson& event) {
  const std::string type = event["type"];
  return type == "error" || type == "response.completed" || type == "response.incomplete" ||
         type == "response.failed";
}

// A client that speaks in events.
struct EventClient : WebSocketClient {
  explicit EventClient(const ResponseServer& server, const std::string& headers = "")
      : WebSocketClient(server.port(), kPath, headers) {
    REQUIRE(handshake().status == 101);
  }
  explicit EventClient(Wire wire) : WebSocketClient(std::move(wire), kPath) {
    REQUIRE(handshake().status == 101);
  }

  ojson read_event() {
    const WebSocketFrame frame = read();
    INFO(frame.payload);
    REQUIRE(frame.opcode == kText);
    return ojson::parse(frame.payload);
  }
  std::vector<ojson> read_turn() {
    std::vector<ojson> events;
    do {
      events.push_back(read_event());
    } while (!is_last(events.back()));
    return events;
  }
  std::vector<ojson> ask(const ojson& body) {
    send(body.dump());
    return read_turn();
  }
  // The response of a turn, which does not fail.
  ojson answered(const ojson& body) {
    const ojson last = ask(body).back();
    INFO(last.dump());
    REQUIRE(last.contains("response"));
    REQUIRE(last["type"] != "response.failed");
    return last["response"];
  }
  // "400 previous_response_not_found"
  std::string refused(const ojson& body) {
    const ojson last = ask(body).back();
    INFO(last.dump());
    REQUIRE(last["type"] == "error");
    CHECK_FALSE(last["error"]["message"].get<std::string>().empty());
    return std::to_string(last["status"].get<int>()) + " " +
           last["error"]["code"].get<std::string>();
  }
};

// Removes the parts that differ between two answers with the same bits.
std::string without_ids(std::string text, const ojson& response) {
  const std::string digits = response["id"].get<std::string>().substr(5);
  for (std::size_t at = 0; (at = text.find(digits)) != std::string::npos;) {
    text.replace(at, digits.size(), "ID");
  }
  for (const std::string member : {"\"created_at\":", "\"completed_at\":"}) {
    for (std::size_t at = 0; (at = text.find(member, at)) != std::string::npos;) {
      at += member.size();
      text.erase(at, text.find_first_of(",}", at) - at);
    }
  }
  return text;
}

std::int64_t body_bytes(const ResponseServer& server) {
  return static_cast<std::int64_t>(values(server.server->server()).at("lintel_http_body_bytes"));
}

TEST_CASE("responses socket: a turn has the events of the stream over HTTP, byte by byte") {
  ResponseServer server;
  const bool is_stored = GENERATE(false, true);
  CAPTURE(is_stored);
  server.answered(asked_for("Hello", 30));  // so that both find the same prefix cached
  ojson body = turn("Hello", 30);
  body["store"] = is_stored;
  EventClient client(server);
  client.send(body.dump());
  std::vector<std::string> texts;
  ojson last;
  do {
    texts.push_back(client.read().payload);
    last = ojson::parse(texts.back());
  } while (!is_last(last));
  CHECK(last["type"] == "response.incomplete");

  body.erase("type");
  body["stream"] = true;
  const std::string sse = server.create(body).body;
  const std::size_t id = sse.find("resp_");
  REQUIRE(id != std::string::npos);
  const std::string expected = without_ids(sse, {{"id", sse.substr(id, 37)}});
  std::string streamed;
  for (const std::string& text : texts) {
    streamed += "event: " + ojson::parse(text)["type"].get<std::string>() +
                "\ndata: " + without_ids(text, last["response"]) + "\n\n";
  }
  CHECK(streamed + "data: [DONE]\n\n" == expected);
  CHECK(server.ask("GET", last["response"]["id"]).status == (is_stored ? 200 : 404));
}

TEST_CASE("responses socket: turns that are not stored continue as stored ones do") {
  ResponseServer server;
  ojson body = asked_for("What is the word?");
  const ojson stored = server.answered(body);
  body = asked_for("And the next?");
  body["previous_response_id"] = stored["id"];
  const ojson stored_second = server.answered(body);
  body["previous_response_id"] = stored_second["id"];
  body["input"] = "And then?";
  const ojson stored_third = server.answered(body);

  EventClient client(server);
  const ojson first = client.answered(turn("What is the word?"));
  body = turn("And the next?");
  body["previous_response_id"] = first["id"];
  const ojson second = client.answered(body);
  CHECK(second["previous_response_id"] == first["id"]);
  CHECK(second["store"] == false);
  CHECK(text_of_response(second) == text_of_response(stored_second));
  CHECK(second["usage"]["input_tokens"] == stored_second["usage"]["input_tokens"]);
  body["previous_response_id"] = second["id"];
  body["input"] = "And then?";
  const ojson third = client.answered(body);
  CHECK(text_of_response(third) == text_of_response(stored_third));
  CHECK(third["usage"]["input_tokens"] == stored_third["usage"]["input_tokens"]);
  CHECK(third["usage"]["input_tokens_details"]["cached_tokens"].get<int>() >=
        stored_third["usage"]["input_tokens_details"]["cached_tokens"].get<int>());
  CHECK(third["usage"]["input_tokens_details"]["cached_tokens"].get<int>() > 0);

  // A branch of the first one, which is still there.
  body["previous_response_id"] = first["id"];
  body["input"] = "And the next?";
  CHECK(text_of_response(client.answered(body)) == text_of_response(stored_second));
  // One that continues a stored response.
  body["previous_response_id"] = stored["id"];
  const ojson local = client.answered(body);
  CHECK(text_of_response(local) == text_of_response(stored_second));
  body["previous_response_id"] = local["id"];
  body["input"] = "And then?";
  CHECK(text_of_response(client.answered(body)) == text_of_response(stored_third));

  // Neither another connection nor HTTP has them.
  EventClient other(server);
  body["previous_response_id"] = second["id"];
  CHECK(other.refused(body) == "400 previous_response_not_found");
  body.erase("type");
  CHECK(ojson::parse(server.create(body).body)["error"]["code"] == "previous_response_not_found");
}

TEST_CASE("responses socket: a failed continuation forgets its parent") {
  ResponseServer server;
  EventClient client(server);
  const ojson first = client.answered(turn("Hello")), other = client.answered(turn("Other"));
  ojson next = turn("More");
  next["previous_response_id"] = first["id"];
  ojson failing = next;
  SECTION("an output without a call") {
    failing["input"] = ojson::parse(
        R"([{"type": "function_call_output", "call_id": "call_missing", "output": "none"}])");
    CHECK(client.refused(failing) == "400 invalid_request_error");
  }
  SECTION("a member that is refused") {
    failing["temperature"] = -1;
    CHECK(client.refused(failing) == "400 invalid_request_error");
  }
  SECTION("a body that takes too much memory") {
    failing["x"] = std::vector<ojson>(700'000, ojson::array());
    CHECK(client.refused(failing) == "400 invalid_request_error");
  }
  SECTION("what is to be stored continues none that is not") {
    failing["store"] = true;
    CHECK(client.refused(failing) == "400 invalid_request_error");
  }
  CHECK(client.refused(next) == "400 previous_response_not_found");
  next["previous_response_id"] = other["id"];
  client.answered(next);
}

TEST_CASE("responses socket: an error is an event, and the connection stays") {
  ResponseServer server;
  EventClient client(server);
  const auto refused = [&](const ojson& member) {
    ojson body = turn("Hello");
    body.update(member);
    return client.refused(body);
  };
  client.send("nonsense");
  const ojson event = client.read_event();
  CHECK(event["type"] == "error");
  CHECK(event["status"] == 400);
  CHECK(event["error"]["code"] == "invalid_request_error");
  CHECK_THAT(event["error"]["message"].get<std::string>(), Contains("JSON"));
  client.send("[]");
  CHECK(client.read_event()["status"] == 400);
  CHECK(refused({{"type", "response.cancel"}}) == "400 invalid_request_error");
  CHECK(refused({{"type", nullptr}}) == "400 invalid_request_error");
  CHECK(refused({{"background", true}, {"store", true}}) == "400 invalid_request_error");
  CHECK(refused({{"conversation", "c"}}) == "400 invalid_request_error");
  CHECK(refused({{"model", "nosuch"}}) == "404 model_not_found");
  CHECK(refused({{"previous_response_id", "resp_missing"}}) == "400 previous_response_not_found");
  client.answered(turn("Hello"));
  ojson body = turn("Hello");
  body["stream"] = false;
  CHECK(client.ask(body).size() > 5);
}

TEST_CASE("responses socket: turns run one after the other, and pings are answered meanwhile") {
  ResponseServer server;
  EventClient client(server);
  // Both come in one write, and the second in two frames.
  const std::string second = turn("Second").dump();
  client.send_raw(client_frame(kText, turn("First", 200).dump()) +
                  client_frame(kText, second.substr(0, 9), false) +
                  client_frame(kContinuation, second.substr(9)));
  const std::vector<ojson> first = client.read_turn();
  for (const ojson& event : first) {
    if (event.contains("response")) CHECK(event["response"]["max_output_tokens"] == 200);
  }
  CHECK(client.read_turn().back()["response"]["max_output_tokens"] == 16);
  client.send_raw(client_frame(kPing, "are you there?"));
  const WebSocketFrame pong = client.read();
  CHECK(pong.opcode == kPong);
  CHECK(pong.payload == "are you there?");
  client.send_raw(client_frame(kClose, "\x03\xe8"));
  const WebSocketFrame closed = client.read();
  CHECK(closed.opcode == kClose);
  CHECK(closed.close_code() == 1000);
  CHECK(client.ended());
  CHECK(comes_to(*server.server, "lintel_http_connections", 0));
}

TEST_CASE("responses socket: a ping is answered while a turn runs") {
  ResponseServer server(allow_endless);
  EventClient client(server);
  client.send(endless_turn().dump());
  client.read_event();
  client.send_raw(client_frame(kPing, "p"));
  WebSocketFrame frame;
  do {
    frame = client.read();
  } while (frame.opcode == kText);
  CHECK(frame.opcode == kPong);
  // The client's close ends the turn.
  client.send_raw(client_frame(kClose, "\x03\xe8"));
  do {
    frame = client.read();
  } while (frame.opcode == kText);
  CHECK(frame.close_code() == 1000);
  CHECK(comes_to(*server.server, "lintel_streams", 0));
}

TEST_CASE("responses socket: messages that are not served close the connection", "[threat-84]") {
  ResponseServer server(
      [](ServerOptions& options) { options.connections.max_message_bytes = 100'000; });
  const auto closed_with = [&](const std::string& bytes) {
    EventClient client(server);
    client.send_raw(bytes);
    const WebSocketFrame frame = client.read();
    CHECK(frame.opcode == kClose);
    CHECK(client.ended());
    return frame.close_code();
  };
  CHECK(closed_with(client_frame(kBinary, "{}")) == 1003);
  CHECK(closed_with(client_frame(kText, std::string(100'001, ' '))) == 1009);
  CHECK(closed_with(client_frame(kText, "{}", true, /*is_masked=*/false)) == 1002);
  CHECK(closed_with(client_frame(kText, "\xff")) == 1007);
  EventClient client(server);
  client.answered(turn(std::string(40'000, 'a').insert(1, "\xc3\xa9").substr(0, 200)));
  CHECK(comes_to(*server.server, "lintel_http_body_bytes", 0));
}

TEST_CASE("responses socket: the handshake is checked as every request is",
          "[threat-36][threat-84]") {
  const TokenFile tokens;
  ResponseServer server(
      [&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  const std::string alice = "Authorization: Bearer token-alice\r\n";
  const auto status = [&](const std::string& headers) {
    return WebSocketClient(server.port(), kPath, headers).handshake().status;
  };
  CHECK(status(alice) == 101);
  CHECK(status("") == 401);
  CHECK(status("Authorization: Bearer wrong\r\n") == 401);
  CHECK(status(alice + "Origin: http://localhost\r\n") == 101);
  CHECK(status(alice + "Origin: https://example.org\r\n") == 403);
  CHECK(status(alice + "Content-Length: 1\r\n") == 400);
  const HttpReply plain = server.ask("GET", "", alice);
  CHECK(plain.status == 404);
  const HttpReply no_upgrade =
      request(server.port(), "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n" + alice + "\r\n");
  CHECK(no_upgrade.status == 426);
  CHECK(no_upgrade.header("upgrade") == "websocket");
  std::string old = websocket_handshake(kPath, alice);
  old.replace(old.find("Version: 13"), 11, "Version: 12");
  const HttpReply refused = request(server.port(), old);
  CHECK(refused.status == 426);
  CHECK(refused.header("sec-websocket-version") == "13");
  // A route without a WebSocket ignores the header.
  CHECK(WebSocketClient(server.port(), "/v1/models", alice).handshake().status == 200);
}

TEST_CASE("responses socket: a token that is revoked is refused in an open connection",
          "[threat-23]") {
  const TokenFile tokens;
  ResponseServer server(
      [&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  EventClient client(server, "Authorization: Bearer token-alice\r\n");
  EventClient scores(server, "Authorization: Bearer token-carol\r\n");
  client.answered(turn("Hello"));
  CHECK(scores.refused(turn("Hello")).substr(0, 4) == "403 ");
  tokens.write(token_line("bob", "generate"));
  REQUIRE(eventually([&] { return client.ask(turn("Hello")).back()["type"] == "error"; }));
  CHECK(client.refused(turn("Hello")) == "401 invalid_api_key");
}

TEST_CASE("responses socket: a turn without events has pings") {
  ResponseServer server([](ServerOptions& options) {
    options.models.scheduling.workers = 0;
    options.http.heartbeat_ms = std::chrono::milliseconds(10);
  });
  EventClient client(server);
  client.send(turn("Hello").dump());
  CHECK(client.read_event()["type"] == "response.created");
  CHECK(client.read_event()["type"] == "response.in_progress");
  for (int i = 0; i < 2; ++i) CHECK(client.read().opcode == kPing);
  client.send_raw(client_frame(kPong, ""));
  run_until_idle(server.server->scheduler("m"));
  WebSocketFrame frame;
  do {
    frame = client.read();
    REQUIRE((frame.opcode == kPing || frame.opcode == kText));
  } while (frame.opcode == kPing || !is_last(ojson::parse(frame.payload)));
}

TEST_CASE("responses socket: a client that reads slowly pauses its turn", "[threat-34]") {
  ResponseServer server([](ServerOptions& options) {
    allow_endless(options);
    options.http.write_timeout_ms = std::chrono::milliseconds(60'000);
  });
  EventClient client(plain_wire(server.port(), /*receive_buffer_bytes=*/4096));
  client.send(endless_turn().dump());
  client.read_event();
  Scheduler& scheduler = server.server->scheduler("m");
  REQUIRE(eventually([&] {
    const std::uint64_t before = scheduler.stats().generated_tokens;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return before > 0 && scheduler.stats().generated_tokens == before;
  }));
  client.leave();
  CHECK(comes_to(*server.server, "lintel_streams", 0));
}

TEST_CASE("responses socket: a client that takes nothing, says nothing or stops in a message goes",
          "[threat-84]") {
  ResponseServer server([](ServerOptions& options) {
    allow_endless(options);
    options.http.write_timeout_ms = std::chrono::milliseconds(200);
    options.http.body_timeout_ms = std::chrono::milliseconds(200);
    options.http.idle_timeout_ms = std::chrono::milliseconds(500);
  });
  SECTION("takes nothing") {
    EventClient client(plain_wire(server.port(), /*receive_buffer_bytes=*/4096));
    client.send(endless_turn().dump());
    CHECK(comes_to(*server.server, "lintel_http_timeouts_total", 1));
    CHECK(comes_to(*server.server, "lintel_streams", 0));
  }
  SECTION("stops in a message") {
    EventClient client(server);
    client.send_raw(client_frame(kText, turn("Hello").dump()).substr(0, 40));
    CHECK(client.read().close_code() == 1008);
    CHECK(comes_to(*server.server, "lintel_http_timeouts_total", 1));
  }
  SECTION("says nothing") {
    EventClient client(server);
    client.answered(turn("Hello"));
    CHECK(client.read().close_code() == 1001);
    CHECK(comes_to(*server.server, "lintel_http_timeouts_total", 0));
  }
}

TEST_CASE("responses socket: a message that stops during a turn ends it after --http-body-timeout",
          "[threat-84]") {
  ResponseServer server([](ServerOptions& options) {
    allow_endless(options);
    options.http.body_timeout_ms = std::chrono::milliseconds(200);
  });
  EventClient client(server);
  client.send(endless_turn().dump());
  client.read_event();
  client.send_raw(client_frame(kText, turn("Hello").dump()).substr(0, 40));
  WebSocketFrame frame;
  do {
    frame = client.read();
  } while (frame.opcode == kText);
  CHECK(frame.close_code() == 1008);
  CHECK(comes_to(*server.server, "lintel_http_timeouts_total", 1));
  CHECK(comes_to(*server.server, "lintel_streams", 0));
}

TEST_CASE("responses socket: messages that come during turns take no memory from other requests",
          "[threat-84]") {
  constexpr int kClients = 8;
  constexpr std::size_t kSize = 160'000;
  ResponseServer server([](ServerOptions& options) {
    allow_endless(options);
    options.http.memory_bytes = 400'000;
  });
  // Each half a message, which is all that the server holds of them.
  const std::string half = client_frame(kText, std::string(kSize, ' ')).substr(0, kSize / 2);
  std::vector<std::unique_ptr<EventClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<EventClient>(server));
    clients.back()->send(endless_turn().dump());
    clients.back()->read_event();
    clients.back()->send_raw(half);
  }
  // The server reads ahead of each as much as it may, and no more.
  REQUIRE(eventually([&] { return body_bytes(server) >= kClients * (16 << 10); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(body_bytes(server) <= kClients * (20 << 10));
  ojson large = asked_for("Hello");
  large["instructions"] = std::string(50'000, ' ');
  CHECK(server.create(large).status == 200);
  clients.clear();
  CHECK(comes_to(*server.server, "lintel_http_body_bytes", 0));
}

TEST_CASE("responses socket: a long message that comes during a turn is answered after it") {
  ResponseServer server([](ServerOptions& options) {
    options.http.body_timeout_ms = std::chrono::milliseconds(60'000);
  });
  EventClient client(server);
  ojson second = turn("Second");
  second["metadata"] = {{"a", "b"}};
  std::string text = second.dump();
  text.insert(1, std::string(100'000, ' '));
  const std::string frame = client_frame(kText, text);
  client.send_raw(client_frame(kText, turn("First", 200).dump()) + frame.substr(0, 50'000));
  CHECK(client.read_turn().back()["response"]["max_output_tokens"] == 200);
  client.send_raw(frame.substr(50'000));
  CHECK(client.read_turn().back()["response"]["metadata"] == second["metadata"]);
}

TEST_CASE("responses socket: messages count among the bodies of all requests", "[threat-84]") {
  ResponseServer server([](ServerOptions& options) { options.http.memory_bytes = 200'000; });
  EventClient holder(server), client(server);
  holder.send_raw(client_frame(kText, std::string(150'000, ' '), false));
  REQUIRE(comes_to(*server.server, "lintel_http_body_bytes", 150'000));
  client.send_raw(client_frame(kText, std::string(100'000, ' ')));
  CHECK(client.read().close_code() == 1013);
  holder.leave();
  CHECK(comes_to(*server.server, "lintel_http_body_bytes", 0));
  EventClient(server).answered(turn("Hello"));
}

TEST_CASE("responses socket: a drain ends a turn first, then the connection with code 1001") {
  ResponseServer server;
  EventClient idle(server), running(server);
  idle.answered(turn("Hello"));
  ojson body = turn("Hello", 2000);
  body["logit_bias"] = {{std::to_string(kLlamaEnd), -100}};
  running.send(body.dump());
  running.read_event();
  std::thread draining([&] { CHECK(server.server->server().drain(std::chrono::seconds(60))); });
  CHECK(idle.read().close_code() == 1001);
  CHECK(running.read_turn().back()["type"] == "response.incomplete");
  CHECK(running.read().close_code() == 1001);
  idle.leave();
  running.leave();
  draining.join();
}

TEST_CASE("responses socket: over TLS it is the same") {
  const CertificateAuthority authority;
  const IssuedCertificate certificate = authority.issue("localhost");
  ResponseServer server([&](ServerOptions& options) {
    options.security.tls_cert = certificate.certificate;
    options.security.tls_key = certificate.key;
  });
  TlsClient tls(authority);
  EventClient client(tls.wire(server.port()));
  const ojson first = client.answered(turn("Hello"));
  ojson next = turn("More");
  next["previous_response_id"] = first["id"];
  CHECK(client.ask(next).size() > 5);
  client.send_raw(client_frame(kClose, ""));
  CHECK(client.read().opcode == kClose);
}

TEST_CASE("responses socket: a caller over gRPC keeps its turns in the same way") {
  ResponseServer server;
  const auto stub = v1::ResponseService::NewStub(server.server->channel());
  const auto create = [&](const ojson& body, const std::string& earlier, v1::ResponseEvents& last) {
    v1::CreateResponseRequest request;
    request.set_body(body.dump());
    request.mutable_connection()->set_earlier_items(earlier);
    grpc::ClientContext context;
    const auto reader = stub->Create(&context, request);
    while (reader->Read(&last)) {
    }
    return reader->Finish().error_code();
  };
  v1::ResponseEvents first, second, refused;
  REQUIRE(create(turn("Hello"), "", first) == grpc::StatusCode::OK);
  CHECK(ojson::parse(first.response())["id"] == first.kept().response_id());
  CHECK(ojson::parse(first.kept().items()).size() == 2);
  ojson next = turn("More");
  next["previous_response_id"] = first.kept().response_id();
  REQUIRE(create(next, first.kept().items(), second) == grpc::StatusCode::OK);
  EventClient client(server);
  ojson same = turn("More");
  same["previous_response_id"] = client.answered(turn("Hello"))["id"];
  CHECK(text_of_response(client.answered(same)) ==
        text_of_response(ojson::parse(second.response())));
  // Items that a caller keeps are checked as all input is.
  for (const char* const wrong :
       {"[", "{}", "[1]", R"([{"type": "item_reference", "id": "msg_1"}])",
        R"([{"type": "compaction", "encrypted_content": "x"}])",
        R"([{"type": "function_call_output", "call_id": "c", "output": "o"}])"}) {
    CAPTURE(wrong);
    CHECK(create(next, wrong, refused) == grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_CASE("responses socket: what a connection keeps is bounded", "[threat-85]") {
  const auto all = std::make_shared<std::atomic<std::size_t>>(0);
  const auto id = [](std::size_t i) { return "resp_" + std::to_string(i); };
  {
    ConnectionTurns turns(all);
    turns.add("a", "", "[1]");
    turns.add("b", "a", "[2,3]");
    turns.add("c", "missing", "[4]");
    CHECK(turns.find("b") == "[1,2,3]");
    CHECK(turns.find("c") == "[4]");
    CHECK(*all == 3 + 7 + 3);
    turns.forget("a");
    turns.forget("a");
    CHECK_FALSE(turns.find("a"));
    CHECK(turns.find("b") == "[1,2,3]");
    for (std::size_t i = 0; i < ConnectionTurns::kMostTurns; ++i) turns.add(id(i), "", "[5]");
    CHECK_FALSE(turns.find("b"));
    CHECK_FALSE(turns.find("c"));
    CHECK(turns.find(id(0)) == "[5]");
    const std::string large = "[\"" + std::string(ConnectionTurns::kMostBytes / 2, 'x') + "\"]";
    turns.add("large", "", large);
    CHECK(*all <= ConnectionTurns::kMostBytes);
    CHECK(turns.find("large") == large);
    turns.add("both", "large", large);  // together they are too much
    CHECK_FALSE(turns.find("both"));
    CHECK(turns.find("large"));
    turns.add("second", "", large);
    CHECK_FALSE(turns.find("large"));
    CHECK(turns.find("second"));

    // Another connection's stay where all together are too much.
    *all += ConnectionTurns::kMostBytesOfAll - large.size();
    ConnectionTurns other(all);
    other.add("d", "", large);
    CHECK_FALSE(other.find("d"));
    CHECK(turns.find("second"));
    *all -= ConnectionTurns::kMostBytesOfAll - large.size();
  }
  CHECK(*all == 0);
}

}  // namespace
}  // namespace lintel::testing
