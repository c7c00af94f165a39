// SPDX-License-Identifier: Apache-2.0
// What the tests of durable sessions share: a server's core with a store, which may die and restart
// on the same storage.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "server/models/model_registry.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/storage/memory_storage.h"
#include "tests/server/support/harness.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

// A model whose states grow in pages: gated delta rule, and softmax attention in every fourth
// layer.
inline std::shared_ptr<const Transformer> hybrid_model(KvType type = KvType::kF32) {
  static std::map<KvType, std::shared_ptr<const Transformer>> models;
  std::shared_ptr<const Transformer>& model = models[type];
  const auto path = std::filesystem::path(LINTEL_TEST_DATA) / "golden/families/qwen3_5";
  if (model == nullptr) model = Transformer::load(path, {.kv_type = type});
  return model;
}

inline const Owner kAlice = "alice";

// A model as the registry has it, with a scheduler that its test steps.
std::shared_ptr<ServedModel> served_model(std::shared_ptr<const Transformer> transformer,
                                          const Clock& clock, const std::string& name = "tiny",
                                          Scheduler::Options options = without_threads());

// No threads: calls on the store wait on the calling thread, and durable.write() writes tokens.
struct DurableProcess {
  DurableProcess(SessionStorage& storage, std::shared_ptr<const Transformer> transformer,
                 const Clock& clock, PersistentSessions::Options options = {.threads = 0},
                 SessionManager::Options store_options = {.session_memory_bytes = 1u << 30});
  ~DurableProcess();

  // A session that is not kept yet.
  std::string create(SessionOptions session, const Owner& owner = kAlice);
  // A call that knows nothing of the store, on a session of this process.
  std::shared_ptr<RecordingSink> generate(GenerationRequest request, const std::string& id,
                                          const Owner& owner = kAlice);
  // A call as the services make it; refused: nothing runs.
  struct Call {
    std::shared_ptr<RecordingSink> sink;
    RequestHandle handle;
    SessionRefusal refusal;
    std::shared_ptr<ReplayedResponse> past;  // replayed in place of running
  };
  Call call(GenerationRequest request, const std::string& id, const IdempotencyKey& terms = {},
            std::shared_ptr<RecordingSink> sink = nullptr, const Owner& owner = kAlice);
  // The same, and steps and writes until it is over.
  std::shared_ptr<RecordingSink> finish(const GenerationRequest& request, const std::string& id,
                                        const IdempotencyKey& terms = {});
  // Steps until there is nothing to do, and has all written.
  void run();

  const std::shared_ptr<const Transformer> transformer;
  SessionManager store;
  ModelRegistry models;
  std::shared_ptr<ServedModel> model;
  PersistentSessions durable;
};

}  // namespace lintel::testing
