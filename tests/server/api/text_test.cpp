// SPDX-License-Identifier: Apache-2.0
// Text of models whose tokenizer is in their directory: Tokenize, Detokenize, prompts and answers.
#include <string>
#include <vector>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

struct TextServer : TestServer {
  TextServer() : TestServer(test_options(), clock, models()) {}

  static GivenModels models() {
    GivenModels all = tiny_models({"bytes", "tokens"});
    all["world"] = text_model();
    all["llama"] = llama_text_model();
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
  const grpc::Status outside = server.detokenize("world", {5, -1, 300}, &text);
  CHECK(outside.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(violated_fields(outside) == std::vector<std::string>{"ids[1]", "ids[2]"});
  CHECK_THAT(outside.error_message(), Catch::Contains("token 300 is not from 0 to 299"));
  CHECK(server.tokenize("nowhere", "abc", &ids).error_code() == grpc::StatusCode::NOT_FOUND);
}

// The bytes of an answer's tokens, one after the other.
std::string bytes_of(const Generated& generated) {
  std::string bytes;
  for (const v1::GenerateResponse& message : generated.messages) {
    for (const v1::Chunk& chunk : message.chunks()) {
      REQUIRE(chunk.token_bytes_size() == chunk.tokens_size());
      for (const std::string& part : chunk.token_bytes()) bytes += part;
    }
  }
  return bytes;
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

  std::string text;
  for (const v1::GenerateResponse& message : of_text.messages) {
    for (const v1::Chunk& chunk : message.chunks()) {
      for (const v1::TopValues& top : chunk.top()) {
        CHECK(top.token_bytes_size() == top.tokens_size());
      }
    }
  }
  REQUIRE(server.detokenize("world", of_text.only().tokens, &text).ok());
  std::string joined;
  const auto& tokenizer = text_model()->tokenizer();
  for (const std::int32_t id : of_text.only().tokens) joined += tokenizer->bytes_of(id);
  CHECK(bytes_of(of_text) == joined);
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

TEST_CASE("stop strings end the text of a model with a tokenizer, inside of tokens too") {
  TextServer server;
  v1::GenerateRequest request = text_request("Hello", 40);
  request.set_token_bytes(true);
  for (std::int32_t token = 257; token < 289; ++token) {  // of several bytes
    (*request.mutable_sampling()->mutable_logit_bias())[token] = 100.0f;
  }
  const Generated free = generate(server, request);
  const std::string text = bytes_of(free);
  const auto& tokenizer = text_model()->tokenizer();
  std::size_t end_of_fifth = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    end_of_fifth += tokenizer->bytes_of(free.only().tokens[i]).size();
  }
  const std::string stop = text.substr(end_of_fifth - 1, 8);
  REQUIRE(text.find(stop) == end_of_fifth - 1);
  request.mutable_stop()->add_strings(stop);
  request.set_max_tokens_per_message(1);
  const Generated out = generate(server, request);
  CHECK(bytes_of(out) == text.substr(0, end_of_fifth - 1));
  CHECK(out.only().tokens.size() == 5);  // the fifth without its last byte
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_STOP_STRING);
  CHECK(out.only().finish.stop_string() == stop);
  request.mutable_stop()->set_include_in_output(true);
  CHECK(bytes_of(generate(server, request)) == text.substr(0, end_of_fifth + 7));

  request.mutable_stop()->add_strings(std::string(257, 'x'));
  const grpc::Status longer = generate(server, request).status;
  CHECK(violated_fields(longer) == std::vector<std::string>{"stop.strings[1]"});
  CHECK_THAT(longer.error_message(), Catch::Contains("257 bytes are more than 256"));
  v1::GenerateRequest by_ids = request_for("tokens", {1}, 8);
  by_ids.mutable_stop()->add_strings("x");
  CHECK(violated_fields(generate(server, by_ids).status) ==
        std::vector<std::string>{"stop.strings"});
}

TEST_CASE("the token before a text comes at the beginning of a sequence, unless the call says") {
  TextServer server;
  const auto num_ids = static_cast<unsigned>(
      llama_text_model()->tokenizer()->encode("Hello", {.add_special = false}).size());
  v1::GenerateRequest request = text_request("Hello", 2);
  request.set_model("llama");
  const auto prompt_tokens = [&] {
    return generate(server, request).only().finish.prompt_tokens();
  };
  CHECK(prompt_tokens() == num_ids + 1);
  request.set_add_special(false);
  CHECK(prompt_tokens() == num_ids);
  request.clear_add_special();

  request.set_session_id(create_session(server, "llama").id());
  CHECK(prompt_tokens() == num_ids + 1);  // of a session that has no token yet
  CHECK(prompt_tokens() == num_ids);
  request.set_add_special(true);
  CHECK(prompt_tokens() == num_ids + 1);
}

TEST_CASE(
    "special tokens in a text are ids where the call says so, and end it where they end texts") {
  TextServer server;
  v1::GenerateRequest request = text_request("Hello<|eot_id|>", 8);
  request.set_model("llama");
  const unsigned letters = generate(server, request).only().finish.prompt_tokens();
  request.set_parse_special(true);
  CHECK(generate(server, request).only().finish.prompt_tokens() < letters);

  force(kLlamaEnd, request);
  CHECK(generate(server, request).only().finish.reason() == v1::FINISH_REASON_STOP_TOKEN);
  request.set_particles(4);  // which go through all positions
  const Generated filtered = generate(server, request);
  REQUIRE(filtered.status.ok());
  CHECK(filtered.only().finish.reason() == v1::FINISH_REASON_LENGTH);
  v1::GenerateRequest by_ids = request_for("llama", {5}, 8);
  force(kLlamaEnd, by_ids);
  CHECK(generate(server, by_ids).only().finish.reason() == v1::FINISH_REASON_LENGTH);
  by_ids.mutable_stop()->add_token_ids(kLlamaEnd);
  CHECK(generate(server, by_ids).only().finish.reason() == v1::FINISH_REASON_STOP_TOKEN);
}

TEST_CASE("Score takes texts, and says which tokens they are") {
  TextServer server;
  const Tokenizer& tokenizer = *llama_text_model()->tokenizer();
  v1::ScoreRequest request;
  request.set_model("llama");
  request.add_sequences()->set_text("Hello, w\u00f6rld!<|eot_id|>");
  request.add_sequences()->set_text("the first citizen");
  request.set_token_bytes(true);
  const bool add_special = GENERATE(false, true), parse_special = GENERATE(false, true);
  if (!add_special) request.set_add_special(false);
  request.set_parse_special(parse_special);
  const Scored of_text = score(server, request);
  REQUIRE(of_text.status.ok());
  REQUIRE(of_text.responses.size() == 2);
  for (int i = 0; i < 2; ++i) {
    const v1::ScoreResponse& got = of_text.responses[static_cast<std::size_t>(i)];
    const std::vector<std::int32_t> ids = tokenizer.encode(
        request.sequences(i).text(), {.add_special = add_special, .parse_special = parse_special});
    CHECK(std::vector<std::int32_t>(got.tokens().begin(), got.tokens().end()) == ids);
    REQUIRE(got.token_bytes_size() == static_cast<int>(ids.size()));
    for (std::size_t k = 0; k < ids.size(); ++k) {
      CHECK(got.token_bytes(static_cast<int>(k)) == tokenizer.bytes_of(ids[k]));
    }
    v1::ScoreRequest by_ids;
    by_ids.set_model("llama");
    by_ids.add_sequences()->mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    const Scored same = score(server, by_ids);
    REQUIRE(same.status.ok());
    CHECK(same.responses[0].tokens().empty());
    const auto& a = same.responses[0].log2_probs();
    CHECK(std::vector<float>(a.begin(), a.end()) ==
          std::vector<float>(got.log2_probs().begin(), got.log2_probs().end()));
  }
}

TEST_CASE("Score of texts: too short, without a tokenizer and too long are refused by name") {
  TextServer server;
  const auto refusal = [&](const std::string& model, const std::string& text, bool bytes = false) {
    v1::ScoreRequest request;
    request.set_model(model);
    request.add_sequences()->set_text(text);
    request.set_token_bytes(bytes);
    return score(server, request).status;
  };
  const std::string the = "there";  // a token of World, where five bytes are not
  CHECK_THAT(refusal("world", the).error_message(), Catch::Contains("1 tokens are fewer than 2"));
  CHECK(violated_fields(refusal("tokens", "ab")) == std::vector<std::string>{"sequences[0].text"});
  v1::ScoreRequest bytes;
  bytes.set_model("tokens");
  bytes.add_sequences()->mutable_tokens()->mutable_ids()->Resize(2, 1);
  bytes.set_token_bytes(true);
  CHECK(violated_fields(score(server, bytes).status) == std::vector<std::string>{"token_bytes"});
  const grpc::Status longer = refusal("bytes", std::string(300, 'x'));  // which takes 257 tokens
  CHECK(violated_fields(longer) == std::vector<std::string>{"sequences[0]"});
  CHECK(refusal("bytes", "ab", true).ok());
}

TEST_CASE("a text is bounded as a message and by its tokens") {
  ServerOptions options = test_options();
  options.connections.max_message_bytes = 1 << 20;
  options.models.limits.max_prompt_tokens = 100;
  TestServer server(options, TextServer::clock, TextServer::models());
  const Generated most = generate(server, text_request(std::string(160, '-'), 1));  // ten tokens
  CHECK(most.status.ok());
  const grpc::Status tokens = generate(server, text_request(std::string(101, '\x01'), 1)).status;
  CHECK(violated_fields(tokens) == std::vector<std::string>{"prompt"});
  CHECK_THAT(tokens.error_message(), Catch::Contains("101 tokens are more than"));
  const std::string large(1 << 20, 'x');
  CHECK(generate(server, text_request(large, 1)).status.error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::TokenizeRequest request;
  request.set_model("world");
  request.set_text(large);
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  CHECK(server.models->Tokenize(&context, request, &response).error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_CASE("an id outside the vocabulary is refused with its index, wherever it stands") {
  TextServer server;
  v1::GenerateRequest request = request_for("world", {1, 300, -1}, 8);
  v1::GivenSpan& given = *request.add_given();
  given.set_position(5);
  given.mutable_values()->mutable_tokens()->add_ids(7);
  given.mutable_values()->mutable_tokens()->add_ids(301);
  request.mutable_stop()->add_token_ids(302);
  (*request.mutable_sampling()->mutable_logit_bias())[303] = 1.0f;
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"prompt.tokens.ids[1]", "prompt.tokens.ids[2]",
                                 "sampling.logit_bias[303]", "stop.token_ids[0]",
                                 "given[0].values.tokens.ids[1]"});
  v1::ScoreRequest scored;
  scored.set_model("world");
  scored.add_sequences()->mutable_tokens()->add_ids(1);
  scored.mutable_sequences(0)->mutable_tokens()->add_ids(300);
  CHECK(violated_fields(score(server, scored).status) ==
        std::vector<std::string>{"sequences[0].tokens.ids[1]"});
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
