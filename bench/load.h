// Load on a server: clients that stream at the same time, and what they see.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lintel::bench {

struct LoadOptions {
  std::string address;         // HOST:PORT or unix:PATH, in plain text
  std::string model;           // may be empty where one is served
  int clients = 1;             // each with a connection of its own
  int values_per_message = 0;  // 0: the server coalesces
  std::chrono::duration<double> warm_up{0.5};
  std::chrono::duration<double> window{2};  // what happens in it counts
};

struct LoadResult {
  double tokens_per_second = 0;
  std::vector<double> first_token_seconds;     // of calls that began in the window
  std::vector<double> between_tokens_seconds;  // between messages of a stream
};

// Every client generates whole sequences, one call after the other, until the window is over; then
// what still runs is cancelled. Throws CallError when a call fails.
LoadResult run_load(const LoadOptions& options);

}  // namespace lintel::bench
