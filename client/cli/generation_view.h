// A Generate call as people watch it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/generate_output.h"
#include "client/lib/client.h"

namespace lintel::cli {

struct ViewOptions {
  PrintOptions print;
  std::chrono::milliseconds patience{0};  // Client::Repeat::patience
  bool shows_speed = false;               // says at the end how fast it was, on standard error
  bool quiet = false;                     // no sign of life while there is nothing to show
};

// Prints the values as they come; on a terminal something stirs while the server is silent or
// away. Returns how the samples ended. What a call that fails had brought is printed before
// CallError is thrown.
std::vector<v1::SampleFinish> generate_in_view(const Client& client,
                                               const v1::GenerateRequest& request,
                                               const ViewOptions& options, Console& console,
                                               Cancellation& cancellation);

}  // namespace lintel::cli
