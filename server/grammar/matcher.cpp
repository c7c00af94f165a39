// SPDX-License-Identifier: Apache-2.0
// The numbers of a place, by the kind of its node:
//   kDfa       a: state · b: characters counted
//   kTexts     texts[a, b) share the c bytes that have come
//   kSequence  a: the next child (below others only)
//   kRepeat    b: children so far (below others only)
//   kArray     a: phase, state of white space · b: items so far
//   kObject    a: phase, state of white space or of a free key, its class · b, c, d: in a key
//              texts[b, c) share its d bytes; after it b is the member, kFirstFree and the class
//              for others · e: members so far, up to what bounds of their number ask for
//   kMembers   a: 1 after the first member · b, c, d: as in a key · e: as in an object
#include "server/grammar/matcher.h"

#include <algorithm>
#include <bit>

namespace lintel::grammar {
namespace {

// Ways of one top from a byte to the next that are looked at.
constexpr std::size_t kMostExpansions = 16'384;
// Ways of a step that are not noted: mostly there are no more.
constexpr std::size_t kUnnoted = 16;
// Units of work of a way, of a frame, and of the comparison with some tops.
constexpr std::size_t kExpansionCost = 4, kFrameCost = 6, kTopsCompared = 4;
constexpr std::uint32_t kFirstFree = 0xFFFFFF00;  // a member that is not named, by its class
constexpr std::uint32_t kNoMember = 0xFFFFFFFF;

enum Phase : std::uint32_t {
  kOpen,      // { or [ comes next
  kFirst,     // after it
  kNext,      // after a comma
  kAfter,     // after a value
  kKeyNamed,  // in a key of `properties`
  kKeyFree,   // in another key
  kColon,     // after a key
  kValue,     // after the colon
};

constexpr std::uint32_t phase_of(const Place& place) { return place.a & 0xFFu; }
constexpr Dfa::State state_of(const Place& place) { return static_cast<Dfa::State>(place.a >> 8); }
constexpr std::uint32_t packed(std::uint32_t phase, Dfa::State state) {
  return phase | std::uint32_t{state} << 8;
}
// The number of the automaton of a free key.
constexpr std::uint32_t class_of(const Place& place) { return place.a >> 24; }
std::uint32_t at_space(std::uint32_t phase) { return packed(phase, json_space()->start()); }

// Blanks so far at the beginning of a line, by the state of white space that takes one more.
std::uint32_t blanks_at(Dfa::State state) {
  static const std::vector<std::uint32_t> counts = [] {
    const Dfa& space = *json_space();
    std::vector<std::uint32_t> made(space.num_states());
    Dfa::State at = space.step(space.start(), '\n');
    for (std::uint32_t count = 0; at != Dfa::kDead; at = space.step(at, ' ')) made[at] = count++;
    return made;
  }();
  return counts[state];
}

// The texts that have `byte` next, of texts[begin, end), which share `size` bytes.
std::pair<std::uint32_t, std::uint32_t> narrow(const std::vector<std::string>& texts,
                                               std::uint32_t begin, std::uint32_t end,
                                               std::uint32_t size, unsigned char byte) {
  const auto first = texts.begin() + begin, last = texts.begin() + end;
  const auto byte_of = [size](const std::string& text) {
    return text.size() > size ? static_cast<unsigned char>(text[size]) : -1;
  };
  const auto low = std::lower_bound(first, last, int{byte},
                                    [&](const std::string& t, int b) { return byte_of(t) < b; });
  const auto high = std::upper_bound(low, last, int{byte},
                                     [&](int b, const std::string& t) { return b < byte_of(t); });
  return {static_cast<std::uint32_t>(low - texts.begin()),
          static_cast<std::uint32_t>(high - texts.begin())};
}

bool has_seen(const Place& place, std::size_t member) {
  if (member < 64) return (place.seen >> member & 1) != 0;
  const std::size_t word = member / 64 - 1;
  return place.more_seen != nullptr && word < place.more_seen->size() &&
         ((*place.more_seen)[word] >> (member % 64) & 1) != 0;
}

void mark_seen(Place& place, std::size_t member) {
  if (member < 64) {
    place.seen |= std::uint64_t{1} << member;
    return;
  }
  auto words = place.more_seen == nullptr ? std::vector<std::uint64_t>() : *place.more_seen;
  const std::size_t word = member / 64 - 1;
  if (words.size() <= word) words.resize(word + 1);
  words[word] |= std::uint64_t{1} << (member % 64);
  place.more_seen = std::make_shared<const std::vector<std::uint64_t>>(std::move(words));
}

// The members that have to occur yet, also those that `member` demands, which comes next.
std::size_t count_owed(const Node& node, const Place& place, std::uint32_t member = kNoMember) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < node.required.size(); ++i) {
    std::uint64_t owed = node.required[i];
    for (const Node::Dependency& dependency : node.dependencies) {
      if (dependency.member == member || has_seen(place, dependency.member)) {
        owed |= dependency.needs[i];
      }
    }
    std::uint64_t seen = i == 0 ? place.seen : 0;
    if (i > 0 && place.more_seen != nullptr && i - 1 < place.more_seen->size()) {
      seen = (*place.more_seen)[i - 1];
    }
    if (member / 64 == i) seen |= std::uint64_t{1} << (member % 64);
    count += static_cast<std::size_t>(std::popcount(owed & ~seen));
  }
  return count;
}

