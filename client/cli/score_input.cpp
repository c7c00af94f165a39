#include "client/cli/score_input.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace lintel::cli {
namespace {

constexpr std::size_t kMaxLineBytes = 64 * 1024 * 1024;

std::vector<std::int32_t> parse_line(const std::string& line, const std::string& name) {
  auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Failure(name + ": no JSON");
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
    if (!in_) throw Failure(file + ": cannot be opened: " + std::strerror(errno));
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
  ImageInput(std::vector<GrayImage> images, std::vector<std::int64_t> indices)
      : images_(std::move(images)), indices_(std::move(indices)) {}

  std::optional<ScoreItem> next() override {
    if (next_ == indices_.size()) return std::nullopt;
    const std::int64_t index = indices_[next_++];
    const auto& pixels = images_[static_cast<std::size_t>(index)].pixels;
    return ScoreItem{{pixels.begin(), pixels.end()}, "image " + std::to_string(index)};
  }

 private:
  const std::vector<GrayImage> images_;
  const std::vector<std::int64_t> indices_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<ScoreInput> open_jsonl(const std::string& file, Console& console) {
  return std::make_unique<JsonlInput>(file, console);
}

std::unique_ptr<ScoreInput> over_images(std::vector<GrayImage> images,
                                        std::vector<std::int64_t> indices) {
  return std::make_unique<ImageInput>(std::move(images), std::move(indices));
}

}  // namespace lintel::cli
