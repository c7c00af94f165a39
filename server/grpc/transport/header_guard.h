// The guard against header fields without an end.
#pragma once

namespace lintel {

// From now on a connection is closed when a header field that may not be longer than
// `max_metadata_bytes` goes on beyond what its longest coding takes. Of the whole process: its
// servers have the largest bound that was asked for. Thread-safe.
void guard_header_fields(int max_metadata_bytes);

}  // namespace lintel
