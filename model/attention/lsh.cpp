// Attention by locality-sensitive hashing with shared queries and keys (Reformer, Kitaev et al.
// 2020), in the streaming and the prefix form of docs/model_format.md.
//
// A round cuts the positions, sorted by (bucket, position), into chunks; a query sees its own chunk
// and the one before it. As positions come in order, each bucket is a list that only grows at its
// end, and the ranks of a bucket follow from how many positions the buckets before it hold: the
// neighbours of a new position are found from the end of its bucket without sorting (LshBuckets).
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/attention/attention.h"
#include "model/attention/parts/attention_kernels.h"
#include "model/attention/parts/lsh_buckets.h"
#include "model/base/paged_array.h"

namespace lintel {
namespace {

// Added to a query's score with itself: nothing is left of it beside any other score.
constexpr float kSelfBias = -1e9f;

constexpr std::size_t kPagePositions = 64;  // of keys and values

struct LshShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D = M
  std::size_t rounds = 0;
  std::size_t bits = 0;
  std::size_t padded_bits = 0;  // to a multiple of kPlaneMultiple
  std::size_t chunk_size = 0;

  std::size_t num_tables() const { return n_heads * rounds; }
  LshBuckets::Shape buckets() const {
    return {.num_tables = num_tables(), .num_buckets = 2 * bits, .chunk_size = chunk_size};
  }
  std::size_t member_floats() const { return 2 * d_head; }  // k, then v
  std::size_t page_floats() const { return kPagePositions * n_heads * member_floats(); }
};

// Keys and values of every position, and for each round and head its buckets.
class LshState final : public AttentionState {
 public:
  explicit LshState(const LshShape& shape)
      : shape_(shape), members_(shape.page_floats()), buckets_(shape.buckets()) {}

  static std::size_t most_bytes(const LshShape& shape, std::size_t num_tokens) {
    if (num_tokens > INT32_MAX) return SIZE_MAX;
    const std::size_t pages = (num_tokens + kPagePositions - 1) / kPagePositions;
    const std::size_t buckets = LshBuckets::most_bytes(shape.buckets(), num_tokens);
    const std::size_t members = PagedArray<float>::bytes_of(pages, shape.page_floats());
    return buckets > SIZE_MAX - members ? SIZE_MAX : buckets + members;
  }

  std::size_t bytes() const override { return members_.bytes() + buckets_.bytes(); }

  void assign(const AttentionState& other) override {
    const auto& from = static_cast<const LshState&>(other);
    members_.assign(from.members_);
    buckets_.assign(from.buckets_);
    length_ = from.length_;
  }

  void reset() override {
    members_.clear();
    buckets_.clear();
    length_ = 0;
  }

  // The memory holds the bucket of each draft in every table: a small whole number, which a float
  // is exact for.
  void expect_drafts(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= num_rows * shape_.num_tables());
    expected_ = num_rows;
    drafts_ = memory.data();
  }

  void rewind(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      --length_;
      const float* const of_tables = drafts_ + (length_ - first_draft_) * shape_.num_tables();
      for (std::size_t table = shape_.num_tables(); table-- > 0;) {
        buckets_.remove_last(table, static_cast<std::size_t>(of_tables[table]));
      }
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        std::fill_n(member(length_, h), shape_.member_floats(), 0.0f);
      }
    }
    members_.shrink_to((length_ + kPagePositions - 1) / kPagePositions);
    buckets_.shrink();
  }

  // A run of num_rows rows is about to be fed.
  void begin_run(std::size_t num_rows) {
    assert(expected_ <= num_rows);
    first_draft_ = length_ + num_rows - std::exchange(expected_, 0);
  }

  std::size_t length() const { return length_; }

  // Puts the newest position into the bucket of a table. In the order of tables.
  void add_to_bucket(std::size_t table, std::size_t bucket) {
    const std::size_t position = length_ - 1;
    buckets_.append(table, bucket, static_cast<std::int32_t>(position));
    if (position < first_draft_) return;
    drafts_[(position - first_draft_) * shape_.num_tables() + table] = static_cast<float>(bucket);
  }
  const LshBuckets& buckets() const { return buckets_; }

  // Makes room for one more position.
  void begin_position() {
    members_.grow_to(length_ / kPagePositions + 1);
    ++length_;
  }
  // Key and value of a head: [k D | v M].
  float* member(std::size_t position, std::size_t head) {
    return members_.page(position / kPagePositions) +
           (head * kPagePositions + position % kPagePositions) * shape_.member_floats();
  }

 private:
  const LshShape& shape_;      // the backend's
  PagedArray<float> members_;  // a page: [H, kPagePositions, k D | v M]
  LshBuckets buckets_;         // a table for each [H, rounds]
  std::size_t length_ = 0;

  // Valid from one step to the next.
  std::size_t expected_ = 0;     // drafts of the next run
  std::size_t first_draft_ = 0;  // position of the last run's first draft, or where it ended
  float* drafts_ = nullptr;      // [drafts, tables]
};

