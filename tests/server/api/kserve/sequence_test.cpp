// SPDX-License-Identifier: Apache-2.0
// Sequences of the Open Inference Protocol: each call continues where the last one ended.
#include <algorithm>
#include <chrono>

#include "tests/server/api/kserve/inference_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using Request = inference::ModelInferRequest;
using Response = inference::ModelInferResponse;

}  // namespace

TEST_CASE("a sequence continues from call to call until it ends, then starts from nothing") {
  const InferenceServer server;
  const std::vector<int> whole = server.generate("1,2", 9, 7);
  const auto step = [&](const std::string& id, bool start, bool end, const std::vector<int>& prompt,
                        int count, std::vector<int>* tokens) {
    Request request = request_of({prompt}, count);
    auto& parameters = *request.mutable_parameters();
    if (id.find_first_not_of("0123456789") == std::string::npos) {
      parameters["sequence_id"].set_uint64_param(std::stoull(id));
    } else {
      parameters["sequence_id"].set_string_param(id);
    }
    if (start) parameters["sequence_start"].set_bool_param(true);
    if (end) parameters["sequence_end"].set_bool_param(true);
    Response response;
    const grpc::Status status = server.infer(request, &response);
    INFO(status.error_message());
    if (status.ok() && tokens != nullptr) *tokens = tokens_of(response);
    return status.error_code();
  };
  for (const std::string id : {"42", "my-sequence"}) {
    INFO(id);
    std::vector<int> first, second, third;
    CHECK(step(id, false, false, {1, 2}, 3, &first) == Code::NOT_FOUND);
    CHECK(step(id, true, false, {1, 2}, 3, &first) == Code::OK);
    CHECK(step(id, false, false, {}, 4, &second) == Code::OK);
    CHECK(step(id, false, true, {}, 2, &third) == Code::OK);
    first.insert(first.end(), second.begin(), second.end());
    first.insert(first.end(), third.begin(), third.end());
    CHECK(first == whole);
    CHECK(step(id, false, false, {}, 2, &third) == Code::NOT_FOUND);
    CHECK(server.lintel({"session", "list", "--json"}).json().empty());
    // Starting what is running forgets it; a name is the model's.
    CHECK(step(id, true, false, {5}, 1, nullptr) == Code::OK);
    CHECK(step(id, true, false, {1, 2}, 9, &first) == Code::OK);
    CHECK(first == whole);
    CHECK(server.lintel({"session", "list", "--json"}).json().size() == 1);
    CHECK(step(id, true, true, {1, 2}, 9, &first) == Code::OK);
    CHECK(first == whole);
    CHECK(server.lintel({"session", "list", "--json"}).json().empty());
  }
  // A start that cannot be served leaves nothing behind.
  CHECK(step("9", true, false, {1000}, 3, nullptr) == Code::INVALID_ARGUMENT);
  CHECK(server.lintel({"session", "list", "--json"}).json().empty());
}

