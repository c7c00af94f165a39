// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/schema.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "server/grammar/decimal.h"
#include "server/grammar/dfa.h"
#include "server/grammar/pattern.h"
#include "server/grammar/schema_reader.h"

namespace lintel::grammar {
namespace {

using Type = JsonValue::Type;

// Free keys of an object with a minProperties that get members of their own.
constexpr std::size_t kMostNamedKeys = 16;

class SchemaCompiler {
 public:
  SchemaCompiler(Grammar& grammar, const JsonValue& root, const SchemaOptions& options,
                 std::vector<RelaxedKeyword>* relaxed)
      : grammar_(grammar), root_(root), options_(options), reader_(root, options, relaxed) {}

  NodeId compile() {
    NodeId node = kNoNode;
    if (options_.objects_only) {
      node = grammar_.add();
      fill(reader_.intern({&root_}), node, kObjectBit);
    } else {
      node = node_of(reader_.intern({&root_}));
    }
    fill_pending();
    return node;
  }

  NodeId compile_members(const MemberStyle& style) {
    std::vector<NodeId> nodes;
    for (const SetId set : reader_.alternatives(reader_.intern({&root_}))) {
      const Shape& shape = reader_.shape_of(set);
      if ((shape.types & kObjectBit) != 0) nodes.push_back(add_members(shape, style));
    }
    if (nodes.empty()) throw GrammarError(GrammarError::Kind::kUnmet, "", "takes no object");
    const NodeId node = grammar_.add_choice(std::move(nodes));
    fill_pending();
    return node;
  }

 private:
  // --- nodes

  NodeId node_of(SetId set) {
    const auto found = nodes_.find(set);
    if (found != nodes_.end()) return found->second;
    reader_.spend(200);
    reader_.hold(96 + sizeof(Node));
    const NodeId node = grammar_.add();
    nodes_.emplace(set, node);
    pending_.emplace_back(set, node);
    return node;
  }

  void fill_pending() {
    while (!pending_.empty()) {
      const auto [set, node] = pending_.front();
      pending_.pop_front();
      fill(set, node);
    }
  }

  void fill(SetId set, NodeId id, std::uint32_t types = kAllTypes) {
    std::vector<Node> nodes;
    for (const SetId one : reader_.alternatives(set)) {
      // A list that grows is held twice for a while.
      reader_.expect(3 * (nodes.size() + 1) * sizeof(Node));
      if (types == kAllTypes) {
        add_nodes(reader_.shape_of(one), nodes);
        continue;
      }
      Shape shape = reader_.shape_of(one);
      shape.types &= types;
      if (shape.constants) {
        std::erase_if(*shape.constants, [&](const JsonValue* value) {
          return (reader_.type_of(*value) & types) == 0;
        });
      }
      add_nodes(shape, nodes);
    }
    if (nodes.size() == 1) {
      grammar_.at(id) = std::move(nodes[0]);
      return;
    }
    Node choice;
    choice.kind = Node::Kind::kChoice;
    for (Node& node : nodes) choice.children.push_back(add(std::move(node)));
    grammar_.at(id) = std::move(choice);
  }

  NodeId add(Node node) {
    reader_.hold(sizeof(Node) + sizeof(NodeId));
    return grammar_.add(std::move(node));
  }

  Node texts_node(std::vector<std::string> texts) {
    for (const std::string& text : texts) reader_.hold(sizeof(text) + text.size());
    std::ranges::sort(texts);
    const auto rest = std::ranges::unique(texts);
    texts.erase(rest.begin(), rest.end());
    Node node;
    node.kind = Node::Kind::kTexts;
    node.texts = std::move(texts);
    return node;
  }

  static Node dfa_node(std::shared_ptr<const Dfa> dfa) {
    Node node;
    node.kind = Node::Kind::kDfa;
    node.dfa = std::move(dfa);
    return node;
  }

