// ModelLoader: from a model directory to a model that can be served.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/model_error.h"
#include "model/model_size.h"
#include "server/core/clock.h"
#include "server/models/adapter_sources.h"
#include "server/models/model_memory.h"
#include "server/models/model_options.h"
#include "server/models/model_repository.h"
#include "server/models/served_model.h"
#include "server/sessions/session_store.h"

namespace lintel {

// The memory for models has no room for one.
class OutOfModelMemory : public ModelError {
  using ModelError::ModelError;
};

// Every model comes this way, when the server starts and while it runs. Const and thread-safe.
class ModelLoader {
 public:
  // Options and clock are borrowed and outlive the object; the clock the models, too, as does what
  // their prompts leave (null: nothing). `sessions`: what a session of each model has to fit into.
  ModelLoader(const ModelOptions& options, const SessionStore::Options& sessions,
              std::shared_ptr<ModelMemory> memory, const Clock& clock,
              PrefixCache* prefixes = nullptr)
      : options_(options),
        sessions_(sessions),
        memory_(std::move(memory)),
        clock_(clock),
        prefixes_(prefixes) {}

  // Opens the directory's files once, measures and admits them, loads what was measured, compares
  // rows alone and in a batch, and logs what it is; its scheduler's workers begin at once. Its
  // adapters come with it. Throws ModelError naming file, key or tensor, and OutOfModelMemory.
  std::shared_ptr<ServedModel> load(const ModelSource& source) const;

  // One adapter of a model, admitted by its files' headers, which is ready when it is returned.
  // Throws ModelError naming adapter, file and what is wrong, and OutOfModelMemory. REQUIRES: its
  // name is free.
  SharedAdapter load_adapter(const ServedModel& model, const AdapterSource& source) const;
  // Where it lies: in the model's directory, or where the options say. Throws ModelError where it
  // is in both.
  std::optional<AdapterSource> find_adapter(const ServedModel& model,
                                            const std::string& name) const;

  // A model that was loaded elsewhere, with the adapters of the options: no memory is counted for
  // it, and its rows are not compared.
  std::shared_ptr<ServedModel> serve(const std::string& name, std::int64_t version,
                                     std::shared_ptr<const Transformer> transformer) const;

 private:
  // Throws ModelError where a name is there twice.
  std::vector<AdapterSource> adapter_sources(const ServedModel& model) const;
  // Throws OutOfModelMemory.
  ModelMemory::Reservation admit(const std::string& name, const ModelSize& size) const;
  int batch_rows(const Transformer& model) const;
  int most_prompt_rows(const Transformer& model) const;
  std::shared_ptr<ServedModel> serve(const ModelSource& source,
                                     std::shared_ptr<const Transformer> transformer,
                                     std::vector<std::string> warnings, int batch_rows,
                                     std::string type_reason) const;

  const ModelOptions& options_;
  const SessionStore::Options& sessions_;
  const std::shared_ptr<ModelMemory> memory_;
  const Clock& clock_;
  PrefixCache* const prefixes_;
};

}  // namespace lintel
