// Sequences for `lintel score`, one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/image/image.h"

namespace lintel::cli {

struct ScoreItem {
  std::vector<std::int32_t> tokens;
  std::string name;  // for messages: "sequences.jsonl:17" or "image 17"
};

class ScoreInput {
 public:
  virtual ~ScoreInput() = default;
  // Nothing at the end. Throws Failure naming the item when it makes no sense.
  virtual std::optional<ScoreItem> next() = 0;
};

// Lines of JSON: an array of token ids, or an object with such an array under "tokens". Lines with
// nothing but white space are refused like any other that is no JSON. `file` "-": standard input.
std::unique_ptr<ScoreInput> open_jsonl(const std::string& file, Console& console);

// The images at these indices, in this order.
std::unique_ptr<ScoreInput> over_images(std::vector<GrayImage> images,
                                        std::vector<std::int64_t> indices);

}  // namespace lintel::cli
