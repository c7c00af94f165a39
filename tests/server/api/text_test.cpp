// SPDX-License-Identifier: Apache-2.0
// Text of models whose tokenizer is in their directory: Tokenize, Detokenize, prompts and answers.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/server/support/service_fixture.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

struct TextServer : TestServer {
  TextServer() : TestServer(test_options(), clock, models()) {}

  static GivenModels models() {
    GivenModels all = tiny_models({"bytes", "tokens"});
    all["world"] = text_model();
    return all;
  }

  grpc::Status tokenize(const std::string& model, const std::string& text,
                        std::vector<std::int32_t>* ids, bool parse_special = false) {
    v1::TokenizeRequest request;
    request.set_model(model);
    request.set_text(text);
    request.set_parse_special(parse_special);
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    const grpc::Status status = TestServer::models->Tokenize(&context, request, &response);
    ids->assign(response.ids().begin(), response.ids().end());
    return status;
  }
  grpc::Status detokenize(const std::string& model, const std::vector<std::int32_t>& ids,
                          std::string* text) {
    v1::DetokenizeRequest request;
    request.set_model(model);
    request.mutable_ids()->Add(ids.begin(), ids.end());
    v1::DetokenizeResponse response;
    grpc::ClientContext context;
    const grpc::Status status = TestServer::models->Detokenize(&context, request, &response);
    *text = response.text();
    return status;
  }

  static const SteadyClock clock;
};
const SteadyClock TextServer::clock;

const std::string kText = "Hello, w\u00f6rld! ---------------- \u6f22\u5b57 <|endoftext|>";

v1::GenerateRequest text_request(const std::string& text, unsigned max_new_tokens) {
  v1::GenerateRequest request = request_for("world", {}, max_new_tokens);
  request.mutable_prompt()->set_text(text);
  return request;
}

// Makes the token all but certain.
void force(std::int32_t token, v1::GenerateRequest& request) {
  (*request.mutable_sampling()->mutable_logit_bias())[token] = 10'000.0f;
}

TEST_CASE("Tokenize and Detokenize: ids and back, of models with a tokenizer") {
  TextServer server;
  std::vector<std::int32_t> ids;
  std::string text;
  REQUIRE(server.tokenize("world", kText, &ids).ok());
  CHECK(ids.size() < kText.size());
  REQUIRE(server.detokenize("world", ids, &text).ok());
  CHECK(text == kText);

  REQUIRE(server.tokenize("bytes", "abc", &ids).ok());
  CHECK(ids == std::vector<std::int32_t>{97, 98, 99});
  REQUIRE(server.detokenize("bytes", {97, 0xe2}, &text).ok());
  CHECK(text == "a\ufffd");
  REQUIRE(server.detokenize("world", {299}, &text).ok());  // without text
  CHECK(text.empty());

  const grpc::Status none = server.tokenize("tokens", "abc", &ids);
  CHECK(none.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK_THAT(none.error_message(), Catch::Contains("model tokens has no tokenizer"));
  const grpc::Status negative = server.detokenize("world", {5, -1}, &text);
  CHECK(negative.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(violated_fields(negative) == std::vector<std::string>{"ids[1]"});
  CHECK(server.tokenize("nowhere", "abc", &ids).error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("a text prompt is what its ids are, and the bytes of tokens are the answer's text") {
  TextServer server;
  std::vector<std::int32_t> ids;
  REQUIRE(server.tokenize("world", kText, &ids).ok());
  v1::GenerateRequest request = text_request(kText, 40);
  request.set_token_bytes(true);
  request.set_log2_probs(true);
  request.set_top_log2_probs(2);
  const Generated of_text = generate(server, request);
  REQUIRE(of_text.status.ok());
  const Generated of_ids = generate(server, request_for("world", {ids.begin(), ids.end()}, 40));
  CHECK(of_text.only().tokens == of_ids.only().tokens);
  CHECK(of_text.only().finish.prompt_tokens() == ids.size());

  std::string bytes, text;
  for (const v1::GenerateResponse& message : of_text.messages) {
    for (const v1::Chunk& chunk : message.chunks()) {
      REQUIRE(chunk.token_bytes_size() == chunk.tokens_size());
      for (const std::string& part : chunk.token_bytes()) bytes += part;
      for (const v1::TopValues& top : chunk.top()) {
        CHECK(top.token_bytes_size() == top.tokens_size());
      }
    }
  }
  REQUIRE(server.detokenize("world", of_text.only().tokens, &text).ok());
  std::string joined;
  const auto& tokenizer = text_model()->tokenizer();
  for (const std::int32_t id : of_text.only().tokens) joined += tokenizer->bytes_of(id);
  CHECK(bytes == joined);
  CHECK_FALSE(text.empty());
}

TEST_CASE("text prompts stop at the token that ends a text, id prompts do not") {
  TextServer server;
  v1::GenerateRequest request = text_request("Hello", 8);
  force(0, request);
  const Generated of_text = generate(server, request);
  CHECK(of_text.only().tokens.empty());
  CHECK(of_text.only().finish.reason() == v1::FINISH_REASON_STOP_TOKEN);

  v1::GenerateRequest by_ids = request_for("world", {73}, 8);
  force(0, by_ids);
  const Generated of_ids = generate(server, by_ids);
  CHECK(of_ids.only().tokens == std::vector<std::int32_t>(8, 0));
  CHECK(of_ids.only().finish.reason() == v1::FINISH_REASON_LENGTH);
}

TEST_CASE("text is refused where the model has no tokenizer, and bytes of tokens are, too") {
  TextServer server;
  v1::GenerateRequest request = text_request("Hello", 8);
  request.set_model("tokens");
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"prompt.text"});
  v1::GenerateRequest bytes = request_for("tokens", {1}, 8);
  bytes.set_token_bytes(true);
  CHECK(violated_fields(generate(server, bytes).status) == std::vector<std::string>{"token_bytes"});
}

TEST_CASE("a tokenizer with more ids than the embedding has rows is refused") {
  const TemporaryDirectory directory;
  write_text_model(directory.path(), /*vocab_size=*/50);
  CHECK_THROWS_WITH(Transformer::load(directory.path(), {}),
                    Catch::Contains("below the 50 rows of the embedding"));
}

}  // namespace
}  // namespace lintel::testing
