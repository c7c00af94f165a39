// SPDX-License-Identifier: Apache-2.0
// States of conversations in session storage: found by exactly what they depend on, or not at all.
#include "server/sessions/persistence/stored_chat_states.h"

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "tests/server/sessions/persistence/crash_test_process.h"
#include "tests/server/support/adapters_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens random_tokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 50);
  return tokens;
}

Tokens first(const Tokens& tokens, std::ptrdiff_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// A storage that several servers may share.
struct ChatStorage final : MemoryStorage {
  using MemoryStorage::MemoryStorage;
  bool is_shared() const override { return shared; }
  std::vector<Row> list(const std::string& of_model, const SessionId& after, std::size_t limit,
                        const std::optional<Owner>& owner) override {
    if (is_away) return {};
    most_listed = std::max(most_listed, limit);
    return MemoryStorage::list(of_model, after, limit, owner);
  }
  bool shared = false, is_away = false;
  std::size_t most_listed = 0;
};

// A server's caches and registry, which may die and start again on the same storage.
struct ChatProcess {
  explicit ChatProcess(
      std::shared_ptr<const Transformer> transformer = tiny_model(TinyModel::kTokens))
      : model(served_model(std::move(transformer), clock)) {
    begin();
  }
  // Another one on its storage.
  explicit ChatProcess(const ChatProcess& other) : place(other.place), model(other.model) {
    begin();
  }
  ~ChatProcess() { model->scheduler->stop(); }

  void begin(StoredChatStates::Options options = {.stores_all = true, .idle = {}},
             std::size_t cache_bytes = std::size_t{64} << 20) {
    states.reset();
    durable.reset();
    prefixes.reset();
    models.emplace();
    models->add(model);
    storage.end_claims();
    prefixes.emplace(PrefixCache::Options{.memory_bytes = cache_bytes}, sessions);
    durable.emplace(storage, sessions, *models, clock, PersistentSessions::Options{.threads = 0});
    states.emplace(storage, *durable, *prefixes, *models, clock, options);
  }
  StoredChatStates::Reader reader(const Owner& owner = kAlice, SharedAdapter adapter = nullptr) {
    return {model, std::move(adapter), owner};
  }
  // Reads a prompt of a turn, whose state it keeps.
  void read(const StoredChatStates::Reader& who, const Tokens& tokens) {
    const Transformer& transformer = *model->transformer;
    SequenceState sequence = transformer.new_sequence(weights_of(who.adapter));
    Workspace workspace = transformer.new_workspace(1);
    for (const std::int32_t token : tokens) {
      if (sequence.pending) {
        const BatchRow row{*sequence.pending, &sequence, /*wants_output=*/false,
                           /*is_draft=*/false};
        transformer.step(std::span(&row, 1), workspace);
      }
      sequence.pending = token;
    }
    prefixes->keep({transformer, who.adapter, who.owner}, tokens, sequence, KeptFor::kTurn);
  }
  void turn(const StoredChatStates::Reader& who, const Tokens& tokens) {
    read(who, tokens);
    states->note_turn(who, tokens, /*at_once=*/false);
  }
  // Tokens of the prompt that need not be read, with what the storage has.
  std::int64_t cached(const StoredChatStates::Reader& who, const Tokens& prompt) {
    if (states->has_more(who, prompt)) states->restore(who, prompt);
    return prefixes->look_up({*who.model->transformer, who.adapter, who.owner}, prompt);
  }

  struct Place {
    ManualClock clock;
    ChatStorage storage{clock};
  };
  std::shared_ptr<Place> place = std::make_shared<Place>();
  ManualClock& clock = place->clock;
  ChatStorage& storage = place->storage;
  SessionManager sessions{{.session_memory_bytes = std::size_t{1} << 30}, clock};
  std::shared_ptr<ServedModel> model;
  std::optional<ModelRegistry> models;
  std::optional<PrefixCache> prefixes;
  std::optional<PersistentSessions> durable;
  std::optional<StoredChatStates> states;
};

const Tokens kPath = random_tokens(400, 1);

TEST_CASE("servers on one storage find each other's turns while they run") {
  ChatProcess one;
  one.storage.shared = true;
  one.turn(one.reader(), first(kPath, 100));
  ChatProcess two(one);
  two.states->look();
  CHECK(two.cached(two.reader(), kPath) == 100);
  const auto looks = [&](int later) {
    one.clock.advance(std::chrono::seconds(later));
    two.states->look();
  };
  one.turn(one.reader(), first(kPath, 200));
  looks(4);
  CHECK(two.states->stats().keys == 1);
  looks(1);
  CHECK(two.cached(two.reader(), kPath) == 200);
  // States stored while it cannot be read are found afterwards.
  one.storage.is_away = true;
  one.turn(one.reader(), first(kPath, 300));
  for (int i = 0; i < 3; ++i) looks(60);
  CHECK(two.states->stats().keys == 2);
  one.storage.is_away = false;
  looks(5);
  CHECK(two.states->stats().keys == 3);
  CHECK(two.cached(two.reader(), kPath) == 300);
  CHECK(two.states->stats().restored == 3);
  // One that the other has removed since is forgotten when it is not found.
  two.begin();
  one.turn(one.reader(), kPath);
  CHECK(two.states->stats().keys == 2);
  CHECK(two.cached(two.reader(), first(kPath, 250)) == 0);
  CHECK(two.states->stats().keys == 1);
  looks(5);
  CHECK(two.states->stats().keys == 2);
  CHECK(two.cached(two.reader(), kPath) == 300);
  // A look reads a bounded number of rows, and what was read before is not read again.
  CHECK(one.storage.most_listed <= 1024);
  one.storage.most_listed = 0;
  looks(5);
  CHECK(one.storage.most_listed == 256);
}

TEST_CASE("a stored turn is in the cache again after the process died, bit for bit") {
  const bool is_hybrid = GENERATE(false, true);
  ChatProcess process(is_hybrid ? hybrid_model() : tiny_model(TinyModel::kTokens));
  process.turn(process.reader(), first(kPath, 300));
  const PrefixCache::Reader reader{*process.model->transformer, nullptr, kAlice};
  const auto before = process.prefixes->state_after(reader, first(kPath, 300));
  REQUIRE(before != nullptr);
  CHECK(process.states->stats().stored == 1);
  process.begin();
  CHECK(process.states->stats().keys == 1);
  CHECK(process.cached(process.reader(), kPath) == 300);
  CHECK(process.states->stats().restored == 1);
  const auto after = process.prefixes->state_after(reader, first(kPath, 300));
  REQUIRE(after != nullptr);
  CHECK(after->bytes == before->bytes);
  REQUIRE(after->blocks.size() == before->blocks.size());
  for (std::size_t i = 0; i < after->blocks.size(); ++i) {
    CHECK(std::ranges::equal(after->blocks[i].bytes(), before->blocks[i].bytes()));
  }
  // Once it is in memory the storage is not asked.
  CHECK_FALSE(process.states->has_more(process.reader(), kPath));
}

TEST_CASE("a stored turn is found by its own tokens, owner, adapter and weights alone",
          "[threat-5]") {
  ChatProcess process;
  const auto adapter = served("thin", random_adapter(TinyModel::kTokens, 3));
  process.turn(process.reader(), first(kPath, 100));
  process.turn(process.reader("bob", adapter), first(kPath, 80));
  process.begin();
  CHECK(process.cached(process.reader("bob"), kPath) == 0);
  CHECK(process.cached(process.reader(kAlice, adapter), kPath) == 0);
  Tokens other = kPath;
  other[50] = 49 - other[50];
  CHECK(process.cached(process.reader(), other) == 0);
  // Its last token is always read.
  CHECK(process.cached(process.reader(), first(kPath, 100)) == 0);
  CHECK(process.cached(process.reader(), kPath) == 100);
  CHECK(process.cached(process.reader("bob", adapter), kPath) == 80);
  const std::string numerics = process.model->numerics().hex;
  process.model->set_numerics({.hex = "another machine's"});
  process.begin();
  CHECK(process.cached(process.reader(), kPath) == 0);
  process.model->set_numerics({.hex = numerics});
}

TEST_CASE("of a conversation the last two turns are stored, and each branch has its own") {
  ChatProcess process;
  for (const std::ptrdiff_t end : {50, 100, 150, 200}) {
    process.turn(process.reader(), first(kPath, end));
  }
  Tokens branch = first(kPath, 150);
  branch.resize(220, 7);
  process.turn(process.reader(), branch);
  process.begin();
  CHECK(process.states->stats().keys == 3);
  branch.push_back(1);
  CHECK(process.cached(process.reader(), branch) == 220);
  CHECK(process.cached(process.reader(), kPath) == 200);
  Tokens edited = first(kPath, 180);
  edited.resize(300, 9);
  CHECK(process.cached(process.reader(), edited) == 150);
}

TEST_CASE("a turn is stored once it was idle, earlier where memory is needed or the process ends") {
  ChatProcess process;
  process.begin({.stores_all = true, .idle = std::chrono::seconds(60)});
  process.turn(process.reader(), first(kPath, 100));
  process.states->look();
  CHECK(process.states->stats().keys == 0);
  SECTION("idle") {
    process.clock.advance(std::chrono::seconds(61));
    process.states->look();
  }
  SECTION("an end") { process.states->store_all(std::chrono::seconds(1)); }
  SECTION("a lack of memory") { process.prefixes->keep_within(0); }
  CHECK(process.states->stats().keys == 1);
  process.begin();
  CHECK(process.cached(process.reader(), kPath) == 100);
}

TEST_CASE("a stored idle turn replaces the shorter one of its owner only") {
  ChatProcess process;
  process.begin({.stores_all = true, .idle = std::chrono::seconds(60)});
  process.turn(process.reader(), first(kPath, 100));
  process.turn(process.reader("bob"), first(kPath, 150));
  process.turn(process.reader(), first(kPath, 150));
  process.states->store_all(std::chrono::seconds(1));
  CHECK(process.states->stats().stored == 2);
  CHECK(process.cached(process.reader("bob"), kPath) == 150);
}

TEST_CASE("turns are stored where the options or their calls say") {
  ChatProcess process;
  process.begin({.stores_all = false});
  process.turn(process.reader(), first(kPath, 100));
  process.prefixes->keep_within(0);
  process.states->store_all(std::chrono::seconds(1));
  CHECK(process.states->stats().stored == 0);
  process.read(process.reader(), first(kPath, 100));
  process.states->note_turn(process.reader(), first(kPath, 100), /*at_once=*/true);
  CHECK(process.states->stats().stored == 1);
}

TEST_CASE("a stored turn that has expired, or is damaged, is read as a prompt") {
  ChatProcess process;
  process.begin({.stores_all = true, .idle = {}, .expire_after = std::chrono::hours(1)});
  process.turn(process.reader(), first(kPath, 100));
  process.prefixes->keep_within(0);
  SECTION("expired") {
    process.clock.advance(std::chrono::hours(2));
    CHECK_FALSE(process.states->has_more(process.reader(), kPath));
    CHECK(process.states->stats().keys == 1);
    process.states->look();
    CHECK(process.states->stats().keys == 0);
    process.storage.sweep(10);
    CHECK(process.storage.health().sessions == 0);
  }
  SECTION("removed") {
    process.clock.advance(std::chrono::hours(2));
    process.storage.sweep(10);
    process.clock.advance(-std::chrono::hours(2));
    CHECK(process.states->has_more(process.reader(), kPath));
  }
  CHECK(process.cached(process.reader(), kPath) == 0);
  CHECK(process.states->stats().restored == 0);
}

TEST_CASE("sessions of stored turns are neither listed nor found by their ids") {
  ChatProcess process;
  process.turn(process.reader(), first(kPath, 100));
  const auto rows = process.storage.list("", "", 10, std::nullopt);
  REQUIRE(rows.size() == 1);
  const std::string id = rows[0].id;
  PersistentSessions& durable = *process.durable;
  CHECK(durable.list("", "", 10, std::nullopt).empty());
  CHECK_FALSE(durable.find(id, kAlice));
  CHECK(durable.load(id, kAlice).refusal.error == SessionError::kNotFound);
  CHECK(durable.load_and_lease(id, kAlice).refusal.error == SessionError::kNotFound);
  CHECK(durable.remove(id, kAlice).error == SessionError::kNotFound);
  CHECK(process.storage.health().sessions == 1);
}

}  // namespace
}  // namespace lintel::testing