  void add_word(std::vector<std::string>& texts, const char* json, const char* python) const {
    texts.emplace_back(json);
    if (options_.python_literals) texts.emplace_back(python);
  }

  void add_scalar(const JsonValue& value, std::vector<std::string>& texts) const {
    switch (value.type) {
      case Type::kNull:
        return add_word(texts, "null", "None");
      case Type::kBoolean:
        return value.boolean ? add_word(texts, "true", "True") : add_word(texts, "false", "False");
      case Type::kString:
        return texts.push_back('"' + json_spelling(value.text) + '"');
      default:
        // 2.0 is 2, too.
        if (value.integer) {
          std::string digits = Decimal::parse(value.text)->text();
          if (digits != value.text) texts.push_back(std::move(digits));
        }
        return texts.push_back(value.text);
    }
  }

  void add_nodes(const Shape& shape, std::vector<Node>& nodes) {
    if (shape.constants) return add_constant_nodes(*shape.constants, nodes);
    std::vector<std::string> words;
    const auto may_be = [&](Type type, bool boolean = false) {
      return std::ranges::none_of(shape.excluded, [&](const JsonValue* value) {
        return value->is(type) && value->boolean == boolean;
      });
    };
    if ((shape.types & kNullBit) != 0 && may_be(Type::kNull)) add_word(words, "null", "None");
    if ((shape.types & kBooleanBit) != 0) {
      if (may_be(Type::kBoolean, true)) add_word(words, "true", "True");
      if (may_be(Type::kBoolean, false)) add_word(words, "false", "False");
    }
    if (!words.empty()) nodes.push_back(texts_node(std::move(words)));
    if ((shape.types & (kIntegerBit | kFractionBit)) != 0) {
      nodes.push_back(number_node(shape));
      nodes.back().dfa = without_excluded(nodes.back().dfa, shape);
    }
    if ((shape.types & kStringBit) != 0) nodes.push_back(string_node(shape));
    if ((shape.types & kArrayBit) != 0) nodes.push_back(array_node(shape));
    if ((shape.types & kObjectBit) != 0) nodes.push_back(object_node(shape));
  }

  // The numbers of `dfa` but for those of `not`; of a number that may have an exponent it would
  // take too many states to say which one it is.
  std::shared_ptr<const Dfa> without_excluded(std::shared_ptr<const Dfa> dfa, const Shape& shape) {
    std::string pattern;
    for (const JsonValue* const value : shape.excluded) {
      if (!value->is(Type::kNumber)) continue;
      const std::optional<Decimal> number = Decimal::parse(value->text);
      if (!number) {
        reader_.refuse(value, "not");
        continue;
      }
      std::string text = number->is_negative() ? "-" : number->is_zero() ? "-?" : "";
      text += number->whole();
      text += number->is_integer() ? "(?:\\.0+)?" : "\\." + number->fraction() + "0*";
      pattern += (pattern.empty() ? "^(?:" : "|") + text;
    }
    if (pattern.empty()) return dfa;
    static const Dfa plain = pattern_dfa("^-?(?:0|[1-9]\\d*)(?:\\.\\d+)?$", Spelling::kUtf8);
    std::size_t work = 0;
    reader_.expect(std::size_t{8} << 20);
    try {
      Dfa rest = difference(intersection(*dfa, plain, &work),
                            pattern_dfa(pattern + ")$", Spelling::kUtf8, &work), &work);
      reader_.spend(work + rest.bytes());
      reader_.hold(rest.bytes());
      return std::make_shared<const Dfa>(std::move(rest));
    } catch (const TooLarge&) {
    } catch (const GrammarError& error) {
      if (error.kind() != GrammarError::Kind::kUnsupported) throw;
    }
    reader_.spend(work + kMaxSchemaWork / 10);
    reader_.refuse(shape.excluded[0], "not");
    return dfa;
  }

