// SPDX-License-Identifier: Apache-2.0
// The World tokenizer of RWKV: the longest entry from each byte on. Its trie, and its file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// A text with its id.
struct TextId {
  std::string_view text;
  std::int32_t id;
};

// Texts by their beginnings. Immutable, holds what it needs; shared by threads.
class ByteTrie {
 public:
  ByteTrie() = default;
  // Takes what the sum of the texts' bytes allows: 16 bytes each at most. REQUIRES: no text is
  // empty or there twice.
  explicit ByteTrie(std::vector<TextId> texts);

  bool empty() const { return nodes_.empty(); }

  // Calls found(id, bytes) for each text that begins at the front of `text`, shortest first.
  template <typename Found>
  void each_prefix(std::string_view text, Found found) const {
    if (text.empty() || nodes_.empty()) return;
    std::uint32_t node = roots_[static_cast<unsigned char>(text.front())];
    for (std::size_t length = 1; node != kNone; ++length) {
      if (nodes_[node].id >= 0) found(nodes_[node].id, length);
      if (length == text.size()) return;
      node = child(node, static_cast<unsigned char>(text[length]));
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Node {
    std::uint32_t first_child = 0;  // they lie together, ordered by byte
    std::uint16_t num_children = 0;
    std::uint8_t byte = 0;
    std::int32_t id = -1;  // of the text that ends here
  };
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;

  std::array<std::uint32_t, 256> roots_{};  // valid where there are nodes
  std::vector<Node> nodes_;
};

// The longest entry of a text from World's trie.
void encode_world(const ByteTrie& trie, std::string_view text, std::vector<std::int32_t>& ids);

// The bytes of entries, by id. An empty text: the id has none.
using WorldEntries = std::vector<std::string>;

// Lines `ID LITERAL LENGTH`: a literal of Python, '...' or "..." (text) or b'...' (bytes), and the
// number of its bytes. Throws ModelError, with `name` for the file and the line's number.
WorldEntries parse_world_vocabulary(std::string_view text, const std::string& name);

// The form in which Python writes a text or bytes between quotes.
struct LiteralForm {
  bool is_bytes = false;  // \xHH is a byte, not a code point, and there is no \uHHHH
  // No quotes stand around it, as in GGUF files: quotes within are themselves, escaped or not, and
  // so are bytes that are not ASCII.
  bool is_bare = false;
  char quote = '\'';  // around it
};

// Sets `bytes` to what the inside of a literal stands for; its escapes are \t \n \r \\ \' \xHH
// \uHHHH. False: something else.
bool read_python_literal(std::string_view inside, const LiteralForm& form, std::string& bytes);

// Throws ModelError where one of the 256 single bytes has no entry: some texts would have no ids.
void check_world_bytes(const std::vector<std::string>& entries, const std::string& name);

}  // namespace lintel
