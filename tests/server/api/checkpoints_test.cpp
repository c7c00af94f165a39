// SPDX-License-Identifier: Apache-2.0
// Checkpoints of other projects, served: requests, sessions and their copies.
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "model/transformer.h"
#include "server/sessions/snapshot.h"
#include "tests/server/support/session_calls.h"
#include "tests/server/support/snapshot_calls.h"
#include "tests/server/support/stored_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(LINTEL_TEST_DATA) / "golden" / name;
}

struct ServedCheckpoint {
  std::string path;
  KvType kv_type = KvType::kF32;
};

// One of each family, kind of file and type of KV caches.
const std::map<std::string, ServedCheckpoint> kCheckpoints = {
    {"qwen", {"families/qwen3_5"}},
    {"qwen-bf16", {"families/qwen3_5", KvType::kBf16}},
    {"qwen-int8", {"families/qwen3_5", KvType::kInt8}},
    {"qwen-text", {"families/qwen3_5-multimodal"}},
    {"qwen-gguf", {"gguf/qwen35-kmix.gguf"}},
    {"hybrid-int8", {"families/gated-deltanet-hybrid", KvType::kInt8}},
    {"rwkv", {"families/rwkv7-official"}},
    {"rwkv-fla", {"families/rwkv7"}},
    {"rwkv-gguf", {"gguf/rwkv7-kmix.gguf"}},
};

const GivenModels& checkpoints() {
  static const GivenModels models = [] {
    GivenModels loaded;
    for (const auto& [name, checkpoint] : kCheckpoints) {
      loaded[name] = Transformer::load(golden(checkpoint.path), {.kv_type = checkpoint.kv_type});
    }
    return loaded;
  }();
  return models;
}

struct CheckpointServer : TestServer {
  explicit CheckpointServer(Speculation speculation = Speculation::kOn)
      : TestServer(options(speculation), clock, checkpoints()) {}

  static ServerOptions options(Speculation speculation) {
    ServerOptions options = test_options();
    options.models.scheduling.speculation = speculation;
    return options;
  }
  static const SteadyClock clock;
};
const SteadyClock CheckpointServer::clock;

std::vector<int> prompt_of(int number) {
  std::vector<int> prompt;
  for (int i = 0; i < 3 + number % 9; ++i) prompt.push_back((7 * number + 11 * i * i + 5) % 80);
  return prompt;
}

v1::GenerateRequest request_number(int number) {
  const auto model =
      std::next(kCheckpoints.begin(), number % static_cast<int>(kCheckpoints.size()));
  v1::GenerateRequest request = request_for(model->first, prompt_of(number), 24);
  request.mutable_sampling()->set_seed(static_cast<std::uint64_t>(number));
  request.mutable_sampling()->set_temperature(number % 3 == 0 ? 0.0f : 0.8f);
  if (number % 4 == 1) request.set_num_samples(2);
  return request;
}

std::map<unsigned, std::vector<std::int32_t>> tokens_of(const Generated& generated) {
  std::map<unsigned, std::vector<std::int32_t>> tokens;
  for (const auto& [index, sample] : generated.samples) tokens[index] = sample.tokens;
  return tokens;
}

TEST_CASE(
    "checkpoints: 64 requests give the same tokens alone and together, with and without drafts",
    "[promise]") {
  constexpr int kRequests = 64;
  std::vector<std::map<unsigned, std::vector<std::int32_t>>> alone(kRequests);
  {
    CheckpointServer server(Speculation::kOff);
    for (int i = 0; i < kRequests; ++i) {
      const Generated generated = generate(server, request_number(i));
      REQUIRE(generated.status.ok());
      alone[static_cast<std::size_t>(i)] = tokens_of(generated);
    }
  }
  CheckpointServer server;
  std::vector<std::map<unsigned, std::vector<std::int32_t>>> together(kRequests);
  std::vector<std::thread> clients;
  for (int i = 0; i < kRequests; ++i) {
    clients.emplace_back([&, i] {
      together[static_cast<std::size_t>(i)] = tokens_of(generate(server, request_number(i)));
    });
  }
  for (std::thread& client : clients) client.join();
  for (std::size_t i = 0; i < kRequests; ++i) {
    CAPTURE(i);
    CHECK(together[i] == alone[i]);
  }
}

