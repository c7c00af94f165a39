// SPDX-License-Identifier: Apache-2.0
// Items: what the turns of a conversation are made of, and the messages that a template renders.
#pragma once

#include <grpcpp/support/status.h>

#include <nlohmann/json.hpp>
#include <string>

namespace lintel {

// A list of items in the form in which they are stored and shown: content in parts, a status, no
// member without a value. `input`: a text, or a list. Those without an id get one that ends with
// `suffix` and their place. INVALID_ARGUMENT names the item and its member. item_reference and
// compaction are left as they are: they stand for other items.
grpc::Status read_items(const nlohmann::ordered_json& input, const std::string& suffix,
                        nlohmann::ordered_json& items);

// The messages of a chat completion that items make, after `instructions` (null: none). A run of
// reasoning, a message and calls is one message of the assistant. INVALID_ARGUMENT: an output has
// no call. REQUIRES: the items are read_items()'s or a response's, no reference or compaction among
// them. first_input: where the items of the request begin, for errors.
grpc::Status messages_of(const nlohmann::ordered_json& instructions,
                         const nlohmann::ordered_json& items, std::size_t first_input,
                         nlohmann::ordered_json& messages);

}  // namespace lintel
