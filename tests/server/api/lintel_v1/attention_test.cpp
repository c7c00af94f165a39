// SPDX-License-Identifier: Apache-2.0
// --attention: the same weights with another attention, and its warnings.
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// Serves a directory as main() would.
class AttentionServer {
 public:
  explicit AttentionServer(const std::string& spec,
                           std::size_t session_memory = std::size_t{1} << 30,
                           TinyModel kind = TinyModel::kTokens) {
    write_random_model(directory_.path() / "tokens", tiny_config(kind), /*seed=*/11);
    ServerOptions options = test_options();
    options.sessions.session_memory_bytes = session_memory;
    options.models.directories = {{"tokens", directory_.path() / "tokens"}};
    if (!spec.empty()) options.models.attention = parse_attention_spec(spec);
    server_ = std::make_unique<LintelServer>(options, clock_);
    server_->start();
    const auto channel =
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    sessions_ = v1::SessionService::NewStub(channel);
    models_ = v1::ModelService::NewStub(channel);
    generation_ = v1::GenerationService::NewStub(channel);
  }

  v1::Model model() {
    grpc::ClientContext context;
    v1::Model out;
    REQUIRE(models_->Get(&context, v1::GetModelRequest(), &out).ok());
    return out;
  }
  grpc::Status create(std::int64_t max_tokens, v1::Session* session) {
    v1::CreateSessionRequest request;
    request.set_max_tokens(max_tokens);
    grpc::ClientContext context;
    return sessions_->Create(&context, request, session);
  }
  // Scores sequences of these lengths.
  grpc::Status score(const std::vector<int>& lengths) {
    v1::ScoreRequest request;
    for (const int length : lengths) {
      request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(length, 1);
    }
    grpc::ClientContext context;
    const auto reader = generation_->Score(&context, request);
    v1::ScoreResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }

 private:
  TemporaryDirectory directory_;
  SteadyClock clock_;
  std::unique_ptr<LintelServer> server_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
};

TEST_CASE("a model that runs as it was trained has no warnings") {
  CHECK(AttentionServer("").model().warnings_size() == 0);
  CHECK(AttentionServer("linear").model().warnings_size() == 0);
}

TEST_CASE("another attention than the weights' own is named and warned of") {
  const v1::Model softmax = AttentionServer("softmax").model();
  CHECK(softmax.attention() == "softmax");
  CHECK_FALSE(softmax.constant_state());
  REQUIRE(softmax.warnings_size() == 1);
  CHECK_THAT(softmax.warnings(0), Catch::Contains("not trained for attention softmax"));

  const v1::Model recomputing =
      AttentionServer("lsh:rounds=1,bits=4,chunk_size=8,recompute=true").model();
  CHECK(recomputing.attention() == "lsh");
  REQUIRE(recomputing.warnings_size() == 2);
  CHECK_THAT(recomputing.warnings(1), Catch::Contains("not for production"));
}

TEST_CASE("a model whose state grows reports its growth") {
  const auto model = [](const char* spec, TinyModel kind = TinyModel::kImage) {
    return AttentionServer(spec, std::size_t{1} << 30, kind).model();
  };
  const auto ends_where_state_bytes_are = [](const v1::Model& reported) {
    REQUIRE(reported.state_growth_size() > 1);
    CHECK(reported.state_growth_size() <= 33);
    CHECK(reported.state_growth(0).position() == 0);
    for (int i = 1; i < reported.state_growth_size(); ++i) {
      CHECK(reported.state_growth(i).position() > reported.state_growth(i - 1).position());
      CHECK(reported.state_growth(i).bytes() >= reported.state_growth(i - 1).bytes());
    }
    const v1::StatePoint& last = reported.state_growth(reported.state_growth_size() - 1);
    CHECK(last.bytes() == reported.state_bytes());
    CHECK(last.bytes() > reported.state_growth(0).bytes());
    return last.position();
  };
  const v1::Model softmax = model("softmax");
  CHECK(ends_where_state_bytes_are(softmax) == softmax.max_length());
  // A window's worth from the beginning on.
  CHECK(model("longformer:window=4", TinyModel::kTokens).state_growth_size() == 0);

  CHECK(model("linear").state_growth_size() == 0);                       // constant
  CHECK(model("softmax", TinyModel::kTokens).state_growth_size() == 0);  // has no end
}

TEST_CASE("a model whose state grows without an end reports the bytes of a token") {
  for (const char* spec :
       {"softmax", "lsh:rounds=1,bits=4,chunk_size=8", "linear:recompute=true"}) {
    CAPTURE(spec);
    AttentionServer server(spec, std::size_t{1} << 30, TinyModel::kTokens);
    const v1::Model model = server.model();
    CHECK(model.state_bytes() == 0);
    CHECK_FALSE(model.constant_state());
    CHECK(model.state_bytes_per_value() > 0);
    v1::Session few, many;
    REQUIRE(server.create(100'000, &few).ok());
    REQUIRE(server.create(200'000, &many).ok());
    const double grown = static_cast<double>(many.state_bytes() - few.state_bytes()) / 100'000;
    CHECK(static_cast<double>(model.state_bytes_per_value()) ==
          Approx(grown).epsilon(0.05).margin(1));
  }
  // A state with a largest size reports that.
  const auto bounded = [](const char* spec, TinyModel kind) {
    return AttentionServer(spec, std::size_t{1} << 30, kind).model();
  };
  for (const v1::Model& model :
       {bounded("softmax", TinyModel::kImage), bounded("linear", TinyModel::kTokens),
        bounded("longformer:window=4", TinyModel::kTokens)}) {
    CHECK(model.state_bytes() > 0);
    CHECK(model.state_bytes_per_value() == 0);
  }
}

TEST_CASE("a session of an unbounded growing state needs max_tokens, and is admitted by it") {
  const std::string spec =
      GENERATE("softmax", "lsh:rounds=1,bits=4,chunk_size=8", "linear:recompute=true");
  CAPTURE(spec);
  AttentionServer server(spec);
  v1::Session session;
  const grpc::Status refused = server.create(0, &session);
  CHECK(refused.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(violated_fields(refused) == std::vector<std::string>{"max_tokens"});
  REQUIRE(server.create(1000, &session).ok());
  const std::int64_t bytes = session.state_bytes();
  CHECK(bytes > 0);
  REQUIRE(server.create(100'000, &session).ok());
  CHECK(session.state_bytes() > 20 * bytes);
  CHECK(server.create(std::int64_t{1} << 53, &session).error_code() ==
        grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_CASE("a sequence that can never fit ends its Score at once") {
  AttentionServer server("softmax", /*session_memory=*/64 << 10);
  const grpc::Status status = server.score({2, 5000});
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK_THAT(status.error_message(), Catch::Contains("in all"));
}

TEST_CASE("a model that cannot run with --attention is not loaded") {
  CHECK_THROWS_WITH(AttentionServer("lsh"), Catch::Contains("rounds"));
}

}  // namespace
}  // namespace lintel::testing
