// SPDX-License-Identifier: Apache-2.0
// Deterministic mutations of valid files, for the corpus and the test that runs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lintel::fuzz {

// Small valid inputs to start from.
std::vector<std::string> config_seeds();
std::vector<std::string> safetensors_seeds();
std::vector<std::string> gguf_seeds();
std::vector<std::string> adapter_config_seeds();
std::vector<std::string> snapshot_seeds();
std::vector<std::string> tokenizer_json_seeds();
std::vector<std::string> world_vocabulary_seeds();
std::vector<std::string> reader_seeds();
std::vector<std::string> schema_seeds();
std::vector<std::string> gbnf_seeds();
// GBNF of some rules that name one another, without left recursion; most of it is ambiguous.
std::string random_gbnf(std::uint64_t seed);

// A few random edits of `seed`: bytes flipped, dropped, inserted; slices repeated or swapped;
// numbers and strings replaced by awkward ones. A pure function of its arguments.
std::string mutate_text(const std::string& seed, std::uint64_t number);
// The same within the header, half the time with the length in front made right again; or damage to
// the length or the data.
std::string mutate_safetensors(const std::string& seed, std::uint64_t number);
// The same anywhere, or most of the time numbers of 4 or 8 bytes replaced by awkward ones.
std::string mutate_gguf(const std::string& seed, std::uint64_t number);
// The same within header and body, most of the time with lengths and checksum made right again; or
// damage anywhere.
std::string mutate_snapshot(const std::string& seed, std::uint64_t number);

}  // namespace lintel::fuzz
