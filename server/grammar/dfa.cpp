// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/dfa.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>

namespace lintel::grammar {
namespace {

constexpr std::size_t kMaxNfaStates = 60'000;
constexpr std::size_t kMaxNfaWork = 400'000;  // of putting an automaton together
constexpr std::uint32_t kMaxIndent = 32;

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

std::uint64_t next_dfa_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

struct Utf8 {
  std::array<unsigned char, 4> bytes{};
  std::size_t size = 0;
};

Utf8 utf8_of(char32_t c) {
  const auto tail = [c](int shift) {
    return static_cast<unsigned char>(0x80 | (c >> shift & 0x3F));
  };
  const auto head = [c](int mark, int shift) {
    return static_cast<unsigned char>(mark | c >> shift);
  };
  if (c < 0x80) return {{head(0, 0)}, 1};
  if (c < 0x800) return {{head(0xC0, 6), tail(0)}, 2};
  if (c < 0x10000) return {{head(0xE0, 12), tail(6), tail(0)}, 3};
  return {{head(0xF0, 18), tail(12), tail(6), tail(0)}, 4};
}

// The escape of a character that JSON demands to be escaped; empty: it needs none.
std::string json_escape(char32_t c) {
  constexpr char kDigits[] = "0123456789abcdef";
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  if (c >= 0x20) return {};
  return std::string("\\u00") + kDigits[c >> 4] + kDigits[c & 15];
}

// json_escape() of the characters up to the last that needs one.
const std::array<std::string, '\\' + 1>& json_escapes() {
  static const auto made = [] {
    std::array<std::string, '\\' + 1> escapes;
    for (char32_t c = 0; c < escapes.size(); ++c) escapes[c] = json_escape(c);
    return escapes;
  }();
  return made;
}

const CodePointSet& all_code_points() {
  static const CodePointSet all = {{0, kLastCodePoint}};
  return all;
}

}  // namespace

// Makes automata out of tables.
class DfaMaker {
 public:
  struct Raw {
    std::array<std::uint8_t, 256> classes{};
    std::uint16_t num_classes = 1;
    std::vector<Dfa::State> table;
    std::vector<bool> accepting;
  };

  // State 0 is the start. Transitions to states without a way to an accepting one become dead.
  static Dfa make(Raw raw) {
    const std::size_t n = raw.accepting.size();
    const std::size_t k = raw.num_classes;
    // Sources of each state, one after the other.
    std::vector<std::uint32_t> begins(n + 1, 0), sources;
    for (const Dfa::State to : raw.table) {
      if (to != Dfa::kDead) ++begins[to];
    }
    std::uint32_t total = 0;
    for (std::uint32_t& begin : begins) begin = total += begin;
    sources.resize(total);
    for (std::size_t i = raw.table.size(); i-- > 0;) {
      const Dfa::State to = raw.table[i];
      if (to != Dfa::kDead) sources[--begins[to]] = static_cast<std::uint32_t>(i / k);
    }
    std::vector<bool> useful(n, false);
    std::vector<std::uint32_t> pending;
    for (std::uint32_t s = 0; s < n; ++s) {
      if (raw.accepting[s]) pending.push_back(s), useful[s] = true;
    }
    while (!pending.empty()) {
      const std::uint32_t to = pending.back();
      pending.pop_back();
      for (std::size_t i = begins[to]; i < begins[to + 1]; ++i) {
        const std::uint32_t from = sources[i];
        if (!useful[from]) pending.push_back(from), useful[from] = true;
      }
    }
    std::vector<Dfa::State> renamed(n, Dfa::kDead);
    Dfa::State count = 0;
    for (std::size_t s = 0; s < n; ++s) {
      if (useful[s]) renamed[s] = count++;
    }
    Dfa dfa;
    dfa.id_ = next_dfa_id();
    dfa.classes_ = raw.classes;
    dfa.num_classes_ = raw.num_classes;
    if (n == 0 || !useful[0]) return dfa;
    dfa.start_ = renamed[0];
    dfa.table_.reserve(count * k);
    for (std::size_t s = 0; s < n; ++s) {
      if (!useful[s]) continue;
      std::uint8_t flags = raw.accepting[s] ? Dfa::kAccepts : std::uint8_t{0};
      for (std::size_t c = 0; c < k; ++c) {
        const Dfa::State to = raw.table[s * k + c];
        const Dfa::State kept = to == Dfa::kDead ? Dfa::kDead : renamed[to];
        if (kept != Dfa::kDead) flags |= Dfa::kContinues;
        dfa.table_.push_back(kept);
      }
      dfa.flags_.push_back(flags);
    }
    return dfa;
  }

