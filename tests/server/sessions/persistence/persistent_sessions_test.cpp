// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive the process, while no call runs in them.
#include "server/sessions/persistence/persistent_sessions.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/server/sessions/persistence/crash_test_process.h"
#include "tests/server/support/adapters_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

const SessionOptions kInput{.max_tokens = 400, .durability = Durability::kInput};

GenerationRequest plain_call(std::size_t prompt, std::int64_t tokens, std::uint64_t seed) {
  GenerationRequest request = tokens_request(prompt, tokens, seed);
  request.log2_probs = true;
  return request;
}

struct Room {
  explicit Room(std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens))
      : transformer(std::move(model)) {
    begin();
  }
  void begin(PersistentSessions::Options options = {.threads = 0},
             SessionManager::Options store_options = {.session_memory_bytes = 1u << 30}) {
    process.reset();
    storage.end_claims();
    process.emplace(storage, transformer, clock, options, store_options);
  }
  // A durable session of `tokens` tokens.
  std::string kept(std::int64_t tokens, const SessionOptions& session = kInput,
                   const Owner& owner = kAlice) {
    const std::string id = process->create(session, owner);
    if (tokens > 0) process->generate(plain_call(3, tokens - 3, 7), id, owner);
    REQUIRE_FALSE(process->durable.persist(id, owner));
    return id;
  }

  const std::shared_ptr<const Transformer> transformer;
  ManualClock clock;
  MemoryStorage storage{clock};
  std::optional<DurableProcess> process;
};

TEST_CASE("a stored session continues after the process died as one that never left memory",
          "[durable]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const std::int64_t tokens = GENERATE(0, 40, 300);
  const std::int64_t window = attention == "linear" ? GENERATE(0, 16) : 0;
  CAPTURE(attention, tokens, window);
  Room room(tiny_model(TinyModel::kTokens, attention));
  room.begin({.park = {256}, .threads = 0});
  SessionOptions session = kInput;
  session.window = window;
  const std::string id = room.kept(tokens, session);
  const SessionInfo before = *room.process->store.get(id, kAlice);
  const auto image = room.process->store.image(id, kAlice, std::nullopt, true, true);
  const auto expected = room.process->generate(plain_call(2, 30, 9), id)->recorded;

  room.begin();
  CHECK_FALSE(room.process->store.get(id, kAlice));
  REQUIRE_FALSE(room.process->durable.load(id, kAlice).refusal);
  const SessionInfo after = *room.process->store.get(id, kAlice);
  CHECK(after.digest == before.digest);
  CHECK(after.num_tokens == tokens);
  CHECK(after.window == window);
  CHECK(after.max_tokens == 400);
  CHECK(after.durability == Durability::kInput);
  CHECK(after.created == before.created);
  const auto again = room.process->store.image(id, kAlice, std::nullopt, true, true);
  CHECK(again.image.marks == image.image.marks);
  CHECK(room.process->generate(plain_call(2, 30, 9), id)->recorded == expected);
  const bool from_slot = tokens == 300 && room.transformer->constant_state();
  CHECK(room.process->durable.stats().loaded_from_slot == (from_slot ? 1 : 0));
}

TEST_CASE("the states of idle sessions are stored before the process ends where that pays",
          "[durable]") {
  const std::string attention = GENERATE("linear", "softmax");
  Room room(tiny_model(TinyModel::kTokens, attention));
  const bool is_constant = room.transformer->constant_state();
  room.begin({.park = {400}, .threads = 0});
  const std::string longer = room.kept(300), shorter = room.kept(40), busy = room.kept(300);
  const std::string elsewhere = room.kept(300, {.max_tokens = 400});  // not durable
  const auto image = room.process->store.image(longer, kAlice, std::nullopt, true, false).image;
  {
    const SessionManager::LeaseResult held = room.process->store.lease(busy, kAlice);
    CHECK(room.process->durable.store_idle_states(std::chrono::seconds(1)) ==
          (is_constant ? 1 : 0));
    CHECK(room.process->durable.stats().states_stored == (is_constant ? 1 : 0));
  }
  CHECK(room.process->durable.store_idle_states(Duration::zero()) == 0);
  CHECK(room.process->durable.store_idle_states(std::chrono::seconds(1)) == (is_constant ? 1 : 0));
  CHECK(room.process->durable.store_idle_states(std::chrono::seconds(1)) == 0);  // they have them
  for (const std::string& id : {longer, shorter, busy}) {
    const SessionStorage::Row row = room.storage.find(id, kAlice).row;
    CHECK(row.states.size() == (is_constant && id != shorter ? 1 : 0));
    CHECK_FALSE(room.process->store.lease(id, kAlice).refusal);
  }
  // And they are not held in the storage.
  room.process.reset();
  room.process.emplace(room.storage, room.transformer, room.clock,
                       PersistentSessions::Options{.threads = 0});
  for (const std::string& id : {longer, shorter, busy}) {
    CHECK_FALSE(room.process->durable.load(id, kAlice).refusal);
  }
  CHECK(room.process->durable.stats().loaded_from_slot == (is_constant ? 2 : 0));
  CHECK(room.process->store.image(longer, kAlice, std::nullopt, true, false).image.digest ==
        image.digest);
}

