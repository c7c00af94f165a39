// SPDX-License-Identifier: Apache-2.0
// Particles, given tokens, samples and penalties in a window, over every protocol: the tokens are
// those of lintel.v1.
#include <cmath>
#include <nlohmann/json.hpp>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/support/http_client.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

const std::vector<int> kPrompt = {1, 2, 3};
constexpr unsigned kCount = 24;
constexpr unsigned kParticles = 8;
constexpr unsigned kSamples = 2;
const std::vector<int> kGivenAt = {9, 10, 11, 20};
const std::vector<int> kGiven = {4, 5, 6, 7};

v1::GenerateRequest asked() {
  v1::GenerateRequest request = request_for("tokens", kPrompt, kCount);
  request.set_particles(kParticles);
  request.set_num_samples(kSamples);
  request.set_log2_probs(true);
  v1::Sampling& sampling = *request.mutable_sampling();
  sampling.set_frequency_penalty(0.5F);
  sampling.set_penalty_window(6);
  for (const std::size_t at : {std::size_t{0}, std::size_t{3}}) {
    v1::GivenSpan& span = *request.add_given();
    span.set_position(kGivenAt[at]);
    auto& ids = *span.mutable_values()->mutable_tokens();
    for (std::size_t i = at; i < (at == 0 ? 3 : kGiven.size()); ++i) ids.add_ids(kGiven[i]);
  }
  return request;
}

const json kParameters = {{"max_new_tokens", kCount}, {"seed", 7},
                          {"particles", kParticles},  {"num_samples", kSamples},
                          {"frequency_penalty", 0.5}, {"penalty_window", 6}};

json list_tensor(const char* name, const char* datatype, const std::vector<int>& data) {
  return {{"name", name}, {"datatype", datatype}, {"shape", {data.size()}}, {"data", data}};
}

json infer_body(const json& parameters) {
  return {{"inputs",
           {{{"name", "tokens"}, {"datatype", "INT32"}, {"shape", {1, 3}}, {"data", kPrompt}},
            list_tensor("given_positions", "INT64", kGivenAt),
            list_tensor("given_tokens", "INT32", kGiven)}},
          {"outputs", {{{"name", "tokens"}}, {{"name", "score"}}, {{"name", "log2_evidence"}}}},
          {"parameters", parameters}};
}

struct EveryServer : TestServer {
  EveryServer() : TestServer({"bytes", "tokens"}, with_http()) {}
  HttpReply send(const std::string& path, const json& body) {
    return post(server().http_port(), path, body.dump());
  }
  json sent(const std::string& path, const json& body) {
    const HttpReply reply = send(path, body);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return json::parse(reply.body);
  }
};

// The tokens of both samples, concatenated.
std::vector<int> all_tokens(const Generated& generated) {
  std::vector<int> all;
  for (const auto& [index, sample] : generated.samples) {
    all.insert(all.end(), sample.tokens.begin(), sample.tokens.end());
  }
  return all;
}

inference::ModelInferRequest wire_request() {
  inference::ModelInferRequest request;
  request.set_model_name("tokens");
  const auto add = [&](const char* name, const std::vector<int>& data, bool is_row) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype("INT32");
    if (is_row) input.add_shape(1);
    input.add_shape(static_cast<std::int64_t>(data.size()));
    for (const int value : data) input.mutable_contents()->add_int_contents(value);
  };
  add("tokens", kPrompt, true);
  add("given_positions", kGivenAt, false);
  add("given_tokens", kGiven, false);
  for (const char* const name : {"tokens", "score", "log2_evidence"}) {
    request.add_outputs()->set_name(name);
  }
  for (const auto& [name, value] : kParameters.items()) {
    auto& parameter = (*request.mutable_parameters())[name];
    if (value.is_number_float()) {
      parameter.set_double_param(value.get<double>());
    } else {
      parameter.set_int64_param(value.get<std::int64_t>());
    }
  }
  return request;
}

}  // namespace

