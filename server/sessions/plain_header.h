// The header of a snapshot as this program writes it: read without a parser of JSON, which would
// take longer than all the rest of a restored session.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/sessions/snapshot_header.h"

namespace lintel {

// Nothing where one byte is other than write_snapshot_header() writes it, or a number beyond its
// range: read_snapshot_header() then says why, or takes it all the same. What sizes and positions
// have to do with each other is not looked at.
std::optional<SnapshotHeader> read_plain_header(std::string_view text, std::uint64_t body_bytes);

// Digests as the header has them; nothing for other text.
std::optional<Digest> digest_from_hex(std::string_view hex);

}  // namespace lintel
