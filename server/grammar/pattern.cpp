// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/pattern.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/grammar/expression.h"
#include "server/grammar/grammar.h"

namespace lintel::grammar {
namespace {

constexpr int kMostPatternGroups = 64;     // within one another
constexpr std::size_t kMostLookedAt = 64;  // places of one alternative with look-ahead
// Alternatives that groups with look-ahead multiply.
constexpr std::size_t kMostMultiplied = 64;
constexpr std::size_t kMostLookedFor = 4096;  // in all of them

const CodePointSet kAsciiDigits = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kBlank = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                             {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                             {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class PatternParser {
 public:
  PatternParser(std::string_view text, Expressions& expressions)
      : text_(text), expressions_(expressions) {}

  struct Branch;
  // The texts that have to follow, or must not.
  struct LookAhead {
    bool is_negative = false;
    std::vector<Branch> branches;  // anchored where it stands
  };
  // A part of a branch, with what is looked for where it begins.
  struct Part {
    std::vector<std::shared_ptr<const LookAhead>> look_ahead;
    ExpressionId expression = 0;
  };
  struct Branch {
    bool anchored_begin = false;
    bool anchored_end = false;
    std::vector<Part> parts;
  };

  // Reads the top-level alternatives. Anchors may stand there, in look-aheads, and in groups that
  // consist of look-aheads.
  std::vector<Branch> parse() {
    std::vector<Branch> branches = parse_branches(Where::kPattern, 0);
    if (at_ < text_.size()) refuse();
    return branches;
  }

  // The top-level alternatives without their outer anchors. REQUIRES: parse() returned.
  const std::vector<std::string_view>& alternatives() const { return alternatives_; }

  [[noreturn]] void refuse() const {
    throw GrammarError(GrammarError::Kind::kUnsupported, "", "pattern " + std::string(text_));
  }

 private:
  enum class Where {
    kPattern,
    kGroup,  // with look-ahead in it
    kLookAhead,
    kFirstLookAhead,  // where the text begins
  };

  std::vector<Branch> parse_branches(Where where, int groups) {
    const bool is_look_ahead = where == Where::kLookAhead || where == Where::kFirstLookAhead;
    std::vector<Branch> branches;
    do {
      std::vector<Branch> open(1);
      open[0].anchored_begin = is_look_ahead;
      const bool may_begin = where == Where::kPattern || where == Where::kFirstLookAhead;
      while (may_begin && take('^')) open[0].anchored_begin = true;
      const std::size_t begin = at_;
      for (bool is_first = true;; is_first = false) {
        const bool begins_text = is_first && where == Where::kPattern && open[0].anchored_begin;
        Branch part;
        part.parts.resize(1);
        while (!is_look_ahead && has_look_ahead()) {
          part.parts[0].look_ahead.push_back(
              parse_look_ahead(begins_text ? Where::kFirstLookAhead : Where::kLookAhead));
        }
        part.parts[0].expression =
            parse_sequence(groups, is_look_ahead ? Whole::kLookAhead : Whole::kBranch);
        append(open, {std::move(part)});
        if (!is_look_ahead && has_open_group()) {
          append(open, parse_open_group(groups));
        } else if (is_look_ahead || !has_look_ahead()) {
          break;
        }
      }
      if (where == Where::kPattern) alternatives_.push_back(text_.substr(begin, at_ - begin));
      while (take('$')) {
        for (Branch& branch : open) branch.anchored_end = true;
      }
      branches.insert(branches.end(), std::make_move_iterator(open.begin()),
                      std::make_move_iterator(open.end()));
    } while (take('|'));
    return branches;
  }

  bool is_empty(const Part& part) const {
    const Expression& expression = expressions_[part.expression];
    return part.look_ahead.empty() && expression.kind == Expression::Kind::kSequence &&
           expression.parts.empty();
  }

  // Continues each of `open` with each of `ways`.
  void append(std::vector<Branch>& open, const std::vector<Branch>& ways) const {
    if (ways.size() > 1 && open.size() * ways.size() > kMostMultiplied) refuse();
    std::vector<Branch> longer;
    std::size_t num_looked_for = 0;
    for (const Branch& branch : open) {
      for (const Branch& way : ways) {
        longer.push_back(branch);
        Branch& made = longer.back();
        made.anchored_end = branch.anchored_end || way.anchored_end;
        for (const Part& part : way.parts) {
          if (is_empty(part) && !made.parts.empty()) continue;
          if (branch.anchored_end) refuse();
          made.parts.push_back(part);
        }
        for (const Part& part : made.parts) num_looked_for += part.look_ahead.size();
        if (longer.size() > 1 && num_looked_for > kMostLookedFor) refuse();
        if (made.parts.size() > kMostLookedAt) refuse();
      }
    }
    open = std::move(longer);
  }

  bool has_look_ahead() const {
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with("(?=") || rest.starts_with("(?!");
  }

  // True if a group with look-ahead in it comes next.
  bool has_open_group() const {
    if (!has('(') || has_look_ahead()) return false;
    int depth = 0;
    bool in_class = false;
    for (std::size_t at = at_; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '\\') {
        ++at;
      } else if (in_class || c == '[') {
        in_class = c != ']';
      } else if (c == '(') {
        const std::string_view rest = text_.substr(at);
        if (rest.starts_with("(?=") || rest.starts_with("(?!")) return true;
        ++depth;
      } else if (c == ')' && --depth == 0) {
        return false;
      }
    }
    return false;
  }

  // The alternatives of a group that comes once, or not at all.
  std::vector<Branch> parse_open_group(int groups) {
    begin_group(groups);
    std::vector<Branch> branches = parse_branches(Where::kGroup, groups + 1);
    if (!take(')')) refuse();
    if (take('?')) {
      take('?');
      Branch none;
      none.parts.resize(1);
      none.parts[0].expression = expressions_.add_parts(Expression::Kind::kSequence, {});
      branches.push_back(std::move(none));
    }
    if (has('*') || has('+') || has('?') || has('{')) refuse();
    return branches;
  }

  std::shared_ptr<const LookAhead> parse_look_ahead(Where where) {
    const auto ahead = std::make_shared<LookAhead>();
    ahead->is_negative = text_[at_ + 2] == '!';
    at_ += 3;
    ahead->branches = parse_branches(where, 1);
    if (!take(')') || has('*') || has('+') || has('?') || has('{')) refuse();
    return ahead;
  }

  bool has(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!has(c)) return false;
    ++at_;
    return true;
  }
  char next() {
    if (at_ >= text_.size()) refuse();
    return text_[at_++];
  }

  ExpressionId parse_choice(int depth) {
    std::vector<ExpressionId> parts;
    do parts.push_back(parse_sequence(depth, Whole::kNone));
    while (take('|'));
    return expressions_.add_parts(Expression::Kind::kChoice, std::move(parts));
  }

  // A sequence of a branch ends with look-ahead and anchors, that of one in look-ahead with
  // anchors.
  enum class Whole { kNone, kBranch, kLookAhead };
  ExpressionId parse_sequence(int depth, Whole whole) {
    std::vector<ExpressionId> parts;
    while (at_ < text_.size() && !has('|') && !has(')')) {
      if (has('$') && whole == Whole::kNone) refuse();
      if (has('$')) break;
      if (whole == Whole::kBranch && has('(') && (has_look_ahead() || has_open_group())) break;
      parts.push_back(parse_quantifiers(parse_atom(depth)));
    }
    return expressions_.add_parts(Expression::Kind::kSequence, std::move(parts));
  }

  ExpressionId parse_quantifiers(ExpressionId atom) {
    std::uint32_t least = 0, most = kUnbounded;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (has('{')) {
      if (!parse_bounds(&least, &most)) refuse();
    } else {
      return atom;
    }
    take('?');  // a lazy quantifier accepts the same texts
    if (has('*') || has('+') || has('?') || has('{')) refuse();
    return expressions_.add_repeat(atom, least, most);
  }

  bool parse_number(std::uint32_t* value) {
    const std::size_t begin = at_;
    *value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      *value = *value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
      if (*value > kMaxRepetition) refuse();
    }
    return at_ > begin;
  }

