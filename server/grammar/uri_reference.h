// SPDX-License-Identifier: Apache-2.0
// References of JSON Schema as addresses (RFC 3986, section 5.2).
#pragma once

#include <string>
#include <string_view>

namespace lintel::grammar {

// The address that `reference` means at `base`, without the fragment. Nothing is normalised but the
// dots of a path.
std::string resolve_uri(std::string_view base, std::string_view reference);

// Reads the text after the first '#', percent-decoded, if there is one. False: it is malformed.
bool read_fragment(std::string_view reference, std::string* fragment);

}  // namespace lintel::grammar
