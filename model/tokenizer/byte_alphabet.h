// SPDX-License-Identifier: Apache-2.0
// The alphabet in which byte-level vocabularies write bytes (GPT-2's bytes_to_unicode): printable
// Latin-1 stands for itself, the other 68 bytes are U+0100 and up.
#pragma once

#include <string>
#include <string_view>

namespace lintel {

// The letter of a byte.
char32_t letter_of_byte(unsigned char byte);

// Sets `bytes` to what a text of letters stands for. False: a character of it is none of the 256.
bool read_byte_letters(std::string_view text, std::string& bytes);

}  // namespace lintel