  // A byte of each class of both automata; `classes`: the number of the class of each byte.
  static std::vector<unsigned char> samples_of(const Dfa& one, const Dfa& other,
                                               std::array<std::uint8_t, 256>* classes) {
    std::vector<std::uint16_t> known(std::size_t{one.num_classes_} * other.num_classes_, 256);
    std::vector<unsigned char> samples;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint16_t& name =
          known[one.classes_[byte] * std::size_t{other.num_classes_} + other.classes_[byte]];
      if (name == 256) {
        name = static_cast<std::uint16_t>(samples.size());
        samples.push_back(static_cast<unsigned char>(byte));
      }
      (*classes)[byte] = static_cast<std::uint8_t>(name);
    }
    return samples;
  }

  // Makes an automaton whose states are `Name`s, found from `start`. `step(name, byte)` is the
  // next one or nothing; bytes of one class of both automata behave alike.
  template <typename Name, typename Step, typename Accepts>
  static Dfa explore(const Name& start, const Dfa& one, const Dfa& other, Step&& step,
                     Accepts&& accepts, std::size_t* work) {
    Raw raw;
    const std::vector<unsigned char> samples = samples_of(one, other, &raw.classes);
    raw.num_classes = static_cast<std::uint16_t>(samples.size());
    std::map<Name, Dfa::State> states;
    std::vector<Name> names;
    const auto find = [&](const Name& name) {
      const auto [found, fresh] = states.emplace(name, static_cast<Dfa::State>(names.size()));
      if (fresh) {
        if (names.size() >= kMaxDfaStates) throw TooLarge("needs more than 4096 states");
        names.push_back(name);
      }
      return found->second;
    };
    find(start);
    // A state of a product takes longer to find than one of a set.
    constexpr std::size_t kCost = 8;
    for (std::size_t at = 0; at < names.size(); ++at) {
      if (raw.table.size() > kMaxDfaWork / kCost) throw TooLarge("is too large");
      if (work != nullptr) *work += samples.size() * kCost;
      const Name name = names[at];
      raw.accepting.push_back(accepts(name));
      for (const unsigned char byte : samples) {
        const std::optional<Name> next = step(name, byte);
        raw.table.push_back(next ? find(*next) : Dfa::kDead);
      }
    }
    return make(std::move(raw));
  }
};

