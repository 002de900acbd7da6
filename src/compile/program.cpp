#include "compile/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "autodiff/anomaly.h"
#include "compile/generated.h"
#include "compile/parts.h"
#include "compile/rewrite.h"
#include "ops/kernels/collective.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "tensor/context.h"

namespace tern::compiler {

namespace {

/// Memory from which blocks are handed out and to which they return: offsets of free ranges, which never touch.
class FreeRanges {
 public:
  std::size_t take(std::size_t bytes) {
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *best;
    erase(free_.find(offset));
    if (size > bytes) insert(offset + bytes, size - bytes);
    return offset;
  }
  void give_back(std::size_t offset, std::size_t bytes) {
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && after->first == offset + bytes) {
      bytes += after->second;
      after = erase(after);
    }
    if (after != free_.begin())
      if (const auto before = std::prev(after); before->first + before->second == offset) {
        bytes += before->second;
        offset = before->first;
        erase(before);
      }
    insert(offset, bytes);
  }
  std::size_t size() const { return size_; }

 private:
  using Ranges = std::map<std::size_t, std::size_t>;
  void insert(std::size_t offset, std::size_t size) {
    free_[offset] = size;
    by_size_.insert({size, offset});
  }
  Ranges::iterator erase(Ranges::iterator range) {
    by_size_.erase({range->second, range->first});
    return free_.erase(range);
  }
  /// Extends the memory, from its last range if that is free.
  std::size_t grow(std::size_t bytes) {
    std::size_t offset = size_;
    if (!free_.empty())
      if (const auto last = std::prev(free_.end()); last->first + last->second == size_) {
        offset = last->first;
        erase(last);
      }
    size_ = offset + bytes;
    return offset;
  }

  Ranges free_;                                            ///< sizes by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  ///< the same, the smallest first
  std::size_t size_ = 0;
};

constexpr std::size_t alignment = 256;  // as a GPU's allocator
constexpr std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

/// Notes in blocks which of the steps use them first and last.
static void note_uses(const std::vector<Call>& steps, std::vector<Block>& blocks) {
  for (Block& block : blocks) block.is_used = false;
  for (std::size_t at = 0; at < steps.size(); ++at)
    for (const Call::Place& place : steps[at].places) {
      if (place.block == Call::Place::none) continue;
      Block& block = blocks[place.block];
      if (!std::exchange(block.is_used, true)) block.first = at;
      block.last = at;
    }
}

/// For each block the index of the group that uses it; groups.size() if several do, or what is outside of the program.
static std::vector<std::size_t> owners_of(const std::vector<Group>& groups, const std::vector<Call>& calls,
                                          const std::vector<Block>& blocks) {
  constexpr std::size_t nobody = ~std::size_t{0};
  std::vector<std::size_t> owners(blocks.size(), nobody);
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const std::size_t call : groups[g].all_calls())
      for (const Call::Place& place : calls[call].places) {
        if (place.block == Call::Place::none) continue;
        std::size_t& owner = owners[place.block];
        const bool is_inner = blocks[place.block].kind == Block::Kind::inner;
        owner = is_inner && (owner == nobody || owner == g) ? g : groups.size();
      }
  return owners;
}

/// The texts of groups on a GPU; groups whose same ones have another text are taken apart.
static std::vector<std::optional<CudaText>> texts_of(std::vector<Group>& groups, const std::vector<Call>& calls,
                                                     const std::vector<Block>& blocks) {
  const std::vector<std::size_t> owners = owners_of(groups, calls, blocks);
  const auto alignment_of = [&](const Call::Place& place) {
    const Block& block = blocks[place.block];
    const auto address =
        static_cast<std::size_t>(place.offset) + (block.memory ? reinterpret_cast<std::uintptr_t>(block.memory->data()) : 0);
    return address == 0 ? alignment : std::min(alignment, address & (~address + 1));
  };
  std::vector<std::optional<CudaText>> texts(groups.size());
  std::vector<Group> apart;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const bool is_group = groups[g].calls.size() + groups[g].same.size() > 1;
    if (is_group) texts[g] = cuda_text(groups[g], calls, [&](std::size_t block) { return owners[block] == g; }, alignment_of);
    std::vector<Group> others;
    if (is_group && !texts[g]) std::swap(others, groups[g].same);  // of other alignments
    apart.push_back(groups[g]);
    apart.insert(apart.end(), others.begin(), others.end());
  }
  if (apart.size() == groups.size()) return texts;
  groups = std::move(apart);
  return texts_of(groups, calls, blocks);
}