TEST_CASE("particles over the inference protocol give the samples and evidence of lintel.v1") {
  EveryServer server;
  const Generated expected = generate(server, asked());
  REQUIRE(expected.status.ok());
  const double evidence = expected.samples.at(0).finish.log2_evidence();
  REQUIRE(evidence < 0);

  inference::ModelInferResponse response;
  grpc::ClientContext context;
  const grpc::Status status = inference::GRPCInferenceService::NewStub(server.channel())
                                  ->ModelInfer(&context, wire_request(), &response);
  INFO(status.error_message());
  REQUIRE(status.ok());
  const auto& tokens = response.outputs(0);
  CHECK(tokens.shape(0) == kSamples);
  CHECK(std::vector<int>(tokens.contents().int_contents().begin(),
                         tokens.contents().int_contents().end()) == all_tokens(expected));
  CHECK(response.outputs(1).contents().fp64_contents_size() == kSamples);
  CHECK(response.outputs(2).contents().fp64_contents(0) == evidence);

  const json rest = server.sent("/v2/models/tokens/infer", infer_body(kParameters));
  CHECK(rest["outputs"][0]["shape"] == json({kSamples, kCount}));
  CHECK(rest["outputs"][0]["data"] == json(all_tokens(expected)));
  CHECK(rest["outputs"][2]["data"][1] == evidence);

  json flat = kParameters;
  flat.update({{"tokens", kPrompt},
               {"given_positions", kGivenAt},
               {"given_tokens", kGiven},
               {"outputs", {"tokens", "log2_evidence"}}});
  CHECK(server.sent("/v2/models/tokens/generate", flat)["tokens"] == json(all_tokens(expected)));

  // One sample, as it comes.
  v1::GenerateRequest single = asked();
  single.set_num_samples(1);
  const Generated one = generate(server, single);
  flat["num_samples"] = 1;
  const HttpReply stream = server.send("/v2/models/tokens/generate_stream", flat);
  INFO(stream.body);
  REQUIRE(stream.status == 200);
  std::vector<int> streamed;
  json last;
  for (std::size_t at = 0; at < stream.body.size();) {
    const std::size_t end = stream.body.find("\n\n", at);
    last = json::parse(stream.body.substr(at + 6, end - at - 6));
    for (const json& token : last["tokens"]) streamed.push_back(token.get<int>());
    at = end + 2;
  }
  CHECK(streamed == one.only().tokens);
  CHECK(last["log2_evidence"] == one.only().finish.log2_evidence());
}

TEST_CASE("samples of a row are those that lintel.v1 gives from its prompt, a row each") {
  EveryServer server;
  json body = infer_body({{"max_new_tokens", 6}, {"seed", 7}, {"num_samples", 3}});
  body["inputs"] = {
      {{"name", "tokens"}, {"datatype", "INT32"}, {"shape", {2, 1}}, {"data", {1, 2}}}};
  body["outputs"] = {{{"name", "tokens"}}, {{"name", "log2_evidence"}}};
  const json got = server.sent("/v2/models/tokens/infer", body);
  v1::GenerateRequest request = request_for("tokens", {1}, 6);
  request.set_num_samples(3);
  std::vector<int> expected = all_tokens(generate(server, request));
  request = request_for("tokens", {2}, 6);
  request.set_num_samples(3);
  request.mutable_sampling()->set_seed(10);
  for (const int token : all_tokens(generate(server, request))) expected.push_back(token);
  CHECK(got["outputs"][0]["shape"] == json({6, 6}));
  CHECK(got["outputs"][0]["data"] == json(expected));
  CHECK(got["outputs"][1]["data"][5].is_null());  // there are no particles
}

TEST_CASE("particles over OpenAI's API give the choices and evidence of lintel.v1") {
  EveryServer server;
  const Generated expected = generate(server, asked());
  const json body = {
      {"model", "tokens"},
      {"prompt", kPrompt},
      {"max_tokens", kCount},
      {"seed", 7},
      {"n", kSamples},
      {"particles", kParticles},
      {"frequency_penalty", 0.5},
      {"penalty_window", 6},
      {"logprobs", 0},
      {"given", {{{"position", 9}, {"tokens", {4, 5, 6}}}, {{"position", 20}, {"tokens", {7}}}}}};
  const json got = server.sent("/v1/completions", body);
  for (unsigned i = 0; i < kSamples; ++i) {
    std::string text;
    for (const int token : expected.samples.at(i).tokens) {
      text += (text.empty() ? "" : " ") + std::to_string(token);
    }
    CHECK(got["choices"][i]["text"] == text);
    CHECK(got["choices"][i]["log2_evidence"] == expected.samples.at(i).finish.log2_evidence());
  }
}

