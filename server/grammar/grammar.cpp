// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/grammar.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "model/core/errors.h"

namespace lintel::grammar {
namespace {

std::string joined(const std::string& path, const std::string& reason) {
  const std::string text = lintel::one_line(lintel::shorten(reason, 200));
  return path.empty() ? text : lintel::one_line(lintel::shorten(path, 200)) + ": " + text;
}

std::uint32_t deeper(std::uint32_t height, std::uint32_t cost) {
  return height == kEndless ? kEndless : height + cost;
}

std::size_t bytes_of(const std::vector<std::string>& texts) {
  std::size_t bytes = texts.size() * sizeof(std::string);
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

}  // namespace

GrammarError::GrammarError(Kind kind, std::string path, std::string reason)
    : std::runtime_error(joined(path, reason)),
      kind_(kind),
      path_(std::move(path)),
      reason_(std::move(reason)) {}

NodeId Grammar::add(Node node) {
  if (nodes_.size() >= kMaxNodes) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "",
                       "takes more than " + std::to_string(kMaxNodes) + " nodes");
  }
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId Grammar::add_dfa(std::shared_ptr<const Dfa> dfa) {
  Node node;
  node.kind = Node::Kind::kDfa;
  node.dfa = std::move(dfa);
  return add(std::move(node));
}

NodeId Grammar::add_text(std::string text) {
  Node node;
  node.kind = Node::Kind::kTexts;
  node.texts = {std::move(text)};
  return add(std::move(node));
}

NodeId Grammar::add_sequence(std::vector<NodeId> children) {
  if (children.size() == 1) return children[0];
  Node node;
  node.children = std::move(children);
  return add(std::move(node));
}

NodeId Grammar::add_choice(std::vector<NodeId> children) {
  if (children.size() == 1) return children[0];
  Node node;
  node.kind = Node::Kind::kChoice;
  node.children = std::move(children);
  return add(std::move(node));
}

NodeId Grammar::add_repeat(NodeId child, std::uint32_t least, std::uint32_t most) {
  Node node;
  node.kind = Node::Kind::kRepeat;
  node.children = {child};
  node.least = least;
  node.most = most;
  return add(std::move(node));
}

std::uint32_t Grammar::height_of(const Node& node) const {
  const auto height = [&](NodeId id) { return id == kNoNode ? 0 : nodes_[id].height; };
  std::uint32_t most = 0;
  switch (node.kind) {
    case Node::Kind::kDfa:
      return node.dfa->start() == Dfa::kDead || node.least > node.most ? kEndless : 0;
    case Node::Kind::kTexts:
      if (node.texts.empty()) return kEndless;
      if (node.children.empty()) return 0;
      [[fallthrough]];
    case Node::Kind::kChoice: {
      std::uint32_t least = kEndless;
      for (const NodeId child : node.children) least = std::min(least, height(child));
      return least;
    }
    case Node::Kind::kSequence:
      for (std::size_t i = 0; i < node.children.size(); ++i) {
        const bool is_last = i + 1 == node.children.size();
        most = std::max(most, deeper(height(node.children[i]), is_last ? 0 : node.cost));
      }
      return most;
    case Node::Kind::kRepeat:
      return node.least == 0 ? 0 : deeper(height(node.children[0]), node.cost);
    case Node::Kind::kArray:
      for (std::size_t i = 0; i < node.least && most != kEndless; ++i) {
        if (i >= node.children.size()) {
          most = std::max(most, node.rest == kNoNode ? kEndless : height(node.rest));
          break;
        }
        most = std::max(most, height(node.children[i]));
      }
      return node.least > node.most ? kEndless : deeper(most, node.cost);
    case Node::Kind::kObject:
    case Node::Kind::kMembers:
      return deeper(height_of_members(node), node.cost);
  }
  return kEndless;
}

std::uint32_t Grammar::height_of_members(const Node& node) const {
  const auto is_in = [](const std::vector<std::uint64_t>& words, std::size_t i) {
    return (words[i / 64] >> (i % 64) & 1) != 0;
  };
  std::size_t num_required = 0;
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    if (!is_in(node.required, i)) continue;
    ++num_required;
    most = std::max(most, nodes_[node.children[i]].height);
  }
  if (num_required > node.most) return kEndless;
  if (num_required >= node.least) return most;
  // Heights of further members, named or not, of which the lowest are enough.
  std::vector<std::uint32_t> heights;
  std::vector<std::uint32_t> needed(node.children.size(), 0);
  for (const Node::Dependency& dependency : node.dependencies) {
    std::uint32_t& height = needed[dependency.member];
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (is_in(dependency.needs, i)) height = std::max(height, nodes_[node.children[i]].height);
    }
  }
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    if (!is_in(node.required, i)) {
      heights.push_back(std::max(needed[i], nodes_[node.children[i]].height));
    }
  }
  std::uint32_t further = kEndless;
  for (const Node::Keys& keys : node.keys) further = std::min(further, nodes_[keys.value].height);
  if (node.rest != kNoNode) further = std::min(further, nodes_[node.rest].height);
  const std::size_t lacking = node.least - num_required;
  if (heights.size() >= lacking) {
    std::ranges::nth_element(heights, heights.begin() + static_cast<std::ptrdiff_t>(lacking - 1));
    further = std::min(further, heights[lacking - 1]);
  }
  return node.least > node.most ? kEndless : std::max(most, further);
}

