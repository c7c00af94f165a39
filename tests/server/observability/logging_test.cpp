// SPDX-License-Identifier: Apache-2.0
// How calls are known in the logs.
#include "server/observability/logging.h"

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {

TEST_CASE("a request id is the client's if it is safe in a log", "[threat-79]") {
  for (const char* good : {"a", "7f3c-11", "req/1:2", "{x}"}) CHECK(request_id_from(good) == good);
  CHECK(request_id_from(std::string(128, 'x')) == std::string(128, 'x'));
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a\"b"),
                                 std::string("a\\b"), std::string("a\nb"), std::string("\x1b[2J"),
                                 std::string("\xc3\xa4"), std::string(129, 'x')}) {
    const std::string made = request_id_from(bad);
    CHECK(made != bad);
    CHECK(made.size() == 32);
    CHECK(made != request_id_from(bad));
  }
}

TEST_CASE("a traceparent is read as W3C defines it, or ignored", "[threat-79]") {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c", span = "b7ad6b7169203331";
  const auto parse = [](const std::string& text) { return parse_traceparent(text).trace_id; };
  CHECK(parse("00-" + trace + "-" + span + "-01") == trace);
  CHECK(parse_traceparent("00-" + trace + "-" + span + "-00").parent_id == span);
  CHECK(parse("cc-" + trace + "-" + span + "-01-what-comes") == trace);
  CHECK(parse("00-" + trace + "-" + span + "-01-more").empty());
  CHECK(parse("ff-" + trace + "-" + span + "-01").empty());
  CHECK(parse("00-" + std::string(32, '0') + "-" + span + "-01").empty());
  CHECK(parse("00-" + trace + "-" + std::string(16, '0') + "-01").empty());
  CHECK(parse("00-0AF7651916CD43DD8448EB211C80319C-" + span + "-01").empty());
  CHECK(parse("00_" + trace + "-" + span + "-01").empty());
  CHECK(parse("").empty());
}

TEST_CASE("every call is answered with its request id and its server, refused ones too") {
  ServerOptions options = test_options();
  options.replica_id = "server-2";
  TestServer server({"tokens"}, options);
  const auto answered = [](const grpc::ClientContext& context, const char* key) -> std::string {
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find(key);
    if (found == metadata.end()) return "";
    return std::string(found->second.data(), found->second.size());
  };
  const auto id_of = [&](const grpc::ClientContext& context) {
    CHECK(answered(context, "lintel-replica") == "server-2");
    return answered(context, "x-request-id");
  };
  v1::ListModelsResponse models;
  grpc::ClientContext given;
  given.AddMetadata("x-request-id", "mine");
  CHECK(server.models->List(&given, {}, &models).ok());
  CHECK(id_of(given) == "mine");
  grpc::ClientContext made;
  CHECK(server.models->List(&made, {}, &models).ok());
  CHECK(id_of(made).size() == 32);
  grpc::ClientContext refused;
  const auto reader = server.generation->Generate(&refused, request_for("nosuch", {1}, 3));
  v1::GenerateResponse message;
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(id_of(refused).size() == 32);
}

}  // namespace lintel::testing
