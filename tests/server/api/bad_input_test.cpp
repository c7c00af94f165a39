// SPDX-License-Identifier: Apache-2.0
// Bad input of every field: refused with INVALID_ARGUMENT naming the field, before anything runs.
#include <functional>
#include <limits>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct BadInput {
  const char* field;
  const char* model;
  std::function<void(v1::GenerateRequest&)> change;
};

v1::Values ids(std::initializer_list<int> tokens) {
  v1::Values out;
  for (const int token : tokens) out.mutable_tokens()->add_ids(token);
  return out;
}

void add_span(v1::GenerateRequest& request, std::int64_t position, const v1::Values& values) {
  v1::GivenSpan& span = *request.add_given();
  span.set_position(position);
  *span.mutable_values() = values;
}

const std::vector<BadInput>& bad_inputs() {
  using R = v1::GenerateRequest;
  static const std::vector<BadInput> inputs = {
      {"prompt.tokens.ids[1]", "tokens",
       [](R& r) {
         *r.mutable_prompt() = ids({1, 50});
       }},
      {"prompt.tokens.ids[0]", "tokens", [](R& r) { *r.mutable_prompt() = ids({-1}); }},
      {"prompt.text", "tokens", [](R& r) { r.mutable_prompt()->set_text("abc"); }},
      {"prompt.text", "image", [](R& r) { r.mutable_prompt()->set_text("abc"); }},
      {"prompt.pixels", "bytes", [](R& r) { r.mutable_prompt()->set_pixels("abc"); }},
      {"prompt.pixels", "tokens", [](R& r) { r.mutable_prompt()->set_pixels("abc"); }},
      {"prompt", "image", [](R& r) { r.mutable_prompt()->set_pixels(std::string(31, 'x')); }},
      {"prompt", "tokens",
       [](R& r) { *r.mutable_prompt()->mutable_tokens() = v1::Values::TokenIds(); }},
      {"prompt", "bytes", [](R& r) { r.clear_prompt(); }},
      {"prompt", "tokens",
       [](R& r) {
         for (int i = 0; i < 101; ++i) r.mutable_prompt()->mutable_tokens()->add_ids(1);
       }},
      {"max_new_tokens", "tokens", [](R& r) { r.set_max_new_tokens(201); }},
      {"max_new_tokens", "tokens", [](R& r) { r.set_max_new_tokens(~0u); }},
      {"stop.token_ids[1]", "tokens",
       [](R& r) {
         r.mutable_stop()->add_token_ids(3);
         r.mutable_stop()->add_token_ids(50);
       }},
      {"stop.token_ids", "tokens",
       [](R& r) {
         for (int i = 0; i < 300; ++i) r.mutable_stop()->add_token_ids(3);
       }},
      {"stop.strings", "tokens", [](R& r) { r.mutable_stop()->add_strings("a"); }},
      {"stop.strings", "image", [](R& r) { r.mutable_stop()->add_strings("a"); }},
      {"stop.strings[0]", "bytes", [](R& r) { r.mutable_stop()->add_strings(""); }},
      {"stop.strings[1]", "bytes",
       [](R& r) {
         r.mutable_stop()->add_strings("ok");
         r.mutable_stop()->add_strings(std::string(257, 'x'));
       }},
      {"stop.strings", "bytes",
       [](R& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_strings("x");
       }},
      {"top_log2_probs", "tokens", [](R& r) { r.set_top_log2_probs(51); }},
      {"top_log2_probs", "bytes", [](R& r) { r.set_top_log2_probs(65); }},
      {"num_samples", "tokens", [](R& r) { r.set_num_samples(0); }},
      {"num_samples", "tokens", [](R& r) { r.set_num_samples(9); }},
      {"num_samples", "tokens", [](R& r) { r.set_num_samples(~0u); }},
      {"given[0].position", "image", [](R& r) { add_span(r, -1, ids({1})); }},
      {"given[0].position", "image",
       [](R& r) {
         add_span(r, 29, ids({1, 2}));
       }},
      {"given[0].position", "tokens",
       [](R& r) { add_span(r, std::numeric_limits<std::int64_t>::max(), ids({1})); }},
      {"given[0].values", "image", [](R& r) { add_span(r, 5, v1::Values()); }},
      {"given[1].values.tokens.ids[2]", "image",
       [](R& r) {
         add_span(r, 5, ids({1}));
         add_span(r, 8, ids({1, 2, 256}));
       }},
      {"given[0].values.text", "image",
       [](R& r) {
         v1::Values values;
         values.set_text("a");
         add_span(r, 5, values);
       }},
      {"given[0].position", "image",
       [](R& r) {
         add_span(r, 8, ids({1, 2}));
         add_span(r, 5, ids({1, 2, 3, 4}));
       }},
      {"given", "image", [](R& r) { add_span(r, 1, ids({1})); }},  // the prompt's place
      {"given", "tokens",
       [](R& r) {
         v1::Values values;
         for (int i = 0; i < 41; ++i) values.mutable_tokens()->add_ids(1);
         add_span(r, 5, values);
       }},
      {"time_limit", "tokens", [](R& r) { r.mutable_time_limit()->set_seconds(-1); }},
      {"time_limit", "tokens", [](R& r) { r.mutable_time_limit(); }},
      {"time_limit", "tokens", [](R& r) { r.mutable_time_limit()->set_nanos(1'000'000'000); }},
      {"time_limit", "tokens",
       [](R& r) {
         r.mutable_time_limit()->set_seconds(1);
         r.mutable_time_limit()->set_nanos(-1);
       }},
  };
  return inputs;
}

ServerOptions small_limits() {
  ServerOptions options = test_options();
  options.models.limits.max_prompt_tokens = 100;
  options.models.limits.max_new_tokens = 200;
  options.models.limits.max_given_tokens = 40;
  options.models.limits.max_score_tokens = 60;
  options.models.scheduling.max_batch_rows = 8;
  options.models.scheduling.prefill_rows_per_step = 8;
  return options;
}

TEST_CASE("bad input of every field is refused by the field's name", "[threat-25]") {
  TestServer server({"image", "bytes", "tokens"}, small_limits());
  for (const BadInput& input : bad_inputs()) {
    v1::GenerateRequest request = request_for(input.model, {1, 2}, 5);
    input.change(request);
    INFO(request.ShortDebugString());
    const Generated out = generate(server, request);
    CHECK(out.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(out.messages.empty());
    CHECK(violated_fields(out.status) == std::vector<std::string>{input.field});
    CHECK(out.status.error_message().find(input.field) == 0);
  }
  CHECK(server.scheduler("tokens").stats().steps == 0);
  CHECK(server.server().store().bytes_in_use() == 0);
}

TEST_CASE("one refusal names all invalid fields of a request") {
  TestServer server({"tokens"}, small_limits());
  v1::GenerateRequest request = request_for("tokens", {99}, 1000);
  request.mutable_sampling()->set_temperature(-1);
  request.set_num_samples(100);
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"prompt.tokens.ids[0]", "max_new_tokens", "num_samples",
                                 "sampling.temperature"});
}

TEST_CASE("a thousand bad tokens make an answer of readable size") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", std::vector<int>(1000, 1 << 30), 5);
  const Generated out = generate(server, request);
  CHECK(out.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(violated_fields(out.status).size() == 16);
}

TEST_CASE("a name of a megabyte is not sent back") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for(std::string(1 << 20, 'n'), {1}, 5);
  const Generated out = generate(server, request);
  CHECK(out.status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(out.status.error_message().size() < 200);
  request.clear_model();
  request.set_session_id(std::string(1 << 20, '\n'));
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("several samples cannot continue one session") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("", {1}, 5);
  request.set_session_id(create_session(server, "tokens").id());
  request.set_num_samples(2);
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"num_samples"});
  request.set_num_samples(1);
  CHECK(generate(server, request).status.ok());
}