TEST_CASE("checkpoints: forks, rewinds and restored snapshots continue as the session") {
  CheckpointServer server;
  for (const auto& [model, checkpoint] : kCheckpoints) {
    CAPTURE(model);
    const v1::Session session = create_session(server, model);
    const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
    const Sample first = go_on(server, session.id(), 9, prompt);

    v1::ForkSessionResponse forked;
    REQUIRE(fork_session(server, session.id(), std::nullopt, 2, &forked).ok());
    const Snapshot snapshot = snapshot_of(server, session.id());
    REQUIRE(snapshot.status.ok());
    const Sample next = go_on(server, session.id(), 12, {8}, 21);
    for (const v1::Session& fork : forked.sessions()) {
      CHECK(go_on(server, fork.id(), 12, {8}, 21).tokens == next.tokens);
    }
    v1::Session rewound;
    REQUIRE(rewind_session(server, session.id(), 15, &rewound).ok());
    const std::vector<std::int32_t> again = {first.tokens.begin() + 4, first.tokens.end()};
    CHECK(go_on(server, session.id(), 1, again, 21).tokens.size() == 1);
    v1::Session restored;
    REQUIRE(restore(server, messages_of(snapshot.bytes, /*verify=*/true), &restored).ok());
    CHECK(go_on(server, restored.id(), 12, {8}, 21).tokens == next.tokens);
  }
}

TEST_CASE("checkpoints: forks of a fork, checkpoints and rewinds share pages and keep their bits") {
  CheckpointServer server;
  const std::string model = GENERATE("qwen", "qwen-int8", "hybrid-int8");
  CAPTURE(model);
  v1::CreateSessionRequest request;
  request.set_model(model);
  request.set_max_tokens(400);
  request.mutable_checkpoints()->set_every_tokens(16);
  request.mutable_checkpoints()->set_keep(8);
  v1::Session session;
  grpc::ClientContext context;
  REQUIRE(server.sessions->Create(&context, request, &session).ok());
  const Sample whole = go_on(server, session.id(), 90, {1, 2, 3});
  for (const std::int64_t position : {88, 64, 33, 17}) {
    CAPTURE(position);
    v1::ForkSessionResponse forked;
    REQUIRE(fork_session(server, session.id(), position, 2, &forked).ok());
    const Sample one = go_on(server, forked.sessions(0).id(), 30, {5}, 4);
    v1::ForkSessionResponse again;
    REQUIRE(fork_session(server, forked.sessions(1).id(), std::nullopt, 1, &again).ok());
    CHECK(go_on(server, again.sessions(0).id(), 30, {5}, 4).tokens == one.tokens);
    CHECK(go_on(server, forked.sessions(1).id(), 30, {5}, 4).tokens == one.tokens);
  }
  v1::Session rewound;
  REQUIRE(rewind_session(server, session.id(), 3, &rewound).ok());
  CHECK(go_on(server, session.id(), 90).tokens == whole.tokens);
}

TEST_CASE("checkpoints: prompts that begin alike continue from shared pages with the same tokens") {
  CheckpointServer server;
  const std::string model = GENERATE("qwen", "qwen-bf16", "qwen-int8", "hybrid-int8");
  CAPTURE(model);
  std::vector<int> prompt;
  for (int i = 0; i < 75; ++i) prompt.push_back((11 * i * i + 5) % 80);
  std::vector<std::int32_t> expected;
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    const Generated generated = generate(server, request_for(model, prompt, 40));
    REQUIRE(generated.status.ok());
    const Sample& sample = generated.samples.at(0);
    CHECK((sample.finish.cached_tokens() > 0) == (i > 1));
    if (i == 0) expected = sample.tokens;
    CHECK(sample.tokens == expected);
  }
}

