// SPDX-License-Identifier: Apache-2.0
// The values flags take: bytes, durations, addresses, directories of models and adapters. Every
// parse_ function throws UsageError, saying what is wrong with the text.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/core/listen_address.h"
#include "server/models/model_aliases.h"
#include "server/models/model_options.h"

namespace lintel {

// A command line or configuration that makes no sense. what() says which flag and why; of a value
// alone, why.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "512MiB", "2GB", "1048576": bytes; KB is 1000, KiB is 1024.
std::uint64_t parse_bytes(std::string_view text);
// "64MiB": the largest unit of 1024 that leaves a whole number.
std::string format_bytes(std::uint64_t bytes);

// "250ms", "30s", "10m", "2h", "0": a number needs its unit unless it is 0. At most
// kLongestDuration.
std::chrono::milliseconds parse_duration(std::string_view text);
std::string format_duration(std::chrono::milliseconds duration);
inline constexpr std::chrono::hours kLongestDuration{366 * 24};

// 1 to 64 letters, digits, '.', '_' and '-'.
std::string parse_replica_id(const std::string& text);

// "16", from low to high.
std::int64_t parse_whole_number(std::string_view text, std::int64_t low, std::int64_t high);

// HOST:PORT, [IPv6]:PORT or unix:PATH.
ListenAddress parse_listen_address(const std::string& text);
// "ORG/NAME[@REVISION][:QUANT]" of a hub, as the model that it names. Nothing: it is none.
std::optional<std::string> name_of_pulled(const std::string& text);
// A hint for the error about the path `text` that may be meant for a hub; else empty.
std::string hint_to_pull(const std::string& text);
// "[NAME=]PATH"; without a name, the last component of PATH, of a GGUF file without its extension.
ModelDirectory parse_model_directory(const std::string& text);
// "[MODEL:]NAME=DIR"; `model` is empty where none is named.
ChatTemplateFile parse_chat_template_file(const std::string& text);
GivenToolDialect parse_tool_dialect(const std::string& text);
AdapterDirectory parse_adapter_directory(const std::string& text);
// "PATTERN=NAME", divided at the last '='.
ModelAlias parse_model_alias(const std::string& text);

}  // namespace lintel