CodePointSet normalized(CodePointSet ranges) {
  std::ranges::sort(ranges, {}, &CodePoints::first);
  CodePointSet set;
  for (const CodePoints& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, range.last);
    } else {
      set.push_back(range);
    }
  }
  return set;
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet rest;
  char32_t next = 0;
  for (const CodePoints& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

bool Dfa::matches(std::string_view text) const {
  State state = start_;
  for (const char c : text) {
    if (state == kDead) return false;
    state = step(state, static_cast<unsigned char>(c));
  }
  return state != kDead && accepts(state);
}

bool Dfa::has_byte(unsigned char byte) const {
  for (std::size_t state = 0; state < num_states(); ++state) {
    if (step(static_cast<State>(state), byte) != kDead) return true;
  }
  return false;
}

std::vector<unsigned char> samples_of(const Dfa& one, const Dfa& other) {
  std::array<std::uint8_t, 256> classes;
  return DfaMaker::samples_of(one, other, &classes);
}

Nfa::State Nfa::add_state() {
  if (num_states_ >= kMaxNfaStates) throw TooLarge("is too large");
  count_work();
  return static_cast<State>(num_states_++);
}

void Nfa::count_work(std::size_t units) {
  work_ += units;
  if (work_ > kMaxNfaWork) throw TooLarge("is too large");
}

void Nfa::add_edge(State from, unsigned char first, unsigned char last, State to) {
  edges_.push_back({from, to, first, last});
}

void Nfa::add_empty(State from, State to) { empty_.push_back({from, to}); }

Nfa::State Nfa::add_bytes(State from, std::string_view bytes) {
  for (const char c : bytes) {
    const State to = add_state();
    add_edge(from, static_cast<unsigned char>(c), static_cast<unsigned char>(c), to);
    from = to;
  }
  return from;
}

// The range is split until all of its code points have as many bytes, and each byte runs over its
// own range independently of the others.
void Nfa::add_utf8(State from, CodePoints range, State to) {
  std::vector<CodePoints> pending = {range};
  while (!pending.empty()) {
    CodePoints part = pending.back();
    pending.pop_back();
    const auto split_at = [&](char32_t last) {
      if (part.first > last || part.last <= last) return false;
      pending.push_back({last + 1, part.last});
      pending.push_back({part.first, last});
      return true;
    };
    if (split_at(0x7F) || split_at(0x7FF) || split_at(0xFFFF)) continue;
    bool is_split = false;
    const int num_bytes = part.first < 0x80      ? 1
                          : part.first < 0x800   ? 2
                          : part.first < 0x10000 ? 3
                                                 : 4;
    for (int i = 1; i < num_bytes && !is_split; ++i) {
      const char32_t mask = (char32_t{1} << (6 * i)) - 1;
      if ((part.first & ~mask) == (part.last & ~mask)) continue;
      if ((part.first & mask) != 0) {
        is_split = split_at(part.first | mask);
      } else if ((part.last & mask) != mask) {
        is_split = split_at((part.last & ~mask) - 1);
      }
    }
    if (is_split) continue;
    const Utf8 first = utf8_of(part.first), last = utf8_of(part.last);
    State at = from;
    for (std::size_t i = 0; i < first.size; ++i) {
      const State next = i + 1 == first.size ? to : add_state();
      add_edge(at, first.bytes[i], last.bytes[i], next);
      at = next;
    }
  }
}

Nfa::State Nfa::add_code_points(State from, const CodePointSet& set, Spelling spelling) {
  const State to = add_state();
  const auto add = [&](char32_t first, char32_t last) {
    count_work();
    if (first <= last) add_utf8(from, {first, last}, to);
  };
  const auto add_outside_surrogates = [&](char32_t first, char32_t last) {
    add(first, std::min<char32_t>(last, kFirstSurrogate - 1));
    add(std::max<char32_t>(first, kLastSurrogate + 1), last);
  };
  for (const CodePoints& range : set) {
    if (spelling == Spelling::kUtf8) {
      add_outside_surrogates(range.first, range.last);
      continue;
    }
    char32_t first = range.first;
    const char32_t last_special = std::min<char32_t>(range.last, '\\');
    for (char32_t c = first; c <= last_special; ++c) {
      const std::string& escape = json_escapes()[c];
      if (escape.empty()) continue;
      if (c > first) add(first, c - 1);
      first = c + 1;
      const State before = add_bytes(from, std::string_view(escape).substr(0, escape.size() - 1));
      const auto byte = static_cast<unsigned char>(escape.back());
      add_edge(before, byte, byte, to);
    }
    if (first <= range.last) add_outside_surrogates(first, range.last);
  }
  return to;
}

Nfa::State Nfa::add_any(State from, Spelling spelling) {
  const State loop = add_state();
  add_empty(from, loop);
  add_empty(add_code_points(loop, all_code_points(), spelling), loop);
  return loop;
}

Nfa::State Nfa::add_dfa(State from, const Dfa& dfa) {
  const State end = add_state();
  if (dfa.start() == Dfa::kDead) return end;
  std::vector<State> states;
  for (std::size_t i = 0; i < dfa.num_states(); ++i) states.push_back(add_state());
  add_empty(from, states[dfa.start()]);
  for (std::size_t i = 0; i < dfa.num_states(); ++i) {
    const auto state = static_cast<Dfa::State>(i);
    if (dfa.accepts(state)) add_empty(states[i], end);
    // Neighbours that lead to the same state are one edge.
    for (std::size_t first = 0, last = 0; first < 256; first = last + 1) {
      const Dfa::State to = dfa.step(state, static_cast<unsigned char>(first));
      last = first;
      while (last < 255 && dfa.step(state, static_cast<unsigned char>(last + 1)) == to) ++last;
      if (to == Dfa::kDead) continue;
      count_work();
      add_edge(states[i], static_cast<unsigned char>(first), static_cast<unsigned char>(last),
               states[to]);
    }
  }
  return end;
}

// Makes a deterministic automaton of what leads from a state to another. Edges are put in order of
// their states, and lead past states from which the empty text leads to one other alone.
class Nfa::Determinizer {
 public:
  // Adds its work to *work.
  Determinizer(const Nfa& nfa, State start, State accept, std::size_t most_work, std::size_t* work)
      : accept_(accept),
        rows_(nfa.num_states_ + 1),
        empty_(nfa.empty_.size()),
        edges_(nfa.edges_.size()),
        seen_in_(nfa.num_states_, 0),
        work_(*work),
        most_work_(*work + most_work) {
    find_classes(nfa);
    for (const Edge& edge : nfa.edges_) ++rows_[edge.from].edges;
    for (const Empty& empty : nfa.empty_) ++rows_[empty.from].empty;
    std::uint32_t num_edges = 0, num_empty = 0;
    for (Row& row : rows_) {
      row.is_kept = row.edges > 0;
      row.edges = num_edges += row.edges;
      row.empty = num_empty += row.empty;
    }
    rows_[accept].is_kept = true;
    for (std::size_t i = nfa.empty_.size(); i-- > 0;) {
      empty_[--rows_[nfa.empty_[i].from].empty] = nfa.empty_[i].to;
    }
    for (std::size_t i = nfa.edges_.size(); i-- > 0;) {
      const Edge& edge = nfa.edges_[i];
      edges_[--rows_[edge.from].edges] = {raw_.classes[edge.first], raw_.classes[edge.last],
                                          end_of_way(edge.to)};
    }
    for (State& to : empty_) to = end_of_way(to);
    start_ = end_of_way(start);
  }

  Dfa make() {
    const std::size_t num_classes = raw_.num_classes;
    slots_.assign(256, Dfa::kDead);
    find(close({start_}));
    std::vector<std::vector<State>> targets(num_classes);
    for (std::size_t at = 0; at < sets_.size(); ++at) {
      const Set set = sets_[at];
      bool accepts = false;
      for (std::size_t i = set.begin; i < set.end; ++i) {
        const State state = members_[i];
        accepts = accepts || state == accept_;
        for (std::size_t e = rows_[state].edges; e < rows_[state + 1].edges; ++e) {
          for (std::size_t c = edges_[e].first; c <= edges_[e].last; ++c) {
            targets[c].push_back(edges_[e].to);
          }
          work_ += std::size_t{1} + edges_[e].last - edges_[e].first;
        }
      }
      raw_.accepting.push_back(accepts);
      for (std::size_t c = 0; c < num_classes; ++c) {
        // Neighbours mostly lead to the same states.
        const bool is_known = c > 0 && targets[c] == targets[c - 1];
        raw_.table.push_back(is_known             ? raw_.table.back()
                             : targets[c].empty() ? Dfa::kDead
                                                  : find(close(targets[c])));
      }
      for (std::vector<State>& to : targets) to.clear();
      work_ += num_classes;
      if (work_ > most_work_) throw TooLarge("is too large");
    }
    return DfaMaker::make(std::move(raw_));
  }

 private:
  struct Row {
    std::uint32_t empty = 0, edges = 0;  // where those of the state begin
    bool is_kept = false;  // others, which only lead on by the empty text, say nothing
  };
  struct ClassEdge {
    std::uint8_t first, last;  // classes of bytes
    State to;
  };
  // States of the nondeterministic automaton, in any order: members_[begin, end).
  struct Set {
    std::size_t begin, end;
    std::uint64_t hash;  // of the states, in any order
  };

  // Bytes that every edge treats alike are one class.
  void find_classes(const Nfa& nfa) {
    std::array<bool, 257> begins{};
    begins[0] = true;
    for (const Edge& edge : nfa.edges_) {
      begins[edge.first] = true;
      begins[std::size_t{edge.last} + 1] = true;
    }
    int current = -1;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (begins[byte]) ++current;
      raw_.classes[byte] = static_cast<std::uint8_t>(current);
    }
    raw_.num_classes = static_cast<std::uint16_t>(current + 1);
  }

  // The first state on the way by the empty text that is kept or leads to several.
  State end_of_way(State state) const {
    // A loop of such states has no end: any of them leads nowhere.
    constexpr int kMostSteps = 100;
    for (int i = 0; i < kMostSteps && !rows_[state].is_kept; ++i) {
      if (rows_[state].empty + 1 != rows_[state + 1].empty) break;
      state = empty_[rows_[state].empty];
    }
    return state;
  }

  // Appends the states to which `from` leads by the empty text. Marks them in seen_in_.
  Set close(const std::vector<State>& from) {
    ++round_;
    Set set{members_.size(), members_.size(), 0};
    const auto add = [&](State state) {
      if (seen_in_[state] == round_) return;
      seen_in_[state] = round_;
      pending_.push_back(state);
    };
    for (const State state : from) add(state);
    while (!pending_.empty()) {
      const State state = pending_.back();
      pending_.pop_back();
      const Row& row = rows_[state];
      const std::uint32_t end = rows_[state + 1].empty;
      work_ += std::size_t{1} + end - row.empty;
      if (row.is_kept) {
        members_.push_back(state);
        const std::uint64_t mixed = (state + 1) * 0xD6E8FEB86659FD93u;
        set.hash += (mixed ^ mixed >> 32) * 0x9E3779B97F4A7C15u;
      }
      for (std::size_t i = row.empty; i < end; ++i) add(empty_[i]);
    }
    set.end = members_.size();
    return set;
  }

  // The name of the set that close() has just made.
  Dfa::State find(const Set& set) {
    if (2 * (sets_.size() + 1) > slots_.size()) grow();
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = (set.hash ^ set.hash >> 32) & mask;
    for (; slots_[at] != Dfa::kDead; at = (at + 1) & mask) {
      if (!is_same(sets_[slots_[at]], set)) continue;
      members_.resize(set.begin);
      return slots_[at];
    }
    if (sets_.size() >= kMaxDfaStates) throw TooLarge("needs more than 4096 states");
    slots_[at] = static_cast<Dfa::State>(sets_.size());
    sets_.push_back(set);
    return slots_[at];
  }

  bool is_same(const Set& known, const Set& closed) const {
    if (known.hash != closed.hash || known.end - known.begin != closed.end - closed.begin) {
      return false;
    }
    return std::all_of(members_.begin() + static_cast<std::ptrdiff_t>(known.begin),
                       members_.begin() + static_cast<std::ptrdiff_t>(known.end),
                       [&](State state) { return seen_in_[state] == round_; });
  }

  void grow() {
    slots_.assign(2 * slots_.size(), Dfa::kDead);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t name = 0; name < sets_.size(); ++name) {
      std::size_t at = (sets_[name].hash ^ sets_[name].hash >> 32) & mask;
      while (slots_[at] != Dfa::kDead) at = (at + 1) & mask;
      slots_[at] = static_cast<Dfa::State>(name);
    }
  }

  State accept_, start_ = 0;
  DfaMaker::Raw raw_;
  std::vector<Row> rows_;  // one more than states
  std::vector<State> empty_;
  std::vector<ClassEdge> edges_;
  std::vector<std::uint32_t> seen_in_;  // by state: the round in which close() came to it
  std::uint32_t round_ = 0;
  std::vector<State> pending_;
  std::vector<State> members_;
  std::vector<Set> sets_;          // by name
  std::vector<Dfa::State> slots_;  // names by hash; kDead: empty
  std::size_t& work_;
  std::size_t most_work_;
};

