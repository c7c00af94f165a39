// SPDX-License-Identifier: Apache-2.0
// Fork, rewind, images and history: who may, what it takes, and what is refused.
#include <string>
#include <vector>

#include "model/core/errors.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Error = SessionError;

struct Copies {
  explicit Copies(SessionManager::Options options = {.session_memory_bytes = 1u << 30})
      : core(tiny_model(TinyModel::kTokens), without_threads(), options) {}

  std::string session(std::size_t tokens, const SessionOptions& options = {.max_tokens = 100},
                      const Owner& owner = "alice") {
    const auto created = core.store.create("tiny", core.model, options, owner);
    REQUIRE_FALSE(created.refusal);
    extend(created.info.id, tokens, owner);
    return created.info.id;
  }
  void extend(const std::string& id, std::size_t tokens, const Owner& owner = "alice") {
    if (tokens == 0) return;
    auto leased = core.store.lease(id, owner);
    REQUIRE_FALSE(leased.refusal);
    GenerationRequest request = tokens_request(tokens, 0, leased.lease.num_tokens());
    Replay replay = leased.lease.replay();
    request.replay = std::move(replay.tokens);
    core.scheduler.submit(request, std::move(leased.lease), std::make_shared<RecordingSink>());
    core.run();
  }
  Core core;
  SessionManager& store = core.store;
};

TEST_CASE("another owner's session is not found by any call", "[copies]") {
  Copies f;
  const std::string id = f.session(5);
  const auto image = f.store.image(id, "alice", std::nullopt, true, true).image;
  for (const Owner& other : {Owner("bob"), Owner(), Owner("alice ")}) {
    CHECK(f.store.fork(id, other, 3, 1).refusal.error == Error::kNotFound);
    CHECK(f.store.fork(id, other, 300, 1).refusal.error == Error::kNotFound);
    CHECK(f.store.rewind(id, other, 3, std::nullopt).refusal.error == Error::kNotFound);
    CHECK(f.store.image(id, other, std::nullopt, true, true).refusal.error == Error::kNotFound);
    CHECK(f.store.history(id, other, 0, std::nullopt).refusal.error == Error::kNotFound);
    const auto busy = f.store.lease(id, "alice");  // nor does the refusal say that it is in use
    CHECK(f.store.fork(id, other, std::nullopt, 1).refusal.error == Error::kNotFound);
    CHECK(f.store.rewind(id, other, 3, std::nullopt).refusal.error == Error::kNotFound);
    CHECK(f.store.image(id, other, std::nullopt, true, true).refusal.error == Error::kNotFound);
  }
  const auto forks = f.store.fork(id, "alice", 3, 2);
  REQUIRE(forks.infos.size() == 2);
  CHECK(f.store.get(forks.infos[0].id, "alice"));
  CHECK_FALSE(f.store.get(forks.infos[0].id, "bob"));
  const auto restored = f.store.restore("tiny", f.core.model, image, "bob");
  CHECK(f.store.get(restored.info.id, "bob"));
  CHECK_FALSE(f.store.get(restored.info.id, "alice"));
}

TEST_CASE("forks are made all or none, and leave nothing where there is no room for them",
          "[copies]") {
  const std::size_t each =
      SessionManager::session_bytes(*tiny_model(TinyModel::kTokens), {.max_tokens = 100});
  const bool by_owner = GENERATE(false, true);
  SessionManager::Options options{.session_memory_bytes = 5 * each};
  if (by_owner) options = {.session_memory_bytes = 1u << 30, .max_sessions_per_owner = 5};
  Copies f(options);
  const std::string id = f.session(20);
  const auto refused = f.store.fork(id, "alice", std::nullopt, 5);
  CHECK(refused.refusal.error == (by_owner ? Error::kOwnerTooManySessions : Error::kOutOfMemory));
  CHECK(refused.infos.empty());
  CHECK(f.store.num_sessions() == 1);
  CHECK(f.store.bytes_in_use() == each);
  CHECK(f.store.stats().forked == 0);
  const auto forked = f.store.fork(id, "alice", std::nullopt, 4);
  CHECK(forked.infos.size() == 4);
  CHECK(f.store.num_sessions() == 5);
  CHECK(f.store.bytes_in_use() == 5 * each);
  CHECK(f.store.stats().forked == 4);
  CHECK(f.store.stats().idle_bytes == 5 * each);
}

