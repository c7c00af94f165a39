// SPDX-License-Identifier: Apache-2.0
// Matcher: how far a text has come in a grammar, byte by byte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "server/grammar/grammar.h"

namespace lintel::grammar {

// Alternatives that are followed at once. Further ones are left out, which makes the language
// narrower: an ambiguous grammar of GBNF may lose texts, but every started text can be ended.
inline constexpr std::size_t kMaxStacks = 256;
// Levels of all alternatives together, at some 100 bytes: those beyond it are left out, too.
inline constexpr std::size_t kMaxStackLevels = 16'384;

// Work on a grammar is counted, not timed: a unit is about 5 ns. Bytes that take more units than
// this, and kMaxByteWork each, end their text: the grammar is too ambiguous.
inline constexpr std::size_t kMaxAdvanceWork = 200'000;
inline constexpr std::size_t kMaxByteWork = 1'000;
inline constexpr std::size_t kStepCost = 10;  // of one top by a byte that leads to one place

struct Frame;

// Shares a frame: what is below the top of a stack. Null: the bottom.
class FramePtr {
 public:
  FramePtr() = default;
  explicit FramePtr(Frame* frame) : frame_(frame) {}  // takes the first reference
  FramePtr(const FramePtr& other) noexcept;
  FramePtr(FramePtr&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  FramePtr& operator=(FramePtr other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~FramePtr() { release(); }

  const Frame* get() const { return frame_; }
  const Frame& operator*() const { return *frame_; }
  const Frame* operator->() const { return frame_; }
  explicit operator bool() const { return frame_ != nullptr; }

 private:
  void release();
  Frame* frame_ = nullptr;
};

// The progress of one node. The meaning of the numbers depends on the node's kind: matcher.cpp.
struct Place {
  NodeId node = kNoNode;
  std::uint32_t a = 0, b = 0, c = 0, d = 0, e = 0;
  std::uint64_t seen = 0;  // the first 64 members that occurred
  std::shared_ptr<const std::vector<std::uint64_t>> more_seen;  // the others; null: none
  FramePtr below;
};

// An open node below others. Immutable.
struct Frame {
  Place place;
  std::uint32_t depth = 0;  // levels that are open, this one included
  // The digest of this frame and all below it: stacks with the same digest are the same.
  std::uint64_t digest = 0;
  mutable std::atomic<std::uint32_t> references{1};
};

// Alternatives: the tops of stacks, each of which takes a byte next.
struct Stacks {
  std::vector<Place> tops;
  bool accepts = false;    // the text may end here
  std::size_t levels = 0;  // of all tops
  std::size_t frames = 0;  // made for them; some may be gone

  void clear() {
    tops.clear();
    accepts = false;
    levels = frames = 0;
  }
};

// Digests, none of them twice.
class DigestSet {
 public:
  // False: it was there.
  bool insert(std::uint64_t digest);
  void clear();

 private:
  void grow();

  std::vector<std::uint64_t> slots_;  // 0: empty
  std::size_t size_ = 0;
};

// Moves stacks by bytes. Counts its work, which depends on grammar and text alone. If one top takes
// more than is served, the stepper has exceeded its bound, and the stacks mean nothing.
class Stepper {
 public:
  explicit Stepper(const Grammar& grammar) : grammar_(&grammar) {}

  // `to` is empty before each of these three.
  void start(Stacks& to);
  void step(const Stacks& from, unsigned char byte, Stacks& to);
  // Appends what follows when the node above `below` has ended.
  void complete(const FramePtr& below, Stacks& to);

  // A step in parts: begin_step(), then each top in turn. The same stepper makes all of it. Appends
  // to `to` where `top` comes to by `byte`; nothing: it does not take it.
  void begin_step() { expanded_.clear(); }
  void step(const Place& top, unsigned char byte, Stacks& to);

  // Units since it was last asked.
  std::size_t take_work() { return std::exchange(work_, 0); }
  bool exceeded() const { return exceeded_; }

 private:
  struct Pending {
    NodeId node;  // kNoNode: what is above `below` has ended
    FramePtr below;
  };
  void run(NodeId node, FramePtr below, Stacks& to) { run(node, std::move(below), to, expanded_); }
  void run(NodeId node, FramePtr below, Stacks& to, DigestSet& expanded);
  void step_any(const Place& top, unsigned char byte, Stacks& to);
  void expand(const Node& node, NodeId id, FramePtr below, Stacks& to);
  void pop(const FramePtr& below, Stacks& to);
  void push(Stacks& to, Place place);
  bool fits(NodeId node, std::uint32_t depth) const;
  bool fits_in(const Node& parent, const FramePtr& below, NodeId child) const;
  FramePtr make_frame(Place place);

  void step_dfa(const Node& node, const Place& top, unsigned char byte, Stacks& to);
  void step_texts(const Node& node, const Place& top, unsigned char byte, Stacks& to);
  void step_array(const Node& node, const Place& top, unsigned char byte, Stacks& to);
  void step_object(const Node& node, const Place& top, unsigned char byte, Stacks& to);
  void step_members(const Node& node, const Place& top, unsigned char byte, Stacks& to);
  void begin_key(const Node& node, const Place& top, Stacks& to);
  void begin_child(NodeId child, FramePtr below, unsigned char byte, Stacks& to);
  // The same place one byte of white space later. False: the byte is none.
  bool step_space(const Place& top, unsigned char byte, Place* next) const;
  bool fits_text(const Node& node, const FramePtr& below, std::uint32_t text) const;
  // The frame below the value of a member that begins.
  FramePtr make_member_frame(const Node& node, Place top, std::uint32_t member);
  // True if texts of kMembers may lead to `member`, or to the end of the list.
  bool may_follow(const Node& node, const Place& top, std::uint32_t member);
  bool may_have_key(const Node& node, const Place& top);
  bool is_usable(const Node& node, const Place& top, const Node::Keys& keys);
  bool is_usable(const Node& node, const Place& top, std::size_t member);

  const Grammar* grammar_;
  std::vector<Pending> pending_;
  Stacks starts_;
  DigestSet expanded_;         // in this step, but for its first ones
  DigestSet expanded_starts_;  // the same for starts_
  std::size_t work_ = 0;
  std::size_t frames_ = 0;      // made
  std::size_t expansions_ = 0;  // of the current top
  bool exceeded_ = false;
};

// The place of a key that `properties` need not name, in an object: its automaton and the state of
// it, and the names that it must not become: texts[begin, end) share its first `size` bytes.
struct FreeKey {
  const Dfa* dfa;
  Dfa::State state;
  std::uint32_t begin, end, size;
};
bool is_free_key(const Grammar& grammar, const Place& place, FreeKey* key);
// Appends what follows the closing quote of such a key.
void end_free_key(const Grammar& grammar, const Place& place, Stacks& to);

// The text so far in a grammar. Copying costs a few references: for drafts, forks and kept states.
// Used by one thread at a time; copies are independent.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  // False: the text cannot continue so; the matcher stays as it was. Adds the units that it took to
  // *work, if there is one.
  bool advance(std::string_view bytes, std::size_t* work = nullptr);
  // True if some bytes took more work than is served (kMaxAdvanceWork). They count as taken, and
  // what follows from them is not known: the matcher does not advance any more.
  bool exceeded() const { return exceeded_; }
  // True if the text may end here.
  bool accepts() const { return stacks_.accepts; }
  // True if a byte may follow.
  bool continues() const { return !stacks_.tops.empty(); }

  const Stacks& stacks() const { return stacks_; }
  const Grammar& grammar() const { return *grammar_; }
  const std::shared_ptr<const Grammar>& shared_grammar() const { return grammar_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  Stacks stacks_;
  bool exceeded_ = false;
};

}  // namespace lintel::grammar
