// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/gbnf.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/grammar/expression.h"
#include "server/grammar/json_value.h"

namespace lintel::grammar {
namespace {

constexpr int kMostGbnfGroups = 64;  // within one another
constexpr std::size_t kMostExpressions = 100'000;
// Rules without recursion that name one another in a longer chain stay rules.
constexpr int kMostRanks = 64;
constexpr std::size_t kMaxGbnfWork = 10'000'000;  // some 50 ms
// Automata that take more are made after those of their parts.
constexpr std::size_t kSmallAutomatonWork = 20'000;

using Kind = Expression::Kind;

struct Rules {
  Expressions expressions;
  std::vector<ExpressionId> bodies;  // by number
  std::vector<std::string> names;
  std::uint32_t root = 0;
};

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Rules parse() {
    if (text_.size() > kMaxSchemaBytes) {
      throw GrammarError(GrammarError::Kind::kTooLarge, "",
                         "has " + std::to_string(text_.size()) + " bytes, at most " +
                             std::to_string(kMaxSchemaBytes) + " are served");
    }
    skip_space(true);
    while (at_ < text_.size()) parse_rule();
    for (std::size_t i = 0; i < rules_.names.size(); ++i) {
      if (!defined_[i]) {
        throw GrammarError(GrammarError::Kind::kInvalid, "",
                           "rule " + rules_.names[i] + " is missing");
      }
    }
    const auto root = numbers_.find("root");
    if (root == numbers_.end()) {
      throw GrammarError(GrammarError::Kind::kInvalid, "", "rule root is missing");
    }
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason,
                         GrammarError::Kind kind = GrammarError::Kind::kInvalid) const {
    const auto lines =
        std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    throw GrammarError(kind, "line " + std::to_string(lines + 1), reason);
  }

  bool has(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!has(c)) return false;
    ++at_;
    return true;
  }

