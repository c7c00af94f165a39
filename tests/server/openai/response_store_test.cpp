// SPDX-License-Identifier: Apache-2.0
// Responses that outlive their calls.
#include "server/openai/response_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/chat/template/request_json.h"
#include "server/openai/response_items.h"
#include "server/openai/response_output.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

using ojson = nlohmann::ordered_json;
using std::chrono::hours;
using std::chrono::seconds;

// After one document is read, and before it is looked at, something else happens.
struct HookedDocuments final : MemoryDocuments {
  using MemoryDocuments::MemoryDocuments;
  SessionError find(const std::string& id, const std::string& owner, std::optional<Time> keep_until,
                    Document& found) override {
    const SessionError error = MemoryDocuments::find(id, owner, keep_until, found);
    if (after_find) std::exchange(after_find, nullptr)();
    return error;
  }
  SessionError put(Document& document) override {
    return full == SessionError::kNone ? MemoryDocuments::put(document) : full;
  }
  bool is_shared() const override { return shared; }

  std::function<void()> after_find;
  bool shared = false;
  SessionError full = SessionError::kNone;  // of every put()
};

// Memory that stands for a disk: it outlives a store.
struct Stores {
  std::unique_ptr<ResponseStore> open() {
    return std::make_unique<ResponseStore>(documents, clock,
                                           ResponseStore::Options{hours(10), seconds(60)});
  }

  ManualClock clock;
  HookedDocuments documents{std::size_t{1} << 20, clock};
  std::unique_ptr<ResponseStore> store = open();
};

ResponseRecord record(const std::string& digits, const std::string& parent = "") {
  ResponseRecord made;
  made.digits = digits;
  made.owner = "ada";
  made.parent = parent;
  made.response = {{"id", "resp_" + digits}, {"status", "in_progress"}, {"output", ojson::array()}};
  made.input = ojson::array({{{"id", "in " + digits}}});
  made.pieces = ojson::array();
  return made;
}

ResponseRecord started(ResponseStore& store, const std::string& digits,
                       const std::string& parent = "") {
  ResponseRecord made = record(digits, parent);
  std::shared_ptr<RunningResponse> running;
  REQUIRE(store.begin(made, /*has_log=*/false, running) == SessionError::kNone);
  REQUIRE(running != nullptr);
  return made;
}

const ChainBounds kAnyChain{
    .json_bytes = kMostChainBytes, .memory_bytes = kMostItemBytes, .is_cancelled = nullptr};

SessionError read_chain(ResponseStore& store, const std::string& digits, const std::string& owner,
                        ojson& items, const ChainBounds& bounds = kAnyChain) {
  std::size_t json_bytes = 0;
  const SessionError error = store.read_chain(digits, owner, bounds, items, json_bytes);
  if (error == SessionError::kNone) {
    CHECK(json_bytes >= items.dump().size());
    CHECK(json_bytes <= bounds.json_bytes);
  }
  return error;
}

void end(ResponseStore& store, ResponseRecord made) {
  made.response["status"] = "completed";
  made.response["output"] = ojson::array({{{"id", "out " + made.digits}}});
  int calls = 0;
  store.end(std::move(made), /*is_refused_when_full=*/false, [&](SessionError error) {
    CHECK(error == SessionError::kNone);
    ++calls;
  });
  CHECK(calls == 1);
}

TEST_CASE("response ids: a prefix and 32 digits") {
  const std::string digits = random_digits();
  CHECK(digits.size() == 32);
  CHECK(digits != random_digits());
  CHECK(digits_of_response("resp_" + digits) == digits);
  for (const std::string& wrong :
       {digits, "resp_" + digits + "0", std::string("resp_"), "resp_" + digits.substr(1) + "G"}) {
    CHECK(digits_of_response(wrong).empty());
  }
}

