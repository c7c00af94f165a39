// What a Generate request gets where its flags say nothing.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/commands/generate_flags.h"

namespace lintel::cli {

// How values are printed: --format, or what suits the model. Throws UsageError.
std::string format_for(const GenerateFlags& flags, const v1::Model& model);

// Most values of what has no end.
std::uint32_t default_new_tokens(const v1::Model& model);

// The largest window that the model knows all of; 0: it has no need of one.
std::int64_t trained_window(const v1::Model& model);

// As trained_window, of a request that says nothing of one: 0 where it stays within what the model
// was trained on, or goes on with what has a window of its own.
std::int64_t default_window(const v1::Model& model, const v1::GenerateRequest& request);

// "the model was trained on 256 values at once: ..."
std::string window_note(const v1::Model& model, std::int64_t window);

}  // namespace lintel::cli