  Node number_node(const Shape& shape) {
    const Numerals numerals = (shape.types & kFractionBit) == 0  ? Numerals::kIntegers
                              : (shape.types & kIntegerBit) == 0 ? Numerals::kFractions
                                                                 : Numerals::kAll;
    if (numerals == Numerals::kAll && shape.numbers.is_free()) return dfa_node(json_number());
    static const auto any_integer =
        std::make_shared<const Dfa>(number_dfa({}, Numerals::kIntegers));
    if (numerals == Numerals::kIntegers && shape.numbers.is_free()) return dfa_node(any_integer);
    auto& dfa = numbers_[{shape.numbers, numerals}];
    if (dfa != nullptr) return dfa_node(dfa);
    std::size_t work = 0;
    try {
      dfa = std::make_shared<const Dfa>(number_dfa(shape.numbers, numerals, &work));
    } catch (const TooLarge&) {
      reader_.spend(work + kMaxSchemaWork / 100);
      reader_.refuse(shape.multiple_schema, "multipleOf");
      Shape others = shape;
      others.numbers.multiple_of.reset();
      return number_node(others);
    }
    // Its numerals are put together digit by digit.
    reader_.spend(work * 8 + dfa->bytes());
    return dfa_node(dfa);
  }

  static Node no_text() {
    Node node = dfa_node(json_number());
    node.least = 1;
    node.most = 0;
    return node;
  }

  // Texts of `dfa` with so many characters.
  static Node counted_node(std::shared_ptr<const Dfa> dfa,
                           std::shared_ptr<const CharacterCounts> counts, std::uint32_t frame,
                           const Shape& shape) {
    if (dfa->start() == Dfa::kDead) return no_text();
    const auto framed = [frame](std::uint32_t count) {
      return count > kUnbounded - frame ? kUnbounded : count + frame;
    };
    Node node = dfa_node(std::move(dfa));
    node.counts = std::move(counts);
    node.least = framed(shape.min_length);
    node.most = framed(shape.max_length);
    if (!node.counts->can_end(node.dfa->start(), node.least, node.most)) return no_text();
    return node;
  }

  static bool has_lengths(const Shape& shape) {
    return shape.min_length > 0 || shape.max_length != kUnbounded;
  }

  static bool has_texts(const Shape& shape) {
    return !shape.patterns.empty() || !shape.formats.empty() || !shape.excluded_patterns.empty() ||
           std::ranges::any_of(shape.excluded,
                               [](const JsonValue* value) { return value->is(Type::kString); });
  }

  // The texts that all patterns and formats of a shape accept, and that its `not` leaves.
  struct Text {
    std::shared_ptr<const Dfa> dfa;
    std::shared_ptr<const CharacterCounts> counts;  // null: `dfa` has no lengths but its own
    bool is_too_large = false;                      // and `dfa` has a part of what is asked for
  };

  // `inside`: what texts are besides; null: nothing.
  Text text_of(const Shape& shape, Spelling spelling, const Dfa* inside) {
    std::vector<std::string> names;
    for (const JsonValue* const pattern : shape.patterns) names.push_back(pattern->text);
    for (const JsonValue* const format : shape.formats) names.push_back(format->text);
    // The prefix is in no format's name.
    for (const JsonValue* const value : shape.excluded) {
      if (value->is(Type::kString)) names.push_back("\1" + value->text);
    }
    for (const JsonValue* const pattern : shape.excluded_patterns) {
      names.push_back("\2" + pattern->text);
    }
    const auto [found, fresh] = texts_.try_emplace(
        {std::move(names), shape.patterns.size(), spelling, shape.min_length, shape.max_length});
    Text& text = found->second;
    if (fresh) make_text(shape, spelling, inside, text);
    if (text.is_too_large) {
      const JsonValue* const place = !shape.patterns.empty()            ? shape.patterns.back()
                                     : !shape.formats.empty()           ? shape.formats[0]
                                     : !shape.excluded_patterns.empty() ? shape.excluded_patterns[0]
                                                                        : shape.excluded[0];
      reader_.refuse(place, "pattern " + place->text + " together with other bounds");
    }
    return text;
  }