  bool parse_bounds(std::uint32_t* least, std::uint32_t* most) {
    if (!take('{') || !parse_number(least)) return false;
    *most = *least;
    if (take(',')) {
      *most = kUnbounded;
      if (!has('}') && !parse_number(most)) return false;
    }
    return take('}') && *least <= *most;
  }

  ExpressionId parse_atom(int depth) {
    switch (text_[at_]) {
      case '(':
        return parse_group(depth);
      case '[':
        return parse_class();
      case '.':
        ++at_;
        return expressions_.add_class(complement(kLineEnds));
      case '\\':
        return expressions_.add_class(parse_escape(false));
      case '^':
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']':
        refuse();
      default:
        return expressions_.add_class(one(read()));
    }
  }

  ExpressionId parse_group(int depth) {
    begin_group(depth);
    const ExpressionId group = parse_choice(depth + 1);
    if (!take(')')) refuse();
    return group;
  }

  void begin_group(int depth) {
    if (depth >= kMostPatternGroups) refuse();
    ++at_;
    if (take('?')) {
      if (take('<')) {
        if (has('=') || has('!')) refuse();
        while (next() != '>') {
        }
      } else if (!take(':')) {
        refuse();
      }
    }
  }

  static CodePointSet one(char32_t c) { return {{c, c}}; }

