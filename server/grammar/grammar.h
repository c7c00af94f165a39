// SPDX-License-Identifier: Apache-2.0
// Grammar: what a text may be, as nodes that a Matcher walks. Made of JSON Schema (schema.h), GBNF
// (gbnf.h) and the frames of tool calls (tool_calls.h).
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/grammar/character_counts.h"
#include "server/grammar/dfa.h"

namespace lintel::grammar {

// Objects and arrays that are open at once, in what a schema makes.
inline constexpr std::uint32_t kMaxJsonDepth = 64;
// Rules and repetitions that are open at once, in what GBNF makes.
inline constexpr std::uint32_t kMaxGbnfDepth = 512;
// Blanks at the beginning of a line, for each open level: what those who indent most write.
inline constexpr std::uint32_t kCallIndent = 4;
inline constexpr std::size_t kMaxNodes = 10'000;
inline constexpr std::size_t kMaxGrammarBytes = std::size_t{16} << 20;

// The reason why a schema, a pattern or a GBNF text is not served. what() is `path`, a colon and
// `reason`, short and printable.
class GrammarError : public std::runtime_error {
 public:
  enum class Kind {
    kUnsupported,  // a keyword or construct that is not served
    kMalformed,    // a keyword whose value is none that it may have
    kInvalid,      // a text that is no schema, no GBNF
    kTooLarge,     // beyond a bound
    kUnmet,        // no text meets it
  };
  GrammarError(Kind kind, std::string path, std::string reason);
  Kind kind() const { return kind_; }
  // A JSON pointer, "line 3" of GBNF, or empty.
  const std::string& path() const { return path_; }
  // Printable. Of kUnsupported and kMalformed the keyword or the construct alone:
  // "minProperties", "format uri", "$ref loop".
  const std::string& reason() const { return reason_; }

 private:
  Kind kind_;
  std::string path_;
  std::string reason_;
};

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFF;
// Stands in lists of members for one that no text names.
inline constexpr NodeId kOtherMember = 0xFFFFFFFE;
// The height of a node that no finite text meets.
inline constexpr std::uint32_t kEndless = 0xFFFFFFFF;

struct Node {
  enum class Kind : std::uint8_t {
    kDfa,       // what an automaton accepts
    kTexts,     // one of `texts`; then what `children` has in its place, if it has any
    kSequence,  // the children, one after the other
    kChoice,    // one of the children
    kRepeat,    // children[0], `least` to `most` times
    kArray,     // a JSON array: children are prefixItems, `rest` are items
    kObject,    // a JSON object, its members in any order: see below
    kMembers,   // arguments in any order, between texts: see below
  };
  Kind kind = Kind::kSequence;
  // The levels of the grammar's depth that the node takes while it is open.
  std::uint32_t cost = 0;
  // The levels that its least deep text needs; kEndless: there is none.
  std::uint32_t height = kEndless;

  std::shared_ptr<const Dfa> dfa;
  // kDfa: characters count, and the automaton accepts from `least` to `most` of them, the frame
  // included. Null: nothing is counted.
  std::shared_ptr<const CharacterCounts> counts;
  std::uint32_t least = 0;  // also of items, and of members
  std::uint32_t most = kUnbounded;

  std::vector<NodeId> children;
  // kArray: of items. kMembers: the name and value of a member that no text names, if there are
  // any.
  NodeId rest = kNoNode;

  // kObject: members that `texts` does not name, by classes of their keys.
  struct Keys {
    std::shared_ptr<const Dfa> dfa;  // with the closing quote, without the opening one
    NodeId value = kNoNode;
  };
  std::vector<Keys> keys;
  // kObject, kMembers: members (bits) that must occur where `member` does, and what they demand.
  struct Dependency {
    std::uint32_t member = 0;
    std::vector<std::uint64_t> needs;
  };
  std::vector<Dependency> dependencies;

  // kTexts: sorted, without equal ones. kObject: keys as JSON spells them, without quotes, sorted.
  // kMembers: what comes in front of the first member, sorted.
  std::vector<std::string> texts;
  // kObject: a bit for each text that must occur. kMembers: for each child.
  std::vector<std::uint64_t> required;

  // kMembers: in front of further members, sorted; and for each text of both lists the child that
  // follows. kNoNode: the text ends the list. kOtherMember: `rest` follows; the text may begin
  // others.
  std::vector<std::string> later_texts;
  std::vector<std::uint32_t> members;
  std::vector<std::uint32_t> later_members;
};

// Immutable once finished; shared by threads.
class Grammar {
 public:
  explicit Grammar(std::uint32_t max_depth) : max_depth_(max_depth) {}

  // Functions for making it. Throw GrammarError for more than kMaxNodes.
  NodeId add(Node node = {});
  Node& at(NodeId id) { return nodes_[id]; }
  NodeId add_dfa(std::shared_ptr<const Dfa> dfa);
  NodeId add_text(std::string text);
  NodeId add_sequence(std::vector<NodeId> children);
  NodeId add_choice(std::vector<NodeId> children);
  NodeId add_repeat(NodeId child, std::uint32_t least, std::uint32_t most);
  // Leaves out texts with other bytes than `bytes`, but for marks of JSON and automata that count.
  // REQUIRES: the grammar is a copy that is not finished again yet.
  void spell_by(const std::bitset<256>& bytes);
  // Bounds white space in calls that a model has to make, where a weak model may stay. Lines within
  // JSON begin with at most kCallIndent blanks a level.
  void limit_indent() { has_limited_indent_ = true; }
  // Computes Node::height of all nodes so far.
  void measure_heights();
  // True if some text meets a node, within the grammar's depth. REQUIRES: measure_heights().
  bool can_be_met(NodeId id) const { return nodes_[id].height <= max_depth_; }
  // Measures all nodes. Throws GrammarError if no text meets `root`, or it is too large.
  void finish(NodeId root);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  NodeId root() const { return root_; }
  std::uint32_t max_depth() const { return max_depth_; }
  bool has_limited_indent() const { return has_limited_indent_; }
  // White space between the tokens of JSON that are no arrays or objects of their own.
  const std::shared_ptr<const Dfa>& space() const;
  std::size_t num_nodes() const { return nodes_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint32_t height_of(const Node& node) const;
  std::uint32_t height_of_members(const Node& node) const;
  void measure_bytes();

  std::vector<Node> nodes_;
  NodeId root_ = kNoNode;
  std::uint32_t max_depth_;
  bool has_limited_indent_ = false;
  std::size_t bytes_ = 0;
};

// The texts of `grammar` for a model whose tokens have no other bytes than `bytes`: no text begins
// that none of them ends. `grammar` itself where these are all bytes, or would leave no text.
std::shared_ptr<const Grammar> spelt_by(const std::shared_ptr<const Grammar>& grammar,
                                        const std::bitset<256>& bytes);

}  // namespace lintel::grammar