TEST_CASE("a model has to be named when several are loaded") {
  TestServer server({"image", "tokens"});
  const Generated unnamed = generate(server, request_for("", {1}, 5));
  CHECK(violated_fields(unnamed.status) == std::vector<std::string>{"model"});
  CHECK(unnamed.status.error_message().find("image, tokens") != std::string::npos);
  const Generated unknown = generate(server, request_for("nosuch", {1}, 5));
  CHECK(unknown.status.error_code() == grpc::StatusCode::NOT_FOUND);
  const auto resource = detail_of<google::rpc::ResourceInfo>(unknown.status);
  REQUIRE(resource);
  CHECK(resource->resource_type() == "model");
  CHECK(resource->resource_name() == "nosuch");
}

TEST_CASE("bad input of every field of Score is refused by the field's name") {
  TestServer server({"bytes", "tokens"}, small_limits());
  using R = v1::ScoreRequest;
  struct BadScore {
    const char* field;
    std::function<void(R&)> change;
  };
  const BadScore inputs[] = {
      {"sequences", [](R& r) { r.clear_sequences(); }},
      {"sequences[1]", [](R& r) { *r.add_sequences() = ids({1}); }},
      {"sequences[1]", [](R& r) { r.add_sequences(); }},
      {"sequences[1].tokens.ids[2]",
       [](R& r) {
         *r.add_sequences() = ids({1, 2, 50});
       }},
      {"sequences[1].text", [](R& r) { r.add_sequences()->set_text("abc"); }},
      {"sequences[1].pixels", [](R& r) { r.add_sequences()->set_pixels("abc"); }},
      {"sequences",
       [](R& r) {
         for (int i = 0; i < 30; ++i) *r.add_sequences() = ids({1, 2});
       }},
      {"model", [](R& r) { r.clear_model(); }},
  };
  for (const BadScore& input : inputs) {
    R request;
    request.set_model("tokens");
    *request.add_sequences() = ids({1, 2});
    input.change(request);
    INFO(request.ShortDebugString());
    const Scored out = score(server, request);
    CHECK(violated_fields(out.status) == std::vector<std::string>{input.field});
    CHECK(out.responses.empty());
  }
}

TEST_CASE("a request larger than the limit is refused without harm", "[threat-25]") {
  ServerOptions options = test_options();
  options.connections.max_message_bytes = 10'000;
  TestServer server({"tokens"}, options);
  const Generated out = generate(server, request_for("tokens", std::vector<int>(20'000, 1), 1));
  CHECK(out.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(generate(server, request_for("tokens", {1}, 1)).status.ok());
}

}  // namespace
}  // namespace lintel::testing