TEST_CASE("best_of gives the most likely of its samples, the best one first") {
  EveryServer server;
  constexpr unsigned kBestOf = 5;
  v1::GenerateRequest request = request_for("tokens", kPrompt, kCount);
  request.set_num_samples(kBestOf);
  request.set_log2_probs(true);
  const Generated all = generate(server, request);
  std::vector<std::pair<double, std::string>> ranked;
  for (const auto& [index, sample] : all.samples) {
    double sum = 0;
    for (const float log2_prob : sample.log2_probs) sum += log2_prob;
    std::string text;
    for (const int token : sample.tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
    ranked.emplace_back(-sum / kCount, text);
  }
  std::sort(ranked.begin(), ranked.end());
  json body = {
      {"model", "tokens"}, {"prompt", kPrompt}, {"max_tokens", kCount}, {"seed", 7}, {"n", 2},
      {"best_of", kBestOf}};
  const json got = server.sent("/v1/completions", body);
  REQUIRE(got["choices"].size() == 2);
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(got["choices"][i]["index"] == i);
    CHECK(got["choices"][i]["text"] == ranked[i].second);
    CHECK(got["choices"][i]["logprobs"].is_null());
  }
  CHECK(got["usage"]["completion_tokens"] == kBestOf * kCount);
  // A prompt each: the samples of the second follow those of the first.
  body["prompt"] = {kPrompt, kPrompt};
  const json two = server.sent("/v1/completions", body);
  REQUIRE(two["choices"].size() == 4);
  CHECK(two["choices"][1]["text"] == ranked[1].second);
  body["prompt"] = kPrompt;
  body["seed"] = 7 + kBestOf;
  CHECK(server.sent("/v1/completions", body)["choices"][0]["text"] == two["choices"][2]["text"]);
}

TEST_CASE("fields that cannot be combined with particles are refused in every protocol") {
  EveryServer server;
  const auto refused = [&](const char* path, const json& body) {
    const HttpReply reply = server.send(path, body);
    INFO(reply.body);
    CHECK((reply.status == 400 || reply.status == 422));
    return json::parse(reply.body)["error"].dump();
  };
  const auto infer = [&](const json& more) {
    json parameters = kParameters;
    parameters.update(more);
    return refused("/v2/models/tokens/infer", infer_body(parameters));
  };
  CHECK_THAT(infer({{"particles", 100000}}), Contains("particles"));
  CHECK_THAT(infer({{"particles", "many"}}), Contains("parameters[particles]"));
  CHECK_THAT(infer({{"num_samples", 0}}), Contains("num_samples"));
  CHECK_THAT(infer({{"num_samples", 9}}), Contains("num_samples"));
  CHECK_THAT(infer({{"num_samples", 100000}}), Contains("parameters[num_samples]"));
  CHECK_THAT(infer({{"top_log2_probs", 2}}), Contains("top_log2_probs"));
  CHECK_THAT(infer({{"penalty_window", 100000}}), Contains("penalty_window"));
  json sequence = {{"sequence_id", 1}, {"sequence_start", true}};
  CHECK_THAT(infer(sequence), Contains("parameters[num_samples]"));
  sequence["num_samples"] = 1;
  CHECK_THAT(infer(sequence), Contains("parameters[particles]"));
  json body = infer_body(kParameters);
  body["inputs"].erase(1);
  CHECK_THAT(refused("/v2/models/tokens/infer", body), Contains("given_positions"));
  body = infer_body(kParameters);
  body["inputs"][1]["data"][0] = 1;  // in the prompt
  CHECK_THAT(refused("/v2/models/tokens/infer", body), Contains("given"));
  body["inputs"][1]["shape"] = {3};
  CHECK_THAT(refused("/v2/models/tokens/infer", body), Contains("inputs[1].shape"));
  json flat = kParameters;
  flat.update({{"tokens", kPrompt}});
  CHECK_THAT(refused("/v2/models/tokens/generate_stream", flat),
             Contains("parameters[num_samples]"));

  const auto complete = [&](const json& more) {
    json completion = {{"model", "tokens"}, {"prompt", kPrompt}, {"max_tokens", 3}};
    completion.update(more);
    return refused("/v1/completions", completion);
  };
  CHECK_THAT(complete({{"particles", 100000}}), Contains("\"param\":\"particles\""));
  CHECK_THAT(complete({{"particles", 4}, {"logprobs", 2}}), Contains("\"param\":\"logprobs\""));
  CHECK_THAT(complete({{"penalty_window", -1}}), Contains("\"param\":\"penalty_window\""));
  CHECK_THAT(complete({{"given", {{{"position", 9}}}}}), Contains("given: [0] is not"));
  CHECK_THAT(complete({{"given", {{{"position", 9}, {"text", "x"}}}}}),
             Contains("\"param\":\"given\""));  // of a model of tokens
  CHECK_THAT(complete({{"n", 3}, {"best_of", 2}}), Contains("best_of: is less than n"));
  CHECK_THAT(complete({{"best_of", 2}, {"stream", true}}), Contains("best_of: cannot be streamed"));
  CHECK_THAT(complete({{"best_of", 2}, {"particles", 4}}), Contains("best_of"));
  CHECK_THAT(complete({{"best_of", 100000}}), Contains("\"param\":\"best_of\""));
}

}  // namespace lintel::testing
