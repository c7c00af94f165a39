// SPDX-License-Identifier: Apache-2.0
#include "server/http/encoding/json_bodies.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "server/rpc/status.h"

namespace lintel {

grpc::Status json_refusal(const JsonFailure& failure, const std::string& what) {
  const auto invalid = [](const std::string& message) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message);
  };
  switch (failure.kind) {
    case JsonFailure::Kind::kNotJson:
      return invalid(what + " is not JSON: " + failure.what + " (byte " +
                     std::to_string(failure.byte) + ")");
    case JsonFailure::Kind::kNoSpace:
      return unavailable(
          "requests that are being read take all of the memory there is for them (--http-memory)",
          std::chrono::milliseconds(1000));
    case JsonFailure::Kind::kCancelled:
      return shutting_down();
    default:
      return invalid(what + " " + failure.what);
  }
}

grpc::Status parse_object(std::string_view body, JsonBudget* budget, nlohmann::json& object) {
  JsonFailure failure;
  std::optional<nlohmann::json> tree = read_json_tree(body, {.budget = budget}, failure);
  if (!tree) return json_refusal(failure, "the body");
  if (!tree->is_object()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the body is not a JSON object"};
  }
  object = *std::move(tree);
  return grpc::Status::OK;
}

nlohmann::ordered_json short_number(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text - 1, value);
  *written.ptr = '\0';
  return std::strtod(text, nullptr);
}

namespace {

// The end of a part of `text` from `begin` on, before a character of UTF-8.
std::size_t end_of_slice(std::string_view text, std::size_t begin) {
  std::size_t end = std::min(begin + JsonPieces::kPieceBytes, text.size());
  const auto continues = [&](std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  for (int i = 0; i < 3 && continues(end); ++i) --end;
  return end;
}

// Appends the next part of `text`. False: it was the last.
bool append_slice(std::string_view text, std::size_t& begin, std::string& out) {
  const std::size_t end = end_of_slice(text, begin);
  out += text.substr(begin, end - begin);
  begin = end;
  return begin < text.size();
}

}  // namespace

void JsonPieces::add(std::size_t bytes, std::function<bool(std::string& out)> write) {
  parts_.push_back({bytes, std::move(write)});
  bytes_ += bytes;
}

void JsonPieces::raw(std::string text) {
  const std::size_t bytes = text.capacity();
  add(bytes, [text = std::move(text), begin = std::size_t{0}](std::string& out) mutable {
    return append_slice(text, begin, out);
  });
}

void JsonPieces::refer(std::string_view text) {
  add(0, [text, begin = std::size_t{0}](std::string& out) mutable {
    return append_slice(text, begin, out);
  });
}

void JsonPieces::quoted(std::string text) {
  const std::size_t bytes = text.capacity();
  add(bytes, [text = std::move(text), begin = std::size_t{0}](std::string& out) mutable {
    if (begin == 0) out += '"';
    const std::size_t end = end_of_slice(text, begin);
    const std::string slice =
        nlohmann::json(text.substr(begin, end - begin))
            .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
    out.append(slice, 1, slice.size() - 2);
    begin = end;
    if (begin < text.size()) return true;
    out += '"';
    return false;
  });
}

void JsonPieces::items(std::size_t bytes, std::function<bool(std::string& out)> item) {
  add(bytes, [item = std::move(item), is_first = true](std::string& out) mutable {
    const std::size_t size = out.size();
    if (!is_first) out += ',';
    if (!item(out)) {
      out.resize(size);
      return false;
    }
    is_first = false;
    return true;
  });
}

std::string JsonPieces::next() {
  std::string out;
  while (!parts_.empty() && out.size() < kPieceBytes) {
    if (parts_.front().write(out)) continue;
    bytes_ -= parts_.front().bytes;
    parts_.pop_front();
  }
  return out;
}

std::string JsonPieces::whole() {
  std::string json;
  while (!is_over()) json += next();
  return json;
}

HttpCalls::NextPiece answer_with(HttpExchange& exchange, JsonPieces pieces,
                                 std::shared_ptr<KeptAnswer> kept) {
  std::string first = pieces.next();
  const auto give_back = [](const std::shared_ptr<KeptAnswer>& held, std::size_t bytes) {
    if (held != nullptr) held->memory.shrink_to(bytes + 2 * JsonPieces::kPieceBytes);
  };
  give_back(kept, pieces.bytes() + first.size());
  if (pieces.is_over()) {
    exchange.answer(json_answer(200, std::move(first)));
    return nullptr;
  }
  exchange.begin(json_answer(200, std::move(first)));
  return
      [rest = std::make_shared<JsonPieces>(std::move(pieces)), kept = std::move(kept), give_back] {
        std::string piece = rest->next();
        give_back(kept, rest->bytes() + piece.size());
        return piece;
      };
}

}  // namespace lintel