bool may_end(const Node& node, const Place& place) {
  return place.e >= node.least && count_owed(node, place) == 0;
}

bool has_room(const Node& node, const Place& place, std::uint32_t member) {
  return node.most == kUnbounded ||
         place.e + std::size_t{1} + count_owed(node, place, member) <= node.most;
}

void count_member(const Node& node, Place& place) {
  if (place.e < (node.most == kUnbounded ? node.least : node.most)) ++place.e;
}

std::uint32_t depth_of(const FramePtr& frame) { return frame ? frame->depth : 0; }
std::uint64_t digest_of(const FramePtr& frame) { return frame ? frame->digest : 0; }

// Digests have 64 bits: a client that finds two stacks with one digest only loses a text of its own
// grammar.
std::uint64_t mixed(std::uint64_t digest, std::uint64_t with) {
  digest = (digest ^ with) * 0x9E3779B97F4A7C15u;
  return digest ^ digest >> 29;
}

std::uint64_t digest_of(const Place& place) {
  std::uint64_t digest = mixed(digest_of(place.below) ^ 0xD6E8FEB86659FD93u,
                               std::uint64_t{place.node} << 32 | place.a);
  digest = mixed(digest, std::uint64_t{place.b} << 32 | place.c);
  digest = mixed(digest, place.seen + place.d);
  if (place.more_seen != nullptr) {
    for (const std::uint64_t word : *place.more_seen) digest = mixed(digest, word);
  }
  return mixed(digest, std::uint64_t{place.e} << 32 | place.d);
}

bool same(const Place& one, const Place& other) {
  if (one.node != other.node || one.a != other.a || one.b != other.b || one.c != other.c ||
      one.d != other.d || one.e != other.e || one.seen != other.seen) {
    return false;
  }
  if (one.below.get() != other.below.get() && digest_of(one.below) != digest_of(other.below)) {
    return false;
  }
  if (one.more_seen == other.more_seen) return true;
  return one.more_seen != nullptr && other.more_seen != nullptr &&
         *one.more_seen == *other.more_seen;
}

}  // namespace

