// SPDX-License-Identifier: Apache-2.0
// Models of a hub in the local cache, laid out as by the Python library huggingface_hub, so that
// both use the same files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/hub/http_fetch.h"

namespace lintel::hub {

// REPO[@REVISION][:QUANT]
struct PullSource {
  std::string repo;               // ORG/NAME or NAME
  std::string revision = "main";  // a branch, tag or commit
  std::string quant = {};         // a part of the name of a .gguf file; empty: files of all kinds
};
// Throws HubError naming the part that is wrong.
PullSource parse_pull_source(std::string_view text);

struct HubSettings {
  std::string endpoint = "https://huggingface.co";
  std::string token;            // empty: none
  std::filesystem::path cache;  // of all repositories
  bool offline = false;
};
// From HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME and HF_HUB_OFFLINE.
// Throws HubError if no cache can be named.
HubSettings hub_settings_from_environment();

struct PullOptions {
  HubSettings hub;
  // Files to pull, by their paths in the repository; '*' also stands for '/'. Empty: all that may
  // be pulled. Not together with a quant.
  std::vector<std::string> globs;

  std::function<bool()> cancelled;                  // asked at least once a second; may be empty
  std::function<void(std::uint64_t)> on_size;       // bytes to download, once
  std::function<void(std::uint64_t)> on_bytes;      // downloaded since the last call
  std::function<void(const std::string&)> on_note;  // a line: what is waited for
  std::chrono::milliseconds first_delay{1000};      // before another try; doubles
};

// Downloads what is missing of *.safetensors *.gguf *.json *.jinja *.txt *.model and returns the
// directory of the snapshot; with a quant the .gguf file, or the first of its parts. Several
// processes may pull at once. A file is used after its hash was checked: an entity tag of 64 hex
// digits is the SHA-256 of the content, one of 40 git's SHA-1. What was downloaded of a file before
// a failure is continued from there. Offline nothing is asked for. Throws HubError.
std::filesystem::path pull(const PullSource& source, const PullOptions& options);

}  // namespace lintel::hub
