// SPDX-License-Identifier: Apache-2.0
// The process dies at every token of a call; a repeat gives what an undisturbed call gives, each
// position once.
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/server/sessions/persistence/crash_test_process.h"
#include "tests/server/sessions/persistence/faulty_storage.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

// Drops what a dying process delivers. A storage on a disk delivers on a thread of its own.
class MortalSink final : public RecordingSink {
 public:
  bool on_token(const TokenEvent& event) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_dead_ || RecordingSink::on_token(event);
  }
  void die() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_dead_ = true;
  }

 private:
  std::mutex mutex_;
  bool is_dead_ = false;
};

// A storage of each sort, that outlives who uses it.
class LastingStorage {
 public:
  LastingStorage(bool on_disk, const Clock& clock) : on_disk_(on_disk), clock_(clock) { begin(); }

  void die() { dying_->die(); }
  // After all of its users have died.
  void begin() {
    dying_.reset();
    if (!on_disk_) {
      if (storage_ == nullptr) storage_ = std::make_unique<MemoryStorage>(clock_);
      static_cast<MemoryStorage&>(*storage_).end_claims();
    } else {
      storage_.reset();
      SqliteStorage::Options options{.directory = directory_.path() / "store",
                                     .commit_interval = {}};
      storage_ = std::make_unique<SqliteStorage>(options, clock_);
    }
    dying_.emplace(*storage_);
  }
  SessionStorage& operator*() { return *dying_; }
  SessionStorage* operator->() { return &*dying_; }

 private:
  const bool on_disk_;
  const Clock& clock_;
  TemporaryDirectory directory_;
  std::unique_ptr<SessionStorage> storage_;
  std::optional<FaultyStorage> dying_;
};

struct Sequence {
  std::vector<GenerationRequest> calls;  // the last one is killed and repeated
  SessionOptions session{.max_tokens = 400};
};

IdempotencyKey call_named(std::size_t i) {
  return {.id = "call " + std::to_string(i), .log2_probs = true};
}

// Twin: without a store, without drafts.
std::vector<std::shared_ptr<RecordingSink>> twin_of(const std::shared_ptr<const Transformer>& model,
                                                    const Sequence& sequence) {
  Core core(model, {.workers = 0, .speculation = Speculation::kOff});
  const std::string id = core.store.create("tiny", model, sequence.session).info.id;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const GenerationRequest& call : sequence.calls) sinks.push_back(core.generate(call, id));
  return sinks;
}

// Lets the last call run until its sink or its session has `tokens` new tokens, dies, repeats it,
// dies once more on the way, and repeats it to its end.
void require_same_after_death(const std::shared_ptr<const Transformer>& model, Durability level,
                              bool on_disk, Sequence sequence, std::int64_t step = 1) {
  sequence.session.durability = level;
  const auto twin = twin_of(model, sequence);
  const std::vector<RecordedToken>& expected = twin.back()->recorded[0];
  const std::int64_t start = twin.back()->result().reused_tokens;
  const std::int64_t end = twin.back()->result().position;
  ManualClock clock;
  for (std::int64_t at = start; at <= end; at += step) {
    CAPTURE(at, start, end);
    LastingStorage storage(on_disk, clock);
    std::optional<DurableProcess> process;
    const auto begin = [&] {
      process.emplace(*storage, model, clock,
                      PersistentSessions::Options{.lazy_tokens = 3, .park = {20}, .threads = 0});
    };
    std::vector<RecordedToken> seen;
    std::shared_ptr<MortalSink> sink;  // of the process that is to die
    const auto die = [&] {
      if (sink) {
        sink->die();
        seen.insert(seen.end(), sink->recorded[0].begin(), sink->recorded[0].end());
        sink = nullptr;
      }
      storage.die();
      process.reset();
      storage.begin();
      begin();
    };
    begin();
    const std::string id = process->create(sequence.session);
    REQUIRE_FALSE(process->durable.persist(id, kAlice));
    const std::size_t last = sequence.calls.size() - 1;
    for (std::size_t i = 0; i < last; ++i) {
      process->finish(sequence.calls[i], id, call_named(i));
    }
    if (at % 2 == 0) die();  // the session is cold
    // Runs until there are so many tokens.
    const auto run_to = [&](std::int64_t tokens) {
      IdempotencyKey terms = call_named(last);
      terms.from_position = seen.empty() ? 0 : seen.back().position + 1;
      sink = std::make_shared<MortalSink>();
      const auto call = process->call(sequence.calls[last], id, terms, sink);
      REQUIRE_FALSE(call.refusal);
      for (int steps = 0; call.sink->finishes == 0; ++steps) {
        REQUIRE(steps < 1000);
        process->model->scheduler->run_one_step();
        process->durable.write();
        const auto info = process->store.get(id, kAlice);
        if (!info || info->num_tokens >= tokens) break;
      }
      // Its last words.
      if (tokens % 3 == 0) process->durable.write();
    };
    run_to(at);
    die();
    if (at % 5 == 0) {
      run_to((at + end) / 2);
      die();
    }
    const auto info = process->durable.find(id, kAlice);
    REQUIRE(info);
    CHECK(info->num_tokens <= end);
    IdempotencyKey terms = call_named(last);
    terms.from_position = seen.empty() ? 0 : seen.back().position + 1;
    const auto call = process->call(sequence.calls[last], id, terms);
    REQUIRE_FALSE(call.refusal);
    REQUIRE(eventually([&] {
      process->run();
      return call.sink->finishes > 0;
    }));
    REQUIRE(call.sink->outcome == RequestOutcome::kDone);
    seen.insert(seen.end(), call.sink->recorded[0].begin(), call.sink->recorded[0].end());
    REQUIRE(seen == expected);
    REQUIRE(call.sink->result().digest == twin.back()->result().digest);
    REQUIRE(call.sink->result().reason == twin.back()->result().reason);
    REQUIRE(call.sink->result().generated_tokens == twin.back()->result().generated_tokens);
    storage.die();
    process.reset();
  }
}

