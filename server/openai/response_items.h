// SPDX-License-Identifier: Apache-2.0
// Items: what the turns of a conversation are made of, and the messages that a template renders.
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

// A list of items in the form in which they are stored and shown: content in parts, a status, no
// member without a value. `input`: a text, or a list. Those without an id get one that ends with
// `suffix` and their place. INVALID_ARGUMENT names the item and its member. item_reference and
// compaction are left as they are: they stand for other items.
grpc::Status read_items(const nlohmann::ordered_json& input, const std::string& suffix,
                        nlohmann::ordered_json& items);
// Names the types of items that are kept and that no message shows, such as web_search_call:
// "input=web_search_call", and of parts of outputs that are left out: "output=input_image".
// `input`: as it came.
void name_unread_items(const nlohmann::ordered_json& input, IgnoredMembers& ignored);

// The messages of a chat completion that items make, after `instructions` (null: none). A run of
// reasoning, a message and calls is one message of the assistant; a custom tool's call is that of
// its function. INVALID_ARGUMENT: an output has
// no call. REQUIRES: the items are read_items()'s or a response's, no reference among them, and
// what was sealed is open. first_input: the place of the request's first item, for errors.
grpc::Status messages_of(const nlohmann::ordered_json& instructions,
                         const nlohmann::ordered_json& items, std::ptrdiff_t first_input,
                         nlohmann::ordered_json& messages);

// The items of a conversation that is continued, as JSON.
inline constexpr std::size_t kMostChainBytes = std::size_t{10} << 20;
// The items of a request with those that they refer to, in memory, and what one item can stand for:
// as a body that is read.
inline constexpr std::size_t kMostItemBytes = std::size_t{48} << 20;

// Charges another budget, and counts. Used by one thread.
class CountedBudget final : public JsonBudget {
 public:
  // budget: null: it counts alone.
  explicit CountedBudget(JsonBudget* budget) : budget_(budget) {}

  bool charge(std::int64_t bytes) override {
    if (budget_ != nullptr && !budget_->charge(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  bool cancelled() const override { return false; }
  // So much is held of what was charged.
  void shrink_to(std::size_t bytes) { charge(static_cast<std::int64_t>(bytes) - bytes_); }

 private:
  JsonBudget* const budget_;
  std::int64_t bytes_ = 0;
};

// Reads what was stored or sealed as it was written. budget: charged with the tree; null: none.
// kNoSpace: that has none; kNotJson: it is damaged.
JsonFailure::Kind read_written_json(std::string_view text, JsonBudget* budget,
                                    nlohmann::ordered_json& tree);

// Those of the ids that references among `items` name, each with its places in the list, by the
// digits of the response that has the item.
using References = std::map<std::string, std::map<std::string, std::vector<std::size_t>>>;
References references_of(const nlohmann::ordered_json& items);
// Puts items in the places of references; one that is named twice counts twice. Takes those that it
// has found out of `wanted`. bytes: of all items, which grow; budget: charged with that, null:
// none. False: beyond kMostItemBytes, or the budget has no room.
bool put_in_place(const nlohmann::ordered_json& found,
                  std::map<std::string, std::vector<std::size_t>>& wanted,
                  nlohmann::ordered_json& items, std::size_t& bytes, JsonBudget* budget = nullptr);

// Reasoning in many parts becomes one part, as it is shown to a model.
void join_reasoning(nlohmann::ordered_json& items);

// An item that stands for `items`; it has `id`. INVALID_ARGUMENT: they are more than
// kMostItemBytes.
grpc::Status compact_items(const nlohmann::ordered_json& items, const Sealer& sealer,
                           const std::string& id, nlohmann::ordered_json& item);
// A reasoning's text as its encrypted_content.
std::string seal_reasoning(const Sealer& sealer, const std::string& text);
// Whether open_items() has something to open.
bool has_sealed_items(const nlohmann::ordered_json& items);
// Puts what a compaction stands for in the place of it and of all before it, and the text into
// reasoning that has it sealed alone. INVALID_ARGUMENT with the reason INVALID_ENCRYPTED_CONTENT:
// it was sealed for another owner or store, or was changed. first_input: as above, moved where
// items go. budget: charged with what is opened, null: none; RESOURCE_EXHAUSTED: it has no room.
grpc::Status open_items(const Sealer& sealer, nlohmann::ordered_json& items,
                        std::ptrdiff_t& first_input, JsonBudget* budget = nullptr);

}  // namespace lintel
