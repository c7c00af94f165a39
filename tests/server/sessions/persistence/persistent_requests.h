// SPDX-License-Identifier: Apache-2.0
// What the tests of calls on durable sessions share: a storage that outlives its processes, and
// calls with names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/sessions/persistence/persistent_request.h"
#include "tests/server/sessions/persistence/crash_test_process.h"
#include "tests/server/sessions/persistence/faulty_storage.h"

namespace lintel::testing {

inline IdempotencyKey named(const std::string& id, std::uint8_t request = 1) {
  IdempotencyKey terms{.id = id, .log2_probs = true};
  terms.request.bytes[0] = std::byte{request};
  return terms;
}

inline GenerationRequest tokens_call(std::size_t prompt, std::int64_t tokens, std::uint64_t seed) {
  GenerationRequest request = tokens_request(prompt, tokens, seed);
  request.log2_probs = true;
  return request;
}

// A storage that outlives its processes.
struct Calls {
  explicit Calls(Durability level,
                 std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens))
      : transformer(std::move(model)), durability(level) {
    begin();
  }
  ~Calls() {
    dying->die();
    process.reset();
  }
  // The process dies, and another one begins.
  void begin() {
    if (dying) dying->die();
    process.reset();
    storage.end_claims();
    dying.emplace(storage);
    process.emplace(*dying, transformer, clock, options);
  }
  std::string kept(SessionOptions session = {.max_tokens = 1000}) {
    session.durability = durability;
    const std::string id = process->create(session);
    REQUIRE_FALSE(process->durable.persist(id, kAlice));
    return id;
  }
  std::int64_t stored(const std::string& id) { return storage.find(id, kAlice).row.position; }

  std::shared_ptr<const Transformer> transformer;  // of the next process
  const Durability durability;
  ManualClock clock;
  MemoryStorage storage{clock};
  PersistentSessions::Options options{.lazy_tokens = 7, .park = {20}, .threads = 0};
  std::optional<FaultyStorage> dying;
  std::optional<DurableProcess> process;
};

// The same without a store.
inline std::shared_ptr<RecordingSink> undisturbed(const std::shared_ptr<const Transformer>& model,
                                                  const std::vector<GenerationRequest>& calls,
                                                  SessionOptions session = {.max_tokens = 1000}) {
  Core core(model, {.workers = 0, .speculation = Speculation::kOff});
  const std::string id = core.store.create("tiny", model, session).info.id;
  std::shared_ptr<RecordingSink> last;
  for (const GenerationRequest& call : calls) last = core.generate(call, id);
  return last;
}

}  // namespace lintel::testing