Dfa Nfa::determinize(State start, State accept, std::size_t* work, std::size_t most_work) const {
  std::size_t unread = 0;
  std::size_t& total = work == nullptr ? unread : *work;
  total += work_;
  return Determinizer(*this, start, accept, std::min(most_work, kMaxDfaWork), &total).make();
}

const std::shared_ptr<const StringDfa>& json_string() {
  static const std::shared_ptr<const StringDfa> made = [] {
    Nfa nfa;
    const Nfa::State start = nfa.add_state();
    const Nfa::State inside = nfa.add_bytes(start, "\"");
    nfa.add_empty(nfa.add_code_points(
                      inside, {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastCodePoint}},
                      Spelling::kUtf8),
                  inside);
    const Nfa::State escape = nfa.add_bytes(inside, "\\");
    for (const char c : std::string_view("\"\\/bfnrt")) {
      nfa.add_edge(escape, static_cast<unsigned char>(c), static_cast<unsigned char>(c), inside);
    }
    const auto add_hex = [&](Nfa::State from, std::string_view ranges, Nfa::State to) {
      for (std::size_t i = 0; i < ranges.size(); i += 2) {
        nfa.add_edge(from, static_cast<unsigned char>(ranges[i]),
                     static_cast<unsigned char>(ranges[i + 1]), to);
      }
    };
    constexpr std::string_view kHex = "09afAF";
    const auto add_two = [&](Nfa::State from, Nfa::State to) {
      const Nfa::State between = nfa.add_state();
      add_hex(from, kHex, between);
      add_hex(between, kHex, to);
    };
    const Nfa::State u = nfa.add_bytes(escape, "u");
    const Nfa::State plain = nfa.add_state(), d = nfa.add_state();
    add_hex(u, "09acefACEF", plain);
    add_hex(u, "ddDD", d);
    const Nfa::State two = nfa.add_state(), high = nfa.add_state(), pair = nfa.add_state();
    add_hex(plain, kHex, two);
    add_hex(d, "07", two);
    add_two(two, inside);
    add_hex(d, "89abAB", high);
    add_two(high, pair);
    const Nfa::State low = nfa.add_bytes(pair, "\\u");
    const Nfa::State low_d = nfa.add_state(), last = nfa.add_state();
    add_hex(low, "ddDD", low_d);
    add_hex(low_d, "cfCF", last);
    add_two(last, inside);
    const Nfa::State end = nfa.add_bytes(inside, "\"");
    auto text = std::make_shared<StringDfa>();
    text->dfa = nfa.determinize(start, end);
    text->inside = text->dfa.step(text->dfa.start(), '"');
    return text;
  }();
  return made;
}

