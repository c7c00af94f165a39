// SPDX-License-Identifier: Apache-2.0
// Text, log-probabilities and scores in the Open Inference Protocol.
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "tests/server/api/kserve/inference_server.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using TextRequest = inference::ModelInferRequest;
using TextResponse = inference::ModelInferResponse;
using Catch::Matchers::Contains;

// Prompts for the model "bytes".
TextRequest text_request(const std::vector<std::string>& texts, int max_new_tokens, int seed = 7) {
  TextRequest request;
  request.set_model_name("bytes");
  auto& input = *request.add_inputs();
  input.set_name("text_input");
  input.set_datatype("BYTES");
  input.add_shape(static_cast<std::int64_t>(texts.size()));
  input.add_shape(1);
  for (const std::string& text : texts) input.mutable_contents()->add_bytes_contents(text);
  (*request.mutable_parameters())["max_new_tokens"].set_int64_param(max_new_tokens);
  (*request.mutable_parameters())["seed"].set_int64_param(seed);
  return request;
}

void add_stop(TextRequest& request, const std::vector<std::string>& strings) {
  auto& input = *request.add_inputs();
  input.set_name("stop");
  input.set_datatype("BYTES");
  input.add_shape(static_cast<std::int64_t>(strings.size()));
  for (const std::string& string : strings) input.mutable_contents()->add_bytes_contents(string);
}

// Length in four bytes, then the bytes.
std::string raw_element(const std::string& bytes) {
  const auto size = static_cast<std::uint32_t>(bytes.size());
  std::string raw(sizeof(size), '\0');
  std::memcpy(raw.data(), &size, sizeof(size));
  return raw + bytes;
}

void ask_for(TextRequest& request, const std::vector<const char*>& outputs) {
  for (const char* name : outputs) request.add_outputs()->set_name(name);
}

const inference::ModelInferResponse::InferOutputTensor& output_of(const TextResponse& response,
                                                                  std::string_view name) {
  for (const auto& output : response.outputs()) {
    if (output.name() == name) return output;
  }
  FAIL("there is no output " << name);
  throw 0;
}

std::string text_of(const TextResponse& response, int row = 0) {
  return output_of(response, "text_output").contents().bytes_contents(row);
}

TextResponse answer(const InferenceServer& server, const TextRequest& request) {
  TextResponse response;
  const grpc::Status status = server.infer(request, &response);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return response;
}

}  // namespace

TEST_CASE("text in and out equals that of lintel.v1, for rows of different lengths") {
  const InferenceServer server;
  const std::vector<std::string> prompts = {"Hello", "a longer one", std::string("\xff\0x", 3)};
  const TextResponse typed = answer(server, text_request(prompts, 12));
  REQUIRE(typed.outputs_size() == 1);
  const auto& output = output_of(typed, "text_output");
  CHECK(output.datatype() == "BYTES");
  REQUIRE(output.shape_size() == 2);
  CHECK(output.shape(0) == 3);
  CHECK(output.shape(1) == 1);
  for (int row = 0; row < 2; ++row) {
    const Result generated = server.lintel(
        {"generate", "--model", "bytes", "--prompt", prompts[static_cast<std::size_t>(row)],
         "--max-new-tokens", "12", "--seed", std::to_string(7 + row), "--format", "jsonl"});
    REQUIRE(generated.code == 0);
    std::string expected;
    for (const int token : generated.json()["tokens"].get<std::vector<int>>()) {
      expected.push_back(static_cast<char>(token));
    }
    CHECK(text_of(typed, row) == expected);
  }

  TextRequest raw = text_request(prompts, 12);
  raw.mutable_inputs(0)->clear_contents();
  std::string bytes;
  for (const std::string& prompt : prompts) bytes += raw_element(prompt);
  raw.add_raw_input_contents(bytes);
  std::string expected;
  for (int row = 0; row < 3; ++row) expected += raw_element(text_of(typed, row));
  const TextResponse got = answer(server, raw);
  CHECK(got.raw_output_contents(0) == expected);
  CHECK_FALSE(got.outputs(0).has_contents());
}

