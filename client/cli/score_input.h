// Sequences for `lintel score`, one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/cli/image_model.h"

namespace lintel::cli {

struct ScoreItem {
  std::vector<std::int32_t> tokens;
  std::string name;  // for messages: "sequences.jsonl:17" or "image 17"
  // Scored values before those that count: they are context of a window of a text.
  int num_context = 0;
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

// The images, in this order.
std::unique_ptr<ScoreInput> over_images(std::vector<IndexedImage> images);

// A text in windows of `context` predicted bytes that advance by half a window, each from position
// 0 on. A window counts its second half, the first one both: every byte after the first is counted
// once, and all but the first `context` are predicted from at least context/2 bytes.
std::unique_ptr<ScoreInput> over_text(std::string text, std::int64_t context);
// How many windows that are.
std::int64_t num_windows(std::int64_t num_bytes, std::int64_t context);

}  // namespace lintel::cli
