// SPDX-License-Identifier: Apache-2.0
// LoRA adapters over gRPC: requests and sessions that name them.
#include <filesystem>

#include "tests/server/support/adapter_calls.h"
#include "tests/server/support/calls_as.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;
using Names = std::vector<std::string>;

// "second" with the adapters a and b in its directory.
struct Fixture : AdapterServer {
  Fixture() {
    write("second");
    write_adapter("second", "a", 1);
    write_adapter("second", "b", 2, 3);
    REQUIRE(load("second").ok());
  }
};

TEST_CASE("adapters in a model's directory are served with it, and listed") {
  const Fixture f;
  CHECK(f.adapters() == Names{"a", "b"});
  const v1::Adapter b = f.model().adapters(1);
  CHECK(b.rank() == 3);
  CHECK(b.modules() == 14);  // two layers of six, the predictor, the embedding
  CHECK(b.bytes() > 0);
  CHECK(b.fingerprint().size() == 64);
  CHECK(b.fingerprint() != f.model().adapters(0).fingerprint());
  const std::vector<float> base = f.log2_probs_with("");
  CHECK(f.log2_probs_with("a") != base);
  CHECK(f.log2_probs_with("b") != base);
  CHECK(f.log2_probs_with("a") != f.log2_probs_with("b"));
  CHECK(f.log2_probs_with("a") == f.log2_probs_with("a"));
  CHECK(f.log2_probs_with("") == base);
}

TEST_CASE("an adapter that --adapter gives is served as one in the model's directory") {
  const TemporaryDirectory elsewhere;
  write_random_adapter(elsewhere.path() / "some-run", tiny_config(TinyModel::kTokens),
                       {.rank = 2, .seed = 1});
  AdapterServer f([&](ServerOptions& options) {
    options.models.adapters = {{"second", "given", elsewhere.path() / "some-run"}};
  });
  f.write("second");
  f.write_adapter("second", "same", 1);
  REQUIRE(f.load("second").ok());
  CHECK(f.adapters() == Names{"given", "same"});
  CHECK(f.log2_probs_with("given") == f.log2_probs_with("same"));
  CHECK(f.log2_probs_with("given") != f.log2_probs_with(""));
}

TEST_CASE("an adapter that is not there is NOT_FOUND, naming those there are") {
  const Fixture f;
  const auto check = [](const grpc::Status& status) {
    CHECK(status.error_code() == Code::NOT_FOUND);
    CHECK_THAT(status.error_message(),
               Contains("adapter nosuch of model second") && Contains("a, b"));
    const auto resource = detail_of<google::rpc::ResourceInfo>(status);
    REQUIRE(resource);
    CHECK(resource->resource_type() == "adapter");
    CHECK(resource->resource_name() == "nosuch");
  };
  check(f.generate_with("nosuch").status);
  v1::Session session;
  check(f.create_session("nosuch", &session));
  v1::ScoreRequest request;
  request.set_model("second");
  request.set_adapter("nosuch");
  for (const int id : {1, 2}) {
    if (request.sequences_size() == 0) request.add_sequences();
    request.mutable_sequences(0)->mutable_tokens()->add_ids(id);
  }
  check(score(*f.server, request).status);
  // Another model's are not this one's.
  v1::GenerateRequest other = request_for("tokens", {1}, 2);
  other.set_adapter("a");
  CHECK_THAT(generate(*f.server, other).status.error_message(), Contains("it has none"));
}

