// SPDX-License-Identifier: Apache-2.0
// Error texts quote a client's input without control characters.
#include <algorithm>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/support/repository_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Newlines, escape sequences of one byte and of two (in UTF-8), tab and delete.
const std::string kHostile =
    "a\r\n\x1b[31mred\xc2\x9b"
    "0m\t\x7f.";

bool is_plain(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void check_plain(const char* what, const grpc::Status& status) {
  CAPTURE(what, status.error_message());
  CHECK(!status.ok());
  CHECK(is_plain(status.error_message()));
  // The details are binary: of what was sent, nothing may stand in them.
  for (const char* const piece : {"\r\n", "\x1b[31m", "\xc2\x9b", "\t\x7f"}) {
    CHECK(status.error_details().find(piece) == std::string::npos);
  }
}

// Calls a unary method that has to refuse.
template <typename Response, typename Stub, typename Method, typename Request>
grpc::Status refusal(Stub& stub, Method method, const Request& request) {
  Response response;
  grpc::ClientContext context;
  return (stub.*method)(&context, request, &response);
}

TEST_CASE("no error text holds a control character that a client sent") {
  const RepositoryServer f;
  TestServer& server = *f.server;
  v1::GenerateRequest unknown = request_for(kHostile, {1}, 1);
  check_plain("model", generate(server, unknown).status);
  unknown.set_model("");
  unknown.set_session_id(kHostile);
  check_plain("session_id", generate(server, unknown).status);
  v1::GenerateRequest other = request_for(kHostile, {1}, 1);
  other.set_session_id(create_session(server, "tokens").id());
  check_plain("another model than the session's", generate(server, other).status);
  v1::ScoreRequest to_score;
  to_score.set_model(kHostile);
  check_plain("model of Score", score(server, to_score).status);

  using Sessions = v1::SessionService::Stub;
  v1::GetSessionRequest get;
  get.set_id(kHostile);
  check_plain("id to get", refusal<v1::Session>(*server.sessions, &Sessions::Get, get));
  v1::DeleteSessionRequest remove;
  remove.set_id(kHostile);
  check_plain("id to delete",
              refusal<google::protobuf::Empty>(*server.sessions, &Sessions::Delete, remove));
  v1::ListSessionsRequest list;
  list.set_page_token(kHostile);
  check_plain("page_token",
              refusal<v1::ListSessionsResponse>(*server.sessions, &Sessions::List, list));
  v1::CreateSessionRequest create;
  create.set_model(kHostile);
  check_plain("model to create with",
              refusal<v1::Session>(*server.sessions, &Sessions::Create, create));
  v1::GetModelRequest model;
  model.set_name(kHostile);
  check_plain("name", refusal<v1::Model>(*server.models, &v1::ModelService::Stub::Get, model));

  check_plain("name to load", f.load(kHostile));
  check_plain("version to load", f.load("tokens", kHostile));
  check_plain("name to unload", f.unload(kHostile));
  v1::LogLevel level;
  level.set_level(kHostile);
  check_plain("level",
              refusal<v1::LogLevel>(*f.admin, &v1::AdminService::Stub::SetLogLevel, level));
}

TEST_CASE("no error text of the Open Inference Protocol holds a control character") {
  TestServer server({"tokens"});
  const auto stub = inference::GRPCInferenceService::NewStub(server.channel());
  const auto refused = [&](auto&& change) {
    inference::ModelInferRequest request;
    request.set_model_name("tokens");
    auto& input = *request.add_inputs();
    input.set_name("tokens");
    input.set_datatype("INT32");
    input.add_shape(1);
    input.add_shape(1);
    input.mutable_contents()->add_int_contents(1);
    change(request);
    return refusal<inference::ModelInferResponse>(
        *stub, &inference::GRPCInferenceService::Stub::ModelInfer, request);
  };
  using Request = inference::ModelInferRequest;
  check_plain("model_name", refused([](Request& r) { r.set_model_name(kHostile); }));
  check_plain("model_version", refused([](Request& r) { r.set_model_version(kHostile); }));
  check_plain("input", refused([](Request& r) { r.mutable_inputs(0)->set_name(kHostile); }));
  check_plain("datatype", refused([](Request& r) { r.mutable_inputs(0)->set_datatype(kHostile); }));
  check_plain("output", refused([](Request& r) { r.add_outputs()->set_name(kHostile); }));
  check_plain("parameter",
              refused([](Request& r) { (*r.mutable_parameters())[kHostile].set_int64_param(1); }));
  check_plain("sequence", refused([](Request& r) {
                (*r.mutable_parameters())["sequence_id"].set_string_param(kHostile);
              }));
  check_plain("number", refused([](Request& r) {
                (*r.mutable_parameters())["seed"].set_string_param(kHostile);
              }));
}

}  // namespace
}  // namespace lintel::testing