TEST_CASE("response store: a response that finds no room at its end leaves nothing stored") {
  Stores stores;
  const std::string a(32, 'a');
  const bool is_refused = GENERATE(true, false);
  ResponseRecord made = started(*stores.store, a);
  stores.documents.full =
      GENERATE(SessionError::kStoreFull, SessionError::kOwnerOutOfMemory, SessionError::kStoreAway);
  const bool is_full = stores.documents.full != SessionError::kStoreAway;
  SessionError error = SessionError::kNone;
  stores.store->end(std::move(made), is_refused, [&](SessionError ended) { error = ended; });
  CHECK(error == stores.documents.full);
  ResponseRecord found;
  CHECK(stores.store->find(a, "ada", found) ==
        (is_refused && is_full ? SessionError::kNotFound : SessionError::kNone));
}

TEST_CASE("response store: a chain's items come in their order, for its owner", "[threat-82]") {
  Stores stores;
  ResponseStore& store = *stores.store;
  const std::string a(32, 'a'), b(32, 'b'), c(32, 'c');
  end(store, started(store, a));
  end(store, started(store, b, a));
  end(store, started(store, c, a));  // a branch
  ojson items;
  REQUIRE(read_chain(store, b, "ada", items) == SessionError::kNone);
  CHECK(
      items ==
      ojson::array(
          {{{"id", "in " + a}}, {{"id", "out " + a}}, {{"id", "in " + b}}, {{"id", "out " + b}}}));
  CHECK(read_chain(store, b, "eve", items) == SessionError::kNotFound);
  ResponseRecord found;
  CHECK(store.find(b, "eve", found) == SessionError::kNotFound);
  CHECK(store.remove(b, "eve") == SessionError::kNotFound);
  REQUIRE(store.remove(a, "ada") == SessionError::kNone);
  CHECK(store.find(a, "ada", found) == SessionError::kNotFound);
  CHECK(read_chain(store, a, "ada", items) == SessionError::kNotFound);
  CHECK(read_chain(store, b, "ada", items) == SessionError::kNone);  // which still has a's
  CHECK(items.size() == 4);
}

// Reasoning in many parts, as a client may send it.
ojson reasoning(const std::string& id, std::size_t parts, const std::string& text) {
  ojson item = {{"type", "reasoning"}, {"id", id}, {"content", ojson::array()}};
  const ojson part = {{"type", "reasoning_text"}, {"text", text}};
  item["content"] = std::vector<ojson>(parts, part);
  return item;
}

TEST_CASE("response store: a chain is read within its bounds, and a response of it at any time",
          "[threat-95]") {
  Stores stores;
  ResponseStore& store = *stores.store;
  std::string last;
  for (const char digit : {'a', 'b', 'c', 'd'}) {
    const std::string digits(32, digit);
    ResponseRecord made = record(digits, last);
    made.input = ojson::array(
        {reasoning("rs_" + digits, 200, "x"), {{"type", "message"}, {"id", "msg_" + digits}}});
    std::shared_ptr<RunningResponse> running;
    REQUIRE(store.begin(made, /*has_log=*/false, running) == SessionError::kNone);
    made.response["status"] = "completed";
    store.end(std::move(made), /*is_refused_when_full=*/false,
              [](SessionError error) { CHECK(error == SessionError::kNone); });
    last = digits;
  }
  ojson items;
  std::size_t json_bytes = 0;
  REQUIRE(store.read_chain(last, "ada", kAnyChain, items, json_bytes) == SessionError::kNone);
  REQUIRE(items.size() == 8);
  CHECK(items[0]["content"] ==
        ojson::array({{{"type", "reasoning_text"}, {"text", std::string(200, 'x')}}}));
  ChainBounds bounds = kAnyChain;
  bounds.json_bytes = json_bytes;
  bounds.memory_bytes = tree_memory(items) + 1000;  // and the lists
  CHECK(read_chain(store, last, "ada", items, bounds) == SessionError::kNone);
  bounds.json_bytes = json_bytes - 1;
  CHECK(read_chain(store, last, "ada", items, bounds) == SessionError::kTooLarge);
  bounds.json_bytes = json_bytes;
  bounds.memory_bytes = tree_memory(items) / 2;
  CHECK(read_chain(store, last, "ada", items, bounds) == SessionError::kTooLarge);
  // The read ends with its client, before all of it is read.
  int asked = 0;
  bounds = kAnyChain;
  bounds.is_cancelled = [&] { return ++asked == 3; };
  CHECK(read_chain(store, last, "ada", items, bounds) == SessionError::kUnloaded);
  CHECK(asked == 3);
  ResponseRecord found;
  REQUIRE(store.find(last, "ada", found) == SessionError::kNone);
  CHECK(found.input[0]["content"].size() == 200);
  CHECK(store.remove(last, "ada") == SessionError::kNone);
}

