// SPDX-License-Identifier: Apache-2.0
// Items: what the turns of a conversation are made of, and the messages that a template renders.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "server/responses/sealer.h"

namespace lintel {

// A list of items in the form in which they are stored and shown: content in parts, a status, no
// member without a value. `input`: a text, or a list. Those without an id get one that ends with
// `suffix` and their place. INVALID_ARGUMENT names the item and its member. item_reference and
// compaction are left as they are: they stand for other items.
grpc::Status read_items(const nlohmann::ordered_json& input, const std::string& suffix,
                        nlohmann::ordered_json& items);

// The messages of a chat completion that items make, after `instructions` (null: none). A run of
// reasoning, a message and calls is one message of the assistant. INVALID_ARGUMENT: an output has
// no call. REQUIRES: the items are read_items()'s or a response's, no reference among them, and
// what was sealed is open. first_input: the place of the request's first item, for errors.
grpc::Status messages_of(const nlohmann::ordered_json& instructions,
                         const nlohmann::ordered_json& items, std::ptrdiff_t first_input,
                         nlohmann::ordered_json& messages);

// The largest conversation that one item can stand for, as JSON.
inline constexpr std::size_t kMostCompactBytes = std::size_t{10} << 20;

// An item that stands for `items`; it has `id`. INVALID_ARGUMENT: they are more.
grpc::Status compact_items(const nlohmann::ordered_json& items, const Sealer& sealer,
                           const std::string& id, nlohmann::ordered_json& item);
// A reasoning's text as its encrypted_content.
std::string seal_reasoning(const Sealer& sealer, const std::string& text);
// Whether open_items() has something to open.
bool has_sealed_items(const nlohmann::ordered_json& items);
// Puts what a compaction stands for in the place of it and of all before it, and the text into
// reasoning that has it sealed alone. INVALID_ARGUMENT with the reason INVALID_ENCRYPTED_CONTENT:
// it was sealed for another owner or store, or was changed. first_input: as above, moved where
// items go.
grpc::Status open_items(const Sealer& sealer, nlohmann::ordered_json& items,
                        std::ptrdiff_t& first_input);

}  // namespace lintel