  void make_text(const Shape& shape, Spelling spelling, const Dfa* inside, Text& text) {
    const StringDfa& any = spelling == Spelling::kJsonString ? *json_string() : *plain_text();
    std::size_t work = 0;
    try {
      const auto meet = [&](const Dfa& more) {
        text.dfa = std::make_shared<const Dfa>(intersection(*text.dfa, more, &work));
      };
      const auto add = [&](const JsonValue* name, bool is_pattern) {
        const auto more = reader_.dfa_of(name, name, is_pattern, spelling);
        if (more == nullptr) return;
        if (text.dfa == nullptr) {
          text.dfa = more;
        } else {
          meet(*more);
        }
      };
      for (const JsonValue* const pattern : shape.patterns) add(pattern, true);
      for (const JsonValue* const format : shape.formats) add(format, false);
      if (const auto rest = reader_.not_excluded(shape, spelling)) {
        if (text.dfa == nullptr) {
          text.dfa = rest;
        } else {
          meet(*rest);
        }
      }
      if (text.dfa == nullptr)
        text.dfa = std::shared_ptr<const Dfa>(std::shared_ptr<const void>(), &any.dfa);
      // Tags are all that `inside` leaves out.
      if (inside != nullptr && text.dfa->has_byte('<')) meet(*inside);
      if (has_lengths(shape)) {
        text.counts = CharacterCounts::of(*text.dfa, any, &work);
        if (text.counts == nullptr) {
          text.dfa = std::make_shared<const Dfa>(
              with_lengths(*text.dfa, any, shape.min_length, shape.max_length, &work));
        }
      }
    } catch (const TooLarge&) {
      work += kMaxSchemaWork / 10;
      text.is_too_large = true;
    }
    reader_.spend(work + text.dfa->bytes());
    reader_.hold(text.dfa->bytes() + sizeof(TextKey) + 128);
  }

  Node string_node(const Shape& shape) {
    if (!has_texts(shape)) {
      const std::shared_ptr<const Dfa> any(json_string(), &json_string()->dfa);
      if (!has_lengths(shape)) return dfa_node(any);
      static const auto counts = CharacterCounts::of(*any, *json_string());
      return counted_node(any, counts, counts->frame(), shape);
    }
    const Text text = text_of(shape, Spelling::kJsonString, nullptr);
    if (text.counts == nullptr) return dfa_node(text.dfa);
    return counted_node(text.dfa, text.counts, text.counts->frame(), shape);
  }

  Node array_node(const Shape& shape) {
    Node node;
    node.kind = Node::Kind::kArray;
    node.cost = 1;
    node.least = shape.min_items;
    node.most = shape.max_items;
    for (const SetId set : shape.prefix) node.children.push_back(node_of(set));
    reader_.hold(node.children.size() * sizeof(NodeId));
    node.rest = node_of(shape.items);
    return node;
  }

  // The keys of `dfa` without their closing quotes; nothing: there are more than `most`.
  std::optional<std::vector<std::string>> keys_of(const Dfa& dfa, std::size_t most) {
    std::vector<std::string> keys;
    std::vector<std::pair<std::string, Dfa::State>> begins = {{"", dfa.start()}};
    while (!begins.empty()) {
      std::vector<std::pair<std::string, Dfa::State>> next;
      for (const auto& [begin, state] : begins) {
        reader_.spend(64 + begin.size() / 8);
        for (int byte = 0; byte < 256; ++byte) {
          const Dfa::State to = dfa.step(state, static_cast<unsigned char>(byte));
          if (to == Dfa::kDead) continue;
          if (dfa.accepts(to)) {
            keys.push_back(begin);
          } else {
            next.emplace_back(begin + static_cast<char>(byte), to);
          }
          // Each beginning leads to a key that no other one does.
          if (keys.size() + next.size() > most) return std::nullopt;
        }
      }
      begins = std::move(next);
    }
    return keys;
  }

