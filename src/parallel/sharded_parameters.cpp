#include "parallel/sharded_parameters.h"

#include "autodiff/gradient_sink.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "backend/observer.h"
#include "nn/module.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "tensor/ceil_div.h"

namespace tern::parallel {

static Tensor part_of(const Tensor& x, const ProcessGroup& group) {
  const std::int64_t part = x.numel() / group.size();
  return elements_of(x, part * group.rank(), part * (group.rank() + 1));
}

ShardedParameters::~ShardedParameters() {
  if (context().after_op == this) context().after_op = nullptr;
}

FlatStorage& ShardedParameters::storage_of(const Block& block) { return *flat_storage(block.whole); }
bool ShardedParameters::is_here(const Block& block) { return block.whole.defined() && storage_of(block).is_here(); }

std::size_t ShardedParameters::add(const Tensors& parameters, bool is_block) {
  const NoGrad unrecorded;
  const DType dtype = parameters[0].dtype();
  const Device device = group_.device();
  const std::int64_t vectors = padded_size(1, dtype) * group_.size();
  const std::int64_t count = round_up(padded_size(parameters, dtype), vectors);

  const Tensor flat = zeros({count}, dtype, device), masters = size_of(dtype) == 2 ? zeros({count}, DType::f32, device) : Tensor();
  const Tensors slices = windows_of(flat, parameters, dtype);
  for (std::size_t i = 0; i < parameters.size(); ++i) copy_(slices[i], parameters[i].detach());
  if (masters.defined()) {
    const Tensors master_slices = windows_of(masters, parameters, dtype);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor master = master_of(parameters[i]);
      copy_(master_slices[i], master.defined() ? master : cast(parameters[i].detach(), DType::f32));
    }
  }
  group_.broadcast(flat).wait();
  if (masters.defined()) group_.broadcast(masters).wait();

  const std::size_t number = units_.size();
  units_.emplace_back().is_block = is_block;
  Unit& unit = units_.back();
  unit.values.own = clone(part_of(flat, group_));
  unit.values.whole = on_demand(count / group_.size(), dtype, number, &Unit::values);
  if (masters.defined()) {
    unit.masters.own = clone(part_of(masters, group_));
    unit.masters.whole = on_demand(count / group_.size(), DType::f32, number, &Unit::masters);
  }
  const Tensors here = windows_of(unit.values.whole, parameters, dtype);
  for (std::size_t i = 0; i < parameters.size(); ++i) nn::detail::rebind(parameters[i], here[i]);
  FlatStorage& storage = storage_of(unit.values);
  storage.masters = unit.masters.whole;
  storage.masters_version = unit.values.version = storage.version();
  if (is_block && dtype == DType::f32)
    storage.lowered = [weak = weak_from_this(), number](const Tensor& window, DType to) {
      const auto self = weak.lock();
      return self ? self->lowered(number, window, to) : Tensor();
    };
  return number;
}

/// The window's elements among the unit's values in `dtype`; undefined if all values are gathered for good.
Tensor ShardedParameters::lowered(std::size_t number, const Tensor& window, DType dtype) {
  if (is_kept_) return {};
  Unit& unit = units_[number];
  if (!unit.lowered.whole.defined() || unit.lowered.whole.dtype() != dtype) {
    release(unit.lowered);
    unit.lowered.whole = on_demand(unit.values.own.numel(), dtype, number, &Unit::lowered);
  }
  const NoGrad unrecorded;
  const std::int64_t first = place_of(window).offset;
  return reshape(elements_of(unit.lowered.whole, first, first + window.numel()), window.shape());
}

/// A tensor of the elements of all ranks' parts, which is fetched on access.
Tensor ShardedParameters::on_demand(std::int64_t own_count, DType dtype, std::size_t unit, Kind kind) {
  const auto fetch = [weak = weak_from_this(), unit, kind](FlatStorage&) {
    const auto self = weak.lock();
    if (!self) fail("DataParallel", "expected the model's DataParallel to live as long as its sharded parameters are read");
    self->fetch(unit, kind);
  };
  return flat_on_demand(own_count * group_.size(), dtype, group_.device(), fetch);
}

