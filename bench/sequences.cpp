#include "bench/sequences.h"

#include <algorithm>
#include <cassert>

#include "bench/sequence_plan.h"

namespace lintel::bench {
Sequences::Sequences(const Transformer& model, std::size_t count,
                     std::span<const std::shared_ptr<const Adapter>> adapters)
    : model_(model),
      workspace_(model.new_workspace(std::max(count, model.most_prompt_rows()))),
      prompt_rows_(model.most_prompt_rows()),
      drawn_(count) {
  for (std::size_t i = 0; i < count; ++i) {
    sequences_.push_back(
        model.new_sequence(adapters.empty() ? nullptr : adapters[i % adapters.size()]));
  }
  start(count, 0);
}

void Sequences::start(std::size_t count, std::uint64_t seed) {
  assert(count >= 1 && count <= sequences_.size());
  count_ = count;
  seed_ = seed;
  const std::int32_t first_value =
      sequence_plan(model_.config()).first_value.value_or(model_.config().image.start_token);
  for (std::size_t i = 0; i < count; ++i) {
    sequences_[i].reset();
    sequences_[i].pending = first_value;
    drawn_[i].clear();
  }
}

void Sequences::draw(std::size_t i, std::span<const float> output) {
  const DrawSource draw{.seed = seed_ + i, .position = sequences_[i].position()};
  const std::int32_t value = model_.head().sample(output, sampling_, {}, draw, scratch_);
  sequences_[i].pending = value;
  drawn_[i].push_back(value);
}

void Sequences::read_in_steps_of(std::size_t rows) {
  assert(rows >= 1 && rows <= workspace_.max_rows());
  prompt_rows_ = rows;
}

void Sequences::read(std::size_t i, std::span<const std::int32_t> tokens) {
  assert(!tokens.empty());
  sequences_[i].pending.reset();
  for (std::size_t begin = 0; begin < tokens.size(); begin += prompt_rows_) {
    const std::size_t end = std::min(begin + prompt_rows_, tokens.size());
    rows_.clear();
    for (std::size_t t = begin; t < end; ++t) {
      rows_.push_back(
          {.token = tokens[t], .sequence = &sequences_[i], .wants_output = t + 1 == tokens.size()});
    }
    const auto outputs = model_.step(rows_, workspace_);
    if (end == tokens.size()) draw(i, outputs.row(0));
  }
}

void Sequences::read_random(std::int64_t count) {
  start(count_, seed_);
  std::vector<std::int32_t> tokens(prompt_rows_);
  for (std::int64_t position = 0; position < count;) {
    const auto n = std::min(count - position, static_cast<std::int64_t>(prompt_rows_));
    for (std::int64_t t = 0; t < n; ++t) {
      const DrawSource draw{.seed = seed_, .position = position + t};
      tokens[static_cast<std::size_t>(t)] =
          static_cast<std::int32_t>(draw.uniform(0) * model_.config().vocab_size);
    }
    rows_.clear();
    for (std::int64_t t = 0; t < n; ++t) {
      rows_.push_back({tokens[static_cast<std::size_t>(t)], &sequences_.front(), false});
    }
    model_.step(rows_, workspace_);
    position += n;
  }
  for (std::size_t i = 1; i < count_; ++i) sequences_[i] = sequences_.front().clone();
}

void Sequences::generate(std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) {
    rows_.clear();
    for (std::size_t i = 0; i < count_; ++i) {
      rows_.push_back({*sequences_[i].pending, &sequences_[i], true});
    }
    const auto outputs = model_.step(rows_, workspace_);
    for (std::size_t i = 0; i < count_; ++i) draw(i, outputs.row(i));
  }
}

std::size_t Sequences::bytes() const { return sequences_.front().bytes(); }

}  // namespace lintel::bench
