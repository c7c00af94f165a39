// SPDX-License-Identifier: Apache-2.0
// JSON from outside, read within bounds: how deep it is nested, what it takes in memory, and for
// how long it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lintel {

// A limit to what a reader may hold, beyond its own bounds, and a means to cancel it. The reader
// calls it on the thread that reads.
class JsonBudget {
 public:
  virtual ~JsonBudget() = default;
  // The reader needs `bytes` more memory; negative: it has freed so many. False: there is no room.
  // What a tree holds stays charged: the budget ends with it.
  virtual bool charge(std::int64_t bytes) = 0;
  // True: the result is no longer wanted. Called at least once for every 16 KiB of text.
  virtual bool cancelled() const = 0;
};

struct JsonBounds {
  // Objects and lists that are open at once.
  int max_depth = 128;
  // Bytes of memory for the tree: two bytes of text can become a hundred.
  std::int64_t max_bytes = std::int64_t{48} << 20;
  // True: an object may have a name twice, and the last one counts.
  bool takes_repeated_names = true;
  JsonBudget* budget = nullptr;  // null: the bounds above are all
};

// The reason why a text was not read.
struct JsonFailure {
  enum class Kind {
    kNone,
    kNotJson,
    kTooDeep,
    kTooLarge,      // beyond max_bytes
    kRepeatedName,  // in one object
    kNoSpace,       // the budget has none; it may have some later
    kCancelled,
  };
  Kind kind = Kind::kNone;
  // For people, to be put after what the text is: "is nested more than 128 deep". Of kNotJson: the
  // error alone, at most 203 bytes of printable ASCII.
  std::string what;
  std::size_t byte = 0;  // of the text, where it was noticed
  std::string name;      // of kRepeatedName
};

// The whole text as a tree. Nothing: `failure` says why. Linear in the text but for the names of an
// object, which are sorted.
std::optional<nlohmann::json> read_json_tree(std::string_view text, const JsonBounds& bounds,
                                             JsonFailure& failure);

// The whole text as calls of `sink`, for readers that need no tree; of the bounds the depth counts,
// and the budget. What `sink` throws leaves the function. False: `failure` says why. A sink that
// returns false from a call ends the reading without a failure's kind.
bool read_json_events(std::string_view text, const JsonBounds& bounds,
                      nlohmann::json_sax<nlohmann::json>& sink, JsonFailure& failure);

// Memory that a text costs another reader, which is called after this one.
struct JsonCosts {
  std::int64_t each_container = 0;  // bytes of memory for an object or a list
  std::int64_t each_value = 0;      // for anything else
};

// Looks through a text without parsing it: depth, and what `costs` makes of it, against bounds and
// budget. Texts in '...' count as texts, too, as protobuf's parser takes them.
bool check_json_shape(std::string_view text, const JsonBounds& bounds, const JsonCosts& costs,
                      JsonFailure& failure);

// The text of nlohmann's exception, without its own name in front of it.
std::string json_error_text(const std::exception& error);

}  // namespace lintel