/// Copies of calls, for other addresses and other views.
static std::vector<Call> copies_of(const std::vector<Call>& calls) {
  std::vector<Call> copies;
  for (const Call& call : calls) copies.push_back({call.kernel->copy(), call.places, call.op, call.module, call.ways});
  return copies;
}

/// The groups in which the calls run on a kind of device; calls and blocks are changed to that end.
static std::vector<Group> grouped(std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu) {
  merge_products(calls, blocks, is_gpu);
  drop_copies(calls, blocks, is_gpu);
  if (is_gpu) use_epilogues(calls, blocks), split_sums(calls, blocks);
  else transpose_weights(calls, blocks);
  std::vector<Group> groups = find_groups(calls, blocks, is_gpu);
  recompute(groups, calls, blocks, is_gpu);
  return groups;
}

std::string Program::code() const {
  std::string code;
  std::vector<Call> calls = copies_of(calls_);
  std::vector<Block> blocks = blocks_;
  use_attention(calls, blocks, device_);
  std::vector<Group> groups = grouped(calls, blocks, true);
  for (const std::optional<CudaText>& text : texts_of(groups, calls, blocks))
    if (text && !text->operands.empty()) code += text->text + '\n';
  return code;
}

/// A group as one call, if it can be that, and its text on a GPU.
struct Program::Joined {
  std::optional<Call> call;
  std::optional<CudaText> text;
};

std::vector<Program::Joined> Program::joined(std::vector<Group>& groups, const std::vector<Call>& calls) {
  std::vector<Joined> result(groups.size());
  if (device_.type == DeviceType::cpu && grouping_ == Grouping::of_gpu) return result;
  if (device_.type == DeviceType::cpu) {
    const std::vector<std::size_t> owners = owners_of(groups, calls, blocks_);
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (groups[g].calls.size() > 1) result[g].call = chunked(groups[g], calls, [&](std::size_t block) { return owners[block] == g; });
    return result;
  }
  std::vector<std::optional<CudaText>> texts = texts_of(groups, calls, blocks_);
  GeneratedKernels made = make_kernels(device_, texts);
  result.resize(groups.size());
  failure_ = made.failure;
  counts_ = made.counts;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!texts[g]) continue;
    const Call& first = calls[groups[g].calls[0]];
    if (texts[g]->operands.empty()) {  // nobody reads what it makes
      result[g].call = Call{};
      continue;
    }
    if (made.kernels[g]) {
      for (const CudaText::ColumnSum& sum : texts[g]->sums) {
        const auto bytes = static_cast<std::size_t>(texts[g]->operands[sum.operand].numel()) * sizeof(float);
        texts[g]->places[sum.operand] = {blocks_.size(), 0};
        blocks_.push_back({.kind = Block::Kind::inner, .memory = nullptr, .bytes = bytes});
      }
      result[g] = {Call{std::move(made.kernels[g]), texts[g]->places, first.op, first.module, first.ways}, std::move(texts[g])};
    }
    ++(result[g].call ? generated_ : not_generated_);
  }
  return result;
}

/// The ops of calls, or the kernels' own names.
static std::vector<std::string> names_of(const std::vector<std::size_t>& indices, const std::vector<Call>& calls) {
  std::vector<std::string> names;
  for (const std::size_t i : indices)
    names.insert(names.end(), calls[i].kernels, calls[i].op.empty() ? detail::short_name(calls[i].kernel->type()) : calls[i].op);
  return names;
}

void Program::prepare() {
  std::vector<Call> calls = copies_of(calls_);
  std::vector<Group> groups;
  if (grouping_ == Grouping::of_gpu)
    for (const Ref<Storage>& memory : use_attention(calls, blocks_, device_)) versions_.emplace_back(memory, memory->version());
  if (grouping_ != Grouping::none) groups = grouped(calls, blocks_, grouping_ == Grouping::of_gpu);
  else
    for (std::size_t i = 0; i < calls.size(); ++i)
      groups.push_back({.calls = {i}, .is_open = false, .shape = {}, .row_dims = {}, .uses = {}});
  deferred_ = std::make_unique<kernels::DeferredSums>();
  PendingSums pending(*deferred_);
  const auto add = [&](Call&& call, std::vector<std::string> names) {
    steps_.push_back(std::move(call));
    names_.push_back(std::move(names));
  };
  const auto add_up = [&] {
    if (std::optional<Call> call = pending.added_up()) add(std::move(*call), {"sum of columns"});
  };
  std::vector<Joined> as_one = joined(groups, calls);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto& [call, text] = as_one[g];
    if (call) {
      if (!call->kernel) continue;
      if (pending.has(*call) || (text && pending.has(*text))) add_up();
      add(std::move(*call), names_of(groups[g].all_calls(), calls));
      if (text) pending.add(*text);
      continue;
    }
    for (const std::size_t i : groups[g].all_calls()) {
      const bool begins_backward = calls[i].kernel->as<BeginBackward>();
      if (begins_backward || pending.has(calls[i])) add_up();
      if (begins_backward) {
        begin_backward_ = steps_.size();
        continue;
      }
      add(std::move(calls[i]), names_of({i}, calls));
      if (device_.type == DeviceType::cuda) pending.add(steps_.back());
    }
  }
  add_up();
  if (!has_backward()) begin_backward_ = steps_.size();
  note_uses(steps_, blocks_);
  keep_for_backward();
  plan_arena();
  for (const Tensor& x : inputs_) reads_.push_back(x.defined() && returns_inputs_);
  for (const Block& block : blocks_)
    if (block.kind == Block::Kind::input && block.is_used && block.bytes > 0) reads_[block.argument] = true;
  for (const Call& step : steps_)
    for (PhiloxState* const state : Arguments(*step.kernel).states) draws_.push_back({state, state->offset - begin_});
}