bool DigestSet::insert(std::uint64_t digest) {
  if (digest == 0) digest = 1;
  if (2 * (size_ + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = digest & mask;; at = (at + 1) & mask) {
    if (slots_[at] == digest) return false;
    if (slots_[at] != 0) continue;
    slots_[at] = digest;
    ++size_;
    return true;
  }
}

void DigestSet::grow() {
  const std::vector<std::uint64_t> before = std::exchange(slots_, {});
  slots_.resize(std::max<std::size_t>(256, 2 * before.size()));
  size_ = 0;
  for (const std::uint64_t digest : before) {
    if (digest != 0) insert(digest);
  }
}

void DigestSet::clear() {
  if (size_ == 0) return;
  // The memory of a large step does not stay to be cleared in small ones.
  if (slots_.size() > 8 * size_) slots_.resize(std::max<std::size_t>(256, slots_.size() / 2));
  std::ranges::fill(slots_, 0);
  size_ = 0;
}

FramePtr::FramePtr(const FramePtr& other) noexcept : frame_(other.frame_) {
  if (frame_ != nullptr) frame_->references.fetch_add(1, std::memory_order_relaxed);
}

void FramePtr::release() {
  // A chain ends without recursion.
  Frame* frame = std::exchange(frame_, nullptr);
  while (frame != nullptr && frame->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    Frame* const below = std::exchange(frame->place.below.frame_, nullptr);
    delete frame;
    frame = below;
  }
}

FramePtr Stepper::make_frame(Place place) {
  auto* const frame = new Frame;
  ++frames_;
  work_ += kFrameCost + (place.more_seen == nullptr ? 0 : place.more_seen->size());
  frame->depth = depth_of(place.below) + (*grammar_)[place.node].cost;
  frame->digest = digest_of(place);
  frame->place = std::move(place);
  return FramePtr(frame);
}

bool Stepper::fits(NodeId node, std::uint32_t depth) const {
  const std::uint32_t height = (*grammar_)[node].height;
  return height != kEndless && depth + height <= grammar_->max_depth();
}

bool Stepper::fits_in(const Node& parent, const FramePtr& below, NodeId child) const {
  return fits(child, depth_of(below) + parent.cost);
}

void Stepper::push(Stacks& to, Place place) {
  if (to.tops.size() >= kMaxStacks) return;
  work_ += to.tops.size() / kTopsCompared;
  for (const Place& other : to.tops) {
    if (same(place, other)) return;
  }
  const std::size_t levels = 1 + depth_of(place.below);
  if (!to.tops.empty() && to.levels + levels > kMaxStackLevels) return;
  to.levels += levels;
  to.tops.push_back(std::move(place));
}

void Stepper::start(Stacks& to) {
  begin_step();
  expansions_ = 0;
  run(grammar_->root(), FramePtr(), to);
}

void Stepper::complete(const FramePtr& below, Stacks& to) {
  begin_step();
  expansions_ = 0;
  run(kNoNode, below, to);
}

void Stepper::step(const Stacks& from, unsigned char byte, Stacks& to) {
  begin_step();
  for (const Place& top : from.tops) step(top, byte, to);
}

void Stepper::step(const Place& top, unsigned char byte, Stacks& to) {
  expansions_ = 0;
  const std::size_t before = frames_;
  step_any(top, byte, to);
  to.frames += frames_ - before;
}

void Stepper::run(NodeId node, FramePtr below, Stacks& to, DigestSet& expanded) {
  pending_.push_back({node, std::move(below)});
  for (; !pending_.empty(); ++expansions_) {
    if (expansions_ == kMostExpansions) {
      exceeded_ = true;
      return pending_.clear();
    }
    work_ += kExpansionCost;
    Pending next = std::move(pending_.back());
    pending_.pop_back();
    // The same way once more leads to nothing new.
    if (expansions_ >= kUnnoted && !expanded.insert(mixed(digest_of(next.below), next.node))) {
      continue;
    }
    if (next.node == kNoNode) {
      pop(next.below, to);
    } else {
      expand((*grammar_)[next.node], next.node, std::move(next.below), to);
    }
  }
}

void Stepper::expand(const Node& node, NodeId id, FramePtr below, Stacks& to) {
  if (!fits(id, depth_of(below))) return;
  Place place;
  place.node = id;
  switch (node.kind) {
    case Node::Kind::kDfa: {
      const Dfa::State state = node.dfa->start();
      if (node.dfa->accepts(state) && node.least == 0) pending_.push_back({kNoNode, below});
      if (!node.dfa->continues(state)) return;
      place.a = state;
      break;
    }
    case Node::Kind::kTexts:
      place.b = static_cast<std::uint32_t>(node.texts.size());
      if (node.texts[0].empty()) {
        pending_.push_back({node.children.empty() ? kNoNode : node.children[0], below});
        if (++place.a == place.b) return;
      }
      break;
    case Node::Kind::kSequence: {
      if (node.children.empty()) return pending_.push_back({kNoNode, std::move(below)});
      place.a = 1;
      place.below = std::move(below);
      return pending_.push_back({node.children[0], make_frame(std::move(place))});
    }
    case Node::Kind::kChoice:
      for (std::size_t i = node.children.size(); i-- > 0;) {
        pending_.push_back({node.children[i], below});
      }
      return;
    case Node::Kind::kRepeat:
      if (node.least == 0) pending_.push_back({kNoNode, below});
      if (node.most == 0 || !fits_in(node, below, node.children[0])) return;
      place.b = 1;
      place.below = std::move(below);
      return pending_.push_back({node.children[0], make_frame(std::move(place))});
    case Node::Kind::kArray:
    case Node::Kind::kObject:
      place.a = kOpen;
      break;
    case Node::Kind::kMembers:
      place.c = static_cast<std::uint32_t>(node.texts.size());
      place.below = std::move(below);
      // No other text is empty: it would be the end of the list.
      if (node.texts[0].empty()) {
        ++place.b;
        if (may_follow(node, place, kOtherMember)) {
          pending_.push_back({node.rest, make_member_frame(node, place, kOtherMember)});
        }
      }
      return push(to, std::move(place));
  }
  place.below = std::move(below);
  push(to, std::move(place));
}

void Stepper::pop(const FramePtr& below, Stacks& to) {
  if (!below) {
    to.accepts = true;
    return;
  }
  Place place = below->place;
  const Node& node = (*grammar_)[place.node];
  switch (node.kind) {
    case Node::Kind::kSequence: {
      const NodeId child = node.children[place.a];
      if (place.a + 1 == node.children.size()) {
        return pending_.push_back({child, std::move(place.below)});
      }
      ++place.a;
      return pending_.push_back({child, make_frame(std::move(place))});
    }
    case Node::Kind::kRepeat: {
      if (place.b >= node.least) pending_.push_back({kNoNode, place.below});
      if (place.b >= node.most || !fits_in(node, place.below, node.children[0])) return;
      // Without an upper bound it only matters that the lower one is met.
      if (node.most != kUnbounded || place.b < node.least) ++place.b;
      return pending_.push_back({node.children[0], make_frame(std::move(place))});
    }
    case Node::Kind::kArray:
    case Node::Kind::kObject:
      place.a = at_space(kAfter);
      return push(to, std::move(place));
    case Node::Kind::kMembers:
      place.a = 1;
      place.b = 0;
      place.c = static_cast<std::uint32_t>(node.later_texts.size());
      place.d = 0;
      return push(to, std::move(place));
    default:
      return;  // no others are below
  }
}

void Stepper::step_any(const Place& top, unsigned char byte, Stacks& to) {
  const Node& node = (*grammar_)[top.node];
  switch (node.kind) {
    case Node::Kind::kDfa:
      return step_dfa(node, top, byte, to);
    case Node::Kind::kTexts:
      return step_texts(node, top, byte, to);
    case Node::Kind::kArray:
      return step_array(node, top, byte, to);
    case Node::Kind::kObject:
      return step_object(node, top, byte, to);
    case Node::Kind::kMembers:
      return step_members(node, top, byte, to);
    default:
      return;  // no others are on top
  }
}

void Stepper::step_dfa(const Node& node, const Place& top, unsigned char byte, Stacks& to) {
  const Dfa::State next = node.dfa->step(static_cast<Dfa::State>(top.a), byte);
  if (next == Dfa::kDead) return;
  std::uint32_t count = top.b;
  if (node.counts != nullptr) {
    if (node.counts->is_counted(next)) {
      // Without an upper bound it only matters that the lower one is met.
      if (node.most != kUnbounded || count < node.least) ++count;
    }
    if (count > node.most) return;
    const std::uint32_t needed = node.least - std::min(count, node.least);
    const std::uint32_t left = node.most == kUnbounded ? kUnbounded : node.most - count;
    if (!node.counts->can_end(next, needed, left)) return;
  }
  if (node.dfa->continues(next)) {
    Place place;
    place.node = top.node;
    place.a = next;
    place.b = count;
    place.below = top.below;
    push(to, std::move(place));
  }
  const bool is_enough = node.counts == nullptr || count >= node.least;
  if (node.dfa->accepts(next) && is_enough) complete(top.below, to);
}

void Stepper::step_texts(const Node& node, const Place& top, unsigned char byte, Stacks& to) {
  auto [begin, end] = narrow(node.texts, top.a, top.b, top.c, byte);
  if (begin == end) return;
  if (node.texts[begin].size() == top.c + 1) {
    run(node.children.empty() ? kNoNode : node.children[begin], top.below, to);
    if (++begin == end) return;
  }
  // A text after which nothing can come does not begin.
  std::uint32_t first = begin;
  while (first < end && !fits_text(node, top.below, first)) ++first;
  if (first == end) return;
  Place place;
  place.node = top.node;
  place.a = begin;
  place.b = end;
  place.c = top.c + 1;
  place.below = top.below;
  push(to, std::move(place));
}

void Stepper::begin_child(NodeId child, FramePtr below, unsigned char byte, Stacks& to) {
  // The first byte of a value never begins another value: one list is enough.
  Stacks starts = std::move(starts_);
  starts.clear();
  expanded_starts_.clear();
  run(child, std::move(below), starts, expanded_starts_);
  for (const Place& start : starts.tops) step_any(start, byte, to);
  starts.clear();
  starts_ = std::move(starts);
}

void Stepper::step_array(const Node& node, const Place& top, unsigned char byte, Stacks& to) {
  const auto next_item = [&] {
    if (top.b >= node.most) return kNoNode;
    const NodeId item = top.b < node.children.size() ? node.children[top.b] : node.rest;
    return item != kNoNode && fits_in(node, top.below, item) ? item : kNoNode;
  };
  const std::uint32_t phase = phase_of(top);
  Place next;
  if (phase == kOpen) {
    if (byte != '[') return;
    next = top;
    next.a = at_space(kFirst);
    return push(to, std::move(next));
  }
  if (step_space(top, byte, &next)) return push(to, std::move(next));
  if (byte == ']' && phase != kNext) {
    if (top.b >= node.least) complete(top.below, to);
    return;
  }
  const NodeId item = next_item();
  if (item == kNoNode) return;
  if (phase == kAfter) {
    if (byte != ',') return;
    next = top;
    next.a = at_space(kNext);
    return push(to, std::move(next));
  }
  next = top;
  // Items beyond both the named ones and the bounds are alike.
  if (node.most != kUnbounded || top.b < node.children.size() || top.b < node.least) ++next.b;
  begin_child(item, make_frame(std::move(next)), byte, to);
}

bool Stepper::step_space(const Place& top, unsigned char byte, Place* next) const {
  const Dfa::State from = state_of(top);
  const Dfa::State state = json_space()->step(from, byte);
  if (state == Dfa::kDead) return false;
  if (grammar_->has_limited_indent() && byte == ' ' && from != json_space()->start()) {
    // The levels around the place, its own and that of the call.
    if (blanks_at(from) >= kCallIndent * (depth_of(top.below) + 2)) return false;
  }
  *next = top;
  next->a = packed(phase_of(top), state);
  return true;
}

bool Stepper::fits_text(const Node& node, const FramePtr& below, std::uint32_t text) const {
  return node.children.empty() || fits(node.children[text], depth_of(below));
}

bool Stepper::is_usable(const Node& node, const Place& top, std::size_t member) {
  work_ += 1 + node.dependencies.size() * (1 + node.required.size()) / 4;
  if (has_seen(top, member) || !fits_in(node, top.below, node.children[member]) ||
      !has_room(node, top, static_cast<std::uint32_t>(member))) {
    return false;
  }
  for (const Node::Dependency& dependency : node.dependencies) {
    if (dependency.member != member) continue;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const bool is_needed = (dependency.needs[i / 64] >> (i % 64) & 1) != 0;
      if (is_needed && !fits_in(node, top.below, node.children[i])) return false;
    }
  }
  return true;
}