const std::shared_ptr<const StringDfa>& json_key() {
  static const std::shared_ptr<const StringDfa> made = [] {
    Nfa nfa;
    const Nfa::State start = nfa.add_state();
    const Nfa::State end = nfa.add_bytes(nfa.add_any(start, Spelling::kJsonString), "\"");
    auto key = std::make_shared<StringDfa>();
    key->dfa = nfa.determinize(start, end);
    key->inside = key->dfa.step(key->dfa.start(), 'a');
    return key;
  }();
  return made;
}

const std::shared_ptr<const StringDfa>& plain_text() {
  static const std::shared_ptr<const StringDfa> made = [] {
    Nfa nfa;
    const Nfa::State start = nfa.add_state();
    const Nfa::State loop = nfa.add_any(start, Spelling::kUtf8);
    auto text = std::make_shared<StringDfa>();
    text->dfa = nfa.determinize(start, loop);
    text->inside = text->dfa.start();
    return text;
  }();
  return made;
}

const std::shared_ptr<const Dfa>& json_number() {
  static const std::shared_ptr<const Dfa> made = [] {
    Nfa nfa;
    const auto digits = [&](Nfa::State from) {
      const Nfa::State to = nfa.add_state();
      nfa.add_edge(from, '0', '9', to);
      nfa.add_edge(to, '0', '9', to);
      return to;
    };
    const Nfa::State start = nfa.add_state(), end = nfa.add_state();
    const Nfa::State minus = nfa.add_bytes(start, "-");
    const Nfa::State whole = nfa.add_state();
    nfa.add_edge(start, '1', '9', whole);
    nfa.add_edge(minus, '1', '9', whole);
    nfa.add_edge(whole, '0', '9', whole);
    nfa.add_edge(start, '0', '0', end);
    nfa.add_empty(whole, end);
    const Nfa::State point = nfa.add_state();
    nfa.add_edge(whole, '.', '.', point);
    nfa.add_edge(nfa.add_bytes(start, "0"), '.', '.', point);
    nfa.add_edge(nfa.add_bytes(minus, "0"), '.', '.', point);
    const Nfa::State fraction = digits(point);
    nfa.add_empty(fraction, end);
    const Nfa::State exponent = nfa.add_state(), sign = nfa.add_state();
    for (const char c : {'e', 'E'}) {
      const auto byte = static_cast<unsigned char>(c);
      nfa.add_edge(whole, byte, byte, exponent);
      nfa.add_edge(nfa.add_bytes(start, "0"), byte, byte, exponent);
      nfa.add_edge(fraction, byte, byte, exponent);
    }
    nfa.add_edge(exponent, '+', '+', sign);
    nfa.add_edge(exponent, '-', '-', sign);
    nfa.add_empty(exponent, sign);
    nfa.add_empty(digits(sign), end);
    return std::make_shared<const Dfa>(nfa.determinize(start, end));
  }();
  return made;
}

