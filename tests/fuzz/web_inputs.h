// SPDX-License-Identifier: Apache-2.0
// What a fuzzer feeds to the parsers of HTTP's requests, with what they promise checked.
#pragma once

#include <string_view>

namespace lintel::fuzz {

// Return whether a parser took the input. A broken promise leaves as a std::logic_error.
bool try_web_frame(std::string_view bytes);  // as an envelope, and as base64
bool try_web_json(std::string_view bytes);   // as a body of each interface in JSON
bool try_web_head(std::string_view bytes);   // as a request: head, chunks and trailers
bool try_web_socket(
    std::string_view bytes);  // as frames of a WebSocket, in pieces of several sizes
bool try_web_turns(
    std::string_view bytes);  // as a script of what is sent during turns (web_turns.cpp)

}  // namespace lintel::fuzz
