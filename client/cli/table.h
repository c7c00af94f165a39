// Text in columns, for people.
#pragma once

#include <string>
#include <vector>

namespace lintel::cli {

// Rows of cells, each column as wide as its widest cell. The first row is the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace lintel::cli