TEST_CASE("response store: responses that were stored as one text are read, continued and found") {
  Stores stores;
  ResponseStore& store = *stores.store;
  const std::string a(32, 'a'), b(32, 'b');
  const ojson body = {
      {"response",
       {{"id", "resp_" + a}, {"status", "completed"}, {"output", {{{"id", "out"}}}}, {"x", 1}}},
      {"input", {{{"id", "in"}}}},
      {"pieces", ojson::array()},
      {"seed", 7},
      {"request", "digest"},
      {"process", "p"},
      {"interrupted", false},
      {"body", ""}};
  Document old{.id = a, .owner = "ada", .parent = "", .body = body.dump()};
  old.expires = stores.clock.wall_time() + hours(1);
  REQUIRE(stores.documents.put(old) == SessionError::kNone);
  ResponseRecord found;
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.response == body["response"]);
  CHECK(found.input == body["input"]);
  CHECK(found.seed == 7);
  ojson items;
  REQUIRE(store.find_items(a, "ada", items) == SessionError::kNone);
  CHECK(items == ojson::array({{{"id", "in"}}, {{"id", "out"}}}));
  end(store, started(store, b, a));
  REQUIRE(read_chain(store, b, "ada", items) == SessionError::kNone);
  CHECK(items.size() == 4);
  ChainBounds bounds = kAnyChain;
  bounds.json_bytes = 100;
  CHECK(read_chain(store, a, "ada", items, bounds) == SessionError::kNone);
  bounds.json_bytes = 20;
  CHECK(read_chain(store, a, "ada", items, bounds) == SessionError::kTooLarge);
}

TEST_CASE("response store: what is stored of a response is what was given") {
  Stores stores;
  ResponseStore& store = *stores.store;
  const std::string a(32, 'a');
  ResponseRecord made = record(a);
  made.response["text"] = "line\nend \"quoted\" \u00e4";
  made.response["usage"] = nullptr;
  made.request_digest = "digest";
  made.request = "{\n}";
  made.seed = 0xFFFFFFFFFFFFFFFF;
  made.pieces = ojson::array({ojson::array({1, 2}), ojson::array({3})});
  std::shared_ptr<RunningResponse> running;
  REQUIRE(store.begin(made, /*has_log=*/false, running) == SessionError::kNone);
  ResponseRecord found;
  bool is_hidden = true;
  REQUIRE(store.find_stored(a, "ada", found, is_hidden) == SessionError::kNone);
  CHECK(found.response.dump() == made.response.dump());  // members in their order
  CHECK(found.input == made.input);
  CHECK(found.pieces == made.pieces);
  CHECK(found.request == made.request);
  CHECK(found.request_digest == made.request_digest);
  CHECK(found.seed == made.seed);
  ojson items;
  REQUIRE(store.find_items(a, "ada", items) == SessionError::kNone);  // as far as there are any
  CHECK(items == made.input);
  CHECK(store.find_items(a, "eve", items) == SessionError::kNotFound);
  REQUIRE(store.remove(a, "ada") == SessionError::kNone);
  CHECK(store.find_items(a, "ada", items) == SessionError::kNotFound);
}

TEST_CASE("response store: one that runs cannot be run or continued, and is waited for") {
  Stores stores;
  ResponseStore& store = *stores.store;
  const std::string a(32, 'a');
  ResponseRecord running = started(store, a);
  ResponseRecord again = record(a);
  std::shared_ptr<RunningResponse> other;
  CHECK(store.begin(again, /*has_log=*/false, other) == SessionError::kFenced);
  ojson items;
  CHECK(read_chain(store, a, "ada", items) == SessionError::kBusy);
  CHECK(store.running(a, "eve") == nullptr);
  store.running(a, "ada")->cancel();
  int calls = 0;
  store.when_over(a, "ada", [&] { ++calls; });
  CHECK(calls == 0);
  end(store, std::move(running));
  CHECK(calls == 1);
  store.when_over(a, "ada", [&] { ++calls; });
  CHECK(calls == 2);
  CHECK(store.running(a, "ada") == nullptr);
}

