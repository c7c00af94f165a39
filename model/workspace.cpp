#include "model/workspace.h"

#include <utility>

#include "model/pass.h"

namespace lintel {

Workspace::Workspace(std::unique_ptr<Buffers> buffers) : buffers_(std::move(buffers)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;

std::size_t Workspace::max_rows() const { return buffers_->max_rows; }
void Workspace::observe(StepObserver* observer) { buffers_->observer = observer; }
void Workspace::share_with(Team* team) { buffers_->team = team; }

}  // namespace lintel
