// SPDX-License-Identifier: Apache-2.0
// Small valid requests over HTTP to start from: mutate_text makes others of them.
#pragma once

#include <string>
#include <vector>

namespace lintel::fuzz {

std::vector<std::string> web_frame_seeds();   // bodies that are an envelope, or base64 of one
std::vector<std::string> web_json_seeds();    // bodies of each interface
std::vector<std::string> web_head_seeds();    // first lines and headers, some with a body
std::vector<std::string> web_socket_seeds();  // frames of clients

}  // namespace lintel::fuzz
