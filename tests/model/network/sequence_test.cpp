// SPDX-License-Identifier: Apache-2.0
#include "model/sequence.h"

#include <algorithm>
#include <utility>

#include "tests/support/catch.h"

namespace lintel {
namespace {

// Looks at its part of the block when it dies.
struct Witness {
  int states = 0;
  bool all_zero = true;
};

class WitnessState final : public LayerState {
 public:
  WitnessState(std::span<float> block, Witness* witness) : block_(block), witness_(witness) {}
  ~WitnessState() override {
    ++witness_->states;
    witness_->all_zero &=
        std::all_of(block_.begin(), block_.end(), [](float value) { return value == 0.0f; });
  }
  std::size_t bytes() const override { return block_.size_bytes(); }
  void assign(const LayerState& other) override {
    std::ranges::copy(static_cast<const WitnessState&>(other).block_, block_.begin());
  }
  void reset() override { std::fill(block_.begin(), block_.end(), 0.0f); }
  void begin_speculation(std::size_t, std::span<float>) override {}
  void rollback(std::size_t) override {}
  void save(std::int64_t, StateWriter&) const override {}
  void load(std::int64_t, StateReader&) override {}
  std::span<float> block() { return block_; }

 private:
  std::span<float> block_;
  Witness* witness_;
};

class WitnessLayout final : public StateLayout {
 public:
  WitnessLayout(std::size_t floats, Witness* witness) : floats_(floats), witness_(witness) {}
  std::size_t block_floats() const override { return floats_; }
  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    return std::make_unique<WitnessState>(block, witness_);
  }
  std::size_t state_bytes(std::int64_t) const override { return floats_ * sizeof(float); }
  std::int64_t tokens_until_full() const override { return 0; }
  std::size_t rollback_floats(std::size_t, std::int64_t) const override { return 0; }

 private:
  std::size_t floats_;
  Witness* witness_;
};

struct Fixture {
  Fixture() {
    for (const std::size_t floats : {5, 16, 33}) {
      layouts.push_back(std::make_unique<WitnessLayout>(floats, &witness));
    }
  }
  SequenceState filled() {
    SequenceState sequence(layouts, 4);
    for (std::size_t i = 0; i < 3; ++i) {
      auto block = static_cast<WitnessState*>(sequence.layer(i))->block();
      std::fill(block.begin(), block.end(), static_cast<float>(i + 1));
    }
    sequence.counts.add(0);
    sequence.counts.add(2, 2);
    sequence.pending = 2;
    sequence.generated_tail = "tail";
    sequence.advance();
    sequence.advance();
    return sequence;
  }
  std::span<float> block(SequenceState& sequence, std::size_t i) {
    return static_cast<WitnessState*>(sequence.layer(i))->block();
  }
  Witness witness;
  std::vector<std::shared_ptr<const StateLayout>> layouts;
};

TEST_CASE("layers have blocks of their own, each at a cache line") {
  Fixture f;
  SequenceState sequence = f.filled();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto block = f.block(sequence, i);
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % kAlignment == 0);
    for (const float value : block) CHECK(value == static_cast<float>(i + 1));
  }
  CHECK(sequence.bytes() == (5 + 16 + 33) * sizeof(float) + 4 * sizeof(std::uint32_t));
}

TEST_CASE("a sequence is zeroed before its memory goes back") {
  Fixture f;
  SECTION("destroyed") { f.filled(); }
  SECTION("assigned over") {
    SequenceState sequence = f.filled();
    sequence = SequenceState(f.layouts, 4);
    CHECK(f.witness.states == 3);
  }
  SECTION("moved, then destroyed") {
    SequenceState from = f.filled();
    const SequenceState to = std::move(from);
    CHECK(to.position() == 2);
  }
  CHECK(f.witness.states >= 3);
  CHECK(f.witness.all_zero);
}

TEST_CASE("a clone has everything and shares nothing") {
  Fixture f;
  SequenceState original = f.filled();
  SequenceState copy = original.clone();
  CHECK(copy.position() == 2);
  CHECK(copy.num_tokens() == 3);
  CHECK(copy.pending == 2);
  CHECK(copy.counts == original.counts);
  CHECK(copy.generated_tail == "tail");
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(std::ranges::equal(f.block(copy, i), f.block(original, i)));
    CHECK(f.block(copy, i).data() != f.block(original, i).data());
  }
}

TEST_CASE("a reset sequence is an empty one") {
  Fixture f;
  SequenceState sequence = f.filled();
  sequence.reset();
  CHECK(sequence.position() == 0);
  CHECK(sequence.num_tokens() == 0);
  CHECK_FALSE(sequence.pending.has_value());
  CHECK(sequence.counts.all() == std::vector<std::uint32_t>(4, 0));
  CHECK(sequence.generated_tail.empty());
  for (std::size_t i = 0; i < 3; ++i) {
    for (const float value : f.block(sequence, i)) CHECK(value == 0.0f);
  }
}

}  // namespace
}  // namespace lintel
