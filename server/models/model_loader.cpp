#include "server/models/model_loader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "model/config/names.h"
#include "model/files/model_files.h"
#include "server/models/batch_rows.h"
#include "server/models/self_check.h"

namespace lintel {
namespace {

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

void log_loaded(const ModelSource& source, const Transformer& transformer) {
  spdlog::info(
      "model {} version {} from {}: {} parameters, {} weights in {} bytes, attention {}, {}, {}, "
      "fingerprint {}",
      source.name, source.version, source.directory.string(), transformer.num_parameters(),
      to_string(transformer.weight_type()), transformer.weight_bytes(),
      attention_names(transformer.config()), state_description(transformer), transformer.kernels(),
      transformer.fingerprint());
  for (const std::string& warning : transformer.warnings()) {
    spdlog::warn("model {}: {}", source.name, warning);
  }
}

}  // namespace

std::shared_ptr<ServedModel> ModelLoader::load(const ModelSource& source) const {
  const ModelFiles files(source.directory);
  const Transformer::Options options{.weight_type = options_.weight_type,
                                     .attention = options_.attention};
  const ModelSize size = measure_model(files, options);
  ModelMemory::Reservation reservation = admit(source.name, size);
  std::shared_ptr<const Transformer> transformer = Transformer::load(files, options);
  check_session_memory(sessions_, source.name, *transformer);
  reservation.shrink_to(size.resident_bytes);
  log_loaded(source, *transformer);

  const int rows = batch_rows(*transformer);
  spdlog::info("model {}: {} workers of {} rows", source.name, options_.scheduling.workers, rows);
  std::vector<std::string> warnings = transformer->warnings();
  if (!rows_are_independent(*transformer, rows)) {
    warnings.push_back("on this machine the values of a request depend on what shares its batch");
    spdlog::error("model {}: {}", source.name, warnings.back());
  }
  return serve(source, counted(std::move(transformer), std::move(reservation)), std::move(warnings),
               rows);
}

std::shared_ptr<ServedModel> ModelLoader::serve(
    const std::string& name, std::int64_t version,
    std::shared_ptr<const Transformer> transformer) const {
  const int rows = batch_rows(*transformer);
  std::vector<std::string> warnings = transformer->warnings();
  return serve({name, version, {}}, std::move(transformer), std::move(warnings), rows);
}

ModelMemory::Reservation ModelLoader::admit(const std::string& name, const ModelSize& size) const {
  std::optional<ModelMemory::Reservation> reservation = memory_->reserve(size.peak_bytes());
  if (reservation) return *std::move(reservation);
  throw OutOfModelMemory("model " + name + " needs " + std::to_string(size.peak_bytes()) +
                         " bytes while it is loaded, " + std::to_string(size.resident_bytes) +
                         " of them afterwards, and " + std::to_string(memory_->free_bytes()) +
                         " of " + std::to_string(memory_->limit_bytes()) + " are left");
}

int ModelLoader::batch_rows(const Transformer& model) const {
  if (options_.scheduling.max_batch_rows > 0) return options_.scheduling.max_batch_rows;
  return batch_rows_for(model, options_.scheduling.workers, last_cache_bytes());
}

std::shared_ptr<ServedModel> ModelLoader::serve(const ModelSource& source,
                                                std::shared_ptr<const Transformer> transformer,
                                                std::vector<std::string> warnings,
                                                int batch_rows) const {
  Scheduler::Options scheduling = options_.scheduling;
  scheduling.max_batch_rows = batch_rows;
  scheduling.prefill_rows_per_step = std::min(scheduling.prefill_rows_per_step, batch_rows);
  auto served = std::make_shared<ServedModel>();
  served->name = source.name;
  served->version = source.version;
  served->scheduler = std::make_unique<Scheduler>(transformer, scheduling, clock_);
  served->transformer = std::move(transformer);
  served->warnings = std::move(warnings);
  served->limits = options_.limits;
  served->limits.max_samples = std::min(served->limits.max_samples, batch_rows);
  return served;
}

}  // namespace lintel