class LshAttention final : public AttentionBackend {
 public:
  explicit LshAttention(const AttentionParams& params)
      : shape_(shape_of(params)),
        scale_(static_cast<float>(params.config.scale != 0.0 ? params.config.scale
                                                             : 1.0 / std::sqrt(params.d_head))),
        self_bias_(params.config.mask_self ? kSelfBias : 0.0f),
        combine_(params.config.combine),
        planes_(shape_.d_head * plane_columns()) {
    const std::size_t expected = shape_.rounds * shape_.bits * shape_.d_head;
    if (shape_.rounds == 0 || shape_.bits == 0 || shape_.chunk_size == 0 ||
        params.planes.size() != expected) {
      throw ModelError("attention lsh: found " + std::to_string(params.planes.size()) +
                       " values of planes and chunks of " + std::to_string(shape_.chunk_size) +
                       ", expected rounds * bits * d_head = " + std::to_string(expected) +
                       " and chunks, neither of them 0");
    }
    // [rounds, bits, D] -> [D, rounds, padded bits]: a vector holds one feature of several planes.
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      for (std::size_t bit = 0; bit < shape_.bits; ++bit) {
        for (std::size_t c = 0; c < shape_.d_head; ++c) {
          planes_[c * plane_columns() + round * shape_.padded_bits + bit] =
              params.planes[(round * shape_.bits + bit) * shape_.d_head + c];
        }
      }
    }
  }

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<AttentionState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<LshState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return LshState::most_bytes(shape_, static_cast<std::size_t>(num_tokens));
  }

  bool constant_state() const override { return false; }
  std::size_t rewind_floats(std::size_t num_rows) const override {
    return num_rows * shape_.num_tables();
  }
  bool uses_keys() const override { return false; }
  bool full_pass_equals_steps() const override { return false; }

  void step(std::span<AttentionState* const> states, MatrixView<const float> q,
            MatrixView<const float> /*k*/, MatrixView<const float> v, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    // [H, rounds] each: buckets, and where the neighbours of a table end.
    const std::size_t tables = shape_.num_tables();
    scratch.ints.resize(std::max(scratch.ints.size(), tables));
    scratch.ends.resize(std::max(scratch.ends.size(), tables));
    for (std::size_t r = 0; r < states.size(); ++r) {
      auto& state = static_cast<LshState&>(*states[r]);
      if (r == 0 || states[r] != states[r - 1]) state.begin_run(run_length(states.subspan(r)));
      state.begin_position();
      const Work work = work_for(state.length(), 0, scratch);
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        float* const member = state.member(state.length() - 1, h);
        fill_member(q.row(r), v.row(r), h, member);
        hash(member, work.projected, scratch.ints.data() + h * shape_.rounds, /*stride=*/1);
      }
      find_neighbours(state, scratch);
      const float* const* first = scratch.pointers.data();
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        scale_query(q.row(r), h, work.q);
        for (std::size_t round = 0; round < shape_.rounds; ++round) {
          const float* const* const end =
              scratch.pointers.data() + scratch.ends[h * shape_.rounds + round];
          attend(work, round, {first, end});
          first = end;
        }
        combine(work, out.row(r).subspan(h * shape_.d_head, shape_.d_head));
      }
    }
  }

  // The prefix form: everything is hashed and sorted at once, by counting, and position t sees
  // those positions of its chunk and the one before that are not later than t.
  void full_pass(MatrixView<const float> q, MatrixView<const float> /*k*/,
                 MatrixView<const float> v, MatrixView<float> out,
                 AttentionScratch& scratch) const override {
    const std::size_t n = q.rows();
    // [rounds, n] buckets, [rounds, n] positions by rank, [rounds, n] ranks by position, [buckets].
    scratch.ints.resize(
        std::max(scratch.ints.size(), 3 * shape_.rounds * n + shape_.buckets().num_buckets));
    std::int32_t* const buckets = scratch.ints.data();
    std::int32_t* const sorted = buckets + shape_.rounds * n;
    std::int32_t* const ranks = sorted + shape_.rounds * n;
    const Work work = work_for(n, n * shape_.member_floats(), scratch);
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      for (std::size_t t = 0; t < n; ++t) {
        float* const member = work.members + t * shape_.member_floats();
        fill_member(q.row(t), v.row(t), h, member);
        hash(member, work.projected, buckets + t, /*stride=*/n);
      }
      for (std::size_t round = 0; round < shape_.rounds; ++round) {
        lsh_sort({buckets + round * n, n}, sorted + round * n, ranks + round * n,
                 {ranks + shape_.rounds * n, shape_.buckets().num_buckets});
      }
      for (std::size_t t = 0; t < n; ++t) {
        scale_query(q.row(t), h, work.q);
        for (std::size_t round = 0; round < shape_.rounds; ++round) {
          scratch.pointers.clear();
          visit_earlier(sorted + round * n, n, static_cast<std::size_t>(ranks[round * n + t]), t,
                        [&](std::int32_t position) {
                          add_neighbour(work.members + static_cast<std::size_t>(position) *
                                                           shape_.member_floats(),
                                        scratch);
                        });
          attend(work, round, scratch.pointers);
        }
        combine(work, out.row(t).subspan(h * shape_.d_head, shape_.d_head));
      }
    }
  }

 private:
  // Parts of AttentionScratch::floats.
  struct Work {
    float* q;          // [D], scaled
    float* projected;  // [rounds, padded bits]
    float* weights;    // [members of two chunks]
    float* round_out;  // [rounds, D]
    float* log_sum;    // [rounds]
    float* members;    // [n, k D | v M], of a full pass
  };

  static LshShape shape_of(const AttentionParams& params) {
    LshShape shape;
    shape.n_heads = static_cast<std::size_t>(params.n_heads);
    shape.d_head = static_cast<std::size_t>(params.d_head);
    shape.rounds = static_cast<std::size_t>(params.config.rounds);
    shape.bits = static_cast<std::size_t>(params.config.bits);
    shape.padded_bits = (shape.bits + kPlaneMultiple - 1) / kPlaneMultiple * kPlaneMultiple;
    shape.chunk_size = static_cast<std::size_t>(params.config.chunk_size);
    return shape;
  }

  // Rows of the first state, which come first.
  static std::size_t run_length(std::span<AttentionState* const> states) {
    return static_cast<std::size_t>(
        std::ranges::find_if(states, [&](const auto* state) { return state != states[0]; }) -
        states.begin());
  }

  std::size_t plane_columns() const { return shape_.rounds * shape_.padded_bits; }

  Work work_for(std::size_t num_positions, std::size_t member_floats,
                AttentionScratch& scratch) const {
    const std::size_t most_neighbours = std::min(2 * shape_.chunk_size, num_positions);
    const std::size_t sizes[] = {shape_.d_head,   plane_columns(),
                                 most_neighbours, shape_.rounds * shape_.d_head,
                                 shape_.rounds,   member_floats};
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size;
    if (scratch.floats.size() < total) scratch.floats.resize(total);
    Work work{};
    float* at = scratch.floats.data();
    std::size_t i = 0;
    for (float** part :
         {&work.q, &work.projected, &work.weights, &work.round_out, &work.log_sum, &work.members}) {
      *part = at;
      at += sizes[i++];
    }
    return work;
  }

  // k = q / |q|, and v, of one head.
  void fill_member(std::span<const float> q, std::span<const float> v, std::size_t head,
                   float* member) const {
    const std::size_t first = head * shape_.d_head;
    normalize(q.subspan(first, shape_.d_head), member);
    std::ranges::copy(v.subspan(first, shape_.d_head), member + shape_.d_head);
  }

  // The bucket of a key in every round: argmax [k R^T, -k R^T].
  void hash(const float* k, float* projected, std::int32_t* buckets, std::size_t stride) const {
    project({k, shape_.d_head}, planes_.data(), plane_columns(), projected);
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      buckets[round * stride] = static_cast<std::int32_t>(
          signed_argmax(projected + round * shape_.padded_bits, shape_.bits));
    }
  }

  void scale_query(std::span<const float> q, std::size_t head, float* scaled) const {
    std::ranges::transform(q.subspan(head * shape_.d_head, shape_.d_head), scaled,
                           [this](float x) { return x * scale_; });
  }

  // Puts the newest position into its buckets and lists the neighbours of all tables: the memory of
  // the first arrives while the last are still looked up.
  void find_neighbours(LshState& state, AttentionScratch& scratch) const {
    scratch.pointers.clear();
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      for (std::size_t round = 0; round < shape_.rounds; ++round) {
        const std::size_t at = h * shape_.rounds + round;
        const auto bucket = static_cast<std::size_t>(scratch.ints[at]);
        state.add_to_bucket(at, bucket);
        state.buckets().visit_neighbours(at, bucket, state.length(), [&](std::int32_t position) {
          add_neighbour(state.member(static_cast<std::size_t>(position), h), scratch);
        });
        scratch.ends[at] = scratch.pointers.size();
      }
    }
  }

  // They lie anywhere: each is fetched as it is found.
  void add_neighbour(const float* member, AttentionScratch& scratch) const {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    for (std::size_t i = 0; i < shape_.member_floats(); i += kFloatsPerLine) {
      __builtin_prefetch(member + i);
    }
    scratch.pointers.push_back(member);
  }

  // One round over its neighbours, the query's own position first.
  void attend(const Work& work, std::size_t round, std::span<const float* const> neighbours) const {
    work.log_sum[round] = attend_members({work.q, shape_.d_head}, neighbours, self_bias_,
                                         work.weights, work.round_out + round * shape_.d_head);
  }

  // out = sum over rounds of w o, with w = 1/rounds, or the softmax of the rounds' log sums.
  void combine(const Work& work, std::span<float> out) const {
    std::ranges::fill(out, 0.0f);
    const float largest = *std::max_element(work.log_sum, work.log_sum + shape_.rounds);
    const auto unscaled_weight = [&](std::size_t round) {
      return combine_ == RoundCombination::kMean ? 1.0f : std::exp(work.log_sum[round] - largest);
    };
    float total = 0.0f;
    for (std::size_t round = 0; round < shape_.rounds; ++round) total += unscaled_weight(round);
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      const float weight = unscaled_weight(round) / total;
      const float* const part = work.round_out + round * shape_.d_head;
      for (std::size_t m = 0; m < out.size(); ++m) out[m] += weight * part[m];
    }
  }

  // In the order of LshBuckets::visit_neighbours: the last position of a prefix has the same bits
  // both ways where the layer's input is the same.
  template <typename Visit>
  void visit_earlier(const std::int32_t* sorted, std::size_t n, std::size_t rank, std::size_t t,
                     Visit&& visit) const {
    const LshChunks seen(rank, shape_.chunk_size, n);
    const auto visit_rank = [&](std::size_t r) {
      if (static_cast<std::size_t>(sorted[r]) <= t) visit(sorted[r]);
    };
    for (std::size_t r = rank + 1; r-- > seen.begin;) visit_rank(r);
    for (std::size_t r = rank + 1; r < seen.end; ++r) visit_rank(r);
  }

  const LshShape shape_;
  const float scale_;
  const float self_bias_;
  const RoundCombination combine_;
  std::vector<float> planes_;  // [D, rounds, padded bits], the padding 0
};

}  // namespace

std::unique_ptr<AttentionBackend> make_lsh_attention(const AttentionParams& params) {
  return std::make_unique<LshAttention>(params);
}

}  // namespace lintel