constexpr std::int64_t kStride = kSanitized ? 7 : 1;

GenerationRequest rich_call(std::int64_t position) {
  GenerationRequest request;
  request.prompt = {static_cast<std::int32_t>(position % 50), 7, 11};
  request.max_new_tokens = 24;
  request.seed = static_cast<std::uint64_t>(100 + position);
  request.log2_probs = true;
  request.top_log2_probs = 2;
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.frequency_penalty = 0.2f;
  request.sampling.penalty_window = position == 0 ? 0 : 9;
  for (const std::int64_t ahead : {2, 3, 4, 11, 23}) {
    request.given.push_back({position + 3 + ahead, static_cast<std::int32_t>(ahead)});
  }
  return request;
}

TEST_CASE("a call that is killed at any token and repeated gives each position once: every kind",
          "[durable]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  CAPTURE(attention, static_cast<int>(level));
  require_same_after_death(tiny_model(TinyModel::kTokens, attention), level, /*on_disk=*/false,
                           {{rich_call(0), rich_call(27)}}, kStride);
}

TEST_CASE("a call that is killed at any token and repeated gives each position once: KV pages",
          "[durable]") {
  const KvType type = GENERATE(KvType::kF32, KvType::kInt8);
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool on_disk = GENERATE(false, true);
  static std::uint64_t number = 0;
  if (!is_drawn(number++, 2)) return;
  require_same_after_death(hybrid_model(type), level, on_disk, {{rich_call(0), rich_call(27)}},
                           on_disk ? 5 * kStride : kStride);
}

TEST_CASE("a call that is killed at any token and repeated gives each position once: on a disk",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  require_same_after_death(tiny_model(TinyModel::kTokens), level, /*on_disk=*/true,
                           {{rich_call(0), rich_call(27)}}, 3 * kStride);
}

TEST_CASE("a call that is killed and repeated gives each position once: in a window, every weight",
          "[durable]") {
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  require_same_after_death(tiny_model(TinyModel::kTokens, "linear", type), level,
                           /*on_disk=*/false,
                           {{rich_call(0), rich_call(27)}, {.max_tokens = 400, .window = 16}},
                           kStride);
}

TEST_CASE("a stop string is found across the place where the process died", "[durable]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool is_included = GENERATE(false, true);
  Core core(model);
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.max_new_tokens = 60;
  request.seed = 5;
  request.log2_probs = true;
  const std::string text = core.generate(request)->text();
  // The first call ends in the middle of what the second one looks for.
  GenerationRequest first = request;
  first.max_new_tokens = 20;
  GenerationRequest second;
  second.seed = 5;
  second.max_new_tokens = 40;
  second.log2_probs = true;
  second.stop.strings = {text.substr(12, 24)};
  second.stop.include_in_output = is_included;
  require_same_after_death(model, level, /*on_disk=*/false, {{first, second}}, kStride);
  // And one that ends within the call, after which another one begins.
  second.stop.strings = {text.substr(24, 10)};
  GenerationRequest third = second;
  third.stop.strings = {text.substr(30, 8)};
  require_same_after_death(model, level, /*on_disk=*/false, {{first, second, third}}, kStride);
}

TEST_CASE("a stop string inside of tokens is found across the place where the process died",
          "[durable]") {
  const auto model = text_model();
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool is_included = GENERATE(false, true);
  Core core(model);
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.max_new_tokens = 60;
  request.seed = 5;
  request.log2_probs = true;
  for (std::int32_t token = 257; token < 292; ++token) {  // of several bytes, and of none
    request.sampling.logit_bias.emplace_back(token, 100.0f);
  }
  std::string text;
  std::vector<std::size_t> ends;  // of each token
  for (const std::int32_t token : core.generate(request)->tokens()) {
    text += model->tokenizer()->bytes_of(token);
    ends.push_back(text.size());
  }
  GenerationRequest first = request;
  first.max_new_tokens = 20;
  GenerationRequest second = request;
  second.prompt.clear();
  second.max_new_tokens = 40;
  second.stop.include_in_output = is_included;
  second.stop.strings = {text.substr(ends[12] - 1, ends[35] - ends[12])};
  require_same_after_death(model, level, /*on_disk=*/false, {{first, second}}, kStride);
  second.stop.strings = {text.substr(ends[24] - 1, ends[30] - ends[24])};
  require_same_after_death(model, level, /*on_disk=*/false, {{first, second}}, kStride);
}

TEST_CASE("an image that is killed and repeated is the same to its last pixel", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  GenerationRequest request;
  request.max_new_tokens = 30;
  request.seed = 9;
  request.log2_probs = true;
  if (GENERATE(false, true)) request.given = {{0, 3}, {1, 4}, {7, 200}};
  require_same_after_death(tiny_model(TinyModel::kImage), level, /*on_disk=*/false, {{request}, {}},
                           kStride);
}

}  // namespace
}  // namespace lintel::testing