  char32_t read() {
    char32_t c = 0;
    if (!read_code_point(text_, &at_, &c)) refuse();
    return c;
  }

  char32_t parse_hex(int digits) {
    char32_t value = 0;
    if (!read_hex(text_, &at_, digits, &value)) refuse();
    return value;
  }

  char32_t parse_unicode() {
    if (take('{')) {
      char32_t value = 0;
      const std::size_t begin = at_;
      while (!has('}')) {
        value = value << 4 | parse_hex(1);
        if (value > kLastCodePoint) refuse();
      }
      if (at_ == begin) refuse();
      ++at_;
      return value;
    }
    const char32_t high = parse_hex(4);
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || !take('\\') || !take('u')) refuse();
    const char32_t low = parse_hex(4);
    if (low < 0xDC00 || low > 0xDFFF) refuse();
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  CodePointSet parse_escape(bool in_class) {
    ++at_;
    const char c = next();
    switch (c) {
      case 'd':
        return kAsciiDigits;
      case 'D':
        return complement(kAsciiDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kBlank;
      case 'S':
        return complement(kBlank);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') refuse();
        return one(0);
      case 'x':
        return one(parse_hex(2));
      case 'u':
        return one(parse_unicode());
      case 'c': {
        const char letter = next();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))) refuse();
        return one(static_cast<char32_t>(letter & 0x1F));
      }
      case 'b':
        if (!in_class) refuse();
        return one('\b');
      default:
        // Letters and digits mean something else, or nothing.
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) refuse();
        --at_;
        return one(read());
    }
  }

  ExpressionId parse_class() {
    ++at_;
    const bool negated = take('^');
    CodePointSet set;
    while (!take(']')) {
      const bool is_escape = has('\\');
      if (at_ >= text_.size()) refuse();
      const CodePointSet first = is_escape ? parse_escape(true) : one(read());
      const bool is_range = has('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!is_range) {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const CodePointSet last = has('\\') ? parse_escape(true) : one(read());
      const auto is_one = [](const CodePointSet& s) {
        return s.size() == 1 && s[0].first == s[0].last;
      };
      if (!is_one(first) || !is_one(last) || first[0].first > last[0].first) refuse();
      set.push_back({first[0].first, last[0].first});
    }
    set = normalized(std::move(set));
    return expressions_.add_class(negated ? complement(set) : std::move(set));
  }

  std::string_view text_;
  Expressions& expressions_;
  std::size_t at_ = 0;
  std::vector<std::string_view> alternatives_;
};

// Makes an automaton of parsed branches.
class PatternCompiler {
 public:
  using Branches = std::vector<PatternParser::Branch>;

  // Adds its work to *work.
  PatternCompiler(const Expressions& expressions, Spelling spelling, std::size_t most_work,
                  std::size_t* work)
      : expressions_(expressions),
        spelling_(spelling),
        work_(*work),
        most_work_(*work + most_work) {}

  Dfa compile(const Branches& branches, bool is_quoted) {
    Nfa nfa;
    const Nfa::State start = nfa.add_state();
    const Nfa::State begin = is_quoted ? nfa.add_bytes(start, "\"") : start;
    const Nfa::State end = nfa.add_state();
    for (const PatternParser::Branch& branch : branches) {
      Nfa::State at = nfa.add_state();
      nfa.add_empty(begin, at);
      if (!branch.anchored_begin) at = nfa.add_any(at, spelling_);
      nfa.add_empty(add_parts(nfa, branch, 0, at), end);
    }
    return determinize(nfa, start, is_quoted ? nfa.add_bytes(end, "\"") : end);
  }

