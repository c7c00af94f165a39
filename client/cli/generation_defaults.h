// What a Generate request gets where its flags say nothing.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/generate_flags.h"

namespace lintel::cli {

// How values are printed: --format, or what suits the model. Throws UsageError.
std::string format_for(const GenerateFlags& flags, const v1::Model& model);

// Most values of what has no end.
std::uint32_t default_new_tokens(const v1::Model& model);

// Says that the server chose a window of so many values.
std::string window_note(std::int64_t window);

}  // namespace lintel::cli
