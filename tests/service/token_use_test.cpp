// Tokens that nearly match, and what calls that come to nothing leave of a quota.
#include <openssl/sha.h>

#include <array>
#include <catch2/catch.hpp>

#include "server/tokens.h"
#include "tests/service/token_file.h"

namespace lintel::testing {
namespace {

using Hash = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Hash hash_of(const std::string& token) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

TEST_CASE("a token whose hash begins, ends or goes on alike is another token") {
  const TokenTable table(token_line("alice", "generate"), "a file");
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
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 1;
  options.identity.token_burst = 2000;
  options.scheduling.workers = 0;
  // For one sequence at a time: the second one is tried, and waits.
  options.sessions.memory_bytes = tiny_models({"tokens"}).front().transformer->state_bytes(0);
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  v1::ScoreRequest request;
  for (const int length : {2, 1500}) {
    request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(length, 1);
  }
  {
    grpc::ClientContext context;
    set_token(context, "alice");
    const auto reader = server.generation->Score(&context, request);
    REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
    context.TryCancel();
    REQUIRE(eventually([&] {
      scheduler.run_one_step();
      return scheduler.idle();
    }));
    reader->Finish();
  }
  // What is left is enough for another 1,500, though not for that and 500 more.
  grpc::ClientContext context;
  set_token(context, "alice");
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, 1499));
  CHECK(eventually([&] { return scheduler.stats().queued == 1; }, std::chrono::seconds(30)));
  context.TryCancel();
  v1::GenerateResponse message;
  reader->Read(&message);
  REQUIRE(eventually([&] {
    scheduler.run_one_step();
    return scheduler.idle();
  }));
  reader->Finish();
}

}  // namespace
}  // namespace lintel::testing
