// SPDX-License-Identifier: Apache-2.0
// The ids of a call in the logs: its request id and its trace.
#pragma once

#include <string>
#include <string_view>

namespace lintel {

// The client's id if it is 1 to 128 visible ASCII characters without quotes and backslashes, which
// no log reader can mistake for something else; else a new one of 128 random bits.
std::string request_id_from(std::string_view given);

// A W3C traceparent: "00-<trace id>-<parent id>-<flags>". Empty where there is none or it is not
// valid, which the standard says to ignore.
struct TraceParent {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16: the caller's span
};
TraceParent parse_traceparent(std::string_view text);

}  // namespace lintel