TEST_CASE("thousands of forks and deletes leave memory where it was", "[copies]") {
  Copies f;
  const std::string id =
      f.session(50, {.max_tokens = 100, .checkpoint_every = 10, .checkpoint_keep = 3});
  const std::size_t before = f.store.bytes_in_use();
  for (int i = 0; i < (kSanitized ? 500 : 10'000); ++i) {
    const auto fork = f.store.fork(id, "alice", i % 51, 1);
    REQUIRE(fork.infos.size() == 1);
    REQUIRE_FALSE(f.store.remove(fork.infos[0].id, "alice"));
  }
  CHECK(f.store.bytes_in_use() == before);
  CHECK(f.store.num_sessions() == 1);
}

TEST_CASE("positions that a session never had are refused with those that it has", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{21}, std::int64_t{1} << 60}) {
    for (const SessionRefusal& refusal : {f.store.fork(id, "alice", wrong, 1).refusal,
                                          f.store.rewind(id, "alice", wrong, std::nullopt).refusal,
                                          f.store.image(id, "alice", wrong, true, true).refusal,
                                          f.store.history(id, "alice", 0, wrong).refusal}) {
      CHECK(refusal.error == Error::kOutOfRange);
      CHECK(refusal.lowest == 0);
      CHECK(refusal.highest == 20);
    }
  }
  CHECK(f.store.history(id, "alice", -1, 3).refusal.error == Error::kOutOfRange);
  CHECK(f.store.history(id, "alice", 4, 3).refusal.error == Error::kOutOfRange);
  CHECK(f.store.num_sessions() == 1);
  CHECK(f.store.get(id, "alice")->num_tokens == 20);
}

TEST_CASE("a busy session is forked where it has been, and not rewound", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  auto held = f.store.lease(id, "alice");
  CHECK(f.store.fork(id, "alice", std::nullopt, 1).refusal.error == Error::kBusy);
  CHECK(f.store.image(id, "alice", std::nullopt, true, true).refusal.error == Error::kBusy);
  CHECK(f.store.rewind(id, "alice", 3, std::nullopt).refusal.error == Error::kBusy);
  CHECK(f.store.fork(id, "alice", 20, 1).infos.size() == 1);
  CHECK(f.store.image(id, "alice", 7, true, true).image.tokens.size() == 7);
  CHECK(f.store.history(id, "alice", 5, std::nullopt).tokens.size() == 15);
  held.lease = SessionLease();
  CHECK(f.store.fork(id, "alice", std::nullopt, 1).infos.size() == 1);
  CHECK_FALSE(f.store.get(id, "alice")->busy);
}

TEST_CASE("a session is rewound only if its history is the expected one", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  CHECK(f.store.rewind(id, "alice", 3, Digest{}).refusal.error == Error::kDigestMismatch);
  CHECK(f.store.get(id, "alice")->num_tokens == 20);
  const Digest now = f.store.image(id, "alice", std::nullopt, true, true).image.digest;
  const auto rewound = f.store.rewind(id, "alice", 3, now);
  CHECK_FALSE(rewound.refusal);
  CHECK(rewound.info.num_tokens == 3);
  CHECK(f.store.stats().rewound == 1);
  CHECK(f.store.get(id, "alice")->has_pending);
}

TEST_CASE("tokens that a state lacks are read once, by the next call", "[copies]") {
  Copies f;
  const std::string id = f.session(30);
  REQUIRE_FALSE(f.store.rewind(id, "alice", 25, std::nullopt).refusal);
  CHECK(f.store.lease(id, "alice").lease.replay().tokens.size() == 25);
  f.extend(id, 2);
  CHECK(f.store.lease(id, "alice").lease.replay().tokens.empty());
  CHECK(f.store.get(id, "alice")->num_tokens == 27);
  // From a state that was kept no more than what came after it.
  const std::string kept =
      f.session(0, {.max_tokens = 100, .checkpoint_every = 10, .checkpoint_keep = 4});
  for (int i = 0; i < 15; ++i) f.extend(kept, 2);
  REQUIRE_FALSE(f.store.rewind(kept, "alice", 25, std::nullopt).refusal);
  CHECK(f.store.lease(kept, "alice").lease.replay().tokens.size() <= 5);
}

TEST_CASE("going back a little reads little where states are kept", "[copies]") {
  Copies f;
  const std::string id =
      f.session(0, {.max_tokens = 2000, .checkpoint_every = 8, .checkpoint_keep = 8});
  for (int i = 0; i < 250; ++i) f.extend(id, 4);
  for (const std::int64_t back : {1, 10, 30, 100, 300, 900}) {
    const auto fork = f.store.fork(id, "alice", 1000 - back, 1);
    REQUIRE(fork.infos.size() == 1);
    const auto replay = f.store.lease(fork.infos[0].id, "alice").lease.replay();
    CAPTURE(back);
    CHECK(static_cast<std::int64_t>(replay.tokens.size()) <= 2 * back + 8);
  }
}