TEST_CASE("response store: a waiter for an end is called by a thread that may wait") {
  struct Waiting final : MemoryDocuments {
    using MemoryDocuments::MemoryDocuments;
    bool waits() const override { return true; }
  };
  ManualClock clock;
  Waiting documents{std::size_t{1} << 20, clock};
  ResponseStore store(documents, clock, ResponseStore::Options{hours(10), seconds(60)});
  const std::string a(32, 'a');
  const auto is_called_elsewhere = [&](const std::function<void()>& end_it) {
    std::promise<std::thread::id> caller;
    store.when_over(a, "ada", [&] { caller.set_value(std::this_thread::get_id()); });
    end_it();
    return caller.get_future().get() != std::this_thread::get_id();
  };
  CHECK(is_called_elsewhere([] {}));
  started(store, a);
  CHECK(is_called_elsewhere([&] { store.abandon(a); }));
}

TEST_CASE("response store: a read charges its memory and releases what it drops", "[threat-95]") {
  struct Budget final : JsonBudget {
    bool charge(std::int64_t bytes) override {
      if (held + bytes > most) return false;
      held += bytes;
      highest = std::max(highest, held);
      return true;
    }
    bool cancelled() const override { return false; }
    std::int64_t held = 0, highest = 0, most = INT64_MAX;
  };
  Stores stores;
  ResponseStore& store = *stores.store;
  std::string last;
  for (const char digit : {'a', 'b', 'c', 'd'}) {
    ResponseRecord made = record(std::string(32, digit), last);
    made.input = ojson::array({reasoning("rs", 1000, "x")});
    std::shared_ptr<RunningResponse> running;
    REQUIRE(store.begin(made, /*has_log=*/false, running) == SessionError::kNone);
    last = made.digits;
    end(store, std::move(made));
  }
  Budget budget;
  ChainBounds bounds = kAnyChain;
  bounds.budget = &budget;
  ojson items;
  REQUIRE(read_chain(store, last, "ada", items, bounds) == SessionError::kNone);
  // The parts of one response at a time, and what they are joined to.
  const auto kept = static_cast<std::int64_t>(tree_memory(items));
  CHECK(budget.held >= kept);
  CHECK(budget.held < kept + 2000);
  CHECK(budget.highest > 100'000);
  CHECK(budget.highest < 600'000);
  budget.most = budget.highest - 1;
  budget.held = 0;
  CHECK(read_chain(store, last, "ada", items, bounds) == SessionError::kTooLarge);
  budget = {};
  ResponseRecord found;
  REQUIRE(store.find(last, "ada", found, &budget) == SessionError::kNone);
  CHECK(budget.held >= static_cast<std::int64_t>(tree_memory(found.input)));
  budget.most = budget.held - 1;
  budget.held = 0;
  CHECK(store.find(last, "ada", found, &budget) == SessionError::kTooLarge);
  budget.held = 0;
  budget.most = 1000;
  CHECK(store.find_items(last, "ada", items, &budget) == SessionError::kTooLarge);
}

TEST_CASE("response store: one whose server is gone is in progress for a while, then failed") {
  Stores stores;
  const std::string a(32, 'a');
  started(*stores.store, a);
  stores.store = stores.open();
  ResponseStore& store = *stores.store;
  ResponseRecord found;
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == "in_progress");
  CHECK_FALSE(store.may_run_elsewhere(found));
  stores.clock.advance(seconds(61));
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == "failed");
  CHECK(found.response["error"]["code"] == "interrupted");
  // The response can be run again, also then.
  bool is_hidden = false;
  REQUIRE(store.find_stored(a, "ada", found, is_hidden) == SessionError::kNone);
  std::shared_ptr<RunningResponse> running;
  REQUIRE(store.begin(found, /*has_log=*/false, running) == SessionError::kNone);
  end(store, found);
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == "completed");
}