TEST_CASE("a sequence continues and ends by requests without an input") {
  const InferenceServer server;
  const std::vector<int> whole = server.generate("1,2", 9, 7);
  const auto request = [](int count, bool start = false, bool end = false) {
    Request made = request_of({start ? std::vector<int>{1, 2} : std::vector<int>{}}, count);
    if (!start) made.clear_inputs();
    auto& parameters = *made.mutable_parameters();
    parameters["sequence_id"].set_string_param("tale");
    if (count < 0) parameters.erase("max_new_tokens");
    if (start) parameters["sequence_start"].set_bool_param(true);
    if (end) parameters["sequence_end"].set_bool_param(true);
    return made;
  };
  const auto sessions = [&] { return server.lintel({"session", "list", "--json"}).json().size(); };
  Response response;
  CHECK(server.infer(request(4), &response).error_code() == Code::NOT_FOUND);
  CHECK(server.infer(request(4, false, true), &response).error_code() == Code::NOT_FOUND);
  CHECK(server.infer(request(-1, false, true), &response).error_code() == Code::NOT_FOUND);
  for (const int last : {-1, 0, 2}) {  // not given, none, two
    CAPTURE(last);
    REQUIRE(server.infer(request(3, true), &response).ok());
    std::vector<int> all = tokens_of(response);
    REQUIRE(server.infer(request(4), &response).ok());
    std::vector<int> more = tokens_of(response);
    all.insert(all.end(), more.begin(), more.end());
    CHECK(sessions() == 1);
    REQUIRE(server.infer(request(last, false, true), &response).ok());
    CHECK(response.model_name() == "tokens");
    more = tokens_of(response);
    CHECK(more.size() == static_cast<std::size_t>(std::max(last, 0)));
    all.insert(all.end(), more.begin(), more.end());
    CHECK(std::equal(all.begin(), all.end(), whole.begin()));
    CHECK(sessions() == 0);
    CHECK(server.infer(request(1), &response).error_code() == Code::NOT_FOUND);
  }
  // Streams of requests have sequences, too, and mark the last response of each.
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  inference::ModelStreamInferResponse streamed;
  for (Request each : {request(1, true), request(-1, false, true), request(1)}) {
    (*each.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
    REQUIRE(stream->Write(each));
    REQUIRE(stream->Read(&streamed));
    const bool is_gone = each.parameters().contains("sequence_start") == false &&
                         each.parameters().contains("sequence_end") == false;
    CHECK(streamed.error_message().empty() == !is_gone);
    if (is_gone) continue;
    CHECK(streamed.infer_response().parameters().at("triton_final_response").bool_param());
  }
  stream->WritesDone();
  CHECK(stream->Finish().ok());
  CHECK(sessions() == 0);
  // A request that starts a sequence, or has none, needs an input.
  Request none = request(3, true);
  none.clear_inputs();
  CHECK(server.infer(none, &response).error_code() == Code::INVALID_ARGUMENT);
  none = request(3);
  none.mutable_parameters()->erase("sequence_id");
  CHECK(server.infer(none, &response).error_code() == Code::INVALID_ARGUMENT);
}

TEST_CASE("a sequence whose state grows needs max_tokens") {
  const InferenceServer server({"--attention", "softmax"});
  Request request = request_of({{1, 2}}, 3);
  auto& parameters = *request.mutable_parameters();
  parameters["sequence_id"].set_int64_param(1);
  parameters["sequence_start"].set_bool_param(true);
  Response response;
  const grpc::Status refused = server.infer(request, &response);
  CHECK(refused.error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(refused.error_message(), Catch::Contains("parameters[max_tokens]"));
  parameters["max_tokens"].set_int64_param(6);
  CHECK(server.infer(request, &response).ok());
  CHECK(tokens_of(response).size() == 3);
  parameters.erase("sequence_start");
  parameters.erase("max_tokens");
  request.mutable_inputs(0)->clear_contents();
  request.mutable_inputs(0)->set_shape(1, 0);
  CHECK(server.infer(request, &response).ok());
  CHECK(tokens_of(response).size() == 1);  // five tokens were held
  // The sequence is complete. The request that ends it can say so only now.
  CHECK(server.infer(request, &response).error_code() == Code::FAILED_PRECONDITION);
  CHECK(server.lintel({"session", "list", "--json"}).json().size() == 1);
  parameters["sequence_end"].set_bool_param(true);
  CHECK(server.infer(request, &response).error_code() == Code::FAILED_PRECONDITION);
  CHECK(server.lintel({"session", "list", "--json"}).json().empty());
}

TEST_CASE("with --auth-tokens a sequence belongs to its owner, and liveness needs no token",
          "[threat-3]") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "tokens";
  const std::string alice = new_token(file, "alice", "generate"),
                    bob = new_token(file, "bob", "generate"),
                    carol = new_token(file, "carol", "score");
  const InferenceServer server({"--auth-tokens", file});
  Request request = request_of({{1, 2}}, 3);
  (*request.mutable_parameters())["sequence_id"].set_uint64_param(1);
  Request start = request;
  (*start.mutable_parameters())["sequence_start"].set_bool_param(true);
  Response response;
  CHECK(server.infer(start, &response).error_code() == Code::UNAUTHENTICATED);
  CHECK(server.infer(start, &response, carol).error_code() == Code::PERMISSION_DENIED);
  CHECK(server.infer(start, &response, alice).ok());
  CHECK(server.infer(request, &response, bob).error_code() == Code::NOT_FOUND);
  CHECK(server.infer(start, &response, bob).ok());
  CHECK(server.infer(request, &response, alice).ok());
  grpc::ClientContext context, second;
  inference::ServerLiveResponse live;
  CHECK(server.stub->ServerLive(&context, {}, &live).ok());
  inference::ServerMetadataResponse metadata;
  CHECK(server.stub->ServerMetadata(&second, {}, &metadata).error_code() == Code::UNAUTHENTICATED);
}

TEST_CASE("a cancelled call frees its sequence") {
  const InferenceServer server({"--max-new-tokens", "1000000000"});
  Request request = request_of({{1}}, 20'000'000);
  (*request.mutable_parameters())["sequence_id"].set_uint64_param(5);
  (*request.mutable_parameters())["sequence_start"].set_bool_param(true);
  Response response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  CHECK(server.stub->ModelInfer(&context, request, &response).error_code() ==
        Code::DEADLINE_EXCEEDED);
  // Once the server has noticed, the sequence is no longer busy and continues.
  request = request_of({{}}, 2);
  (*request.mutable_parameters())["sequence_id"].set_uint64_param(5);
  Code code = Code::ABORTED;
  for (int i = 0; i < 1000 && code == Code::ABORTED; ++i) {
    code = server.infer(request, &response).error_code();
  }
  CHECK(code == Code::OK);
}

TEST_CASE("the parameter adapter names an adapter, of a request or a sequence") {
  const InferenceServer server;
  const auto infer = [&](const std::string& adapter, const std::vector<int>& prompt, int count,
                         const std::string& sequence = "", bool start = false) {
    Request request = request_of({prompt}, count);
    auto& parameters = *request.mutable_parameters();
    if (!adapter.empty()) parameters["adapter"].set_string_param(adapter);
    if (!sequence.empty()) parameters["sequence_id"].set_string_param(sequence);
    if (start) parameters["sequence_start"].set_bool_param(true);
    Response response;
    const grpc::Status status = server.infer(request, &response);
    return std::pair(status, status.ok() ? tokens_of(response) : std::vector<int>{});
  };
  const std::vector<int> base = infer("", {1, 2}, 12).second;
  const std::vector<int> thin = infer("thin", {1, 2}, 12).second;
  CHECK(thin.size() == 12);
  CHECK(thin != base);
  const auto generated =
      server.lintel({"generate", "--model", "tokens", "--adapter", "thin", "--prompt-tokens", "1,2",
                     "--max-new-tokens", "12", "--seed", "7", "--format", "jsonl"});
  CHECK(generated.json()["tokens"].get<std::vector<int>>() == thin);
  const grpc::Status unknown = infer("nosuch", {1}, 2).first;
  CHECK(unknown.error_code() == Code::NOT_FOUND);
  CHECK_THAT(unknown.error_message(), Catch::Contains("it has thin"));
  Request number = request_of({{1}}, 2);
  (*number.mutable_parameters())["adapter"].set_int64_param(1);
  Response ignored;
  CHECK(server.infer(number, &ignored).error_code() == Code::INVALID_ARGUMENT);

  std::vector<int> tokens = infer("thin", {1, 2}, 5, "s", /*start=*/true).second;
  CHECK(infer("nosuch", {}, 3, "s").first.error_code() == Code::NOT_FOUND);
  const std::vector<int> rest = infer("", {}, 3, "s").second;
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  const std::vector<int> last = infer("thin", {}, 4, "s").second;
  tokens.insert(tokens.end(), last.begin(), last.end());
  CHECK(tokens == thin);
  infer("", {1}, 1, "plain", /*start=*/true);
  CHECK(infer("thin", {}, 1, "plain").first.error_code() == Code::INVALID_ARGUMENT);
  CHECK(infer("nosuch", {1}, 1, "refused", /*start=*/true).first.error_code() == Code::NOT_FOUND);
  CHECK(server.lintel({"session", "list", "--json"}).json().size() == 2);
}

}  // namespace lintel::testing
