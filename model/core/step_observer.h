// SPDX-License-Identifier: Apache-2.0
// StepObserver: where the time of a step of a model goes.
#pragma once

namespace lintel {

enum class StepPart { kProducts, kAttention, kOther };

// Called when a step enters another part; the model itself has no clock.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void enter(StepPart part) = 0;
};

}  // namespace lintel