/// Finds places for what the forward part leaves for the backward one, and notes what else that reads.
void Program::keep_for_backward() {
  is_kept_input_.resize(inputs_.size());
  for (Block& block : blocks_) {
    if (!block.is_used || block.bytes == 0 || block.last < begin_backward_ || !has_backward()) continue;
    const bool is_argument = block.kind == Block::Kind::input && block.argument < arguments();
    if (is_argument) is_kept_input_[block.argument] = true;
    if (block.kind == Block::Kind::inner && block.first < begin_backward_) {
      block.kind = Block::Kind::kept;
      block.offset = kept_bytes_;
      kept_bytes_ += padded(block.bytes);
    } else if (is_argument || block.kind == Block::Kind::outside || (block.kind == Block::Kind::kept && block.first < begin_backward_)) {
      kept_.emplace_back(block.memory, 0);
    }
  }
}

void Program::check_kept() const {
  for (const auto& [memory, version] : kept_)
    if (memory->version() != version)
      fail("compile",
           fmt::format("expected the memory that backward reads to be as the call left it, but {} bytes of it were edited in place "
                       "(version {}, left at {}): use the op that returns a new tensor",
                       memory->bytes(), memory->version(), version));
}

std::size_t Program::steps(Part part) const { return part == Part::forward ? begin_backward_ : steps_.size() - begin_backward_; }

void Program::plan_arena() {
  std::vector<std::vector<std::size_t>> begins(steps_.size()), ends(steps_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.kind != Block::Kind::inner || !block.is_used || block.bytes == 0) continue;
    begins[block.first].push_back(i);
    ends[block.last].push_back(i);
  }
  FreeRanges ranges;
  for (std::size_t at = 0; at < steps_.size(); ++at) {
    for (const std::size_t i : begins[at]) blocks_[i].offset = ranges.take(padded(blocks_[i].bytes));
    for (const std::size_t i : ends[at]) ranges.give_back(blocks_[i].offset, padded(blocks_[i].bytes));
  }
  arena_bytes_ = ranges.size();
}

std::size_t Program::inner_bytes() const {
  std::size_t sum = 0;
  for (const Block& block : blocks_)
    if (block.kind == Block::Kind::inner && block.is_used) sum += block.bytes;
  return sum;
}

void Program::use(Ref<Storage> arena, Ref<Storage> kept) {
  if (arena_.get() == arena.get() && kept_memory_.get() == kept.get()) return;
  arena_ = std::move(arena), kept_memory_ = std::move(kept);
  linked_stream_.reset();
}

void Program::link() {
  const Stream stream = context().stream(device_);
  if (linked_stream_ == stream.handle) return;
  input_views_.clear();
  for (const Call& call : steps_)
    each_view(call, [&](View& view, kernels::Access, const Call::Place& place) {
      view.stream = stream;
      if (place.block == Call::Place::none) return;
      const Block& block = blocks_[place.block];
      if (block.kind == Block::Kind::input) input_views_.push_back({&view, place.block, place.offset});
      view.data =
          static_cast<std::byte*>(memory_of(block)->data()) + static_cast<std::ptrdiff_t>(block.memory ? 0 : block.offset) + place.offset;
    });
  linked_stream_ = stream.handle;
}