TEST_CASE("tokens of 64 bits are the same tokens, typed and raw") {
  const InferenceServer server;
  const std::vector<int> expected = server.generate("1,2,3", 6, 7);
  TextRequest request = request_of({{1, 2, 3}}, 6);
  auto& input = *request.mutable_inputs(0);
  input.set_datatype("INT64");
  input.clear_contents();
  const std::vector<std::int64_t> ids = {1, 2, 3};
  for (const std::int64_t id : ids) input.mutable_contents()->add_int64_contents(id);
  CHECK(tokens_of(answer(server, request)) == expected);

  input.clear_contents();
  request.add_raw_input_contents(ids.data(), ids.size() * sizeof(std::int64_t));
  const TextResponse raw = answer(server, request);
  std::vector<std::int32_t> tokens(6);
  REQUIRE(raw.raw_output_contents(0).size() == 24);
  std::memcpy(tokens.data(), raw.raw_output_contents(0).data(), 24);
  CHECK(std::vector<int>(tokens.begin(), tokens.end()) == expected);
}

TEST_CASE("stop strings end a row, as an input and as a parameter, with themselves or without") {
  const InferenceServer server;
  const std::string whole = text_of(answer(server, text_request({"Hello"}, 40)));
  const std::string stop = whole.substr(20, 2);
  const std::string until = whole.substr(0, whole.find(stop));

  TextRequest by_input = text_request({"Hello"}, 40);
  add_stop(by_input, {"not to be found", stop});
  CHECK(text_of(answer(server, by_input)) == until);
  // Also with raw contents.
  TextRequest raw = by_input;
  for (auto& input : *raw.mutable_inputs()) input.clear_contents();
  raw.add_raw_input_contents(raw_element("Hello"));
  raw.add_raw_input_contents(raw_element("not to be found") + raw_element(stop));
  CHECK(answer(server, raw).raw_output_contents(0) == raw_element(until));

  TextRequest by_parameter = text_request({"Hello"}, 40);
  (*by_parameter.mutable_parameters())["stop"].set_string_param(stop);
  (*by_parameter.mutable_parameters())["include_stop_str_in_output"].set_bool_param(true);
  CHECK(text_of(answer(server, by_parameter)) == until + stop);
}

