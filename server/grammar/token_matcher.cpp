// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/token_matcher.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lintel::grammar {
namespace {

// Masks of automata that take less work, in visits of nodes of the vocabulary, are made each time.
constexpr std::size_t kKeptAbove = 1'000;
// Subtrees of the vocabulary below which it does not pay to walk an automaton alone.
constexpr std::uint32_t kSmallSubtree = 16;
// Rests of tokens that are listed for one state.
constexpr std::size_t kMostRests = 50'000;
constexpr std::size_t kIdsInVisit = 4;  // set at once in the time of a visit
constexpr std::size_t kRestCost = 20;   // of a rest that is listed
// Frames that stacks on the way to one node of the vocabulary may hold, at some 100 bytes.
constexpr std::size_t kMostWalkFrames = 65'536;

void set_bits(std::span<const std::int32_t> ids, std::span<std::uint64_t> words) {
  for (const std::int32_t id : ids) {
    words[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
  }
}

void clear_bits(std::span<const std::int32_t> ids, std::span<std::uint64_t> words) {
  for (const std::int32_t id : ids) {
    words[static_cast<std::size_t>(id) / 64] &= ~(std::uint64_t{1} << (id % 64));
  }
}

void add_words(std::span<const std::uint64_t> from, std::span<std::uint64_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] |= from[i];
}

// An automaton alone, as a place of a grammar has it.
struct LocalPlace {
  const Dfa* dfa = nullptr;
  const CharacterCounts* counts = nullptr;  // null: nothing is counted
  LocalState at;
};

// Sets the bits of texts at and below a node that have at most so many characters.
void set_bits_within(const ByteTrie& trie, std::uint32_t node, std::size_t characters,
                     std::span<std::uint64_t> words) {
  const std::span<const std::int32_t> ids = trie.ids(node, trie.skip(node));
  const std::span<const std::uint8_t> counts = trie.characters(node, trie.skip(node));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t bit = counts[i] <= characters ? 1 : 0;
    words[static_cast<std::size_t>(ids[i]) / 64] |= bit << (ids[i] % 64);
  }
}

// True if `dfa` is in `state` again after every character that takes several bytes.
bool loops_on_characters(const Dfa& dfa, Dfa::State state) {
  struct Bytes {
    unsigned char first, last;
  };
  const auto loops = [&](auto self, Dfa::State from, std::span<const Bytes> bytes) -> bool {
    if (bytes.empty()) return from == state;
    Dfa::State seen = Dfa::kDead;  // neighbours mostly lead to the same state
    for (int byte = bytes[0].first; byte <= bytes[0].last; ++byte) {
      const Dfa::State to = dfa.step(from, static_cast<unsigned char>(byte));
      if (to == Dfa::kDead) return false;
      if (to != seen && !self(self, to, bytes.subspan(1))) return false;
      seen = to;
    }
    return true;
  };
  // RFC 3629, section 4.
  constexpr Bytes kTail{0x80, 0xBF};
  const auto all = [&](std::initializer_list<Bytes> bytes) {
    return loops(loops, state, std::span(bytes.begin(), bytes.size()));
  };
  return all({{0xC2, 0xDF}, kTail}) && all({{0xE0, 0xE0}, {0xA0, 0xBF}, kTail}) &&
         all({{0xE1, 0xEC}, kTail, kTail}) && all({{0xED, 0xED}, {0x80, 0x9F}, kTail}) &&
         all({{0xEE, 0xEF}, kTail, kTail}) && all({{0xF0, 0xF0}, {0x90, 0xBF}, kTail, kTail}) &&
         all({{0xF1, 0xF3}, kTail, kTail, kTail}) &&
         all({{0xF4, 0xF4}, {0x80, 0x8F}, kTail, kTail});
}

// The states of an automaton, with the content that leaves each as it is: a set of Content, 0 where
// no ASCII does. Made as they are asked for.
class Loops {
 public:
  explicit Loops(const Dfa& dfa) : dfa_(dfa), contents_(dfa.num_states(), kUnknown) {}

  std::uint8_t of(Dfa::State state) {
    std::int16_t& content = contents_[state];
    if (content == kUnknown) content = make(state);
    return static_cast<std::uint8_t>(content);
  }

 private:
  static constexpr std::int16_t kUnknown = -1;