  // True for an object whose members are those of its `properties` alone, by closed_objects.
  bool closes(const Shape& shape) {
    if (!options_.closed_objects || shape.properties_schema == nullptr ||
        shape.keys_schema != nullptr || shape.is_left_out ||
        shape.min_properties > shape.properties.size()) {
      return false;
    }
    reader_.note_closed(shape.properties_schema);
    return true;
  }

  Node object_node(const Shape& shape) {
    Node node;
    node.kind = Node::Kind::kObject;
    node.cost = 1;
    struct Member {
      const std::string* name;  // in `properties`; null: it is not there
      SetId set;
    };
    std::map<std::string, Member> members;  // in the order of the bytes of their keys
    for (const auto& [name, set] : shape.properties) {
      members.emplace(json_spelling(name), Member{&name, set});
    }
    static const std::shared_ptr<const Dfa> any_key(json_key(), &json_key()->dfa);
    std::size_t named = 0;
    const bool is_closed = closes(shape);
    for (const KeyClass& others : shape.keys) {
      if (is_closed) break;
      // Only one of the free keys, which may be equal, is sure to count.
      if (others.dfa != nullptr && shape.min_properties > shape.required.size() + 1) {
        if (const auto keys = keys_of(*others.dfa, kMostNamedKeys - named)) {
          for (const std::string& key : *keys) members.emplace(key, Member{nullptr, others.set});
          named += keys->size();
          continue;
        }
      }
      node.keys.push_back({others.dfa == nullptr ? any_key : others.dfa, node_of(others.set)});
    }
    std::unordered_map<std::string_view, std::size_t> places;
    node.required.resize(members.size() / 64 + 1);
    for (const auto& [key, member] : members) {
      const std::size_t i = node.texts.size();
      if (member.name != nullptr && shape.required.contains(*member.name)) {
        node.required[i / 64] |= std::uint64_t{1} << (i % 64);
      }
      reader_.hold(128 + 2 * key.size());
      node.texts.push_back(key);
      node.children.push_back(node_of(member.set));
      if (member.name != nullptr) places.emplace(*member.name, i);
    }
    add_counts(shape, places, node);
    return node;
  }

  // Adds the bounds of the number of members, and which demand others. `places`: by their names.
  void add_counts(const Shape& shape,
                  const std::unordered_map<std::string_view, std::size_t>& places, Node& node) {
    node.least = shape.min_properties;
    node.most = shape.max_properties;
    std::map<std::size_t, std::vector<std::size_t>> needs;
    for (const auto& [name, needed] : shape.dependencies) {
      const auto from = places.find(name);
      if (from == places.end()) continue;
      const auto to = places.find(needed);
      if (to == places.end()) {
        throw GrammarError(GrammarError::Kind::kUnmet, "", "requires a name that no call can have");
      }
      needs[from->second].push_back(to->second);
    }
    // All that a member demands, also by way of others.
    const auto add_needs = [&](std::size_t member, std::vector<std::uint64_t>& all) {
      std::vector<std::size_t> pending = {member};
      while (!pending.empty()) {
        const auto found = needs.find(pending.back());
        pending.pop_back();
        if (found == needs.end()) continue;
        for (const std::size_t to : found->second) {
          reader_.spend(10);
          const std::uint64_t bit = std::uint64_t{1} << (to % 64);
          if ((std::exchange(all[to / 64], all[to / 64] | bit) & bit) == 0) pending.push_back(to);
        }
      }
    };
    const std::vector<std::uint64_t> required = node.required;
    for (const auto& [member, unused] : needs) {
      if ((required[member / 64] >> (member % 64) & 1) != 0) add_needs(member, node.required);
      reader_.hold(sizeof(Node::Dependency) + 8 * required.size());
      node.dependencies.push_back(
          {static_cast<std::uint32_t>(member), std::vector<std::uint64_t>(required.size())});
      add_needs(member, node.dependencies.back().needs);
    }
    // Each key looks at all of them for each member.
    constexpr std::size_t kMostDependencyWork = 1'000'000;
    if (node.dependencies.size() * required.size() * places.size() > kMostDependencyWork) {
      throw GrammarError(GrammarError::Kind::kTooLarge, "",
                         "has too many members with dependentRequired at one place");
    }
    if (!needs.empty() && node.least > 1 && node.most != kUnbounded) {
      // Members that come in groups might meet one bound alone.
      throw GrammarError(GrammarError::Kind::kTooLarge, "",
                         "has minProperties, maxProperties and dependentRequired at one place");
    }
    const bool has_free_keys = !node.keys.empty() || node.rest != kNoNode;
    std::size_t sure = has_free_keys ? 1 : 0;
    for (const std::uint64_t word : node.required) {
      sure += static_cast<std::size_t>(std::popcount(word));
    }
    if (has_free_keys && node.least > sure && shape.min_properties_schema != nullptr) {
      reader_.note(shape.min_properties_schema, "minProperties");
    }
  }

