// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/character_counts.h"

#include <algorithm>

namespace lintel::grammar {
namespace {

// Rounds of which each finds what one more character leads to.
constexpr std::uint32_t kMostRounds = 128;

struct CountedEdge {
  Dfa::State from = 0;
  bool counts = false;
};

}  // namespace

std::shared_ptr<const CharacterCounts> CharacterCounts::of(const Dfa& dfa, const StringDfa& shape,
                                                           std::size_t* work) {
  const std::size_t size = dfa.num_states();
  auto made = std::make_shared<CharacterCounts>();
  if (dfa.start() == Dfa::kDead) return made;
  made->states_.resize(size);
  made->frame_ = shape.dfa.start() == shape.inside ? 0 : 1;
  const auto charge = [work](std::size_t units) {
    if (work != nullptr) *work += units;
  };

  // Each state belongs to one of `shape`, or characters end at it and within it.
  std::vector<Dfa::State> shapes(size, Dfa::kDead);
  std::vector<Dfa::State> pending = {dfa.start()};
  shapes[dfa.start()] = shape.dfa.start();
  std::vector<std::vector<CountedEdge>> steps(size);  // to each state
  const std::vector<unsigned char> bytes = samples_of(dfa, shape.dfa);
  while (!pending.empty()) {
    const Dfa::State from = pending.back();
    pending.pop_back();
    charge(bytes.size());
    for (const unsigned char byte : bytes) {
      const Dfa::State to = dfa.step(from, byte);
      if (to == Dfa::kDead) continue;
      const Dfa::State place = shape.dfa.step(shapes[from], byte);
      if (place == Dfa::kDead || (shapes[to] != Dfa::kDead && shapes[to] != place)) return nullptr;
      if (shapes[to] == Dfa::kDead) {
        shapes[to] = place;
        made->states_[to].is_counted = place == shape.inside;
        pending.push_back(to);
      }
      const CountedEdge step{from, place == shape.inside};
      if (steps[to].empty() || steps[to].back().from != from) steps[to].push_back(step);
    }
  }
  // A start within the text is entered by every character that leads back to it.
  if (made->frame_ == 0) made->states_[dfa.start()].is_counted = true;

  // Round n finds the states after which n counts may follow.
  std::vector<bool> before, now(size, false);
  std::vector<std::uint32_t> runs(size, 0);  // of rounds one after the other that found a state
  std::vector<Dfa::State> found;
  const auto find = [&](Dfa::State state) {
    if (now[state]) return;
    now[state] = true;
    found.push_back(state);
  };
  std::size_t num_steps = size;
  for (const std::vector<CountedEdge>& some : steps) num_steps += some.size();
  for (std::uint32_t round = 0; round < kMostRounds; ++round) {
    charge(num_steps);
    for (std::size_t state = 0; state < size; ++state) {
      if (round == 0 && dfa.accepts(static_cast<Dfa::State>(state))) {
        find(static_cast<Dfa::State>(state));
      }
      if (round == 0 || !before[state]) continue;
      for (const CountedEdge& step : steps[state]) {
        if (step.counts) find(step.from);
      }
    }
    for (; !found.empty();) {
      const Dfa::State state = found.back();
      found.pop_back();
      for (const CountedEdge& step : steps[state]) {
        if (!step.counts) find(step.from);
      }
    }
    for (std::size_t state = 0; state < size; ++state) {
      Counts& counts = made->states_[state];
      const bool was = round > 0 && before[state];
      if (now[state] && !was) {
        if (counts.fewest == kNever) {
          counts.fewest = round;
        } else if (counts.any_from == kNever) {
          counts.any_from = round;
        } else {
          return nullptr;
        }
        runs[state] = 0;
      }
      if (now[state]) ++runs[state];
      // Numbers that end here must have been the single one.
      if (was && !now[state] && (runs[state] > 1 || counts.any_from != kNever)) return nullptr;
    }
    if (round > 0 && now == before) {
      for (std::size_t state = 0; state < size; ++state) {
        Counts& counts = made->states_[state];
        if (now[state] && counts.any_from == kNever) counts.any_from = counts.fewest;
      }
      made->horizon_ = round;
      return made;
    }
    before = std::move(now);
    now.assign(size, false);
  }
  return nullptr;
}

}  // namespace lintel::grammar