TEST_CASE("a history that was cut says how far back a session can go", "[copies]") {
  Copies f;
  const bool keeps = GENERATE(false, true);
  SessionOptions options{.max_tokens = 10'000, .history_tokens = 1};
  if (keeps) options.checkpoint_every = 500, options.checkpoint_keep = 4;
  const std::string id = f.session(0, options);
  for (int i = 0; i < 50; ++i) f.extend(id, 100);
  const std::int64_t oldest = f.store.get(id, "alice")->oldest_position;
  CHECK(oldest > 0);
  CHECK((oldest < 5000) == keeps);
  CHECK(f.store.fork(id, "alice", oldest, 1).infos.size() == 1);
  const SessionRefusal refused = f.store.fork(id, "alice", oldest - 1, 1).refusal;
  CHECK(refused.error == Error::kOutOfRange);
  CHECK(refused.lowest == oldest);
  CHECK(refused.highest == 5000);
  // An image of it brings its state, asked for or not.
  const auto image = f.store.image(id, "alice", std::nullopt, true, false).image;
  CHECK(image.state_position == 5000);
  const auto restored = f.store.restore("tiny", f.core.model, image, "alice");
  CHECK(restored.info.digest == f.store.get(id, "alice")->digest);
}

TEST_CASE("an image that does not fit is refused, and nothing is left of it", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  const SessionImage good = f.store.image(id, "alice", std::nullopt, true, true).image;
  const std::size_t before = f.store.bytes_in_use();
  const auto refused = [&](auto&& change) {
    SessionImage image = good;
    change(image);
    CHECK_THROWS_AS(f.store.restore("tiny", f.core.model, image, "alice"), ModelError);
    CHECK(f.store.bytes_in_use() == before);
    CHECK(f.store.num_sessions() == 1);
  };
  refused([](SessionImage& image) { image.tokens[3] = 50; });
  refused([](SessionImage& image) { image.tokens[3] = -1; });
  refused([](SessionImage& image) { image.tokens[3] ^= 1; });
  refused([](SessionImage& image) { image.tokens.pop_back(); });
  refused([](SessionImage& image) { image.position = 101; });
  refused([](SessionImage& image) { image.max_tokens = 10; });
  refused([](SessionImage& image) { image.base = -1; });
  refused([](SessionImage& image) { image.base = 5; });
  refused([](SessionImage& image) { image.state.pop_back(); });
  refused([](SessionImage& image) { image.state.push_back({}); });
  refused([](SessionImage& image) { image.state_position = 19; });
  refused([](SessionImage& image) { image.state.clear(); });
  refused([](SessionImage& image) { image.digest = {}; });
  refused([](SessionImage& image) { image.marks = {{3, {}}, {3, {}}}; });
  CHECK_FALSE(f.store.restore("tiny", f.core.model, good, "alice").refusal);
}

TEST_CASE("a session begins with an image, and can go back to where it began", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  const bool with_history = GENERATE(false, true);
  const auto image = std::make_shared<SessionImage>(
      f.store.image(id, "alice", std::nullopt, with_history, true).image);
  const auto created = f.store.create("tiny", f.core.model,
                                      SessionOptions{.max_tokens = 60, .initial = image}, "bob");
  REQUIRE_FALSE(created.refusal);
  CHECK(created.info.num_tokens == 20);
  CHECK(created.info.digest == f.store.get(id, "alice")->digest);
  CHECK(created.info.oldest_position == (with_history ? 0 : 20));
  f.extend(created.info.id, 10, "bob");
  CHECK(f.store.get(created.info.id, "bob")->oldest_position == (with_history ? 0 : 20));
  REQUIRE_FALSE(f.store.rewind(created.info.id, "bob", 22, std::nullopt).refusal);
  f.extend(created.info.id, 3, "bob");
  CHECK(f.store.get(created.info.id, "bob")->num_tokens == 25);
}

TEST_CASE("forks of a session whose model goes are closed with it", "[copies]") {
  Copies f;
  const std::string id = f.session(20);
  const auto forks = f.store.fork(id, "alice", 10, 3);
  CHECK(f.store.close_sessions(*f.core.model) == 4);
  CHECK(f.store.num_sessions() == 0);
  CHECK(f.store.fork(id, "alice", 10, 1).refusal.error == Error::kUnloaded);
  CHECK(f.store.history(forks.infos[0].id, "alice", 0, 1).refusal.error == Error::kUnloaded);
  CHECK(f.store.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