  void add_constant_nodes(const std::vector<const JsonValue*>& constants,
                          std::vector<Node>& nodes) {
    std::vector<std::string> scalars;
    for (const JsonValue* const value : constants) {
      if (value->values.empty() && !value->is(Type::kArray) && !value->is(Type::kObject)) {
        add_scalar(*value, scalars);
        continue;
      }
      reader_.hold(2 * sizeof(Node));
      Node sequence;
      add_spelling(*value, sequence.children);
      nodes.push_back(std::move(sequence));
    }
    if (!scalars.empty()) nodes.push_back(texts_node(std::move(scalars)));
  }

  NodeId space() {
    if (space_ == kNoNode) space_ = grammar_.add_dfa(grammar_.space());
    return space_;
  }
  NodeId mark(std::string text) {
    const auto found = marks_.find(text);
    if (found != marks_.end()) return found->second;
    reader_.hold(2 * sizeof(Node) + 2 * text.size());
    const NodeId node = grammar_.add_text(text);
    marks_.emplace(std::move(text), node);
    return node;
  }

  // The parts of a list or an object as they are in the schema, with white space between them. As
  // deep as the value is.
  void add_spelling(const JsonValue& value, std::vector<NodeId>& parts) {
    if (!value.is(Type::kArray) && !value.is(Type::kObject)) {
      std::vector<std::string> texts;
      add_scalar(value, texts);
      parts.push_back(texts.size() == 1 ? mark(std::move(texts[0]))
                                        : grammar_.add(texts_node(std::move(texts))));
      return;
    }
    const bool is_object = value.is(Type::kObject);
    parts.push_back(mark(is_object ? "{" : "["));
    parts.push_back(space());
    for (std::size_t i = 0; i < value.values.size(); ++i) {
      reader_.spend(100);
      reader_.hold(64);
      if (i > 0) {
        parts.push_back(mark(","));
        parts.push_back(space());
      }
      if (is_object) {
        parts.push_back(mark('"' + json_spelling(value.names[i]) + '"'));
        parts.push_back(space());
        parts.push_back(mark(":"));
        parts.push_back(space());
      }
      add_spelling(value.values[i], parts);
      parts.push_back(space());
    }
    parts.push_back(mark(is_object ? "}" : "]"));
  }

  // --- members that are spelt in another way