bool Stepper::is_usable(const Node& node, const Place& top, const Node::Keys& keys) {
  work_ += 1 + (node.most == kUnbounded ? 0 : node.dependencies.size() * node.required.size() / 4);
  return fits_in(node, top.below, keys.value) && has_room(node, top, kNoMember);
}

FramePtr Stepper::make_member_frame(const Node& node, Place top, std::uint32_t member) {
  if (member != kOtherMember) mark_seen(top, member);
  count_member(node, top);
  top.b = top.c = top.d = 0;
  return make_frame(std::move(top));
}

bool Stepper::may_follow(const Node& node, const Place& top, std::uint32_t member) {
  if (member == kNoNode) return may_end(node, top);
  if (member == kOtherMember) return is_usable(node, top, Node::Keys{nullptr, node.rest});
  return is_usable(node, top, member);
}

bool Stepper::may_have_key(const Node& node, const Place& top) {
  for (const Node::Keys& keys : node.keys) {
    if (is_usable(node, top, keys)) return true;
  }
  for (std::size_t i = 0; i < node.texts.size(); ++i) {
    if (is_usable(node, top, i)) return true;
  }
  return false;
}

void Stepper::begin_key(const Node& node, const Place& top, Stacks& to) {
  Place key = top;
  key.b = 0;
  key.c = static_cast<std::uint32_t>(node.texts.size());
  key.d = 0;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    if (!is_usable(node, top, node.keys[i])) continue;
    key.a = packed(kKeyFree, node.keys[i].dfa->start()) | static_cast<std::uint32_t>(i) << 24;
    push(to, key);
  }
  for (std::size_t i = 0; i < node.texts.size(); ++i) {
    if (is_usable(node, top, i)) {
      key.a = kKeyNamed;
      return push(to, std::move(key));
    }
  }
}

