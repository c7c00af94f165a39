// Loads of models and adapters whose exceptions become refusals, so that the caller is answered.
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>

#include "model/core/error_text.h"
#include "server/models/load_refusal.h"
#include "server/models/model_loader.h"

namespace lintel {

// `text` may quote a file.
inline LoadRefusal load_refusal(LoadRefusal::Kind kind, const std::string& model,
                                const std::string& text) {
  return {kind, model, one_line(text)};
}

inline LoadRefusal stopping_refusal(const std::string& model) {
  return {LoadRefusal::Kind::kStopping, model, "the server is shutting down"};
}

// A name in a message.
inline std::string short_name(const std::string& name) { return shorten(name, 64); }

inline LoadRefusal out_of_memory_refusal() noexcept {
  LoadRefusal refusal{LoadRefusal::Kind::kOutOfMemory, {}, {}};
  try {
    refusal.text = "the machine is out of memory";
  } catch (const std::bad_alloc&) {  // its kind says it
  }
  return refusal;
}

// Runs `load`, which may return a refusal of its own. `unusable(what)`: the text for a ModelError.
template <typename Load, typename Unusable>
std::optional<LoadRefusal> guarded_load(const std::string& model, const Load& load,
                                        const Unusable& unusable) noexcept {
  using Kind = LoadRefusal::Kind;
  try {
    try {
      return load();
    } catch (const OutOfModelMemory& error) {
      return load_refusal(Kind::kOutOfModelMemory, model, error.what());
    } catch (const ModelError& error) {
      return load_refusal(Kind::kUnusable, model, unusable(error.what()));
    } catch (const std::bad_alloc&) {
      return out_of_memory_refusal();
    } catch (const std::exception& error) {
      return load_refusal(Kind::kFailed, model, error.what());
    }
  } catch (...) {
    return out_of_memory_refusal();
  }
}

}  // namespace lintel