  NodeId add_members(const Shape& shape, const MemberStyle& style) {
    Node node;
    node.kind = Node::Kind::kMembers;
    node.cost = 1;
    std::vector<std::pair<std::string, std::uint32_t>> first = {{style.first_end, kNoNode}};
    std::vector<std::pair<std::string, std::uint32_t>> later = {{style.later_end, kNoNode}};
    std::unordered_map<std::string_view, std::size_t> places;
    const auto add_member = [&](const std::string& name, SetId set) {
      const auto member = static_cast<std::uint32_t>(node.children.size());
      node.required.resize(member / 64 + 1);
      reader_.hold(256 + 2 * name.size());
      first.emplace_back(style.first_prefix + name + style.name_end, member);
      later.emplace_back(style.later_prefix + name + style.name_end, member);
      node.children.push_back(add_member_value(set, style));
      return member;
    };
    for (const auto& [name, set] : shape.properties) {
      const bool is_required = shape.required.contains(name);
      if (name.empty() || name.find_first_of(style.not_in_names) != std::string::npos) {
        // Readers of calls would not find the name.
        if (is_required) {
          throw GrammarError(GrammarError::Kind::kUnmet, "",
                             "requires a name that no call can have");
        }
        continue;
      }
      const std::uint32_t member = add_member(name, set);
      if (is_required) node.required[member / 64] |= std::uint64_t{1} << (member % 64);
      places.emplace(name, member);
    }
    // Names of which nothing is said are no arguments of a function that declares some.
    const bool has_others = shape.keys_schema != nullptr || shape.properties_schema == nullptr ||
                            shape.min_properties > node.children.size();
    if (!has_others && options_.closed_objects) reader_.note_closed(shape.properties_schema);
    std::vector<NodeId> others;
    for (const KeyClass& keys : shape.keys) {
      if (!has_others) break;
      const auto dfa = made_of_keys(shape, [&](std::size_t* work) {
        // `keys` has no names of `properties` if it has an automaton.
        return keys.dfa == nullptr ? reader_.without_names(style.other_name, shape)
                                   : shared(intersection(*style.other_name, *keys.dfa, work));
      });
      if (dfa == nullptr || dfa->start() == Dfa::kDead) continue;
      if (const auto names = keys_of(*dfa, kMostNamedKeys)) {
        for (const std::string& name : *names) add_member(name, keys.set);
        continue;
      }
      const auto name = dfa == style.other_name
                            ? style.other_name_end
                            : made_of_keys(shape, [&](std::size_t* work) {
                                return shared(ending(*dfa, '"', style.name_end, work));
                              });
      if (name == nullptr) continue;
      reader_.hold(3 * sizeof(Node));
      others.push_back(
          grammar_.add_sequence({grammar_.add_dfa(name), add_member_value(keys.set, style)}));
    }
    if (!others.empty()) {
      node.rest = grammar_.add_choice(std::move(others));
      first.emplace_back(style.first_prefix, kOtherMember);
      later.emplace_back(style.later_prefix, kOtherMember);
    }
    if (node.children.empty() && node.rest == kNoNode && !shape.keys.empty() &&
        shape.keys_schema != nullptr) {
      reader_.refuse(shape.keys_schema, shape.keys_keyword);
    }
    node.required.resize(node.children.size() / 64 + 1);
    const auto split = [](auto& pairs, auto& texts, auto& members) {
      std::ranges::sort(pairs);
      for (auto& [text, member] : pairs) {
        texts.push_back(std::move(text));
        members.push_back(member);
      }
    };
    split(first, node.texts, node.members);
    split(later, node.later_texts, node.later_members);
    add_counts(shape, places, node);
    return grammar_.add(std::move(node));
  }

  static std::shared_ptr<const Dfa> shared(Dfa dfa) {
    return std::make_shared<const Dfa>(std::move(dfa));
  }

  // The automaton that `make` makes of keys that `properties` does not name; null: it takes too
  // much, and they are left out.
  template <typename Make>
  std::shared_ptr<const Dfa> made_of_keys(const Shape& shape, Make make) {
    std::size_t work = 0;
    try {
      const std::shared_ptr<const Dfa> dfa = make(&work);
      reader_.spend(work + dfa->bytes());
      reader_.hold(dfa->bytes());
      return dfa;
    } catch (const TooLarge&) {
      reader_.spend(work + kMaxSchemaWork / 10);
      if (shape.keys_schema != nullptr) reader_.refuse(shape.keys_schema, shape.keys_keyword);
      return nullptr;
    }
  }