namespace {

std::shared_ptr<const Dfa> make_json_space(std::uint32_t most_blanks) {
  Nfa nfa;
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  nfa.add_empty(start, end);
  nfa.add_empty(nfa.add_bytes(start, " "), end);
  Nfa::State line = nfa.add_bytes(start, "\n");
  for (std::uint32_t i = 0; i <= most_blanks; ++i) {
    nfa.add_empty(line, end);
    if (i < most_blanks) line = nfa.add_bytes(line, " ");
  }
  return std::make_shared<const Dfa>(nfa.determinize(start, end));
}

}  // namespace

const std::shared_ptr<const Dfa>& json_space() {
  static const std::shared_ptr<const Dfa> made = make_json_space(kMaxIndent);
  return made;
}

const std::shared_ptr<const Dfa>& short_json_space() {
  static const std::shared_ptr<const Dfa> made = make_json_space(8);
  return made;
}

namespace {

Dfa search_dfa(std::string tag, bool with_tag, bool begins_line) {
  // A line begins after a line feed, and so does a text.
  if (begins_line) tag.insert(tag.begin(), '\n');
  const auto name = [&](std::size_t state) { return begins_line && state < 2 ? 1 - state : state; };
  // Knuth, Morris, Pratt: the state is how much of the tag the text ends with.
  std::vector<std::size_t> border(tag.size() + 1, 0);
  for (std::size_t i = 1, k = 0; i < tag.size(); ++i) {
    while (k > 0 && tag[i] != tag[k]) k = border[k];
    if (tag[i] == tag[k]) ++k;
    border[i + 1] = k;
  }
  // Bytes that are not in the tag are one class.
  DfaMaker::Raw raw;
  std::vector<int> samples = {-1};
  for (const char c : tag) {
    std::uint8_t& own = raw.classes[static_cast<unsigned char>(c)];
    if (own != 0) continue;
    own = static_cast<std::uint8_t>(samples.size());
    samples.push_back(static_cast<unsigned char>(c));
  }
  raw.num_classes = static_cast<std::uint16_t>(samples.size());
  for (std::size_t named = 0; named <= tag.size(); ++named) {
    const std::size_t state = name(named);
    raw.accepting.push_back((state == tag.size()) == with_tag);
    for (const int byte : samples) {
      if (state == tag.size()) {
        raw.table.push_back(Dfa::kDead);
        continue;
      }
      std::size_t k = state;
      while (k > 0 && static_cast<unsigned char>(tag[k]) != byte) k = border[k];
      if (static_cast<unsigned char>(tag[k]) == byte) ++k;
      const bool dead = k == tag.size() && !with_tag;
      raw.table.push_back(dead ? Dfa::kDead : static_cast<Dfa::State>(name(k)));
    }
  }
  return DfaMaker::make(std::move(raw));
}

}  // namespace