 private:
  Dfa determinize(const Nfa& nfa, Nfa::State start, Nfa::State end) {
    if (work_ >= most_work_) throw TooLarge("is too large");
    return nfa.determinize(start, end, &work_, most_work_ - work_);
  }

  // Adds a branch from part `first` on, up to the end of the text. As deep as it has parts with
  // look-ahead.
  Nfa::State add_parts(Nfa& nfa, const PatternParser::Branch& branch, std::size_t first,
                       Nfa::State from) {
    const PatternParser::Part& part = branch.parts[first];
    if (!part.look_ahead.empty()) return nfa.add_dfa(from, looked_at(branch, first));
    return add_rest(nfa, branch, first, from);
  }

  // The same without what is looked for at the beginning.
  Nfa::State add_rest(Nfa& nfa, const PatternParser::Branch& branch, std::size_t first,
                      Nfa::State from) {
    const ExpressionId expression = branch.parts[first].expression;
    const Nfa::State at = add_expression(nfa, expressions_, expression, {}, from, spelling_);
    if (first + 1 < branch.parts.size()) return add_parts(nfa, branch, first + 1, at);
    return branch.anchored_end ? at : nfa.add_any(at, spelling_);
  }

  Dfa looked_at(const PatternParser::Branch& branch, std::size_t first) {
    Nfa nfa;
    const Nfa::State start = nfa.add_state();
    Dfa rest = determinize(nfa, start, add_rest(nfa, branch, first, start));
    for (const auto& ahead : branch.parts[first].look_ahead) {
      const Dfa wanted = compile(ahead->branches, /*is_quoted=*/false);
      rest = ahead->is_negative ? difference(rest, wanted, &work_)
                                : intersection(rest, wanted, &work_);
    }
    return rest;
  }

  const Expressions& expressions_;
  const Spelling spelling_;
  std::size_t& work_;
  const std::size_t most_work_;
};

Dfa make_pattern_dfa(std::string_view pattern, Spelling spelling, std::size_t* work,
                     std::size_t most_work = kMaxDfaWork) {
  Expressions expressions;
  PatternParser parser(pattern, expressions);
  const std::vector<PatternParser::Branch> branches = parser.parse();
  try {
    std::size_t unread = 0;
    PatternCompiler compiler(expressions, spelling, most_work, work == nullptr ? &unread : work);
    return compiler.compile(branches, spelling == Spelling::kJsonString);
  } catch (const TooLarge&) {
    parser.refuse();
  }
}

#define LINTEL_HOUR_MINUTE "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define LINTEL_YEAR "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])"
#define LINTEL_LEAP_YEAR                        \
  "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|" \
  "(?:0[48]|[2468][048]|[13579][26])00)"
#define LINTEL_DATE                                  \
  "(?:" LINTEL_YEAR                                  \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|" \
  "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LINTEL_LEAP_YEAR "-02-29)"
#define LINTEL_TIME LINTEL_HOUR_MINUTE ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" LINTEL_HOUR_MINUTE ")"
// A label has at most 61 bytes, four of them less than 253.
#define LINTEL_LABEL "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
#define LINTEL_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LINTEL_IPV4 LINTEL_OCTET "(?:\\." LINTEL_OCTET "){3}"
// RFC 3986: IPv6address, with h16 and ls32.
#define LINTEL_H16 "[0-9a-fA-F]{1,4}"
#define LINTEL_LS32 "(?:" LINTEL_H16 ":" LINTEL_H16 "|" LINTEL_IPV4 ")"
#define LINTEL_UP_TO(count) "(?:(?:" LINTEL_H16 ":){0," count "}" LINTEL_H16 ")?::"
#define LINTEL_TIMES(count) "(?:" LINTEL_H16 ":){" count "}"
#define LINTEL_IPV6                                                                         \
  "(?:" LINTEL_TIMES("6") LINTEL_LS32 "|::" LINTEL_TIMES("5") LINTEL_LS32                   \
      "|(?:" LINTEL_H16 ")?::" LINTEL_TIMES("4") LINTEL_LS32 "|" LINTEL_UP_TO("1")          \
          LINTEL_TIMES("3") LINTEL_LS32 "|" LINTEL_UP_TO("2") LINTEL_TIMES("2") LINTEL_LS32 \
      "|" LINTEL_UP_TO("3") LINTEL_H16 ":" LINTEL_LS32 "|" LINTEL_UP_TO("4") LINTEL_LS32    \
      "|" LINTEL_UP_TO("5") LINTEL_H16 "|" LINTEL_UP_TO("6") ")"