TEST_CASE("a session of another owner, or one that was never durable, is not loaded", "[durable]") {
  Room room;
  const std::string id = room.kept(10);
  const std::string here = room.kept(10, {.max_tokens = 400});
  CHECK_FALSE(room.process->durable.load(here, kAlice).refusal);
  room.begin();
  CHECK(room.process->durable.load(id, "bob").refusal.error == SessionError::kNotFound);
  CHECK_FALSE(room.process->durable.find(id, "bob"));
  CHECK(room.process->durable.remove(id, "bob").error == SessionError::kNotFound);
  CHECK(room.process->durable.rewind(id, "bob", 2, std::nullopt).refusal.error ==
        SessionError::kNotFound);
  CHECK(room.process->durable.list("", "", 10, "bob").empty());
  CHECK(room.process->durable.load(here, kAlice).refusal.error == SessionError::kNotFound);
  CHECK_FALSE(room.process->durable.load(id, kAlice).refusal);
}

TEST_CASE("sessions are found in memory or in the store, and stay there", "[durable]") {
  Room room;
  const std::string cold = room.kept(10);
  room.begin();
  const std::string kept = room.kept(5);
  const std::string here = room.process->create({.max_tokens = 9});
  const std::string bobs = room.kept(5, kInput, "bob");
  const SessionInfo info = *room.process->durable.find(cold, kAlice);
  CHECK_FALSE(info.in_memory);
  CHECK(info.num_tokens == 10);
  CHECK(info.model == "tiny");
  CHECK(info.durability == Durability::kInput);
  CHECK(info.expires > room.clock.wall_time());
  CHECK(room.process->durable.find(kept, kAlice)->in_memory);
  CHECK(room.process->durable.find(kept, kAlice)->expires > room.clock.wall_time());
  CHECK_FALSE(room.process->store.get(cold, kAlice));

  const auto ids = [&](const std::vector<SessionInfo>& infos) {
    std::vector<std::string> all;
    for (const SessionInfo& each : infos) all.push_back(each.id);
    return all;
  };
  std::vector<std::string> alices{cold, kept, here};
  std::ranges::sort(alices);
  CHECK(ids(room.process->durable.list("", "", 10, kAlice)) == alices);
  CHECK(ids(room.process->durable.list("tiny", "", 10, kAlice)) == alices);
  CHECK(ids(room.process->durable.list("other", "", 10, kAlice)).empty());
  CHECK(room.process->durable.list("", "", 10, std::nullopt).size() == 4);
  std::vector<std::string> paged;
  for (std::string after;;) {
    const auto page = ids(room.process->durable.list("", after, 1, kAlice));
    if (page.empty()) break;
    REQUIRE(page.size() == 1);
    paged.push_back(after = page[0]);
  }
  CHECK(paged == alices);
}

TEST_CASE("a rewound or removed session stays so after the process died", "[durable]") {
  Room room;
  const std::string id = room.kept(30);
  const std::string gone = room.kept(30);
  const auto rewound = room.process->durable.rewind(id, kAlice, 12, std::nullopt);
  REQUIRE_FALSE(rewound.refusal);
  CHECK(rewound.info.num_tokens == 12);
  CHECK_FALSE(room.process->durable.remove(gone, kAlice));
  CHECK(room.process->durable.remove(gone, kAlice).error == SessionError::kNotFound);
  const auto expected = room.process->generate(plain_call(2, 9, 4), id)->recorded;
  room.begin();
  CHECK(room.process->durable.load(gone, kAlice).refusal.error == SessionError::kNotFound);
  const auto refused = room.process->durable.rewind(id, kAlice, 13, std::nullopt);
  CHECK(refused.refusal.error == SessionError::kOutOfRange);
  CHECK(refused.refusal.highest == 12);
  REQUIRE_FALSE(room.process->durable.load(id, kAlice).refusal);
  CHECK(room.process->store.get(id, kAlice)->digest == rewound.info.digest);
  CHECK(room.process->generate(plain_call(2, 9, 4), id)->recorded == expected);
}