Dfa text_up_to(std::string_view tag, bool begins_line) {
  return search_dfa(std::string(tag), true, begins_line);
}
Dfa text_without(std::string_view tag, bool begins_line) {
  return search_dfa(std::string(tag), false, begins_line);
}

Dfa intersection(const Dfa& one, const Dfa& other, std::size_t* work) {
  using Name = std::pair<Dfa::State, Dfa::State>;
  if (one.start() == Dfa::kDead) return one;
  if (other.start() == Dfa::kDead) return other;
  return DfaMaker::explore<Name>(
      Name(one.start(), other.start()), one, other,
      [&](const Name& at, unsigned char byte) -> std::optional<Name> {
        const Name next(one.step(at.first, byte), other.step(at.second, byte));
        if (next.first == Dfa::kDead || next.second == Dfa::kDead) return std::nullopt;
        return next;
      },
      [&](const Name& at) { return one.accepts(at.first) && other.accepts(at.second); }, work);
}

Dfa difference(const Dfa& one, const Dfa& other, std::size_t* work) {
  using Name = std::pair<Dfa::State, Dfa::State>;
  if (one.start() == Dfa::kDead || other.start() == Dfa::kDead) return one;
  return DfaMaker::explore<Name>(
      Name(one.start(), other.start()), one, other,
      [&](const Name& at, unsigned char byte) -> std::optional<Name> {
        const Dfa::State next = one.step(at.first, byte);
        if (next == Dfa::kDead) return std::nullopt;
        return Name(next, at.second == Dfa::kDead ? Dfa::kDead : other.step(at.second, byte));
      },
      [&](const Name& at) {
        return one.accepts(at.first) && (at.second == Dfa::kDead || !other.accepts(at.second));
      },
      work);
}

Dfa behind(const Dfa& text, unsigned char byte) {
  Dfa rest = text;
  rest.id_ = next_dfa_id();
  if (text.start() != Dfa::kDead) rest.start_ = text.step(text.start(), byte);
  return rest;
}

