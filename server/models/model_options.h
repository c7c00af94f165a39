// SPDX-License-Identifier: Apache-2.0
// ModelOptions: which models are served, and how.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/fastest_type.h"
#include "model/ops/dense.h"
#include "model/ops/kv_type.h"
#include "server/chat/reader/tool_dialect.h"
#include "server/core/memory_limit.h"
#include "server/engine/request.h"
#include "server/engine/scheduler.h"

namespace lintel {

// RequestLimits: bounds of one request.

// Bounds of one request, which ModelService also reports.
struct RequestLimits {
  std::int64_t max_prompt_tokens = 1'000'000;
  std::int64_t max_new_tokens = 1'000'000;
  int max_samples = 64;  // and never more than max_batch_rows
  int max_top_log2_probs = 64;
  int max_stop_strings = 16;
  std::int64_t max_given_tokens = 1'000'000;
  // All sequences of a Score request. One sequence of this length answers within the 4 MiB that
  // gRPC clients accept by default.
  std::int64_t max_score_tokens = 1'000'000;
  std::int64_t chat_max_tokens = 8192;  // of an answer in a chat if the request has no limit

  // Fixed limits, without a flag.
  static constexpr int max_stop_tokens = 256;
  static constexpr int max_stop_string_bytes = kMaxStopStringBytes;
};

struct ModelDirectory {
  std::string name;
  std::filesystem::path path;
};

// A LoRA adapter that lies elsewhere than in its model's directory.
struct AdapterDirectory {
  std::string model;
  std::string name;
  std::filesystem::path path;
};

// A chat template in place of the model's own.
struct ChatTemplateFile {
  std::string model;  // empty: the only one
  std::filesystem::path path;
};
// The form of a model's tool calls, in place of the one that its template shows.
struct GivenToolDialect {
  std::string model;  // empty: the only one
  ToolDialect dialect = ToolDialect::kNone;
};

struct ModelOptions {
  std::vector<ModelDirectory> directories;  // loaded at the start; names differ
  // Loaded with their models, beside those in the models' directories; names of a model differ.
  std::vector<AdapterDirectory> adapters;
  std::vector<ChatTemplateFile> chat_templates;  // one a model at most
  std::vector<GivenToolDialect> tool_dialects;   // likewise
  std::filesystem::path repository;  // ModelRepository; empty: nothing is loaded at run time
  // A repository whose models are loaded by requests for them; at most one of both is given.
  std::filesystem::path on_request;
  std::chrono::milliseconds idle_unload_ms{0};  // unloads unused models; 0: never
  std::vector<std::string> load;                // of the repository, at the start; "*": all
  // The bound of all models and adapters together; 0: none. kAutoBytes: none until
  // ModelManager::set_memory().
  std::size_t memory_bytes = kAutoBytes;
  bool strict_config = false;                  // refuse_unknown_keys() of every checkpoint
  std::optional<WeightType> weight_type;       // nothing: load_as_planned() of each
  std::filesystem::path weight_type_text;      // TypeChoice::text; empty: none
  double weight_type_loss = kMostBitsLost;     // TypeChoice::most_bits_lost
  std::optional<KvType> kv_type;               // of KV caches; nothing: kv_type_for() the weights
  std::int64_t context = 0;                    // ModelConfig::context of each; 0: its own
  KernelChoice kernels = KernelChoice::kAuto;  // of the process: choose_kernels()
  std::optional<AttentionSpec> attention;      // of every model, in place of its own
  // The scheduling of each model. max_batch_rows 0: batch_rows_for() of the model.
  Scheduler::Options scheduling{.max_batch_rows = 0, .prefill_rows_per_step = 0};
  RequestLimits limits;
  // The time for running calls to end when their model or the server goes; then they are ended.
  std::chrono::milliseconds drain_timeout_ms{30'000};

  bool loads_on_request() const { return !on_request.empty(); }
  const std::filesystem::path& models_directory() const {
    return loads_on_request() ? on_request : repository;
  }
};

}  // namespace lintel