TEST_CASE("the most likely tokens come with each token, and the score is the sum") {
  const InferenceServer server;
  TextRequest request = text_request({"Hello", "Hi"}, 9);
  (*request.mutable_parameters())["temperature"].set_double_param(0);
  (*request.mutable_parameters())["top_log2_probs"].set_int64_param(3);
  ask_for(request, {"tokens", "text_output", "log2_probs", "score"});
  const TextResponse response = answer(server, request);
  const auto& tokens = output_of(response, "tokens").contents().int_contents();
  const auto& probs = output_of(response, "log2_probs").contents().fp32_contents();
  const auto& top_tokens = output_of(response, "top_tokens");
  const auto& top = output_of(response, "top_log2_probs").contents().fp32_contents();
  REQUIRE(top_tokens.shape_size() == 3);
  CHECK(top_tokens.shape(2) == 3);
  REQUIRE(tokens.size() == 18);
  REQUIRE(top_tokens.contents().int_contents_size() == 54);
  REQUIRE(top.size() == 54);
  std::vector<double> scores(2);
  for (int i = 0; i < 18; ++i) {  // greedy: the token is the most likely one
    CHECK(top_tokens.contents().int_contents(3 * i) == tokens[i]);
    CHECK(top[3 * i] == probs[i]);
    CHECK(top[3 * i] >= top[3 * i + 1]);
    CHECK(static_cast<unsigned char>(text_of(response, i / 9)[static_cast<std::size_t>(i % 9)]) ==
          tokens[i]);
    scores[static_cast<std::size_t>(i / 9)] += probs[i];
  }
  const auto& score = output_of(response, "score");
  CHECK(score.datatype() == "FP64");
  REQUIRE(score.contents().fp64_contents_size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(score.contents().fp64_contents(i) == scores[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("an echoed prompt without new tokens has the probabilities of Score") {
  const InferenceServer server;
  TextRequest request = text_request({"Hello, you"}, 0);
  (*request.mutable_parameters())["echo"].set_bool_param(true);
  ask_for(request, {"text_output", "log2_probs", "score"});
  const TextResponse response = answer(server, request);
  CHECK(text_of(response) == "Hello, you");
  const auto& probs = output_of(response, "log2_probs").contents().fp32_contents();
  REQUIRE(probs.size() == 10);
  CHECK(std::isnan(probs[0]));  // nothing comes before it

  const Result scored = server.lintel({"score", "--model", "bytes", "--text",
                                       server.write("text", "Hello, you"), "--context", "10"});
  INFO(scored.err + scored.out);
  REQUIRE(scored.code == 0);
  const double score = output_of(response, "score").contents().fp64_contents(0);
  const double bits_per_dim = scored.lines().front()["bits_per_dim"].get<double>();
  CHECK(-score / 9 == Approx(bits_per_dim).epsilon(1e-6));
}

TEST_CASE("streamed pieces add up to the text, with the requested fields of each token") {
  const InferenceServer server;
  TextRequest request = text_request({"Hello"}, 30);
  const std::string whole = text_of(answer(server, request));
  (*request.mutable_parameters())["stream"].set_bool_param(true);
  (*request.mutable_parameters())["echo"].set_bool_param(true);
  (*request.mutable_parameters())["top_log2_probs"].set_int64_param(2);
  (*request.mutable_parameters())["max_tokens_per_message"].set_int64_param(4);
  ask_for(request, {"text_output", "score"});
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request));
  inference::ModelStreamInferResponse message;
  std::string text;
  double score = 0;
  int tops = 0;
  for (bool last = false; !last;) {
    REQUIRE(stream->Read(&message));
    REQUIRE(message.error_message().empty());
    const TextResponse& response = message.infer_response();
    last = response.parameters().at("triton_final_response").bool_param();
    const std::string piece = text_of(response);
    CHECK(piece.size() <= 4);
    text += piece;
    score += output_of(response, "score").contents().fp64_contents(0);
    tops += output_of(response, "top_tokens").contents().int_contents_size();
  }
  CHECK(text == "Hello" + whole);
  CHECK(tops == 2 * 35);
  CHECK(score < 0);
}

TEST_CASE("max_tokens of text without a sequence is the number of tokens to produce") {
  const InferenceServer server;
  TextRequest request = text_request({"Hello"}, 5);
  const std::string five = text_of(answer(server, request));
  request.mutable_parameters()->erase("max_new_tokens");
  (*request.mutable_parameters())["max_tokens"].set_int64_param(5);
  CHECK(text_of(answer(server, request)) == five);
}

TEST_CASE("text model with a trained length: KServe's requests and sequences have its window") {
  const InferenceServer server({}, {TinyModel::kText, TinyModel::kBytes});
  const std::string prompt(50, 'x');
  // The output of "bytes", which has the same weights, in the window that "text" was trained on.
  TextRequest request = text_request({prompt}, 90);
  (*request.mutable_parameters())["window"].set_int64_param(32);
  const TextResponse windowed = answer(server, request);
  CHECK(windowed.parameters().at("lintel_window").int64_param() == 32);
  request.set_model_name("text");
  request.mutable_parameters()->erase("window");
  const TextResponse chosen = answer(server, request);
  CHECK(text_of(chosen) == text_of(windowed));
  CHECK(chosen.parameters().at("lintel_window").int64_param() == 32);
  CHECK(chosen.parameters().at("lintel_window_restarts").int64_param() == (140 - 1 - 32) / 16 + 1);
  // 0: none.
  (*request.mutable_parameters())["window"].set_string_param("0");
  const TextResponse off = answer(server, request);
  CHECK(off.parameters().count("lintel_window") == 0);
  CHECK(text_of(off) == text_of(answer(server, text_request({prompt}, 90))));
  CHECK(text_of(off) != text_of(chosen));
  (*request.mutable_parameters())["window"].set_int64_param(3);
  TextResponse refused;
  const grpc::Status odd = server.infer(request, &refused);
  CHECK(odd.error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(odd.error_message(), Contains("window"));

  // Streams report it with the last response.
  request.mutable_parameters()->erase("window");
  (*request.mutable_parameters())["stream"].set_bool_param(true);
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request));
  inference::ModelStreamInferResponse message;
  std::string text;
  for (bool last = false; !last;) {
    REQUIRE(stream->Read(&message));
    REQUIRE(message.error_message().empty());
    last = message.infer_response().parameters().at("triton_final_response").bool_param();
    if (message.infer_response().outputs_size() > 0) text += text_of(message.infer_response());
  }
  CHECK(text == text_of(chosen));
  const auto& reported = message.infer_response().parameters();
  CHECK(reported.at("lintel_window").int64_param() == 32);
  CHECK(reported.at("lintel_window_restarts").int64_param() == (140 - 1 - 32) / 16 + 1);
  request.mutable_parameters()->erase("stream");

  // A sequence: its start names another window, none, or leaves it to the server.
  for (const auto& [window, expected] :
       {std::pair<int, const TextResponse*>{-1, &chosen}, {32, &windowed}, {0, &off}}) {
    CAPTURE(window);
    TextRequest start = text_request({prompt}, 90);
    start.set_model_name("text");
    (*start.mutable_parameters())["sequence_id"].set_int64_param(5);
    (*start.mutable_parameters())["sequence_start"].set_bool_param(true);
    if (window >= 0) (*start.mutable_parameters())["window"].set_int64_param(window);
    CHECK(text_of(answer(server, start)) == text_of(*expected));
    CHECK(server.lintel({"session", "list", "--json"}).json()[0]["window"] ==
          (window < 0 ? 32 : window));
    start.mutable_parameters()->erase("sequence_start");
    (*start.mutable_parameters())["window"].set_int64_param(64);
    CHECK(server.infer(start, &refused).error_code() == Code::INVALID_ARGUMENT);
    start.mutable_parameters()->erase("window");
    (*start.mutable_parameters())["sequence_end"].set_bool_param(true);
    answer(server, start);
  }
}

namespace {

// A server with a model whose tokens have several bytes, "world", and one that wants a token before
// a text, "llama".
struct TokenizerServer {
  TokenizerServer() {
    write_text_model(directory.path() / "world");
    write_llama_text_model(directory.path() / "llama");
    server.emplace(std::vector<std::string>{"--model", (directory.path() / "world").string(),
                                            "--model", (directory.path() / "llama").string()});
  }
  const InferenceServer& operator*() const { return *server; }

  TemporaryDirectory directory;
  std::optional<InferenceServer> server;
};

}  // namespace

TEST_CASE("text of a model with a tokenizer goes in and out, up to stop strings inside of tokens") {
  const TokenizerServer servers;
  const InferenceServer& server = *servers;
  TextRequest request = text_request({"Hello, w\u00f6rld", "there"}, 60);
  request.set_model_name("world");
  ask_for(request, {"tokens", "text_output", "score"});
  const TextResponse response = answer(server, request);
  for (int row = 0; row < 2; ++row) {
    const Result generated =
        server.lintel({"generate", "--model", "world", "--prompt",
                       request.inputs(0).contents().bytes_contents(row), "--max-new-tokens", "60",
                       "--seed", std::to_string(7 + row), "--format", "text"});
    REQUIRE(generated.code == 0);
    CHECK(text_of(response, row) == generated.out);
    std::string joined;
    for (int i = 0; i < 60; ++i) {
      const int id = output_of(response, "tokens").contents().int_contents(60 * row + i);
      if (id >= 0) joined += text_model()->tokenizer()->bytes_of(id);
    }
    CHECK(text_of(response, row) == joined);
  }
  const std::string whole = text_of(response, 0);
  const std::string stop = whole.substr(20, 5);
  TextRequest stopped = text_request({"Hello, w\u00f6rld"}, 60);
  stopped.set_model_name("world");
  add_stop(stopped, {stop});
  CHECK(text_of(answer(server, stopped)) == whole.substr(0, whole.find(stop)));

  // The text streams as it comes.
  auto& parameters = *stopped.mutable_parameters();
  parameters["stream"].set_bool_param(true);
  parameters["max_tokens_per_message"].set_int64_param(1);
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  stream->Write(stopped);
  stream->WritesDone();
  std::string streamed;
  inference::ModelStreamInferResponse message;
  while (stream->Read(&message)) {
    REQUIRE(message.error_message().empty());
    streamed += text_of(message.infer_response());
  }
  CHECK(streamed == whole.substr(0, whole.find(stop)));
}

TEST_CASE(
    "an echoed text is its tokens, with those before it and special ones as the request says") {
  const TokenizerServer servers;
  const InferenceServer& server = *servers;
  const std::string text = "Hello<|eot_id|>";
  TextRequest request = text_request({text}, 0);
  request.set_model_name("llama");
  auto& parameters = *request.mutable_parameters();
  parameters["echo"].set_bool_param(true);
  ask_for(request, {"tokens", "text_output"});
  const Tokenizer& tokenizer = *llama_text_model()->tokenizer();
  const auto ids = [&] {
    const auto response = answer(server, request);
    const auto& got = output_of(response, "tokens").contents().int_contents();
    return std::vector<std::int32_t>(got.begin(), got.end());
  };
  CHECK(ids() == tokenizer.encode(text));
  CHECK(ids().front() == kLlamaBegin);
  CHECK(text_of(answer(server, request)) == text);
  parameters["add_special"].set_bool_param(false);
  parameters["parse_special"].set_bool_param(true);
  CHECK(ids() == tokenizer.encode(text, {.add_special = false, .parse_special = true}));
  CHECK(text_of(answer(server, request)) == "Hello");
}

TEST_CASE("metadata has text tensors for models of text only") {
  const TokenizerServer servers;
  const InferenceServer& server = *servers;
  const auto described = [&](const std::string& model) {
    inference::ModelMetadataRequest request;
    request.set_name(model);
    grpc::ClientContext context;
    inference::ModelMetadataResponse metadata;
    REQUIRE(server.stub->ModelMetadata(&context, request, &metadata).ok());
    std::string all;
    for (const auto& tensor : metadata.inputs())
      all += tensor.name() + ":" + tensor.datatype() + " ";
    all += "-> ";
    for (const auto& tensor : metadata.outputs()) {
      all += tensor.name() + ":" + tensor.datatype() + " ";
    }
    return all;
  };
  CHECK(described("world") == described("bytes"));
  CHECK(described("bytes") ==
        "tokens:INT32 text_input:BYTES stop:BYTES -> tokens:INT32 log2_probs:FP32 "
        "text_output:BYTES top_tokens:INT32 top_log2_probs:FP32 score:FP64 log2_evidence:FP64 ");
  CHECK(described("tokens") ==
        "tokens:INT32 -> tokens:INT32 log2_probs:FP32 top_tokens:INT32 top_log2_probs:FP32 "
        "score:FP64 log2_evidence:FP64 ");
}

TEST_CASE("invalid text, stop strings and outputs are refused by name") {
  const InferenceServer server;
  const auto refusal = [&](const std::function<void(TextRequest&)>& change) {
    TextRequest request = text_request({"Hello"}, 3);
    change(request);
    TextResponse response;
    const grpc::Status status = server.infer(request, &response);
    CHECK(status.error_code() == Code::INVALID_ARGUMENT);
    return status.error_message();
  };
  CHECK_THAT(refusal([](TextRequest& r) { r.set_model_name("tokens"); }),
             Contains("text_input applies to models with a tokenizer only"));
  CHECK_THAT(refusal([](TextRequest& r) {
               r = request_of({{1}}, 3);
               ask_for(r, {"text_output"});
             }),
             Contains("text_output applies to models with a tokenizer only"));
  CHECK_THAT(refusal([](TextRequest& r) {
               r = request_of({{1}}, 3);
               add_stop(r, {"x"});
             }),
             Contains("stop: applies to models with a tokenizer only"));
  CHECK_THAT(refusal([](TextRequest& r) { r.mutable_inputs(0)->set_datatype("INT32"); }),
             Contains("inputs[0].datatype"));
  CHECK_THAT(refusal([](TextRequest& r) { r.mutable_inputs(0)->set_shape(0, 2); }),
             Contains("inputs[0].shape"));
  CHECK_THAT(refusal([](TextRequest& r) { r.mutable_inputs(0)->set_shape(1, 2); }),
             Contains("[n, 1]"));
  CHECK_THAT(refusal([](TextRequest& r) { *r.add_inputs() = request_of({{1}}, 1).inputs(0); }),
             Contains("text_input in its place"));
  CHECK_THAT(refusal([](TextRequest& r) {
               add_stop(r, {"a"});
               add_stop(r, {"b"});
             }),
             Contains("more than once"));
  CHECK_THAT(refusal([](TextRequest& r) {
               add_stop(r, {"a"});
               r.mutable_inputs(1)->set_shape(0, 5);
             }),
             Contains("inputs[1].shape"));
  CHECK_THAT(refusal([](TextRequest& r) { add_stop(r, {""}); }), Contains("stop[0]: is empty"));
  CHECK_THAT(refusal([](TextRequest& r) { ask_for(r, {"top_tokens"}); }),
             Contains("parameters[top_log2_probs]"));
  CHECK_THAT(
      refusal([](TextRequest& r) { (*r.mutable_parameters())["max_tokens"].set_int64_param(2); }),
      Contains("max_new_tokens"));
  CHECK_THAT(refusal([](TextRequest& r) {
               (*r.mutable_parameters())["top_log2_probs"].set_int64_param(1'000'000);
             }),
             Contains("top_log2_probs"));
  // Elements that say that they are longer than what there is of them.
  for (const std::string& cut : {std::string("\5\0\0\0abc", 7), std::string("\1\0", 2),
                                 std::string("\xff\xff\xff\xff", 4)}) {
    CHECK_THAT(refusal([&](TextRequest& r) {
                 r.mutable_inputs(0)->clear_contents();
                 r.add_raw_input_contents(cut);
               }),
               Contains("cut short"));
  }
  CHECK_THAT(refusal([](TextRequest& r) {
               r = request_of({{1}}, 3);
               r.mutable_inputs(0)->set_datatype("INT64");
               r.mutable_inputs(0)->mutable_contents()->add_int64_contents(std::int64_t{1} << 40);
             }),
             Contains("1099511627776 is not a token id"));
  // A response of a million rows of tops would not fit.
  CHECK_THAT(refusal([](TextRequest& r) {
               (*r.mutable_parameters())["max_new_tokens"].set_int64_param(1'000'000);
               (*r.mutable_parameters())["top_log2_probs"].set_int64_param(64);
             }),
             Contains("67108864"));
}

}  // namespace lintel::testing