  void skip_space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }

  std::string parse_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin) fail("a name is expected");
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::uint32_t number_of(const std::string& name) {
    const auto [found, fresh] =
        numbers_.emplace(name, static_cast<std::uint32_t>(rules_.names.size()));
    if (fresh) {
      rules_.names.push_back(name);
      rules_.bodies.push_back(0);
      defined_.push_back(false);
    }
    return found->second;
  }

  void parse_rule() {
    const std::string name = parse_name();
    const std::uint32_t number = number_of(name);
    skip_space(false);
    if (text_.substr(at_, 3) != "::=") fail("::= is expected");
    at_ += 3;
    if (defined_[number]) fail("rule " + name + " is defined twice");
    skip_space(true);
    rules_.bodies[number] = parse_choice(0);
    defined_[number] = true;
    if (at_ < text_.size() && !has('\n') && !has('\r')) fail("the end of the line is expected");
    skip_space(true);
  }

  ExpressionId parse_choice(int depth) {
    std::vector<ExpressionId> parts = {parse_sequence(depth)};
    while (true) {
      const std::size_t begin = at_;
      skip_space(true);  // an alternative may begin a line
      if (!take('|')) {
        if (depth == 0) at_ = begin;
        break;
      }
      skip_space(true);
      parts.push_back(parse_sequence(depth));
    }
    return add_parts(Kind::kChoice, std::move(parts));
  }

  ExpressionId parse_sequence(int depth) {
    std::vector<ExpressionId> parts;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      ExpressionId part = 0;
      if (c == '"') {
        part = parse_text();
      } else if (c == '[') {
        part = parse_class();
      } else if (c == '.') {
        ++at_;
        part = rules_.expressions.add_class({{0, kLastCodePoint}});
      } else if (c == '(') {
        if (depth >= kMostGbnfGroups)
          fail("groups are nested more than 64 deep", GrammarError::Kind::kTooLarge);
        ++at_;
        skip_space(true);
        part = parse_choice(depth + 1);
        if (!take(')')) fail(") is expected");
      } else if (is_name(c)) {
        Expression rule;
        rule.kind = Kind::kRule;
        rule.rule = number_of(parse_name());
        part = rules_.expressions.add(std::move(rule));
      } else {
        break;
      }
      check_size();
      parts.push_back(parse_repetition(part));
      skip_space(depth > 0);
    }
    return add_parts(Kind::kSequence, std::move(parts));
  }

  ExpressionId parse_repetition(ExpressionId part) {
    skip_space(false);
    std::uint32_t least = 0, most = kUnbounded;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (take('{')) {
      skip_space(false);
      if (!has(',')) least = most = parse_number();
      skip_space(false);
      if (take(',')) {
        skip_space(false);
        most = has('}') ? kUnbounded : parse_number();
        skip_space(false);
      }
      if (!take('}') || least > most) fail("{m}, {m,} or {m,n} is expected");
    } else {
      return part;
    }
    skip_space(false);
    if (has('*') || has('+') || has('?') || has('{')) fail("one repetition is allowed");
    return rules_.expressions.add_repeat(part, least, most);
  }

  std::uint32_t parse_number() {
    const std::size_t begin = at_;
    std::uint32_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
      if (value > kMaxRepetition) {
        fail("repetition above " + std::to_string(kMaxRepetition), GrammarError::Kind::kTooLarge);
      }
    }
    if (at_ == begin) fail("a number is expected");
    return value;
  }

  char32_t parse_character() {
    char32_t c = 0;
    if (!take('\\')) {
      if (!read_code_point(text_, &at_, &c)) fail("is not UTF-8");
      return c;
    }
    if (at_ >= text_.size()) fail("an escape is not complete");
    const char kind = text_[at_++];
    const auto hex = [&](int digits) {
      if (!read_hex(text_, &at_, digits, &c) || c > kLastCodePoint) fail("a wrong escape");
      return c;
    };
    switch (kind) {
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<char32_t>(kind);
      default:
        fail("a wrong escape");
    }
  }

  ExpressionId parse_text() {
    ++at_;
    std::vector<ExpressionId> parts;
    while (!take('"')) {
      if (at_ >= text_.size()) fail("\" is missing");
      const char32_t c = parse_character();
      parts.push_back(rules_.expressions.add_class({{c, c}}));
    }
    return add_parts(Kind::kSequence, std::move(parts));
  }

  ExpressionId parse_class() {
    ++at_;
    const bool negated = take('^');
    CodePointSet set;
    while (!take(']')) {
      if (at_ >= text_.size()) fail("] is missing");
      const char32_t first = parse_character();
      char32_t last = first;
      if (has('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = parse_character();
        if (last < first) fail("a range is empty");
      }
      set.push_back({first, last});
    }
    set = normalized(std::move(set));
    return rules_.expressions.add_class(negated ? complement(set) : std::move(set));
  }

  ExpressionId add_parts(Kind kind, std::vector<ExpressionId> parts) {
    return rules_.expressions.add_parts(kind, std::move(parts));
  }

  void check_size() const {
    if (rules_.expressions.size() > kMostExpressions) {
      fail("has more than 100000 parts", GrammarError::Kind::kTooLarge);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Rules rules_;
  std::vector<bool> defined_;
  std::map<std::string, std::uint32_t> numbers_;
};

// Turns rules into nodes. Expressions are as deep as groups and repetitions are nested.
class GbnfCompiler {
 public:
  GbnfCompiler(Rules rules, Grammar& grammar) : rules_(std::move(rules)), grammar_(&grammar) {}

  NodeId add() {
    const auto first = static_cast<NodeId>(grammar_->num_nodes());
    find_nullable();
    refuse_left_recursion();
    find_ranks();
    const NodeId root = node_of_rule(rules_.root);
    while (!pending_.empty()) {
      const auto [rule, node] = pending_.front();
      pending_.pop_front();
      for (; !unmade_.empty(); unmade_.pop_front()) {
        const auto [added, original] = unmade_.front();
        rules_.bodies[added] = without_empty(rules_.bodies[original]);
      }
      const NodeId body = node_of(rules_.bodies[rule]);
      Node alias;
      alias.kind = Node::Kind::kChoice;
      alias.children = {body};
      grammar_->at(node) = std::move(alias);
    }
    for (NodeId id = first; id < grammar_->num_nodes(); ++id) {
      Node& node = grammar_->at(id);
      const bool is_open = node.kind == Node::Kind::kSequence || node.kind == Node::Kind::kRepeat;
      node.cost = is_open ? 1 : 0;
    }
    return root;
  }

 private:
  const Expression& expression(ExpressionId id) const { return rules_.expressions[id]; }

  bool is_nullable(ExpressionId id) const {
    const Expression& at = expression(id);
    switch (at.kind) {
      case Kind::kClass:
        return false;
      case Kind::kRule:
        return nullable_[at.rule];
      case Kind::kRepeat:
        return at.least == 0 || is_nullable(at.parts[0]);
      case Kind::kSequence:
        return std::ranges::all_of(at.parts, [&](ExpressionId part) { return is_nullable(part); });
      case Kind::kChoice:
        return std::ranges::any_of(at.parts, [&](ExpressionId part) { return is_nullable(part); });
    }
    return false;
  }

  // Calls `visit` with the rules that an expression names.
  template <typename Visit>
  void for_rules(ExpressionId id, const Visit& visit) const {
    const Expression& at = expression(id);
    if (at.kind == Kind::kRule) visit(at.rule);
    for (const ExpressionId part : at.parts) for_rules(part, visit);
  }

  // The rules that name each rule: what a change of it may change.
  std::vector<std::vector<std::uint32_t>> find_users() const {
    std::vector<std::vector<std::uint32_t>> users(rules_.bodies.size());
    for (std::uint32_t rule = 0; rule < rules_.bodies.size(); ++rule) {
      for_rules(rules_.bodies[rule], [&](std::uint32_t other) {
        if (users[other].empty() || users[other].back() != rule) users[other].push_back(rule);
      });
    }
    return users;
  }

  void spend(std::size_t work) {
    work_ += work;
    if (work_ > kMaxGbnfWork) {
      throw GrammarError(GrammarError::Kind::kTooLarge, "", "takes too much work to compile");
    }
  }

  void find_nullable() {
    const auto users = find_users();
    nullable_.assign(rules_.bodies.size(), false);
    std::deque<std::uint32_t> pending;
    for (std::uint32_t rule = 0; rule < rules_.bodies.size(); ++rule) pending.push_back(rule);
    while (!pending.empty()) {
      const std::uint32_t rule = pending.front();
      pending.pop_front();
      spend(100);
      if (nullable_[rule] || !is_nullable(rules_.bodies[rule])) continue;
      nullable_[rule] = true;
      pending.insert(pending.end(), users[rule].begin(), users[rule].end());
    }
  }

  // Rules that may begin a text of the expression.
  void find_first_rules(ExpressionId id, std::vector<std::uint32_t>& rules) const {
    const Expression& at = expression(id);
    if (at.kind == Kind::kRule) rules.push_back(at.rule);
    for (const ExpressionId part : at.parts) {
      find_first_rules(part, rules);
      if (at.kind == Kind::kSequence && !is_nullable(part)) return;
    }
  }

  void refuse_left_recursion() {
    enum Mark : std::uint8_t { kNew, kOpen, kDone };
    std::vector<Mark> marks(rules_.bodies.size(), kNew);
    struct Step {
      std::uint32_t rule;
      std::vector<std::uint32_t> first;
      std::size_t next = 0;
    };
    for (std::uint32_t rule = 0; rule < rules_.bodies.size(); ++rule) {
      if (marks[rule] != kNew) continue;
      std::vector<Step> steps;
      const auto open = [&](std::uint32_t opened) {
        marks[opened] = kOpen;
        steps.push_back({opened, {}});
        find_first_rules(rules_.bodies[opened], steps.back().first);
        spend(100 + steps.back().first.size());
      };
      open(rule);
      while (!steps.empty()) {
        Step& step = steps.back();
        if (step.next == step.first.size()) {
          marks[step.rule] = kDone;
          steps.pop_back();
          continue;
        }
        const std::uint32_t other = step.first[step.next++];
        if (marks[other] == kOpen) {
          throw GrammarError(GrammarError::Kind::kUnsupported, "",
                             "left recursion of rule " + rules_.names[other]);
        }
        if (marks[other] == kNew) open(other);
      }
    }
  }

  // The longest chain of rules below a rule; none for those with recursion, or above kMostRanks.
  void find_ranks() {
    const auto users = find_users();
    ranks_.assign(rules_.bodies.size(), -1);
    std::vector<std::uint32_t> unranked(rules_.bodies.size(), 0);
    std::deque<std::uint32_t> pending;
    for (std::uint32_t rule = 0; rule < rules_.bodies.size(); ++rule) {
      for (const std::uint32_t user : users[rule]) ++unranked[user];
    }
    for (std::uint32_t rule = 0; rule < rules_.bodies.size(); ++rule) {
      if (unranked[rule] == 0) pending.push_back(rule);
    }
    while (!pending.empty()) {
      const std::uint32_t rule = pending.front();
      pending.pop_front();
      int rank = 0;
      for_rules(rules_.bodies[rule],
                [&](std::uint32_t other) { rank = std::max(rank, ranks_[other] + 1); });
      if (rank > kMostRanks) continue;
      ranks_[rule] = rank;
      for (const std::uint32_t user : users[rule]) {
        if (--unranked[user] == 0) pending.push_back(user);
      }
    }
  }

  bool is_regular(ExpressionId id) const {
    bool regular = true;
    for_rules(id, [&](std::uint32_t rule) { regular = regular && ranks_[rule] >= 0; });
    return regular;
  }

  // --- nodes

  NodeId node_of_rule(std::uint32_t rule) {
    if (nodes_.size() <= rule) nodes_.resize(rules_.bodies.size(), kNoNode);
    if (nodes_[rule] == kNoNode) {
      nodes_[rule] = grammar_->add();
      pending_.emplace_back(rule, nodes_[rule]);
    }
    return nodes_[rule];
  }

  NodeId node_of(ExpressionId id) {
    spend(100);
    if (is_regular(id)) {
      const NodeId node = add_automaton(id);
      if (node != kNoNode) return node;
    }
    const Expression at = expression(id);  // more are added below
    switch (at.kind) {
      case Kind::kRule:
        return node_of_rule(at.rule);
      case Kind::kRepeat: {
        const bool is_empty = is_nullable(at.parts[0]);
        const ExpressionId part = is_empty ? without_empty(at.parts[0]) : at.parts[0];
        return grammar_->add_repeat(node_of(part), is_empty ? 0 : at.least, at.most);
      }
      case Kind::kClass:  // its automaton is never too large
      case Kind::kSequence:
      case Kind::kChoice:
        return node_of_parts(at);
    }
    return kNoNode;
  }

  // Parts without recursion that are side by side become one automaton.
  NodeId node_of_parts(const Expression& at) {
    std::vector<NodeId> nodes;
    std::vector<ExpressionId> regular;
    const auto flush = [&] {
      if (regular.empty()) return;
      const ExpressionId together = rules_.expressions.add_parts(at.kind, regular);
      const NodeId node = regular.size() < at.parts.size() ? add_automaton(together) : kNoNode;
      if (node != kNoNode) {
        nodes.push_back(node);
      } else {
        for (const ExpressionId part : regular) nodes.push_back(node_of(part));
      }
      regular.clear();
    };
    const bool in_order = at.kind == Kind::kSequence;
    for (const ExpressionId part : at.parts) {
      if (is_regular(part)) {
        regular.push_back(part);
        continue;
      }
      if (in_order) flush();
      nodes.push_back(node_of(part));
    }
    flush();
    return in_order ? grammar_->add_sequence(std::move(nodes))
                    : grammar_->add_choice(std::move(nodes));
  }

  // Adds the automaton of an expression; kNoNode: it would be too large.
  NodeId add_automaton(ExpressionId id) {
    id = named_by(id);
    const std::shared_ptr<const Dfa> dfa = automaton_of(id);
    if (dfa == nullptr) return kNoNode;
    const auto [node, is_new] = automaton_nodes_.emplace(id, kNoNode);
    if (is_new) node->second = grammar_->add_dfa(dfa);
    return node->second;
  }

  // The same text as `id` has, be it by rules that are one other rule.
  ExpressionId named_by(ExpressionId id) const {
    while (expression(id).kind == Kind::kRule) id = rules_.bodies[expression(id).rule];
    return id;
  }

  // Null: it would be too large, or a part of it is. REQUIRES: is_regular(id).
  std::shared_ptr<const Dfa> automaton_of(ExpressionId id) {
    id = named_by(id);
    const auto found = automata_.find(id);
    if (found != automata_.end()) return found->second;
    std::shared_ptr<const Dfa> dfa = make_automaton(id, kSmallAutomatonWork);
    if (dfa == nullptr) {
      // The whole takes more than its parts: they are looked at first.
      const std::vector<ExpressionId> parts = expression(id).parts;
      if (std::ranges::all_of(parts, [&](auto part) { return automaton_of(part) != nullptr; })) {
        const std::size_t most = (kMaxGbnfWork - work_) / 4;
        dfa = make_automaton(id, std::max(most, kSmallAutomatonWork));
      }
    }
    automata_.emplace(id, dfa);
    return dfa;
  }

  std::shared_ptr<const Dfa> make_automaton(ExpressionId id, std::size_t most_work) {
    std::shared_ptr<const Dfa> dfa;
    std::size_t work = 0;
    Nfa nfa;
    try {
      const Nfa::State start = nfa.add_state();
      const Nfa::State end =
          add_expression(nfa, rules_.expressions, id, rules_.bodies, start, Spelling::kUtf8);
      dfa = std::make_shared<const Dfa>(nfa.determinize(start, end, &work, most_work));
      work += dfa->bytes();
    } catch (const TooLarge&) {
      work = std::max(work, nfa.work());
    }
    spend(work);
    return dfa;
  }

  // The language of `id` without the empty text.
  ExpressionId without_empty(ExpressionId id) {
    spend(100);
    if (rules_.expressions.size() > kMostExpressions) {
      throw GrammarError(GrammarError::Kind::kTooLarge, "", "has more than 100000 parts");
    }
    if (!is_nullable(id)) return id;
    const Expression at = expression(id);
    std::vector<ExpressionId> parts;
    switch (at.kind) {
      case Kind::kClass:
        return id;
      case Kind::kRepeat: {
        const ExpressionId part = without_empty(at.parts[0]);
        const bool was_empty = is_nullable(at.parts[0]);
        return rules_.expressions.add_repeat(part, was_empty ? 1 : std::max(at.least, 1u), at.most);
      }
      case Kind::kChoice:
        for (const ExpressionId part : at.parts) parts.push_back(without_empty(part));
        return rules_.expressions.add_parts(Kind::kChoice, std::move(parts));
      case Kind::kSequence:
        // The first part that is not empty, and what follows it.
        for (std::size_t i = 0; i < at.parts.size(); ++i) {
          std::vector<ExpressionId> rest = {without_empty(at.parts[i])};
          rest.insert(rest.end(), at.parts.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                      at.parts.end());
          parts.push_back(rules_.expressions.add_parts(Kind::kSequence, std::move(rest)));
        }
        // A choice without parts takes no text: the empty sequence has no other.
        return rules_.expressions.add({Kind::kChoice, {}, std::move(parts), 0, 0, 0});
      case Kind::kRule: {
        const auto added = static_cast<std::uint32_t>(rules_.bodies.size());
        const auto [other, fresh] = without_empty_.emplace(at.rule, added);
        if (fresh) {
          rules_.bodies.push_back(0);
          rules_.names.push_back(rules_.names[at.rule]);
          nullable_.push_back(false);
          ranks_.push_back(-1);
          unmade_.emplace_back(added, at.rule);
        }
        Expression rule;
        rule.kind = Kind::kRule;
        rule.rule = other->second;
        return rules_.expressions.add(std::move(rule));
      }
    }
    return id;
  }

  Rules rules_;
  Grammar* grammar_;
  std::vector<bool> nullable_;
  std::vector<int> ranks_;
  std::vector<NodeId> nodes_;
  std::map<ExpressionId, std::shared_ptr<const Dfa>> automata_;
  std::map<ExpressionId, NodeId> automaton_nodes_;
  std::deque<std::pair<std::uint32_t, NodeId>> pending_;
  std::map<std::uint32_t, std::uint32_t> without_empty_;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> unmade_;  // rules without the empty text
  std::size_t work_ = 0;
};

}  // namespace

std::shared_ptr<const Grammar> compile_gbnf(std::string_view text) {
  auto grammar = std::make_shared<Grammar>(kMaxGbnfDepth);
  grammar->finish(add_gbnf(*grammar, text));
  return grammar;
}

NodeId add_gbnf(Grammar& grammar, std::string_view text) {
  return GbnfCompiler(GbnfParser(text).parse(), grammar).add();
}

std::string gbnf_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else {
      out += c;
    }
  }
  return out + '"';
}