TEST_CASE("response store: one that ends while it is read has not failed") {
  Stores stores;
  ResponseStore& store = *stores.store;
  const std::string a(32, 'a');
  ResponseRecord made = started(store, a), found;
  const bool is_cancelled = GENERATE(false, true);
  if (is_cancelled) store.running(a, "ada")->cancel();
  stores.documents.after_find = [&] { end(store, made); };
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == (is_cancelled ? "cancelled" : "in_progress"));
  REQUIRE(store.find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == "completed");
}

TEST_CASE("response store: the id of a key is its owner's and the storage's alone") {
  Stores stores, others;
  const auto digits_of = [](Stores& at, const char* owner, const char* key) {
    std::string digits;
    REQUIRE(at.store->digits_of_key(owner, key, digits) == SessionError::kNone);
    CHECK(digits.size() == 32);
    return digits;
  };
  const std::string first = digits_of(stores, "ada", "key");
  CHECK(digits_of(stores, "ada", "key") == first);
  CHECK(digits_of(stores, "eve", "key") != first);
  CHECK(digits_of(stores, "ad", "akey") != first);
  CHECK(digits_of(stores, "ada", "other") != first);
  CHECK(digits_of(others, "ada", "key") != first);
}

// A record of a background response with its request.
ResponseRecord with_request(const std::string& digits) {
  ResponseRecord made = record(digits);
  made.request = "{}";
  return made;
}

TEST_CASE("response store: those in the background are run again once their server is gone") {
  Stores stores;
  stores.documents.shared = GENERATE(false, true);
  CAPTURE(stores.documents.shared);
  const std::string a(32, 'a'), b(32, 'b'), c(32, 'c');
  std::shared_ptr<RunningResponse> running;
  ResponseRecord ended = with_request(b), foreground = record(c), left = with_request(a);
  for (ResponseRecord* const each : {&left, &ended, &foreground}) {
    REQUIRE(stores.store->begin(*each, /*has_log=*/false, running) == SessionError::kNone);
  }
  std::vector<std::string> again;
  const auto look = [&] {
    stores.clock.advance(seconds(3));
    stores.store->look();
    return std::exchange(again, {});
  };
  const auto run = [&](const ResponseRecord& interrupted) { again.push_back(interrupted.digits); };
  stores.store->run_interrupted_by(run);
  CHECK(look().empty());  // they run here
  ended.request.clear();
  end(*stores.store, ended);
  stores.store = stores.open();
  stores.store->run_interrupted_by(run);
  ResponseRecord found;
  if (stores.documents.shared) {
    CHECK(look().empty());  // its server may be there
    stores.clock.advance(seconds(61));
  }
  REQUIRE(stores.store->find(a, "ada", found) == SessionError::kNone);
  CHECK(found.status() == "in_progress");
  CHECK(look() == std::vector{a});
  // Another server was faster.
  auto other = stores.open();
  REQUIRE(other->begin(found, /*has_log=*/false, running) == SessionError::kNone);
  if (stores.documents.shared) CHECK(look().empty());
  CHECK(stores.store->begin(left, /*has_log=*/false, running) == SessionError::kFenced);
  // A refused response is tried again later, one left by abandon() at once.
  stores.store = std::move(other);
  stores.store->run_interrupted_by(run);
  CHECK(look().empty());
  stores.store->abandon(a);
  CHECK(look() == std::vector{a});
  stores.store->note_refused(a);
  CHECK(look().empty());
  stores.clock.advance(seconds(30));
  CHECK(look() == std::vector{a});
  REQUIRE(stores.store->remove(a, "ada") == SessionError::kNone);
  CHECK(look().empty());
  CHECK(stores.documents.unfinished(10).empty());
}

TEST_CASE("response store: what has expired goes") {
  Stores stores;
  ResponseStore& store = *stores.store;
  end(store, started(store, std::string(32, 'a')));
  stores.clock.advance(hours(11));
  store.look();
  ResponseRecord found;
  CHECK(store.find(std::string(32, 'a'), "ada", found) == SessionError::kNotFound);
}

}  // namespace
}  // namespace lintel::testing
