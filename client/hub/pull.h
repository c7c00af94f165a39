// SPDX-License-Identifier: Apache-2.0
// Models of a hub in the local cache, laid out as by the Python library huggingface_hub, so that
// both use the same files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/hub/http_fetch.h"

namespace lintel::hub {

inline constexpr const char* kDefaultEndpoint = "https://huggingface.co";

// REPO[@REVISION][:QUANT]
struct PullSource {
  std::string repo;               // ORG/NAME or NAME
  std::string revision = "main";  // a branch, tag or commit
  // A part of the name of a .gguf file. Empty: files of all kinds, of a repository without
  // *.safetensors one .gguf file, by kDefaultQuants.
  std::string quant = {};
};
// Also the address of a repository's page: ENDPOINT/ORG/NAME, with /tree/REVISION or, of a .gguf
// file, /blob/REVISION/FILE; https://huggingface.co and hf.co stand for any endpoint. Throws
// HubError naming the part that is wrong.
PullSource parse_pull_source(std::string_view text, std::string_view endpoint = kDefaultEndpoint);

// Quants in order of preference for a repository's .gguf files, where no quant is named: the
// nearest to 4 bits with the least loss, then the next nearest.
inline constexpr std::string_view kDefaultQuants[] = {"Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0"};

// ORG/NAME[:QUANT], as commands and requests name the model.
std::string name_of(const PullSource& source);

struct HubSettings {
  std::string endpoint = kDefaultEndpoint;
  std::string token;            // empty: none
  std::filesystem::path cache;  // of all repositories
  bool offline = false;
};
// HF_ENDPOINT without a slash at its end, or kDefaultEndpoint.
std::string endpoint_from_environment();
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
  std::function<void(const std::string&)> on_file;  // printable path of what is downloaded next
  std::function<void(const std::string&)> on_note;  // a line: what is waited for
  std::chrono::milliseconds first_delay{1000};      // before another try; doubles
};

// Downloads what is missing of *.safetensors *.gguf *.json *.jinja *.txt *.model and returns the
// directory of the snapshot; of a quant, named or by default, the .gguf file, or the first of its
// parts. on_note says which quant was taken where none was named, and which others there are.
// Several processes may pull at once. A file is used after its hash was checked: an entity tag of
// 64 hex digits is the SHA-256 of the content, one of 40 git's SHA-1. What was downloaded of a file
// before a failure is continued from there. Offline nothing is asked for. Throws HubError.
std::filesystem::path pull(const PullSource& source, const PullOptions& options);

// The path that pull() would return offline, where the cache has a whole model: config.json and all
// parts of its *.safetensors, or a .gguf file with all its parts. Nothing: it has to be pulled.
std::optional<std::filesystem::path> find_in_cache(const PullSource& source,
                                                   const PullOptions& options);

}  // namespace lintel::hub