Dfa ending(const Dfa& text, unsigned char last, std::string_view end, std::size_t* work) {
  if (text.start() == Dfa::kDead) return text;
  Nfa nfa;
  const Nfa::State accept = nfa.add_state();
  std::vector<Nfa::State> states;
  for (std::size_t i = 0; i < text.num_states(); ++i) states.push_back(nfa.add_state());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto next = [&](int byte) {
      const bool ends = byte == last;
      return ends ? Dfa::kDead
                  : text.step(static_cast<Dfa::State>(i), static_cast<unsigned char>(byte));
    };
    if (text.step(static_cast<Dfa::State>(i), last) != Dfa::kDead) {
      nfa.add_empty(nfa.add_bytes(states[i], end), accept);
    }
    for (int first = 0, after = 0; first < 256; first = after) {
      const Dfa::State to = next(first);
      for (after = first + 1; after < 256 && next(after) == to;) ++after;
      if (to == Dfa::kDead) continue;
      nfa.add_edge(states[i], static_cast<unsigned char>(first),
                   static_cast<unsigned char>(after - 1), states[to]);
    }
  }
  return nfa.determinize(states[text.start()], accept, work);
}

Dfa spelt_by(const Dfa& text, const std::bitset<256>& bytes) {
  Nfa nfa;
  const Nfa::State start = nfa.add_state();
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    const auto c = static_cast<unsigned char>(byte);
    if (bytes[byte]) nfa.add_edge(start, c, c, start);
  }
  return intersection(text, nfa.determinize(start, start));
}

bool has_dead_end(const Dfa& text, const std::bitset<256>& bytes) {
  if (text.start() == Dfa::kDead) return false;
  std::vector<std::vector<Dfa::State>> from(text.num_states());
  std::vector<bool> can_end(text.num_states()), is_reached(text.num_states());
  std::vector<Dfa::State> pending;
  const auto visit = [&](std::vector<bool>& seen, Dfa::State state) {
    if (state == Dfa::kDead || seen[state]) return;
    seen[state] = true;
    pending.push_back(state);
  };
  const auto next = [&] {
    const Dfa::State state = pending.back();
    pending.pop_back();
    return state;
  };
  for (visit(is_reached, text.start()); !pending.empty();) {
    const Dfa::State state = next();
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
      if (!bytes[byte]) continue;
      const Dfa::State to = text.step(state, static_cast<unsigned char>(byte));
      if (to != Dfa::kDead && (from[to].empty() || from[to].back() != state)) {
        from[to].push_back(state);
      }
      visit(is_reached, to);
    }
  }
  for (std::size_t i = 0; i < text.num_states(); ++i) {
    const auto state = static_cast<Dfa::State>(i);
    if (is_reached[i] && text.accepts(state)) visit(can_end, state);
  }
  while (!pending.empty()) {
    for (const Dfa::State state : from[next()]) visit(can_end, state);
  }
  return is_reached != can_end;
}

Dfa with_lengths(const Dfa& text, const StringDfa& shape, std::uint32_t least, std::uint32_t most,
                 std::size_t* work) {
  struct Name {
    Dfa::State text, shape;
    std::uint32_t count;
    auto operator<=>(const Name&) const = default;
  };
  if (text.start() == Dfa::kDead) return text;
  const std::uint32_t cap = most == kUnbounded ? least : most;
  return DfaMaker::explore<Name>(
      Name{text.start(), shape.dfa.start(), 0}, text, shape.dfa,
      [&](const Name& at, unsigned char byte) -> std::optional<Name> {
        Name next{text.step(at.text, byte), shape.dfa.step(at.shape, byte), at.count};
        if (next.text == Dfa::kDead || next.shape == Dfa::kDead) return std::nullopt;
        const bool opens = at.shape == shape.dfa.start() && at.shape != shape.inside;
        if (next.shape == shape.inside && !opens) {
          if (at.count == most) return std::nullopt;
          next.count = std::min(at.count + 1, cap);
        }
        return next;
      },
      [&](const Name& at) { return text.accepts(at.text) && at.count >= least; }, work);
}

std::string json_spelling(std::string_view text) {
  std::string spelt;
  spelt.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= json_escapes().size() || json_escapes()[byte].empty()) {
      spelt += c;
    } else {
      spelt += json_escapes()[byte];
    }
  }
  return spelt;
}

}  // namespace lintel::grammar