void Grammar::measure_bytes() {
  std::unordered_set<std::uint64_t> counted;
  bytes_ = sizeof(*this);
  for (const Node& node : nodes_) {
    bytes_ += sizeof(Node) + node.children.size() * sizeof(NodeId) + bytes_of(node.texts) +
              bytes_of(node.later_texts) + node.required.size() * sizeof(std::uint64_t) +
              (node.members.size() + node.later_members.size()) * sizeof(std::uint32_t);
    for (const Node::Keys& keys : node.keys) {
      bytes_ += sizeof(keys);
      if (counted.insert(keys.dfa->id()).second) bytes_ += keys.dfa->bytes();
    }
    for (const Node::Dependency& dependency : node.dependencies) {
      bytes_ += sizeof(dependency) + dependency.needs.size() * sizeof(std::uint64_t);
    }
    if (node.dfa == nullptr || !counted.insert(node.dfa->id()).second) continue;
    bytes_ += node.dfa->bytes() + (node.counts == nullptr ? 0 : node.counts->bytes());
  }
  if (bytes_ > kMaxGrammarBytes) {
    throw GrammarError(GrammarError::Kind::kTooLarge, "", "takes more than 16 MiB of memory");
  }
}

const std::shared_ptr<const Dfa>& Grammar::space() const {
  return has_limited_indent_ ? short_json_space() : json_space();
}

void Grammar::measure_heights() {
  // Heights grow from the leaves; children mostly follow their parents.
  constexpr int kMostPasses = 2000;
  bool changes = true;
  for (int pass = 0; changes && pass < kMostPasses; ++pass) {
    changes = false;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      const std::uint32_t height = height_of(nodes_[i]);
      if (height < nodes_[i].height) {
        nodes_[i].height = height;
        changes = true;
      }
    }
  }
}

void Grammar::spell_by(const std::bitset<256>& bytes) {
  const auto is_spelt = [&](const std::string& text) {
    return std::ranges::all_of(text, [&](char c) { return bytes[static_cast<unsigned char>(c)]; });
  };
  std::map<std::uint64_t, std::shared_ptr<const Dfa>> spelt;
  const auto spell = [&](std::shared_ptr<const Dfa>& dfa) {
    const auto [found, is_new] = spelt.emplace(dfa->id(), dfa);
    if (is_new && has_dead_end(*dfa, bytes)) {
      found->second = std::make_shared<const Dfa>(grammar::spelt_by(*dfa, bytes));
    }
    dfa = found->second;
  };
  Node never_met;
  never_met.kind = Node::Kind::kTexts;
  const auto never = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(std::move(never_met));
  for (Node& node : nodes_) {
    node.height = kEndless;
    if (node.dfa != nullptr && node.counts == nullptr) spell(node.dfa);
    for (Node::Keys& keys : node.keys) spell(keys.dfa);
    std::erase_if(node.keys, [](const auto& keys) { return keys.dfa->start() == Dfa::kDead; });
    if (node.kind == Node::Kind::kTexts) {
      for (std::size_t i = node.texts.size(); i-- > 0;) {
        if (is_spelt(node.texts[i])) continue;
        const auto at = static_cast<std::ptrdiff_t>(i);
        node.texts.erase(node.texts.begin() + at);
        if (!node.children.empty()) node.children.erase(node.children.begin() + at);
      }
      continue;
    }
    for (std::size_t i = 0; i < node.texts.size(); ++i) {
      if (is_spelt(node.texts[i])) continue;
      const std::uint32_t member = node.kind == Node::Kind::kMembers ? node.members[i] : i;
      if (member < node.children.size()) node.children[member] = never;
    }
  }
}

std::shared_ptr<const Grammar> spelt_by(const std::shared_ptr<const Grammar>& grammar,
                                        const std::bitset<256>& bytes) {
  if (bytes.all()) return grammar;
  auto spelt = std::make_shared<Grammar>(*grammar);
  try {
    spelt->spell_by(bytes);
    spelt->finish(grammar->root());
  } catch (const GrammarError&) {
    return grammar;
  } catch (const TooLarge&) {
    return grammar;
  }
  return spelt;
}

void Grammar::finish(NodeId root) {
  measure_heights();
  root_ = root;
  if (nodes_[root].height > max_depth_) {
    throw GrammarError(GrammarError::Kind::kUnmet, "",
                       nodes_[root].height == kEndless ? "cannot be met by any text"
                                                       : "needs to be nested more than " +
                                                             std::to_string(max_depth_) + " deep");
  }
  measure_bytes();
}

}  // namespace lintel::grammar