namespace {

bool is_utf8_text(std::string_view text) {
  char32_t c = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!read_code_point(text, &at, &c)) return false;
  }
  return true;
}

}  // namespace

std::string spell_tokens(std::string_view text, const Tokenizer& tokenizer) {
  std::string out;
  std::size_t line = 1;
  const auto fail = [&](const std::string& reason, GrammarError::Kind kind) {
    throw GrammarError(kind, "line " + std::to_string(line), reason);
  };
  // Copies up to the character that ends a text or class, or a comment.
  const auto skip = [&](std::size_t at, char end) {
    while (at < text.size() && text[at] != end) {
      if (text[at] == '\\' && end != '\n' && at + 1 < text.size()) out += text[at++];
      if (text[at] == '\n') ++line;
      out += text[at++];
    }
    return at;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '[' || c == '#') {
      out += c;
      at = skip(at + 1, c == '"' ? '"' : c == '[' ? ']' : '\n');
      if (at == text.size()) break;
    }
    if (text.substr(at, 2) != "<[") {
      if (text[at] == '\n') ++line;
      out += text[at];
      continue;
    }
    constexpr std::size_t kMostDigits = 9;
    const std::size_t end = std::min(text.find_first_not_of("0123456789", at + 2), text.size());
    const std::string digits(text.substr(at + 2, end - at - 2));
    if (digits.empty() || digits.size() > kMostDigits || text.substr(end, 2) != "]>") {
      fail("<[ID]> is expected", GrammarError::Kind::kInvalid);
    }
    const auto id = static_cast<std::int32_t>(std::stol(digits));
    const std::string token = "token " + digits;
    if (id >= tokenizer.vocab_size()) {
      fail(token + " is not one of the model's", GrammarError::Kind::kInvalid);
    }
    if (tokenizer.is_special(id)) {
      fail(token + " is special: tokens of text are served", GrammarError::Kind::kUnsupported);
    }
    const std::string_view bytes = tokenizer.bytes_of(id);
    if (bytes.empty() || !is_utf8_text(bytes)) {
      fail(token + " is no whole characters", GrammarError::Kind::kUnsupported);
    }
    out += gbnf_text(bytes);
    if (out.size() > kMaxSchemaBytes) {
      fail("has more than " + std::to_string(kMaxSchemaBytes) +
               " bytes with the texts of its tokens",
           GrammarError::Kind::kTooLarge);
    }
    at = end + 1;
  }
  return out;
}

}  // namespace lintel::grammar
