// SPDX-License-Identifier: Apache-2.0
// Memory of one request is zeroed before another can have it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_memory.h"

#ifdef LINTEL_WATCHED_MEMORY
namespace lintel::testing {
namespace {

std::vector<std::string> attentions() {
  return {"linear", "softmax", "lsh:rounds=2,bits=4,chunk_size=5", "linear:recompute=true"};
}

std::unique_ptr<Transformer> random_model(const std::string& attention) {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kBytes), 1);
  return Transformer::load(directory.path(), {.attention = parse_attention_spec(attention)});
}

// Feeds one row, and after it as many drafts.
void feed(const Transformer& model, Workspace& workspace, SequenceState& sequence, int token,
          std::size_t drafts = 0) {
  std::vector<BatchRow> rows;
  for (std::size_t i = 0; i <= drafts; ++i) {
    const auto fed = static_cast<std::int32_t>((token + 31 * static_cast<int>(i)) % 256);
    rows.push_back({fed, &sequence, /*wants_output=*/true, /*is_draft=*/i > 0});
  }
  model.step(rows, workspace);
}

TEST_CASE("all that a sequence held is zeroed before its memory is freed", "[threat-7]") {
  const std::string attention = GENERATE(from_range(attentions()));
  CAPTURE(attention);
  const auto model = random_model(attention);
  Workspace workspace = model->new_workspace(1);
  SequenceState sequence = model->new_sequence();
  for (int token = 1; token < 20; ++token) feed(*model, workspace, sequence, token);
  for (int token = 0; token < model->config().vocab_size; ++token) {
    if (!sequence.counts.empty()) sequence.counts.add(token, 7);
  }
  sequence.generated_tail.reserve(400);
  sequence.generated_tail.assign(390, 'x');
  // The rest is still there, after the string's end.
  sequence.generated_tail.erase(0, 389);
  constexpr std::size_t kLeastBytes = 300;  // states' own objects are smaller
  std::size_t blocks = 0;
  std::size_t dirty = 0;
  SECTION("by the end of the sequence") {
    const FreedMemory freed(kLeastBytes);
    { const SequenceState last = std::move(sequence); }
    blocks = freed.blocks();
    dirty = freed.dirty();
  }
  SECTION("by another that takes its place") {
    SequenceState next = model->new_sequence();
    const FreedMemory freed(kLeastBytes);
    sequence = std::move(next);
    blocks = freed.blocks();
    dirty = freed.dirty();
  }
  CAPTURE(attention);
  CHECK(blocks >= 2);  // the counts, and states or tokens
  CHECK(dirty == 0);
}

TEST_CASE("memory for rewinding is zeroed when a sequence settles", "[threat-7]") {
  const auto model = random_model("linear");
  const bool settles = GENERATE(false, true);
  // Far more rows of drafts than rows: their memory is the only large one.
  std::optional<Workspace> workspace(
      model->new_workspace(/*max_rows=*/4, /*max_drafting_rows=*/1024));
  SequenceState sequence = model->new_sequence();
  feed(*model, *workspace, sequence, 1, /*drafts=*/3);
  sequence.rollback(2);
  if (settles) sequence.settle();
  const FreedMemory freed(262144);
  workspace.reset();
  CHECK(freed.blocks() == 2);
  CHECK(freed.dirty() == (settles ? 0 : 1));
}

TEST_CASE("memory for rewinding is zeroed by the next step", "[threat-7]") {
  const auto model = random_model("linear");
  Workspace workspace = model->new_workspace(/*max_rows=*/16);
  SequenceState sequence = model->new_sequence();
  // All other memory of a step has its full size from here on.
  std::vector<BatchRow> rows;
  for (int i = 0; i < 16; ++i) rows.push_back({i, &sequence, true});
  model->step(rows, workspace);
  feed(*model, workspace, sequence, 1, /*drafts=*/2);
  sequence.rollback(1);
  feed(*model, workspace, sequence, 2);
  feed(*model, workspace, sequence, 3, /*drafts=*/2);
  sequence.rollback(2);
  const FreedMemory freed(500);
  feed(*model, workspace, sequence, 4, /*drafts=*/9);
  sequence.rollback(9);
  feed(*model, workspace, sequence, 5, /*drafts=*/9);
  CHECK(freed.blocks() == 1);  // the other had none yet
  CHECK(freed.dirty() == 0);
}

TEST_CASE("rows that are taken back leave nothing in the memory of their sequence", "[threat-7]") {
  const std::string attention = GENERATE(from_range(attentions()));
  CAPTURE(attention);
  const auto model = random_model(attention);
  Workspace workspace = model->new_workspace(16, 16);
  const auto history = [&](SequenceState& sequence, bool with_drafts) {
    for (int token = 1; token < 40; ++token) {
      const std::size_t drafts = with_drafts ? static_cast<std::size_t>(token) % 7 : 0;
      feed(*model, workspace, sequence, token, drafts);
      sequence.rollback(static_cast<std::int64_t>(drafts));
    }
  };
  // The workspace has its full size after this.
  SequenceState warm = model->new_sequence();
  history(warm, true);

  // Without a state in one block, that block has the least size there can be, and is unused.
  constexpr std::size_t kLeastBytes = kAlignment + 1;
  AlignedBlocks of_plain(kLeastBytes);
  SequenceState plain = model->new_sequence();
  history(plain, false);
  of_plain.stop();
  AlignedBlocks of_rewound(kLeastBytes);
  SequenceState rewound = model->new_sequence();
  history(rewound, true);
  of_rewound.stop();
  REQUIRE(!of_plain.all_zero());
  const auto expected = of_plain.contents();
  const auto left = of_rewound.contents();
  REQUIRE(expected.size() == left.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i, expected[i].size());
    CHECK((left[i] == expected[i]));  // too long to be printed
  }
}

}  // namespace
}  // namespace lintel::testing
#endif
