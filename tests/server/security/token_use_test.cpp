// SPDX-License-Identifier: Apache-2.0
// Tokens that nearly match, and quotas after calls that were refused.
#include <openssl/sha.h>

#include <array>

#include "model/config/attention_spec.h"
#include "model/model_files.h"
#include "server/security/bearer_tokens.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Hash = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Hash hash_of(const std::string& token) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

TEST_CASE("a token whose hash shares bytes with another's is another token") {
  const BearerTokenTable table(token_line("alice", "generate"), "a file");
  const Hash wanted = hash_of("token-alice");
  REQUIRE(table.find("token-alice"));
  std::array<int, SHA256_DIGEST_LENGTH> alike{};  // per byte of the hash
  for (int i = 0; i < 20'000; ++i) {
    const std::string other = "token-" + std::to_string(i);
    const Hash hash = hash_of(other);
    bool is_alike = false;
    for (std::size_t at = 0; at < hash.size(); ++at) {
      if (hash[at] != wanted[at]) continue;
      ++alike[at];
      is_alike = true;
    }
    if (is_alike && table.find(other)) FAIL("'" << other << "' is taken for another");
  }
  for (const int count : alike) CHECK(count > 10);
}

TEST_CASE("a sequence that Score tried to submit in vain is not charged for") {
  // Its state grows with the sequence, and another owner holds a part of the memory it needs.
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 5);
  const std::shared_ptr<const Transformer> model =
      Transformer::load(directory.path(), {.attention = parse_attention_spec("softmax")});
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 1;
  options.identity.token_burst = 1600;
  const auto bytes = [&](int tokens) { return SessionManager::admitted_bytes(*model, tokens); };
  options.sessions.session_memory_bytes = bytes(999) + bytes(100);
  const SteadyClock clock;
  TestServer server(options, clock, {{"tokens", model}});
  const auto in_the_way = server.server().store().lease_one_shot("tokens", model, 500, 1).lease;
  REQUIRE(in_the_way);
  const auto request_of = [](std::initializer_list<int> lengths) {
    v1::ScoreRequest request;
    for (const int length : lengths) {
      request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(length, 1);
    }
    return request;
  };
  {
    grpc::ClientContext context;
    set_token(context, "alice");
    const auto reader = server.generation->Score(&context, request_of({2, 1000}));
    v1::ScoreResponse scored;
    REQUIRE(reader->Read(&scored));  // the other was tried before this one was done
    context.TryCancel();
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  // All but two tokens came back. This one is charged for before it is found to be too long.
  grpc::Status next;
  REQUIRE(eventually(
      [&] {
        grpc::ClientContext context;
        set_token(context, "alice");
        const auto reader = server.generation->Score(&context, request_of({1500}));
        next = reader->Finish();
        return !detail_of<google::rpc::QuotaFailure>(next);
      },
      std::chrono::seconds(20)));
  CHECK(next.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace lintel::testing
