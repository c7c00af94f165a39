#include "client/cli/score_input.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/core/json_reader.h"

namespace lintel::cli {
namespace {

constexpr std::size_t kMaxLineBytes = 64 * 1024 * 1024;

std::vector<std::int32_t> parse_line(const std::string& line, const std::string& name) {
  // A file of the user's own: as large as a line may be.
  JsonFailure failure;
  auto read = read_json_tree(line, {.max_bytes = std::int64_t{4} << 30}, failure);
  if (!read) throw Failure(name + ": no JSON");
  nlohmann::json json = *std::move(read);
  if (json.is_object()) {
    if (!json.contains("tokens")) throw Failure(name + ": an object without \"tokens\"");
    json = nlohmann::json(std::move(json["tokens"]));
  }
  if (!json.is_array()) throw Failure(name + ": no array of token ids");
  std::vector<std::int32_t> tokens;
  tokens.reserve(json.size());
  for (const auto& id : json) {
    // Unsigned ones past int64 would turn negative in get().
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) ||
        id.get<std::int64_t>() < std::numeric_limits<std::int32_t>::min()) {
      throw Failure(name + ": value " + std::to_string(tokens.size()) + " is " +
                    id.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                    ", which is no token id");
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  if (tokens.size() < 2) {
    throw Failure(name + ": " + std::to_string(tokens.size()) +
                  " token(s); the first is given and never scored, so at least 2 are needed");
  }
  return tokens;
}

class JsonlInput : public ScoreInput {
 public:
  JsonlInput(const std::string& file, Console& console)
      : console_(console), from_console_(file == "-"), name_(from_console_ ? "line " : file + ":") {
    if (from_console_) return;
    in_.open(file, std::ios::binary);
    if (!in_) throw Failure("--input " + file + ": cannot be opened: " + std::strerror(errno));
  }

  std::optional<ScoreItem> next() override {
    const std::optional<std::string> line = next_line();
    if (!line) return std::nullopt;
    const std::string name = name_ + std::to_string(++line_number_);
    if (line->size() > kMaxLineBytes) throw Failure(name + ": longer than 64 MiB");
    return ScoreItem{parse_line(*line, name), name};
  }

 private:
  std::optional<std::string> next_line() {
    if (from_console_) return console_.read_line();
    std::string line;
    if (std::getline(in_, line)) return line;
    if (in_.bad()) throw Failure(name_ + std::to_string(line_number_ + 1) + ": cannot be read");
    return std::nullopt;
  }

  Console& console_;
  const bool from_console_;
  const std::string name_;
  std::ifstream in_;
  std::int64_t line_number_ = 0;
};

class ImageInput : public ScoreInput {
 public:
  explicit ImageInput(std::vector<IndexedImage> images) : images_(std::move(images)) {}

  std::optional<ScoreItem> next() override {
    if (next_ == images_.size()) return std::nullopt;
    const auto& [index, image] = images_[next_++];
    return ScoreItem{{image.pixels.begin(), image.pixels.end()}, "image " + std::to_string(index)};
  }

 private:
  const std::vector<IndexedImage> images_;
  std::size_t next_ = 0;
};

class TextInput : public ScoreInput {
 public:
  TextInput(std::string text, std::int64_t context)
      : text_(std::move(text)),
        last_(static_cast<std::int64_t>(text_.size()) - 1),
        context_(context) {}

  std::optional<ScoreItem> next() override {
    if (counted_ >= last_) return std::nullopt;
    const std::int64_t end = std::min(begin_ + context_, last_);
    ScoreItem item{.tokens = {},
                   .name = "bytes " + std::to_string(begin_) + " to " + std::to_string(end),
                   .num_context = static_cast<int>(counted_ - begin_)};
    for (std::int64_t i = begin_; i <= end; ++i) {
      item.tokens.push_back(static_cast<unsigned char>(text_[static_cast<std::size_t>(i)]));
    }
    counted_ = end;
    begin_ += half_of(context_);
    return item;
  }

  static std::int64_t half_of(std::int64_t context) {
    return std::max<std::int64_t>(context / 2, 1);
  }

 private:
  const std::string text_;
  const std::int64_t last_;  // index of the last byte
  const std::int64_t context_;
  std::int64_t begin_ = 0;    // of the next window
  std::int64_t counted_ = 0;  // bytes up to this one
};

}  // namespace

std::unique_ptr<ScoreInput> over_text(std::string text, std::int64_t context) {
  return std::make_unique<TextInput>(std::move(text), context);
}

std::int64_t num_windows(std::int64_t num_bytes, std::int64_t context) {
  const std::int64_t half = TextInput::half_of(context);
  return 1 + std::max<std::int64_t>(num_bytes - 1 - context + half - 1, 0) / half;
}

std::unique_ptr<ScoreInput> open_jsonl(const std::string& file, Console& console) {
  return std::make_unique<JsonlInput>(file, console);
}

std::unique_ptr<ScoreInput> over_images(std::vector<IndexedImage> images) {
  return std::make_unique<ImageInput>(std::move(images));
}

}  // namespace lintel::cli
