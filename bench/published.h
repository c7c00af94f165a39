// Figures of the literature, to stand beside ours.
#pragma once

#include <optional>
#include <string>

#include "bench/table.h"

namespace lintel::bench {

// Katharopoulos et al. 2020, tables 1, 2, 4 and 5, for a shape; nothing for a shape it has not.
std::optional<Table> published_generation(const std::string& shape);

}  // namespace lintel::bench