  std::uint8_t make(Dfa::State state) const {
    std::uint8_t content = 0x7F & ~kOtherCharacters;
    for (int byte = 0; byte < 0x80; ++byte) {
      const auto c = static_cast<unsigned char>(byte);
      if (dfa_.step(state, c) != state) content &= static_cast<std::uint8_t>(~content_of(c));
    }
    if (content != 0 && loops_on_characters(dfa_, state)) content |= kOtherCharacters;
    return content;
  }

  const Dfa& dfa_;
  std::vector<std::int16_t> contents_;
};

// Walks nodes [begin, end) of a trie, which are below a node of depth `depth`. Sets the bits of
// tokens that end within the automaton, and appends the nodes at which it accepts while more bytes
// follow. Returns the number of nodes visited.
template <bool kCounts>
std::size_t walk_automaton(const ByteTrie& trie, std::uint32_t begin, std::uint32_t end,
                           std::size_t depth, const LocalPlace& place,
                           std::span<std::uint64_t> words, std::vector<std::uint32_t>& leaves) {
  struct Level {
    Dfa::State state;
    std::uint32_t needed, left;
  };
  const Dfa& dfa = *place.dfa;
  std::vector<Level> levels(trie.longest() + 1);
  levels[0] = {place.at.state, place.at.needed, place.at.left};
  Loops loops(dfa);
  std::size_t visited = 0;
  for (std::uint32_t node = begin; node < end; ++visited) {
    const std::size_t level = trie.depth(node) - depth;
    const Level& from = levels[level - 1];
    const Dfa::State state = dfa.step(from.state, trie.byte(node));
    if (state == Dfa::kDead) {
      node = trie.skip(node);
      continue;
    }
    const bool accepts = dfa.accepts(state);
    Level& to = levels[level];
    to.state = state;
    if constexpr (kCounts) {
      const bool is_counted = place.counts->is_counted(state);
      to.needed = from.needed - (is_counted && from.needed > 0 ? 1 : 0);
      to.left = from.left - (is_counted && from.left != kUnbounded ? 1 : 0);
      if ((is_counted && from.left == 0) || !place.counts->can_end(state, to.needed, to.left)) {
        node = trie.skip(node);
        continue;
      }
    }
    const std::uint32_t skip = trie.skip(node);
    if (skip - node > kSmallSubtree && (trie.content_below(node) & ~loops.of(state)) == 0 &&
        (!kCounts || to.left == kUnbounded || (trie.has_counts() && !accepts))) {
      if (kCounts && to.left != kUnbounded) {
        // A character that leaves the state as it is takes nothing from what may follow.
        const std::size_t left = to.left - place.counts->any_from(state);
        set_bits_within(trie, node, trie.characters_to(node) + left, words);
      } else {
        set_bits(trie.ids(node, skip), words);
      }
      // Texts below need no leaf if the state accepts: their bits are set.
      visited += trie.ids(node, skip).size() / kIdsInVisit;
      node = skip;
      continue;
    }
    set_bits(trie.ids(node), words);
    const bool is_enough = !kCounts || to.needed == 0;
    if (accepts && is_enough && skip > node + 1) leaves.push_back(node);
    node = dfa.continues(state) ? node + 1 : skip;
  }
  return visited;
}

std::size_t walk_locally(const ByteTrie& trie, std::uint32_t begin, std::uint32_t end,
                         std::size_t depth, const LocalPlace& place, std::span<std::uint64_t> words,
                         std::vector<std::uint32_t>& leaves) {
  return place.counts == nullptr
             ? walk_automaton<false>(trie, begin, end, depth, place, words, leaves)
             : walk_automaton<true>(trie, begin, end, depth, place, words, leaves);
}

std::size_t count_rests(const ByteTrie& trie, const std::vector<std::uint32_t>& leaves) {
  std::size_t count = 0;
  for (const std::uint32_t leaf : leaves) count += trie.ids(leaf + 1, trie.skip(leaf)).size();
  return count;
}

// One trie of the texts after the nodes `leaves`, with the ids of their tokens.
ByteTrie rests_of(const Vocabulary& vocabulary, const std::vector<std::uint32_t>& leaves) {
  const ByteTrie& trie = vocabulary.trie();
  std::vector<std::pair<std::string_view, std::int32_t>> rests;
  for (const std::uint32_t leaf : leaves) {
    for (const std::int32_t id : trie.ids(leaf + 1, trie.skip(leaf))) {
      rests.emplace_back(vocabulary.bytes_of(id).substr(trie.depth(leaf)), id);
    }
  }
  return ByteTrie(std::move(rests));
}