void Stepper::step_object(const Node& node, const Place& top, unsigned char byte, Stacks& to) {
  const std::uint32_t phase = phase_of(top);
  Place next;
  switch (phase) {
    case kOpen:
      if (byte != '{') return;
      next = top;
      next.a = at_space(kFirst);
      return push(to, std::move(next));
    case kKeyNamed: {
      // A quote within a key follows a backslash, and no key ends with one.
      if (byte == '"' && node.texts[top.b].size() == top.d) {
        if (!is_usable(node, top, top.b)) return;
        next = top;
        mark_seen(next, top.b);
        count_member(node, next);
        next.a = at_space(kColon);
        next.c = next.d = 0;
        return push(to, std::move(next));
      }
      const auto [begin, end] = narrow(node.texts, top.b, top.c, top.d, byte);
      for (std::uint32_t i = begin; i < end; ++i) {
        if (!is_usable(node, top, i)) continue;
        next = top;
        next.b = begin;
        next.c = end;
        ++next.d;
        return push(to, std::move(next));
      }
      return;
    }
    case kKeyFree: {
      const Dfa& dfa = *node.keys[class_of(top)].dfa;
      const Dfa::State state = dfa.step(state_of(top), byte);
      if (state == Dfa::kDead) return;
      if (dfa.accepts(state)) {
        const bool is_named = top.b < top.c && node.texts[top.b].size() == top.d;
        if (!is_named) end_free_key(*grammar_, top, to);
        return;
      }
      const auto [begin, end] = narrow(node.texts, top.b, top.c, top.d, byte);
      next = top;
      next.a = packed(kKeyFree, state) | class_of(top) << 24;
      next.b = begin == end ? 0 : begin;
      next.c = begin == end ? 0 : end;
      next.d = begin == end ? 0 : top.d + 1;
      return push(to, std::move(next));
    }
    default:
      break;
  }
  if (step_space(top, byte, &next)) return push(to, std::move(next));
  next = top;
  switch (phase) {
    case kFirst:
    case kNext:
      if (byte == '}' && phase == kFirst) {
        if (may_end(node, top)) complete(top.below, to);
      } else if (byte == '"') {
        begin_key(node, top, to);
      }
      return;
    case kAfter:
      if (byte == '}' && may_end(node, top)) return complete(top.below, to);
      if (byte != ',' || !may_have_key(node, top)) return;
      next.a = at_space(kNext);
      return push(to, std::move(next));
    case kColon:
      if (byte != ':') return;
      next.a = at_space(kValue);
      return push(to, std::move(next));
    case kValue: {
      const NodeId child =
          top.b >= kFirstFree ? node.keys[top.b - kFirstFree].value : node.children[top.b];
      next.a = kAfter;
      next.b = 0;
      return begin_child(child, make_frame(std::move(next)), byte, to);
    }
    default:
      return;
  }
}

