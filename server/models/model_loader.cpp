#include "server/models/model_loader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "model/config/names.h"
#include "server/models/batch_rows.h"
#include "server/models/self_check.h"
#include "server/sessions/session_store.h"

namespace lintel {
namespace {

int batch_rows(const Scheduler::Options& scheduling, const Transformer& model) {
  if (scheduling.max_batch_rows > 0) return scheduling.max_batch_rows;
  return batch_rows_for(model, scheduling.workers, last_cache_bytes());
}

// "271360 bytes a session"
std::string state_description(const Transformer& transformer) {
  const std::int64_t longest = transformer.config().max_length;
  const auto bytes = [&](std::int64_t tokens) {
    return std::to_string(transformer.state_bytes(tokens)) + " bytes a session";
  };
  if (transformer.constant_state()) return bytes(longest);
  if (longest > 0) return "at most " + bytes(longest) + " of full length";
  const std::int64_t full = transformer.tokens_until_full();
  if (full != kNeverFull) return "at most " + bytes(full);
  return bytes(1000) + " of 1000 tokens, growing";
}

// A model that not one sequence of fits beside would be ready, and refuse every call.
void check_session_memory(const SessionStore::Options& sessions, const std::string& name,
                          const Transformer& transformer) {
  const std::size_t needed = SessionStore::admitted_bytes(transformer, 1);
  const auto check = [&](const char* flag, std::size_t limit) {
    if (needed <= limit) return;
    throw ModelError("model " + name + ": one session needs " + std::to_string(needed) +
                     " bytes, and " + flag + " is " + std::to_string(limit));
  };
  check("--session-memory", sessions.session_memory_bytes);
  if (sessions.bytes_per_owner != 0) check("--identity-memory", sessions.bytes_per_owner);
  const std::int64_t longest = transformer.config().max_length;
  const std::size_t all = longest > 0 ? SessionStore::admitted_bytes(transformer, longest) : 0;
  if (all > sessions.session_memory_bytes) {
    spdlog::warn(
        "model {}: a session of full length, {} tokens, needs {} bytes, more than the {} of "
        "--session-memory",
        name, longest, all, sessions.session_memory_bytes);
  }
}

}  // namespace

Transformer::Options transformer_options(const ModelOptions& options) {
  return {.weight_type = options.weight_type, .attention = options.attention};
}

NamedTransformer load_model(const ModelOptions& options, const SessionStore::Options& sessions,
                            const std::string& name, std::int64_t version,
                            const std::filesystem::path& directory) {
  std::shared_ptr<const Transformer> transformer =
      Transformer::load(directory, transformer_options(options));
  check_session_memory(sessions, name, *transformer);
  spdlog::info(
      "model {} version {} from {}: {} parameters, {} weights in {} bytes, attention {}, {}, {}, "
      "fingerprint {}",
      name, version, directory.string(), transformer->num_parameters(),
      to_string(transformer->weight_type()), transformer->weight_bytes(),
      attention_names(transformer->config()), state_description(*transformer),
      transformer->kernels(), transformer->fingerprint());
  NamedTransformer model{name, transformer, transformer->warnings(), version};
  for (const std::string& warning : model.warnings) {
    spdlog::warn("model {}: {}", model.name, warning);
  }
  const int rows = batch_rows(options.scheduling, *transformer);
  spdlog::info("model {}: {} workers of {} rows", model.name, options.scheduling.workers, rows);
  if (!rows_are_independent(*transformer, rows)) {
    model.warnings.push_back(
        "on this machine the values of a request depend on what shares its batch");
    spdlog::error("model {}: {}", model.name, model.warnings.back());
  }
  return model;
}

std::shared_ptr<ServedModel> serve_model(const ModelOptions& options, NamedTransformer model,
                                         const Clock& clock) {
  Scheduler::Options scheduling = options.scheduling;
  scheduling.max_batch_rows = batch_rows(options.scheduling, *model.transformer);
  scheduling.prefill_rows_per_step =
      std::min(scheduling.prefill_rows_per_step, scheduling.max_batch_rows);
  auto served = std::make_shared<ServedModel>();
  served->name = std::move(model.name);
  served->version = model.version;
  served->scheduler = std::make_unique<Scheduler>(model.transformer, scheduling, clock);
  served->transformer = std::move(model.transformer);
  served->warnings = std::move(model.warnings);
  served->limits = options.limits;
  served->limits.max_samples = std::min(served->limits.max_samples, scheduling.max_batch_rows);
  return served;
}

}  // namespace lintel