// RFC 3986: a URI with its scheme.
#define LINTEL_PLAIN "[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2}"
#define LINTEL_PCHAR "(?:" LINTEL_PLAIN "|[:@])"
#define LINTEL_HOST "(?:\\[" LINTEL_IPV6 "\\]|(?:" LINTEL_PLAIN ")*)"
#define LINTEL_AUTHORITY "(?:(?:" LINTEL_PLAIN "|:)*@)?" LINTEL_HOST "(?::\\d*)?"
#define LINTEL_URI                                                                     \
  "[A-Za-z][A-Za-z0-9+.-]*:(?://" LINTEL_AUTHORITY "(?:/" LINTEL_PCHAR                 \
  "*)*"                                                                                \
  "|/(?:" LINTEL_PCHAR "+(?:/" LINTEL_PCHAR "*)*)?|" LINTEL_PCHAR "+(?:/" LINTEL_PCHAR \
  "*)*|)(?:\\?(?:" LINTEL_PCHAR "|[/?])*)?(?:#(?:" LINTEL_PCHAR "|[/?])*)?"
// RFC 3339, appendix A.
#define LINTEL_DURATION_TIME "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define LINTEL_DURATION             \
  "P(?:\\d+W|" LINTEL_DURATION_TIME \
  "|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" LINTEL_DURATION_TIME ")?)"

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kFormats = {{
    {"date", "^" LINTEL_DATE "$"},
    {"time", "^" LINTEL_TIME "$"},
    {"date-time", "^" LINTEL_DATE "T" LINTEL_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" LINTEL_IPV4 "$"},
    {"ipv6", "^" LINTEL_IPV6 "$"},
    {"uri", "^" LINTEL_URI "$"},
    {"duration", "^" LINTEL_DURATION "$"},
    {"email",
     "^[A-Za-z0-9](?:[._+-]?[A-Za-z0-9]){0,31}@" LINTEL_LABEL "(?:\\." LINTEL_LABEL "){1,3}$"},
    {"hostname", "^" LINTEL_LABEL "(?:\\." LINTEL_LABEL "){0,3}$"},
}};

#undef LINTEL_HOUR_MINUTE
#undef LINTEL_YEAR
#undef LINTEL_LEAP_YEAR
#undef LINTEL_DATE
#undef LINTEL_TIME
#undef LINTEL_LABEL
#undef LINTEL_OCTET
#undef LINTEL_IPV4
#undef LINTEL_H16
#undef LINTEL_LS32
#undef LINTEL_UP_TO
#undef LINTEL_TIMES
#undef LINTEL_IPV6
#undef LINTEL_PLAIN
#undef LINTEL_PCHAR
#undef LINTEL_HOST
#undef LINTEL_AUTHORITY
#undef LINTEL_URI
#undef LINTEL_DURATION_TIME
#undef LINTEL_DURATION

// An automaton that is made when it is first asked for.
struct FormatDfa {
  std::once_flag once;
  std::shared_ptr<const Dfa> dfa;
};

}  // namespace

Dfa pattern_dfa(std::string_view pattern, Spelling spelling, std::size_t* work,
                std::size_t most_work) {
  return make_pattern_dfa(pattern, spelling, work, most_work);
}

std::string whole_pattern(std::string_view pattern) {
  Expressions expressions;
  PatternParser parser(pattern, expressions);
  parser.parse();
  std::string whole;
  for (const std::string_view alternative : parser.alternatives()) {
    if (!whole.empty()) whole += '|';
    whole += '^';
    whole += alternative;
    whole += '$';
  }
  return whole;
}

std::shared_ptr<const Dfa> format_dfa(std::string_view format, Spelling spelling) {
  static std::array<FormatDfa, kFormats.size()> in_json, plain;
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].first != format) continue;
    FormatDfa& made = (spelling == Spelling::kJsonString ? in_json : plain)[i];
    std::call_once(made.once, [&] {
      made.dfa =
          std::make_shared<const Dfa>(make_pattern_dfa(kFormats[i].second, spelling, nullptr));
    });
    return made.dfa;
  }
  return nullptr;
}

}  // namespace lintel::grammar