void Program::write_addresses() {
  with_backend(device_, [&](auto dev) {
    if constexpr (requires(kernels::Matmul product) { kernels::write_addresses(dev, product); }) {
      std::vector<std::pair<Call*, std::size_t>> products;  // and the places of their addresses
      std::size_t bytes = 0;
      for (Call& call : steps_)
        if (const auto* const product = call.kernel->as<kernels::Matmul>())
          if (const std::size_t own = kernels::address_bytes(dev, *product)) products.emplace_back(&call, bytes), bytes += own;
      if (products.empty()) return;
      const Stream stream = context().stream(device_);
      addresses_ = make_ref<Storage>(bytes, stream);
      for (const auto& [call, offset] : products) {
        kernels::Matmul product = *call->kernel->template as<kernels::Matmul>();
        product.addresses = static_cast<std::byte*>(addresses_->data()) + offset;
        kernels::write_addresses(dev, product);
        call->kernel = std::make_unique<detail::KernelCallOf<kernels::Matmul>>(product);
      }
      backend::synchronize(dev, stream);  // the graph has a stream of its own
      linked_stream_.reset();             // views of the old kernels are gone
    }
  });
}

bool Program::may_read_in_place(const Tensor& argument) const {
  if (edits_inputs_ || returns_inputs_ || !argument.is_contiguous()) return false;
  // Generated kernels read vectors.
  if (device_.type != DeviceType::cpu && reinterpret_cast<std::uintptr_t>(argument.view().data) % alignment != 0) return false;
  // One that the program writes, such as the last result, is not read where it is written.
  return !reserved_.contains(argument.impl().storage.get());
}

void Program::check(const Tensors& arguments) const {
  std::unordered_set<const Storage*> seen;
  for (const Tensor& x : arguments) {
    if (!x.defined() || x.numel() == 0) continue;
    const Storage* const memory = x.impl().storage.get();
    if (edited_.contains(memory) || (!seen.insert(memory).second && edits_inputs_))
      fail("compile", fmt::format("expected arguments that share no memory with what the function edits but got one of shape {} that does: "
                                  "pass a clone of it",
                                  to_string(x.shape())));
  }
}

void Program::bind(const Tensors& arguments, Part part) {
  link();
  const std::size_t first = part == Part::forward ? 0 : this->arguments();
  std::vector<void*> addresses(inputs_.size(), nullptr);
  for (std::size_t i = first; i < first + arguments.size(); ++i) {
    if (!reads(i)) continue;
    const Tensor& argument = arguments[i - first];
    const bool is_in_place = !is_kept_input_[i] && may_read_in_place(argument);
    if (!is_in_place) launch(device_, kernels::Copy{argument, inputs_[i]});
    addresses[i] = (is_in_place ? argument : inputs_[i]).view().data;
  }
  for (const InputView& input : input_views_)
    if (void* const address = addresses[blocks_[input.input].argument]) input.view->data = static_cast<std::byte*>(address) + input.offset;
}

void Program::run(Part part) {
  link();
  if (part == Part::forward) first_ = context().generator.reserve(0);
  const ScopedValue<Context::Kernels> ways(context().kernels, context().kernels);
  *deferred_ = kernels::DeferredSums(context().stream(device_));
  for (const Draw& draw : draws_) *draw.state = {first_.seed, first_.offset + draw.position, first_.base};
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (!is_in(part, i)) continue;
    const Call& call = steps_[i];
    const backend::KernelScope observed(call.op.empty() ? nullptr : call.op.c_str());
    context().kernels = call.ways;
    if (const auto* const collective = call.kernel->as<kernels::BeginCollective>())
      for (const Call::Place& place : call.places)
        collective->group->memory.push_back(place.block == Call::Place::none ? nullptr : memory_of(blocks_[place.block]));
    call.kernel->run(device_);
  }
  if (part == Part::forward) advance(part);
}

std::uint64_t Program::advance(Part part) {
  Generator& generator = context().generator;
  const std::uint64_t position = generator.position();
  if (part == Part::backward) return position_;
  generator.set_position(position + drawn_);
  return position_ = position;
}

bool Program::finds_sums() const {
  return std::all_of(sinks_.begin(), sinks_.end(),
                     [](const Sink& x) { return x.first != backend::Observer::GradientUse::use || x.sink->is_alike(x.before); });
}
bool Program::finds_memory() const {
  return std::all_of(sinks_.begin(), sinks_.end(),
                     [](const Sink& x) { return x.first == backend::Observer::GradientUse::set || x.sink->is_in_memory_of(x.before); });
}

bool Program::finds_versions() const {
  return std::all_of(versions_.begin(), versions_.end(), [](const auto& x) { return x.first->version() == x.second; });
}
void Program::note_versions() {
  for (auto& [memory, version] : versions_) version = memory->version();
}

void Program::settle() {
  for (const Sink& x : sinks_) x.sink->restore(x.after);
  for (const Ref<Storage>& memory : own_results_) memory->bump_version();
  for (auto& [memory, version] : kept_) version = memory->version();
}

}  // namespace tern::compiler