TEST_CASE("sessions leave memory for others, the longest unused first, and none is lost",
          "[durable]") {
  Room room;
  const bool by_places = GENERATE(true, false);
  const bool of_owner = GENERATE(true, false);
  const std::size_t bytes = SessionManager::session_bytes(*room.transformer, kInput);
  SessionManager::Options store{.session_memory_bytes = 1u << 30};
  if (by_places && of_owner) store.max_sessions_per_owner = 2;
  if (by_places && !of_owner) store.max_sessions = 2;
  if (!by_places && of_owner) store.bytes_per_owner = 2 * bytes;
  if (!by_places && !of_owner) store.session_memory_bytes = 2 * bytes;
  room.begin({.threads = 0}, store);
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(room.kept(10 + i));
    room.clock.advance(std::chrono::seconds(1));
  }
  CHECK(room.process->store.num_sessions() == 2);
  CHECK(room.process->store.stats().unloaded == 3);
  CHECK(room.process->store.get(ids[4], kAlice));
  CHECK_FALSE(room.process->store.get(ids[0], kAlice));
  for (int i = 0; i < 5; ++i) {
    REQUIRE_FALSE(room.process->durable.load(ids[static_cast<std::size_t>(i)], kAlice).refusal);
    CHECK(room.process->store.get(ids[static_cast<std::size_t>(i)], kAlice)->num_tokens == 10 + i);
  }
  // One that lives here alone does not go for another.
  const std::string here = room.process->create({.max_tokens = 400});
  for (const std::string& id : ids) CHECK_FALSE(room.process->durable.load(id, kAlice).refusal);
  CHECK(room.process->store.get(here, kAlice));
  // While it is used it stays, and others find no room.
  const auto busy = room.process->durable.load_and_lease(ids[0], kAlice);
  REQUIRE(busy.lease);
  CHECK(room.process->durable.load(ids[1], kAlice).refusal.error >=
        SessionError::kOwnerTooManySessions);
}

TEST_CASE("a durable session waits for its model", "[durable]") {
  Room room;
  const std::string id = room.kept(10);
  // Unloaded: its client does not see it closed, and it comes back with the model.
  REQUIRE(room.process->store.close_sessions(*room.transformer) == 1);
  CHECK(room.process->store.absence(id, kAlice).error == SessionError::kNotFound);
  const auto retired = room.process->models.retire("tiny", std::nullopt);
  CHECK(room.process->durable.load(id, kAlice).refusal.error == SessionError::kModelMismatch);
  CHECK(room.process->durable.find(id, kAlice)->num_tokens == 10);
  // Another model under its name is not its own.
  const auto other = changed_model(TinyModel::kTokens, {}, [](ModelWeights& weights) {
    weights = random_weights(tiny_config(TinyModel::kTokens), /*seed=*/8, 0.6f);
  });
  room.process->models.add(served_model(other, room.clock));
  CHECK(room.process->durable.load(id, kAlice).refusal.error == SessionError::kModelMismatch);
  room.process->models.add(room.process->model, /*replace_all=*/true);
  CHECK_FALSE(room.process->durable.load(id, kAlice).refusal);
}

TEST_CASE("an adapter's session wants the same adapter", "[durable]") {
  Room room;
  const auto weights = random_adapter(TinyModel::kTokens, 3);
  const auto adapter = room.process->model->adapters->add("thin", weights);
  const auto created =
      room.process->store.create("tiny", room.transformer, kInput, kAlice, adapter);
  const std::string id = created.info.id;
  room.process->generate(plain_call(3, 9, 1), id);
  REQUIRE_FALSE(room.process->durable.persist(id, kAlice));
  const auto expected = room.process->generate(plain_call(3, 9, 2), id)->recorded;
  room.begin();
  CHECK(room.process->durable.load(id, kAlice).refusal.error == SessionError::kModelMismatch);
  room.process->model->adapters->add("thin", random_adapter(TinyModel::kTokens, 4));
  CHECK(room.process->durable.load(id, kAlice).refusal.error == SessionError::kModelMismatch);
  room.begin();
  room.process->model->adapters->add("thin", weights);
  REQUIRE_FALSE(room.process->durable.load(id, kAlice).refusal);
  CHECK(room.process->generate(plain_call(3, 9, 2), id)->recorded == expected);
}