void Stepper::step_members(const Node& node, const Place& top, unsigned char byte, Stacks& to) {
  const std::vector<std::string>& texts = top.a == 0 ? node.texts : node.later_texts;
  const std::vector<std::uint32_t>& members = top.a == 0 ? node.members : node.later_members;
  auto [begin, end] = narrow(texts, top.b, top.c, top.d, byte);
  if (begin == end) return;
  if (texts[begin].size() == top.d + 1) {
    const std::uint32_t member = members[begin];
    if (may_follow(node, top, member)) {
      if (member == kNoNode) return complete(top.below, to);
      const NodeId child = member == kOtherMember ? node.rest : node.children[member];
      run(child, make_member_frame(node, top, member), to);
    }
    // Names follow the text of a member that has none.
    if (++begin == end) return;
  }
  std::uint32_t first = begin;
  while (first < end && !may_follow(node, top, members[first])) ++first;
  if (first == end) return;
  Place next = top;
  next.b = begin;
  next.c = end;
  ++next.d;
  push(to, std::move(next));
}

bool is_free_key(const Grammar& grammar, const Place& place, FreeKey* key) {
  const Node& node = grammar[place.node];
  if (node.kind != Node::Kind::kObject || phase_of(place) != kKeyFree) return false;
  *key = {node.keys[class_of(place)].dfa.get(), state_of(place), place.b, place.c, place.d};
  return true;
}

