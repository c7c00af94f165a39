// SPDX-License-Identifier: Apache-2.0
// A model of a hub for a command: pulled, with progress on a terminal.
#pragma once

#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/hub/pull.h"

namespace lintel::cli {

struct PullRequest {
  hub::PullSource source;
  std::vector<std::string> globs;  // PullOptions::globs
  bool offline = false;
  bool if_missing = false;  // the hub is asked only for what the cache lacks
};

// What hub::parse_pull_source() takes, of the hub that the environment names. Throws UsageError.
hub::PullSource parse_source(const std::string& text);

// Where the model is now. Throws HubError.
std::string pull_model(const PullRequest& request, Console& console);

}  // namespace lintel::cli
