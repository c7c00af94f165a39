// SPDX-License-Identifier: Apache-2.0
// Items: the elements of the turns of a conversation, and the messages that a template renders.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/json_reader.h"
#include "server/openai/sealer.h"
#include "server/rpc/ignored_members.h"

namespace lintel {

// Reads a list of items in the form in which they are stored and shown: content in parts, a status,
// no member without a value. `input`: a text, or a list. Items without an id get one that ends with
// `suffix` and their place. INVALID_ARGUMENT names the item and its member. item_reference and
// compaction are unchanged: they stand for other items.
grpc::Status read_items(const nlohmann::ordered_json& input, const std::string& suffix,
                        nlohmann::ordered_json& items);
// Names the types of items that are kept and that no message shows, such as web_search_call:
// "input=web_search_call", and of parts of outputs that are left out: "output=input_image".
// `input`: as it came.
void name_unread_items(const nlohmann::ordered_json& input, IgnoredMembers& ignored);

// Makes the messages of a chat completion from items, after `instructions` (null: none). A run of
// reasoning, a message and calls is one message of the assistant; a custom tool's call is that of
// its function. INVALID_ARGUMENT: an output has no call. REQUIRES: the items are read_items()'s or
// a response's, no reference among them, and sealed ones are open. first_input: the place of the
// request's first item, for errors.
grpc::Status messages_of(const nlohmann::ordered_json& instructions,
                         const nlohmann::ordered_json& items, std::ptrdiff_t first_input,
                         nlohmann::ordered_json& messages);

// Bound of the items of a continued conversation, as JSON.
inline constexpr std::size_t kMostChainBytes = std::size_t{10} << 20;
// Bound in memory of the items of a request with those that they refer to, and of the items that
// one compaction stands for: as of a body.
inline constexpr std::size_t kMostItemBytes = std::size_t{48} << 20;

// Charges another budget, and counts the bytes. Used by one thread.
class CountedBudget final : public JsonBudget {
 public:
  // budget: null: only counts.
  explicit CountedBudget(JsonBudget* budget) : budget_(budget) {}

  bool charge(std::int64_t bytes) override {
    if (budget_ != nullptr && !budget_->charge(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  bool cancelled() const override { return false; }
  // Reduces the charge to the bytes that are still held.
  void shrink_to(std::size_t bytes) { charge(static_cast<std::int64_t>(bytes) - bytes_); }

 private:
  JsonBudget* const budget_;
  std::int64_t bytes_ = 0;
};

// Reads JSON that was stored or sealed. budget: charged with the tree; null: none. kNoSpace: the
// budget has no room; kNotJson: it is damaged.
JsonFailure::Kind read_written_json(std::string_view text, JsonBudget* budget,
                                    nlohmann::ordered_json& tree);

// The ids that references among `items` name, each with its places in the list, by the digits of
// the response that has the item.
using References = std::map<std::string, std::map<std::string, std::vector<std::size_t>>>;
References references_of(const nlohmann::ordered_json& items);
// Puts items in the places of references; one that is named twice counts twice. Removes the found
// ones from `wanted`. bytes: of all items, which grow; budget: charged with the growth, null: none.
// False: beyond kMostItemBytes, or the budget has no room.
bool put_in_place(const nlohmann::ordered_json& found,
                  std::map<std::string, std::vector<std::size_t>>& wanted,
                  nlohmann::ordered_json& items, std::size_t& bytes, JsonBudget* budget = nullptr);

// Joins the parts of reasoning into one, as it is shown to a model.
void join_reasoning(nlohmann::ordered_json& items);

// Makes an item with `id` that stands for `items`. INVALID_ARGUMENT: they are more than
// kMostItemBytes.
grpc::Status compact_items(const nlohmann::ordered_json& items, const Sealer& sealer,
                           const std::string& id, nlohmann::ordered_json& item);
// A reasoning's text as its encrypted_content.
std::string seal_reasoning(const Sealer& sealer, const std::string& text);
// True if there are items for open_items() to open.
bool has_sealed_items(const nlohmann::ordered_json& items);
// Replaces a compaction and all items before it by those that it stands for, and adds the text to
// reasoning that has only the sealed one. INVALID_ARGUMENT with the reason
// INVALID_ENCRYPTED_CONTENT: it was sealed for another owner or store, or was changed. first_input:
// as above, moved with the items. budget: charged with the opened items, null: none;
// RESOURCE_EXHAUSTED: it has no room.
grpc::Status open_items(const Sealer& sealer, nlohmann::ordered_json& items,
                        std::ptrdiff_t& first_input, JsonBudget* budget = nullptr);

}  // namespace lintel
