// SPDX-License-Identifier: Apache-2.0
// The guard against header fields without an end.
#pragma once

namespace lintel {

// Closes connections, from now on, when a header field is longer than the longest coding of
// `max_metadata_bytes`. Applies to the whole process: its servers share the largest bound that was
// asked for. Thread-safe.
void guard_header_fields(int max_metadata_bytes);

}  // namespace lintel