std::shared_ptr<const LocalMask> make_local_mask(const Vocabulary& vocabulary,
                                                 const LocalPlace& place, std::size_t* visited) {
  auto mask = std::make_shared<LocalMask>();
  mask->inside.resize(vocabulary.mask_words());
  std::vector<std::uint32_t> leaves;
  *visited =
      walk_locally(vocabulary.trie(), 0, vocabulary.trie().size(), 0, place, mask->inside, leaves);
  const std::size_t num_rests = count_rests(vocabulary.trie(), leaves);
  mask->ends_anywhere = num_rests > kMostRests;
  if (mask->ends_anywhere) return mask;
  mask->rests = rests_of(vocabulary, leaves);
  *visited += kRestCost * num_rests;
  return mask;
}

// The automaton of `place`, if its node is one.
bool find_local(const Grammar& grammar, const Place& place, std::size_t longest,
                LocalPlace* local) {
  const Node& node = grammar[place.node];
  if (node.kind != Node::Kind::kDfa) return false;
  local->dfa = node.dfa.get();
  local->counts = node.counts.get();
  local->at = {node.dfa->id(), static_cast<Dfa::State>(place.a), 0, kUnbounded};
  if (node.counts == nullptr) return true;
  // Counts beyond the reach of any token make no difference.
  const std::size_t reached = longest + node.counts->horizon();
  if (place.b < node.least) {
    local->at.needed =
        static_cast<std::uint32_t>(std::min<std::size_t>(node.least - place.b, reached + 1));
  }
  if (node.most != kUnbounded && node.most - place.b <= reached) {
    local->at.left = node.most - place.b;
  }
  return true;
}

}  // namespace

// A mask while it is made: jobs, each of which walks a part of a trie with stacks.
class MaskMaker {
 public:
  explicit MaskMaker(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), words_(vocabulary.mask_words()) {}

  bool is_ready() const { return ready_; }
  std::span<const std::uint64_t> words() const { return words_; }
  // True if the mask would take more work than is served; it is empty then.
  bool exceeded() const { return exceeded_; }
  void forget() {
    started_ = ready_ = exceeded_ = false;
    next_top_ = 0;
    walked_ = 0;
    together_.clear();
    stages_.clear();
    jobs_.clear();
    stepper_.reset();
  }

  bool run(const Matcher& matcher, bool ended, std::size_t* budget) {
    if (ready_) return true;
    grammar_ = &matcher.grammar();
    if (!stepper_) stepper_.emplace(*grammar_);
    if (matcher.exceeded()) give_up();
    if (!started_ && !start(matcher, ended, *stepper_, budget)) return false;
    while (true) {
      if (walked_ > kMaxMaskWork || stepper_->exceeded()) give_up();
      if (!jobs_.empty()) {
        if (*budget == 0) return false;
        run_job(matcher.grammar(), *stepper_, budget);
      } else if (!stages_.empty()) {
        finish_stage(matcher.grammar());
      } else {
        stepper_.reset();
        ready_ = true;
        return true;
      }
      if (*budget == 0) return false;
    }
  }

 private:
  // A walk through what is below some nodes of a trie, from the same stacks.
  struct Job {
    std::shared_ptr<const LocalMask> owner;  // of `trie`; null: the vocabulary
    const ByteTrie* trie;
    std::vector<std::uint32_t> roots;  // kWholeTrie: no node
    Stacks stacks;                     // there
    bool into_stage;
    bool in_steps = false;  // no automaton is walked alone
    // Progress of a job that has started.
    std::size_t next_root = 0;
    std::uint32_t next = 0, end = 0;  // nodes that are left below the current root
    std::size_t depth = 0;            // of the root
    std::size_t next_top = 0;         // of the stacks above `next`: those before it are done
    std::vector<Stacks> levels = {};  // by depth
  };
  static constexpr std::uint32_t kWholeTrie = 0xFFFFFFFF;
  // Keys that must not become one of `names`: their words are made apart.
  struct Stage {
    const Node* node;
    FreeKey key;
    std::shared_ptr<const LocalMask> local;
    Place place;
  };

