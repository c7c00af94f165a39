// Files that a run writes at its end: tried before it measures.
#pragma once

#include <string>

#include "client/cli/console.h"

namespace lintel::bench {

// Throws cli::Failure, naming the flag, the file and the reason, where `file` cannot be written.
// What is in it stays; one that was not there is not there afterwards. "-" and "" are none.
void require_writable(const std::string& flag, const std::string& file);

// Throws cli::Failure as above. "-": to standard output.
void write_file(const std::string& flag, const std::string& file, const std::string& text,
                cli::Console& console);

}  // namespace lintel::bench
