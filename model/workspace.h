// What Transformer::step takes: rows to feed, and a Workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lintel {

class SequenceState;
class Team;
struct Buffers;  // network/pass.h

// One token to feed. Consecutive rows of a step may belong to one sequence, in order; rows of one
// sequence must be consecutive.
struct StepRow {
  std::int32_t token = 0;  // 0 .. V-1
  SequenceState* sequence = nullptr;
  bool wants_output = false;  // whether the head's output after this token is needed
  // Whether SequenceState::take_back may undo it, until the step after this one. Drafts are the
  // last rows of their sequence in the step.
  bool is_draft = false;
};

// Where the time of a step goes.
enum class StepPart { kProducts, kAttention, kOther };

// Called when a step enters another part; the model itself has no clock.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void enter(StepPart part) = 0;
};

// Buffers of Transformer::step: sized once for max_rows. One per worker thread.
class Workspace {
 public:
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  ~Workspace();
  std::size_t max_rows() const;

  // Both outlive what is stepped with them; null: none.
  void observe(StepObserver* observer);
  // Whose leader is the thread that steps. The bits are those of a thread alone.
  void share_with(Team* team);

 private:
  friend class Transformer;
  explicit Workspace(std::unique_ptr<Buffers> buffers);
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace lintel