  // Looks at alternatives while there is budget, at one at least. Returns whether it has seen all.
  bool start(const Matcher& matcher, bool ended, Stepper& stepper, std::size_t* budget) {
    const Grammar& grammar = matcher.grammar();
    const std::vector<Place>& tops = matcher.stacks().tops;
    if (next_top_ == 0) {
      std::ranges::fill(words_, 0);
      if (matcher.accepts() && !ended) set_bits(vocabulary_.end_tokens(), words_);
    }
    for (bool is_first = true; next_top_ < tops.size() && !ended; ++next_top_, is_first = false) {
      if (*budget == 0 && !is_first) return false;
      const Place& place = tops[next_top_];
      LocalPlace local;
      FreeKey key{};
      if (find_local(grammar, place, vocabulary_.longest(), &local)) {
        add_local(local, place, stepper, budget);
      } else if (is_free_key(grammar, place, &key)) {
        add_free_key(grammar, key, place, budget);
      } else {
        together_.tops.push_back(place);
      }
    }
    started_ = true;
    if (!together_.tops.empty()) {
      jobs_.push_back(
          {nullptr, &vocabulary_.trie(), {kWholeTrie}, std::exchange(together_, {}), false});
    }
    if (!stages_.empty()) begin_stage(grammar);
    return true;
  }

  static void spend(std::size_t work, std::size_t* budget) { *budget -= std::min(work, *budget); }
  // The same of work that does not depend on the masks that the vocabulary keeps: it is bounded.
  void spend_walking(std::size_t work, std::size_t* budget) {
    walked_ += work;
    spend(work, budget);
  }

  void give_up() {
    forget();
    std::ranges::fill(words_, 0);
    started_ = exceeded_ = true;
    stepper_.emplace(*grammar_);
  }

  std::shared_ptr<const LocalMask> local_mask(const LocalPlace& local, std::size_t* budget) {
    std::shared_ptr<const LocalMask> mask = vocabulary_.find(local.at);
    if (mask != nullptr) return mask;
    std::size_t visited = 0;
    mask = make_local_mask(vocabulary_, local, &visited);
    spend(visited, budget);
    if (visited > kKeptAbove) vocabulary_.keep(local.at, mask);
    return mask;
  }

  void add_local(const LocalPlace& local, const Place& place, Stepper& stepper,
                 std::size_t* budget) {
    const std::shared_ptr<const LocalMask> mask = local_mask(local, budget);
    add_words(mask->inside, words_);
    spend_walking(words_.size() / kIdsInVisit, budget);
    if (mask->rests.size() == 0 && !mask->ends_anywhere) return;
    Stacks after;
    stepper.complete(place.below, after);
    spend_walking(stepper.take_work(), budget);
    if (after.tops.empty()) return;
    if (mask->ends_anywhere) {
      after.clear();
      after.tops.push_back(place);
      jobs_.push_back({nullptr, &vocabulary_.trie(), {kWholeTrie}, std::move(after), false, true});
      return;
    }
    jobs_.push_back({mask, &mask->rests, {kWholeTrie}, std::move(after), false});
  }

  void add_free_key(const Grammar& grammar, const FreeKey& key, const Place& place,
                    std::size_t* budget) {
    const LocalPlace local{key.dfa, nullptr, {key.dfa->id(), key.state, 0, kUnbounded}};
    stages_.push_back({&grammar[place.node], key, local_mask(local, budget), place});
  }

  void begin_stage(const Grammar& grammar) {
    const Stage& stage = stages_.back();
    stage_words_ = stage.local->inside;
    Stacks after;
    end_free_key(grammar, stage.place, after);
    jobs_.push_back({stage.local, &stage.local->rests, {kWholeTrie}, std::move(after), true});
  }

  // Tokens that would end a key as one of the names are left to the names.
  void finish_stage(const Grammar& grammar) {
    const Stage& stage = stages_.back();
    const ByteTrie& trie = vocabulary_.trie();
    for (std::uint32_t i = stage.key.begin; i < stage.key.end; ++i) {
      const std::string rest = stage.node->texts[i].substr(stage.key.size) + '"';
      const std::uint32_t node = trie.find(rest);
      if (node < trie.size()) clear_bits(trie.ids(node, trie.skip(node)), stage_words_);
    }
    add_words(stage_words_, words_);
    stages_.pop_back();
    if (!stages_.empty()) begin_stage(grammar);
  }

