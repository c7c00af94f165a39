// SPDX-License-Identifier: Apache-2.0
// Prompts that begin as earlier ones, over gRPC.
#include <vector>

#include "tests/server/support/adapter_calls.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

constexpr const char* kBytes = "lintel_prefix_cache_bytes";

std::vector<int> long_prompt(int size) {
  std::vector<int> prompt;
  for (int i = 0; i < size; ++i) prompt.push_back(i * i % 50);
  return prompt;
}

Sample sample_as(TestServer& server, const std::string& who, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.generation->Generate(&context, request);
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  out.status = reader->Finish();
  REQUIRE(out.status.ok());
  return out.only();
}

TEST_CASE("a prompt that begins as an earlier one says how much of it was not read") {
  TestServer server({"tokens"}, with_metrics());
  v1::GenerateRequest request = request_for("tokens", long_prompt(100), 5);
  request.set_log2_probs(true);
  const Sample read = generate(server, request).only();
  CHECK(read.finish.cached_tokens() == 0);
  CHECK(read.finish.prompt_tokens() == 100);
  generate(server, request);
  const Sample cached = generate(server, request).only();
  CHECK(cached.finish.cached_tokens() == 100);
  CHECK(cached.finish.prompt_tokens() == 0);
  CHECK(cached.finish.position() == read.finish.position());
  CHECK(cached.tokens == read.tokens);
  CHECK(cached.log2_probs == read.log2_probs);

  v1::GenerateRequest of_session = request;
  of_session.set_model("");
  of_session.set_session_id(create_session(server, "tokens").id());
  const Sample first = generate(server, of_session).only();
  CHECK(first.finish.cached_tokens() == 100);
  CHECK(first.tokens == read.tokens);
  CHECK(generate(server, of_session).only().finish.cached_tokens() == 0);

  const auto now = values(server.server());
  CHECK(now.at("lintel_prefix_cache_hits_total") == 2);
  CHECK(now.at("lintel_prefix_cache_misses_total") == 2);
  CHECK(now.at("lintel_prefix_cache_saved_tokens_total") == 200);
  CHECK(now.at("lintel_prefix_cache_evictions_total") == 0);
  CHECK(now.at(kBytes) > 400);
}

TEST_CASE("a state is kept after as many tokens of a prompt as the request says") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", long_prompt(100), 1);
  request.set_cache_prefix_tokens(101);
  const grpc::Status refused = generate(server, request).status;
  CHECK(refused.error_code() == Code::INVALID_ARGUMENT);
  CHECK(violated_fields(refused) == std::vector<std::string>{"cache_prefix_tokens"});
  request.set_cache_prefix_tokens(60);
  CHECK(generate(server, request).only().finish.cached_tokens() == 0);
  CHECK(generate(server, request).only().finish.cached_tokens() == 60);
  request = request_for("tokens", long_prompt(80), 1);
  CHECK(generate(server, request).only().finish.cached_tokens() == 60);
}

TEST_CASE("without memory for it every prompt is read") {
  ServerOptions options = with_metrics();
  options.prefixes.memory_bytes = 0;
  TestServer server({"tokens"}, options);
  for (int i = 0; i < 3; ++i) {
    const auto request = request_for("tokens", long_prompt(100), 1);
    CHECK(generate(server, request).only().finish.cached_tokens() == 0);
  }
  CHECK(values(server.server()).at("lintel_prefix_cache_misses_total") == 0);
}

TEST_CASE("another token's prompt is read from its beginning", "[threat-5]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  const auto request = request_for("tokens", long_prompt(100), 1);
  for (int i = 0; i < 2; ++i) sample_as(server, "alice", request);
  CHECK(sample_as(server, "alice", request).finish.cached_tokens() == 100);
  CHECK(sample_as(server, "bob", request).finish.cached_tokens() == 0);
}

TEST_CASE("an adapter or a model that is unloaded leaves nothing of its prompts") {
  AdapterServer f([](ServerOptions& options) {
    options.monitoring.metrics_listen = ListenAddress{"127.0.0.1", 0, ""};
  });
  f.write("second");
  f.write_adapter("second", "a", 1);
  REQUIRE(f.load("second").ok());
  v1::GenerateRequest request = request_for("second", long_prompt(100), 1);
  request.set_adapter("a");
  const auto cached = [&] { return generate(*f.server, request).only().finish.cached_tokens(); };
  const auto bytes = [&] { return values(f.server->server()).at(kBytes); };
  for (int i = 0; i < 2; ++i) REQUIRE(cached() == 0);
  REQUIRE(cached() == 100);
  REQUIRE(f.unload_adapter("a").ok());
  CHECK(bytes() == 0);
  REQUIRE(f.load_adapter("a").ok());
  CHECK(cached() == 0);

  request.clear_adapter();
  for (int i = 0; i < 2; ++i) REQUIRE(cached() == 0);
  REQUIRE(cached() == 100);
  REQUIRE(f.unload("second").ok());
  CHECK(bytes() == 0);
  REQUIRE(f.load("second").ok());
  CHECK(cached() == 0);
}

}  // namespace
}  // namespace lintel::testing