void end_free_key(const Grammar& grammar, const Place& place, Stacks& to) {
  Place next = place;
  count_member(grammar[place.node], next);
  next.a = at_space(kColon);
  next.b = kFirstFree + class_of(place);
  next.c = next.d = 0;
  to.tops.push_back(std::move(next));
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  Stepper stepper(*grammar_);
  stepper.start(stacks_);
  exceeded_ = stepper.exceeded();
}

bool Matcher::advance(std::string_view bytes, std::size_t* work) {
  if (exceeded_) return true;
  Stepper stepper(*grammar_);
  Stacks now = stacks_, next;
  const std::size_t most = kMaxAdvanceWork + kMaxByteWork * bytes.size();
  std::size_t spent = 0;
  bool continues = true;
  for (std::size_t i = 0; i < bytes.size() && continues && !exceeded_; ++i) {
    next.clear();
    stepper.begin_step();
    for (const Place& top : now.tops) {
      stepper.step(top, static_cast<unsigned char>(bytes[i]), next);
      spent += kStepCost + stepper.take_work();
      exceeded_ = stepper.exceeded() || spent > most;
      if (exceeded_) break;
    }
    continues = !next.tops.empty() || next.accepts;
    std::swap(now, next);
  }
  if (work != nullptr) *work += spent;
  if (exceeded_) return true;
  if (continues) stacks_ = std::move(now);
  return continues;
}

}  // namespace lintel::grammar