  // The last job, until it ends or the budget is used up, be it amid the tops of one node.
  void run_job(const Grammar& grammar, Stepper& stepper, std::size_t* budget) {
    Job job = std::move(jobs_.back());
    jobs_.pop_back();
    const ByteTrie& trie = *job.trie;
    const std::span<std::uint64_t> words = job.into_stage ? stage_words_ : words_;
    if (job.levels.empty()) {
      job.levels = std::move(levels_);
      if (job.levels.empty()) job.levels.resize(1);
      job.levels[0] = std::move(job.stacks);
      job.levels[0].frames = 0;
    }
    std::vector<Stacks>& levels = job.levels;
    while (*budget > 0 && begin_root(job)) {
      const std::uint32_t node = job.next;
      const std::size_t level = trie.depth(node) - job.depth;
      if (levels.size() <= level) levels.resize(level + 1);
      const Stacks& from = levels[level - 1];
      Stacks& to = levels[level];
      if (job.next_top == 0) {
        to.clear();
        stepper.begin_step();
        spend_walking(kStepCost, budget);
      }
      while (job.next_top < from.tops.size()) {
        stepper.step(from.tops[job.next_top++], trie.byte(node), to);
        spend_walking(kStepCost + stepper.take_work(), budget);
        if (*budget == 0) break;
      }
      if (job.next_top < from.tops.size()) break;
      job.next_top = 0;
      const std::uint32_t skip = trie.skip(node);
      job.next = skip;
      if (!to.tops.empty() || to.accepts) {
        set_bits(trie.ids(node), words);
        // An upper bound of the frames on the path to the node.
        to.frames = from.frames + std::min(to.frames, to.levels);
        if (to.frames > kMostWalkFrames) return give_up();
        LocalPlace local;
        if (!job.in_steps && skip - node > kSmallSubtree && to.tops.size() == 1 &&
            find_local(grammar, to.tops[0], vocabulary_.longest(), &local)) {
          add_subtree(job, node, local, to.tops[0], stepper, words, budget);
        } else {
          job.next = node + 1;
        }
      }
    }
    if (job.next < job.end || job.next_root < job.roots.size()) {
      jobs_.push_back(std::move(job));
    } else {
      levels_ = std::move(levels);
    }
  }

  // Returns whether a node is left. Begins the next root where none is below the current one.
  static bool begin_root(Job& job) {
    const ByteTrie& trie = *job.trie;
    while (job.next >= job.end) {
      if (job.next_root == job.roots.size()) return false;
      const std::uint32_t root = job.roots[job.next_root++];
      const bool is_whole = root == kWholeTrie;
      job.next = is_whole ? 0 : root + 1;
      job.end = is_whole ? trie.size() : trie.skip(root);
      job.depth = is_whole ? 0 : trie.depth(root);
    }
    return true;
  }

  // The nodes below `node`, at which an automaton is alone.
  void add_subtree(const Job& job, std::uint32_t node, const LocalPlace& local, const Place& place,
                   Stepper& stepper, std::span<std::uint64_t> words, std::size_t* budget) {
    const ByteTrie& trie = *job.trie;
    std::vector<std::uint32_t> leaves;
    spend_walking(
        walk_locally(trie, node + 1, trie.skip(node), trie.depth(node), local, words, leaves),
        budget);
    if (leaves.empty()) return;
    Stacks after;
    stepper.complete(place.below, after);
    spend_walking(stepper.take_work(), budget);
    if (after.tops.empty()) return;
    const bool ends_anywhere = count_rests(trie, leaves) > kMostRests;
    if (ends_anywhere) {
      after.clear();
      after.tops.push_back(place);
      leaves = {node};
    }
    jobs_.push_back(
        {job.owner, &trie, std::move(leaves), std::move(after), job.into_stage, ends_anywhere});
  }

  const Vocabulary& vocabulary_;
  const Grammar* grammar_ = nullptr;
  MaskWords words_;
  MaskWords stage_words_;
  std::vector<Stage> stages_;
  std::vector<Job> jobs_;
  std::vector<Stacks> levels_;      // memory for the next job
  std::size_t next_top_ = 0;        // of the alternatives, while it starts
  Stacks together_;                 // those that are no automata alone
  std::optional<Stepper> stepper_;  // while the mask is made
  std::size_t walked_ = 0;          // work that counts for kMaxMaskWork
  bool started_ = false;
  bool ready_ = false;
  bool exceeded_ = false;
};