TEST_CASE("a session that expired is gone, one that is used is not", "[durable]") {
  Room room;
  SessionOptions brief = kInput;
  brief.expire_after = std::chrono::seconds(10);
  const std::string id = room.kept(5, brief);
  const std::string other = room.kept(5);
  room.begin();
  room.clock.advance(std::chrono::seconds(11));
  CHECK_FALSE(room.process->durable.find(id, kAlice));
  CHECK(room.process->durable.load(id, kAlice).refusal.error == SessionError::kNotFound);
  CHECK(room.process->durable.list("", "", 10, kAlice).size() == 1);
  CHECK(room.process->durable.sweep() == 1);
  CHECK_FALSE(room.process->durable.load(other, kAlice).refusal);
}

TEST_CASE("a session in memory that has expired is gone for all that ask for it", "[durable]") {
  Room room;
  SessionOptions brief = kInput;
  brief.expire_after = std::chrono::seconds(10);
  const std::string id = room.kept(5, brief);
  room.clock.advance(std::chrono::seconds(10));
  REQUIRE(room.process->store.get(id, kAlice));
  PersistentSessions& durable = room.process->durable;
  switch (GENERATE(range(0, 6))) {
    case 0:
      CHECK_FALSE(durable.find(id, kAlice));
      break;
    case 1:
      CHECK(durable.list("", "", 10, kAlice).empty());
      break;
    case 2:
      CHECK(durable.load(id, kAlice).refusal.error == SessionError::kNotFound);
      break;
    case 3:
      CHECK(durable.rewind(id, kAlice, 2, std::nullopt).refusal.error == SessionError::kNotFound);
      break;
    case 4:
      CHECK(durable.remove(id, kAlice).error == SessionError::kNotFound);
      break;
    default:
      CHECK(room.process->call(plain_call(1, 2, 3), id).refusal.error == SessionError::kNotFound);
  }
  CHECK(durable.absence(id, kAlice).error == SessionError::kNotFound);
  CHECK(durable.sweep() <= 1);
  CHECK_FALSE(durable.find(id, kAlice));
}

TEST_CASE("a call that runs keeps its session from expiring", "[durable]") {
  Room room;
  SessionOptions brief = kInput;
  brief.expire_after = std::chrono::seconds(10);
  const std::string id = room.kept(5, brief);
  const auto call = room.process->call(plain_call(1, 20, 3), id, {.id = "a"});
  REQUIRE_FALSE(call.refusal);
  room.clock.advance(std::chrono::seconds(11));
  CHECK(room.process->durable.sweep() == 0);
  CHECK(room.process->durable.find(id, kAlice)->busy);
  CHECK(room.process->durable.list("", "", 10, kAlice).size() == 1);
  CHECK_FALSE(room.process->durable.load(id, kAlice).refusal);
  room.process->run();
  CHECK(call.sink->outcome == RequestOutcome::kDone);
  CHECK(room.process->durable.find(id, kAlice)->num_tokens == 26);
}

TEST_CASE("calls that load one session at once load it once", "[durable]") {
  Room room;
  const std::string id = room.kept(200);
  room.begin({.threads = 4, .queue = 100});
  std::atomic<int> brought{0};
  std::atomic<int> refused{0};
  for (int i = 0; i < 50; ++i) {
    REQUIRE(room.process->durable.run([&] {
      if (room.process->durable.load(id, kAlice).refusal) ++refused;
      ++brought;
    }));
  }
  const auto& durable = room.process->durable;
  while (brought < 50) std::this_thread::yield();
  CHECK(refused == 0);
  CHECK(durable.stats().loaded_from_tokens + durable.stats().loaded_from_slot == 1);
}

TEST_CASE("work that no thread can begin soon is refused, and all accepted work is done",
          "[durable]") {
  std::atomic<int> done{0};
  std::atomic<bool> open{false};
  int taken = 0;
  {
    WorkThreads threads(1, 3);
    for (int i = 0; i < 10; ++i) {
      const bool is_taken = threads.run([&] {
        while (!open) std::this_thread::yield();
        ++done;
      });
      taken += is_taken ? 1 : 0;
    }
    CHECK(taken >= 3);
    CHECK(taken <= 4);
    open = true;
  }
  CHECK(done == taken);
}

}  // namespace
}  // namespace lintel::testing