void ShardedParameters::fetch(std::size_t number, Kind kind) {
  if (context().recording)
    fail("DataParallel",
         "expected a step as written, but a graph is being recorded: the memory of sharded parameters is at other addresses in each step");
  Unit& unit = units_[number];
  install(unit, kind);
  const bool is_values = kind != &Unit::masters, is_backward = LeafWriter::of_thread().passes > 0;
  if (!is_backward && (unit.is_block || !is_values)) {
    (is_values ? last_values_ : last_masters_) = number;
    if (!context().after_op) context().after_op = this;
  }
  if (!is_values) return;
  if (unit.is_block) block_kind_ = kind;
  if (is_backward) prefetch(number + 1);
  else if (number > 0) prefetch(number - 1);
}

void ShardedParameters::prefetch(std::size_t number) {
  if (number >= units_.size() || !units_[number].is_block) return;
  const Block& block = units_[number].*block_kind_;
  if (block.whole.defined() && !is_here(block) && !block.arriving.defined()) begin(units_[number], block_kind_);
}

void ShardedParameters::begin(Unit& unit, Kind kind) {
  const NoGrad unrecorded;
  const backend::PassScope observed("communication");
  Block& block = unit.*kind;
  if (kind == &Unit::lowered) {
    write_back_edits(unit.values);
    block.own = cast(unit.values.own, block.whole.dtype());
  }
  block.arriving = empty(block.whole.shape(), block.whole.dtype(), block.whole.device());
  block.work = group_.all_gather(block.arriving, block.own);
}

void ShardedParameters::install(Unit& unit, Kind kind) {
  Block& block = unit.*kind;
  if (!block.arriving.defined()) begin(unit, kind);
  {
    const backend::PassScope observed("communication");
    block.work.wait();
  }
  block.work = {};
  if (kind == &Unit::lowered) block.own = {};
  FlatStorage& storage = storage_of(block);
  storage.take(block.arriving);
  block.arriving = {};
}

/// Copies elements that were written to gathered values or masters back to the rank's part.
void ShardedParameters::write_back_edits(Block& block) {
  const FlatStorage& storage = storage_of(block);
  if (!block.own.defined() || !storage.is_here() || storage.version() == block.version) return;
  const NoGrad unrecorded;
  copy_(block.own, part_of(block.whole, group_));
  block.version = storage.version();
}

void ShardedParameters::release(Block& block) {
  if (is_kept_ || !block.whole.defined()) return;
  if (block.arriving.defined()) {
    block.work.wait();
    block.work = {};
    block.arriving = {};
  }
  if (!is_here(block)) return;
  write_back_edits(block);
  storage_of(block).free_until_fetched();
}

void ShardedParameters::end_gradients(std::size_t unit) {
  release(units_[unit].values);
  release(units_[unit].lowered);
}

void ShardedParameters::after_op() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (Block* const block : {&units_[i].values, &units_[i].lowered})
      if (units_[i].is_block && i != last_values_ && is_here(*block)) release(*block);
    if (i != last_masters_ && is_here(units_[i].masters)) release(units_[i].masters);
  }
}

void ShardedParameters::release_all() {
  for (Unit& unit : units_) {
    for (Block* const block : {&unit.values, &unit.masters, &unit.lowered}) release(*block);
  }
}

void ShardedParameters::note_update() {
  for (Unit& unit : units_)
    for (Block* block : {&unit.values, &unit.masters, &unit.lowered})
      if (block->whole.defined()) {
        storage_of(*block).bump_version();
        block->version = storage_of(*block).version();
      }
}

void ShardedParameters::keep() {
  for (Unit& unit : units_)
    if (!is_here(unit.values)) install(unit, &Unit::values);
  is_kept_ = true;
}

}  // namespace tern::parallel