TokenMatcher::TokenMatcher(std::shared_ptr<const Grammar> grammar,
                           std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)), matcher_(std::move(grammar)) {}

TokenMatcher::TokenMatcher(const TokenMatcher& other)
    : vocabulary_(other.vocabulary_),
      matcher_(other.matcher_),
      ended_(other.ended_),
      owed_(other.owed_) {}

TokenMatcher& TokenMatcher::operator=(const TokenMatcher& other) {
  if (this == &other) return *this;
  // The memory of the mask stays, if it is of the same vocabulary.
  if (vocabulary_ != other.vocabulary_) maker_.reset();
  if (maker_ != nullptr) maker_->forget();
  vocabulary_ = other.vocabulary_;
  matcher_ = other.matcher_;
  ended_ = other.ended_;
  owed_ = other.owed_;
  return *this;
}

TokenMatcher::TokenMatcher(TokenMatcher&&) noexcept = default;
TokenMatcher& TokenMatcher::operator=(TokenMatcher&&) noexcept = default;
TokenMatcher::~TokenMatcher() = default;

bool TokenMatcher::prepare(std::size_t* budget) {
  if (maker_ == nullptr) maker_ = std::make_unique<MaskMaker>(*vocabulary_);
  const std::size_t paid = std::min(owed_, *budget);
  owed_ -= paid;
  *budget -= paid;
  if (owed_ > 0) return false;
  return maker_->run(matcher_, ended_, budget);
}

std::span<const std::uint64_t> TokenMatcher::mask() {
  std::size_t budget = kMaskBudget;
  while (!prepare(&budget)) budget = kMaskBudget;
  return maker_->words();
}

bool TokenMatcher::exceeded() const {
  return matcher_.exceeded() || (maker_ != nullptr && maker_->exceeded());
}

int TokenMatcher::needed_byte() const {
  int needed = -1;
  std::size_t work = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (work > kMaxAdvanceWork) return -1;
    Matcher next = matcher_;
    const auto c = static_cast<char>(byte);
    if (!next.advance({&c, 1}, &work)) continue;
    if (needed >= 0) return -1;
    needed = byte;
  }
  return needed;
}

std::int32_t TokenMatcher::only_token() {
  std::int32_t only = -1;
  const std::span<const std::uint64_t> words = mask();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == 0) continue;
    if (only >= 0 || !std::has_single_bit(words[i])) return -1;
    only = static_cast<std::int32_t>(i * 64) + std::countr_zero(words[i]);
  }
  return only;
}

bool TokenMatcher::advance(std::int32_t token) {
  if (ended_) return false;
  if (vocabulary_->ends(token)) {
    if (!matcher_.accepts()) return false;
    ended_ = true;
  } else {
    const std::string_view bytes = vocabulary_->bytes_of(token);
    if (bytes.empty() || !matcher_.advance(bytes, &owed_)) return false;
  }
  if (maker_ != nullptr) maker_->forget();
  return true;
}

bool TokenMatcher::advance_text(std::string_view text) {
  if (ended_ || !matcher_.advance(text, &owed_)) return false;
  if (maker_ != nullptr) maker_->forget();
  return true;
}

void warm_masks(const Vocabulary& vocabulary,
                std::span<const std::shared_ptr<const Dfa>> automata) {
  const auto warm = [&](const Dfa& dfa, Dfa::State state) {
    const LocalPlace place{&dfa, nullptr, {dfa.id(), state, 0, kUnbounded}};
    if (vocabulary.find(place.at) != nullptr) return;
    std::size_t visited = 0;
    std::shared_ptr<const LocalMask> mask = make_local_mask(vocabulary, place, &visited);
    if (visited > kKeptAbove) vocabulary.keep(place.at, std::move(mask));
  };
  const auto warm_all = [&](const Dfa& dfa) {
    for (std::size_t i = 0; i < dfa.num_states(); ++i) warm(dfa, static_cast<Dfa::State>(i));
  };
  warm_all(json_string()->dfa);
  warm_all(json_key()->dfa);
  for (const std::shared_ptr<const Dfa>& dfa : automata) warm_all(*dfa);
}

}  // namespace lintel::grammar
