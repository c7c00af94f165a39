// What the tests of calls on durable sessions share: a vault that outlives its processes, and calls
// with names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/sessions/persistence/durable_call.h"
#include "tests/server/durable/durable_process.h"
#include "tests/server/durable/dying_vault.h"

namespace lintel::testing {

inline CallTerms named(const std::string& id, std::uint8_t request = 1) {
  CallTerms terms{.id = id, .log2_probs = true};
  terms.request.bytes[0] = std::byte{request};
  return terms;
}

inline GenerationRequest tokens_call(std::size_t prompt, std::int64_t values, std::uint64_t seed) {
  GenerationRequest request = tokens_request(prompt, values, seed);
  request.log2_probs = true;
  return request;
}

// A vault that outlives its processes.
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
    vault.end_claims();
    dying.emplace(vault);
    process.emplace(*dying, transformer, clock, options);
  }
  std::string kept(SessionOptions session = {.max_values = 1000}) {
    session.durability = durability;
    const std::string id = process->create(session);
    REQUIRE_FALSE(process->durable.keep(id, kAlice));
    return id;
  }
  std::int64_t stored(const std::string& id) { return vault.find(id, kAlice).row.position; }

  const std::shared_ptr<const Transformer> transformer;
  const Durability durability;
  ManualClock clock;
  MemoryVault vault{clock};
  DurableSessions::Options options{.lazy_values = 7, .park_tokens = 20, .threads = 0};
  std::optional<DyingVault> dying;
  std::optional<DurableProcess> process;
};

// The same without a store.
inline std::shared_ptr<RecordingSink> undisturbed(const std::shared_ptr<const Transformer>& model,
                                                  const std::vector<GenerationRequest>& calls,
                                                  SessionOptions session = {.max_values = 1000}) {
  Core core(model, {.workers = 0, .speculation = Speculation::kOff});
  const std::string id = core.store.create("tiny", model, session).info.id;
  std::shared_ptr<RecordingSink> last;
  for (const GenerationRequest& call : calls) last = core.generate(call, id);
  return last;
}

}  // namespace lintel::testing
