// SHA-256, for the fingerprint of a model directory.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace lintel {

// SHA-256 over, for each file in order, its length (8 bytes, little-endian) and its bytes: moving
// bytes from one file to the next changes it. Hexadecimal, 64 characters. Throws ModelError for a
// file that cannot be read.
std::string sha256_of_files(std::span<const std::filesystem::path> files);

}  // namespace lintel