TEST_CASE("a session keeps the adapter it was created with", "[threat-78]") {
  const Fixture f;
  const std::vector<float> whole = f.log2_probs_with("a");
  v1::Session session;
  REQUIRE(f.create_session("a", &session).ok());
  CHECK(session.adapter() == "a");
  const auto go_on = [&](const std::string& adapter, const std::vector<int>& prompt,
                         unsigned count) {
    v1::GenerateRequest request = request_for("", prompt, count);
    request.set_session_id(session.id());
    request.set_adapter(adapter);
    request.set_log2_probs(true);
    return generate(*f.server, request);
  };
  std::vector<float> pieces = go_on("", {1, 2, 3}, 2).only().log2_probs;
  // Another is refused, and leaves the session as it was.
  const grpc::Status other = go_on("b", {}, 4).status;
  CHECK(other.error_code() == Code::INVALID_ARGUMENT);
  CHECK(violated_fields(other) == Names{"adapter"});
  CHECK_THAT(other.error_message(), Contains("'b' is not the session's adapter, 'a'"));
  CHECK(go_on("nosuch", {}, 4).status.error_code() == Code::NOT_FOUND);
  const Generated rest = go_on("a", {}, 4);
  REQUIRE(rest.status.ok());
  pieces.insert(pieces.end(), rest.only().log2_probs.begin(), rest.only().log2_probs.end());
  CHECK(pieces == whole);

  v1::GetSessionRequest get;
  get.set_id(session.id());
  v1::Session shown;
  grpc::ClientContext context;
  REQUIRE(f.server->sessions->Get(&context, get, &shown).ok());
  CHECK(shown.adapter() == "a");
  // One without an adapter takes none later.
  session = create_session(*f.server, "second");
  CHECK(session.adapter().empty());
  const grpc::Status late = go_on("a", {1}, 2).status;
  CHECK(late.error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(late.error_message(), Contains("created without an adapter"));
}

TEST_CASE("samples of one prompt and a Score have the adapter that is named") {
  const Fixture f;
  v1::GenerateRequest request = f.with_adapter("b");
  request.set_num_samples(3);
  const Generated samples = generate(*f.server, request);
  REQUIRE(samples.status.ok());
  for (unsigned i = 0; i < 3; ++i) {
    v1::GenerateRequest one = f.with_adapter("b");
    one.mutable_sampling()->set_seed(7 + i);
    const Generated alone = generate(*f.server, one);
    CHECK(samples.samples.at(i).log2_probs == alone.only().log2_probs);
  }
  for (const std::string adapter : {"", "a", "b"}) {
    const Generated drawn = f.generate_with(adapter);
    v1::ScoreRequest wanted;
    wanted.set_model("second");
    wanted.set_adapter(adapter);
    auto& ids = *wanted.add_sequences()->mutable_tokens();
    for (const int id : {1, 2, 3}) ids.add_ids(id);
    for (const std::int32_t id : drawn.only().tokens) ids.add_ids(id);
    const Scored scored = score(*f.server, wanted);
    REQUIRE(scored.status.ok());
    const auto& log2_probs = scored.responses.at(0).log2_probs();
    CHECK(std::vector<float>(log2_probs.begin() + 2, log2_probs.end()) == drawn.only().log2_probs);
  }
}

TEST_CASE("batch invariance: requests with different adapters have the tokens of each alone") {
  const Fixture f;
  std::map<std::string, std::vector<float>> alone;
  for (const std::string adapter : {"", "a", "b"}) {
    alone[adapter] = f.generate_with(adapter, 40).only().log2_probs;
  }
  std::vector<std::thread> calls;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 12; ++i) {
    calls.emplace_back([&, adapter = std::string(i % 3 == 0   ? ""
                                                 : i % 3 == 1 ? "a"
                                                              : "b")] {
      const Generated out = f.generate_with(adapter, 40);
      wrong += !out.status.ok() || out.only().log2_probs != alone.at(adapter);
    });
  }
  for (std::thread& call : calls) call.join();
  CHECK(wrong == 0);
}

TEST_CASE("a session with an adapter is its owner's alone", "[threat-78]") {
  const TokenFile tokens;
  AdapterServer f([&](ServerOptions& options) { options.security.auth_tokens = tokens.path; });
  const TemporaryDirectory elsewhere;
  // Calls as root: this file's `both` has admin and generate.
  f.write("second");
  f.write_adapter("second", "a", 1);
  v1::LoadModelRequest load;
  load.set_name("second");
  v1::Model loaded;
  grpc::ClientContext loading;
  set_token(loading, "root");
  REQUIRE(f.admin->LoadModel(&loading, load, &loaded).ok());
  CHECK(loaded.adapters_size() == 1);

  v1::CreateSessionRequest create;
  create.set_model("second");
  create.set_adapter("a");
  v1::Session session;
  grpc::ClientContext creating;
  set_token(creating, "alice");
  REQUIRE(f.server->sessions->Create(&creating, create, &session).ok());
  v1::GenerateRequest request = request_for("", {1, 2}, 3);
  request.set_session_id(session.id());
  request.set_adapter("a");
  CHECK(generate_as(*f.server, "bob", request).error_code() == Code::NOT_FOUND);
  request.set_adapter("b");  // the error does not reveal its adapter
  CHECK_THAT(generate_as(*f.server, "bob", request).error_message(), !Contains("adapter"));
  request.set_adapter("a");
  CHECK(generate_as(*f.server, "alice", request).ok());
  // Loading and unloading is for the role admin.
  v1::UnloadAdapterRequest unload;
  unload.set_name("a");
  v1::UnloadAdapterResponse response;
  grpc::ClientContext unloading;
  set_token(unloading, "alice");
  CHECK(f.admin->UnloadAdapter(&unloading, unload, &response).error_code() ==
        Code::PERMISSION_DENIED);
}

}  // namespace
}  // namespace lintel::testing