  NodeId add_member_value(SetId set, const MemberStyle& style) {
    return style.plain_value != nullptr ? add_plain_value(set, style)
                                        : with_end(node_of(set), style.value_end);
  }

  NodeId with_end(NodeId value, const std::string& end) {
    return end.empty() ? value : grammar_.add_sequence({value, mark(end)});
  }

  // A value of which texts are spelt without quotes; others are JSON.
  NodeId add_plain_value(SetId set, const MemberStyle& style) {
    std::vector<NodeId> choices;
    for (const SetId one : reader_.alternatives(set)) {
      Shape shape = reader_.shape_of(one);
      if (shape.constants) {
        std::vector<std::string> texts;
        for (const JsonValue* const value : *shape.constants) {
          if (value->is(Type::kString) && style.is_plain(value->text)) {
            texts.push_back(value->text + style.value_end);
          }
        }
        std::erase_if(*shape.constants,
                      [](const JsonValue* value) { return value->is(Type::kString); });
        if (!texts.empty()) choices.push_back(grammar_.add(texts_node(std::move(texts))));
      } else if ((shape.types & kStringBit) != 0) {
        choices.push_back(add_plain_text(shape, style));
        shape.types &= ~std::uint32_t{kStringBit};
      }
      std::vector<Node> nodes;
      add_nodes(shape, nodes);
      for (Node& node : nodes) {
        choices.push_back(with_end(grammar_.add(std::move(node)), style.value_end));
      }
    }
    return grammar_.add_choice(std::move(choices));
  }

  NodeId add_plain_text(const Shape& shape, const MemberStyle& style) {
    if (has_texts(shape)) {
      const Text text = text_of(shape, Spelling::kUtf8, style.plain_inside.get());
      // A part of the bounds might lead out of the value.
      if (text.is_too_large) return grammar_.add_dfa(style.plain_value);
      return with_end(
          grammar_.add(text.counts == nullptr ? dfa_node(text.dfa)
                                              : counted_node(text.dfa, text.counts, 0, shape)),
          style.value_end);
    }
    if (!has_lengths(shape)) return grammar_.add_dfa(style.plain_value);
    const auto frame = static_cast<std::uint32_t>(style.value_end.size());
    return grammar_.add(counted_node(style.counted_value, style.value_counts, frame, shape));
  }

  Grammar& grammar_;
  const JsonValue& root_;
  const SchemaOptions options_;
  SchemaReader reader_;
  std::unordered_map<SetId, NodeId> nodes_;
  std::deque<std::pair<SetId, NodeId>> pending_;
  std::map<std::pair<NumberBounds, Numerals>, std::shared_ptr<const Dfa>> numbers_;
  // Patterns and formats, the number of patterns, the spelling, and the lengths.
  using TextKey =
      std::tuple<std::vector<std::string>, std::size_t, Spelling, std::uint32_t, std::uint32_t>;
  std::map<TextKey, Text> texts_;
  NodeId space_ = kNoNode;
  std::map<std::string, NodeId> marks_;
};

}  // namespace

NodeId add_schema(Grammar& grammar, const JsonValue& schema, const SchemaOptions& options,
                  std::vector<RelaxedKeyword>* relaxed) {
  return SchemaCompiler(grammar, schema, options, relaxed).compile();
}

NodeId add_schema_members(Grammar& grammar, const JsonValue& schema, const MemberStyle& style,
                          const SchemaOptions& options, std::vector<RelaxedKeyword>* relaxed) {
  return SchemaCompiler(grammar, schema, options, relaxed).compile_members(style);
}

std::shared_ptr<const Grammar> compile_schema(std::string_view schema, const SchemaOptions& options,
                                              std::vector<RelaxedKeyword>* relaxed) {
  const JsonValue root = parse_json(schema);
  auto grammar = std::make_shared<Grammar>(kMaxJsonDepth);
  grammar->finish(add_schema(*grammar, root, options, relaxed));
  return grammar;
}

}  // namespace lintel::grammar