TEST_CASE("checkpoints: a snapshot of another KV type continues, and says so") {
  CheckpointServer server;
  const v1::Session session = create_session(server, "qwen-int8");
  go_on(server, session.id(), 9, {3, 1, 4});
  const std::string bytes = snapshot_of(server, session.id()).bytes;
  SnapshotOf snapshot = read_snapshot(std::as_bytes(std::span(bytes)));
  CHECK(snapshot.kv_type == "int8");
  v1::Session restored;
  const auto restored_on = [&](const std::string& model, bool accepts) {
    snapshot.image.model = model;
    const std::vector<std::byte> other = write_snapshot(snapshot);
    Messages messages =
        messages_of(std::string(reinterpret_cast<const char*>(other.data()), other.size()));
    messages[0].mutable_header()->set_accept_other_numerics(accepts);
    return restore(server, messages, &restored);
  };
  for (const char* const name : {"qwen-bf16", "qwen"}) {
    CAPTURE(name);
    CHECK(reason_of(restored_on(name, /*accepts=*/false)) == "NUMERICS_CHANGED");
    REQUIRE(restored_on(name, /*accepts=*/true).ok());
    CHECK(go_on(server, restored.id(), 3, {5}).finish.numerics_changed());
    CHECK(get_session(server, restored.id()).numerics_changed_at() == 12);
  }
  REQUIRE(restored_on("qwen-int8", /*accepts=*/false).ok());
  CHECK_FALSE(go_on(server, restored.id(), 3, {5}).finish.numerics_changed());
  // The hash of one type with cells of another.
  v1::GetModelRequest request;
  v1::Model model;
  request.set_name("qwen");
  grpc::ClientContext context;
  REQUIRE(server.models->Get(&context, request, &model).ok());
  snapshot.numerics = model.numerics();
  CHECK(reason_of(restored_on("qwen", /*accepts=*/false)) == "NUMERICS_CHANGED");
  REQUIRE(restored_on("qwen", /*accepts=*/true).ok());
  CHECK(go_on(server, restored.id(), 3, {5}).finish.numerics_changed());
  for (const std::string& type : std::vector<std::string>{"", "fp4"}) {
    snapshot.kv_type = type;
    const grpc::Status refused = restored_on("qwen-int8", /*accepts=*/true);
    CHECK(reason_of(refused) == "MODEL_MISMATCH");
    CHECK_THAT(refused.error_message(),
               Catch::Contains("another KV type than model qwen-int8 here: " +
                               (type.empty() ? "none" : type) + ", not int8"));
  }
}

TEST_CASE("checkpoints: a model says what it is made of and what a session takes") {
  CheckpointServer server;
  v1::GetModelRequest request;
  v1::Model model;
  request.set_name("qwen-text");
  grpc::ClientContext first;
  REQUIRE(server.models->Get(&first, request, &model).ok());
  CHECK(model.attention() == "gated_delta,gated_softmax");
  CHECK_FALSE(model.constant_state());
  CHECK(model.max_length() == 4096);
  CHECK(model.tokenizer().empty());
  REQUIRE(model.state_growth_size() > 1);
  CHECK(model.state_growth(0).bytes() > 0);
  CHECK(model.state_growth(model.state_growth_size() - 1).bytes() > model.state_growth(0).bytes());
  REQUIRE(model.warnings_size() == 1);
  CHECK_THAT(model.warnings(0), Catch::StartsWith("text only: "));
  CHECK(model.kv_type() == "f32");
  CHECK(model.kv_session_bytes() == model.state_growth(0).bytes());
  // Keys and values of 2 heads of 16, with a page's count and address for 16 positions.
  CHECK(model.kv_token_bytes() == 256 + (64 + 8) / 16 + 1);

  request.set_name("rwkv");
  grpc::ClientContext second;
  REQUIRE(server.models->Get(&second, request, &model).ok());
  CHECK(model.attention() == "rwkv7");
  CHECK(model.kv_type().empty());
  CHECK(model.kv_token_bytes() == 0);
  CHECK(model.constant_state());
  CHECK(model.max_length() == 0);
}

}  // namespace
}  // namespace lintel::testing
