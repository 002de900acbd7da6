#include "compile/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "autodiff/anomaly.h"
#include "backend/memory.h"
#include "compile/generated.h"
#include "compile/parts.h"
#include "compile/rewrite.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "tensor/context.h"

namespace tern::compiler {

static bool is_same(const std::variant<double, std::int64_t>& a, const std::variant<double, std::int64_t>& b) {
  const double* const x = std::get_if<double>(&a);
  const double* const y = std::get_if<double>(&b);
  return x && y ? std::bit_cast<std::int64_t>(*x) == std::bit_cast<std::int64_t>(*y) : a == b;  // NaN is NaN
}
std::string Arguments::difference(const Arguments& later) const {
  if (views.size() != later.views.size() || numbers.size() != later.numbers.size()) return "another number of arguments";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (!is_same(numbers[i], later.numbers[i]))
      return std::visit([](auto a, auto b) { return fmt::format("numbers {} and {}", a, b); }, numbers[i], later.numbers[i]);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const View &a = views[i], &b = later.views[i];
    if (a.dtype != b.dtype) return fmt::format("dtypes {} and {}", name(a.dtype), name(b.dtype));
    if (a.shape != b.shape) return fmt::format("shapes {} and {}", to_string(a.shape), to_string(b.shape));
    if (a.strides != b.strides) return fmt::format("strides {} and {}", to_string(a.strides), to_string(b.strides));
  }
  return "";
}

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
  is_gpu ? split_sums(calls, blocks) : transpose_weights(calls, blocks);
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
      if (pending.has(calls[i])) add_up();
      add(std::move(calls[i]), names_of({i}, calls));
      if (device_.type == DeviceType::cuda) pending.add(steps_.back());
    }
  }
  add_up();
  note_uses(steps_, blocks_);
  plan_arena();
  for (const Tensor& x : inputs_) reads_.push_back(x.defined() && returns_inputs_);
  for (const Block& block : blocks_)
    if (block.kind == Block::Kind::input && block.is_used && block.bytes > 0) reads_[block.argument] = true;
  for (const Call& step : steps_)
    for (PhiloxState* const state : Arguments(*step.kernel).states) draws_.push_back({state, state->offset - begin_});
}

void Program::plan_arena() {
  std::vector<std::vector<std::size_t>> begins(steps_.size()), ends(steps_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.kind != Block::Kind::inner || !block.is_used || block.bytes == 0) continue;
    begins[block.first].push_back(i);
    ends[block.last].push_back(i);
  }
  FreeRanges ranges;
  const auto padded = [&](std::size_t i) { return (blocks_[i].bytes + alignment - 1) / alignment * alignment; };
  for (std::size_t at = 0; at < steps_.size(); ++at) {
    for (const std::size_t i : begins[at]) blocks_[i].offset = ranges.take(padded(i));
    for (const std::size_t i : ends[at]) ranges.give_back(blocks_[i].offset, padded(i));
  }
  arena_bytes_ = ranges.size();
}

std::size_t Program::inner_bytes() const {
  std::size_t sum = 0;
  for (const Block& block : blocks_)
    if (block.kind == Block::Kind::inner && block.is_used) sum += block.bytes;
  return sum;
}

void Program::use(Ref<Storage> arena) {
  if (arena_.get() == arena.get()) return;
  arena_ = std::move(arena);
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
      view.data = static_cast<std::byte*>(block.memory ? block.memory->data() : arena_->data()) +
                  static_cast<std::ptrdiff_t>(block.memory ? 0 : block.offset) + place.offset;
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

void Program::bind(const Tensors& arguments) {
  link();
  std::vector<void*> addresses(inputs_.size(), nullptr);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!reads(i)) continue;
    const bool is_in_place = may_read_in_place(arguments[i]);
    if (!is_in_place) launch(device_, kernels::Copy{arguments[i], inputs_[i]});
    addresses[i] = (is_in_place ? arguments[i] : inputs_[i]).view().data;
  }
  for (const InputView& input : input_views_)
    input.view->data = static_cast<std::byte*>(addresses[blocks_[input.input].argument]) + input.offset;
}

void Program::run() {
  link();
  const PhiloxState begin = context().generator.reserve(0);
  const ScopedValue<Context::Kernels> ways(context().kernels, context().kernels);
  *deferred_ = kernels::DeferredSums(context().stream(device_));
  for (const Draw& draw : draws_) *draw.state = {begin.seed, begin.offset + draw.position, begin.base};
  for (const Call& call : steps_) {
    const backend::KernelScope observed(call.op.empty() ? nullptr : call.op.c_str());
    context().kernels = call.ways;
    call.kernel->run(device_);
  }
  advance();
}

void Program::advance() {
  Generator& generator = context().generator;
  generator.set_position(generator.position() + drawn_);
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
}

/// Text for a kernel within its program.
static std::string place_in(const Call& call, std::size_t index, std::size_t count) {
  std::string text = fmt::format("kernel {} of {}, {}", index + 1, count, detail::short_name(call.kernel->type()));
  if (!call.op.empty()) text += " of " + call.op;
  if (!call.module.empty()) text += " in " + call.module;
  return text;
}

/// The memory of a block that the program keeps.
static std::vector<std::byte> bytes_of(const Block& block) {
  std::vector<std::byte> bytes(block.bytes);
  const Stream stream = context().stream(block.memory->stream().device);
  with_backend(stream.device, [&](auto dev) { backend::copy_to_host(dev, bytes.data(), block.memory->data(), bytes.size(), stream); });
  return bytes;
}

std::size_t Program::sum_in(const Ref<Storage>& memory) const {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    const GradientSink::State& found = sinks_[i].before;
    if (found.gradient.defined() && found.gradient.impl().storage == memory) return 2 * i;
    if (found.exact.defined() && found.exact.impl().storage == memory) return 2 * i + 1;
  }
  return Call::Place::none;
}

std::string Program::difference(const Program& later, bool gradients_may_move) const {
  std::vector<std::size_t> mine(later.blocks_.size(), Call::Place::none), theirs(blocks_.size(), Call::Place::none);
  for (std::size_t i = 0; i < std::min(calls_.size(), later.calls_.size()); ++i) {
    const Call &a = calls_[i], &b = later.calls_[i];
    const auto differs = [&](const std::string& what) { return fmt::format("{}: {}", place_in(a, i, calls_.size()), what); };
    if (a.kernel->type() != b.kernel->type()) return differs("then " + detail::short_name(b.kernel->type()));
    if (const std::string found = Arguments(*a.kernel).difference(Arguments(*b.kernel)); !found.empty()) return differs(found);
    if (a.places.size() != b.places.size()) return differs("another number of tensors");
    if (a.ways.matmul_precision != b.ways.matmul_precision) return differs("two precisions of products");
    for (std::size_t k = 0; k < a.places.size(); ++k) {
      const auto [block, offset] = a.places[k];
      const auto [other, other_offset] = b.places[k];
      if ((block == Call::Place::none) != (other == Call::Place::none)) return differs("a tensor that is there and one that is not");
      if (block == Call::Place::none) continue;
      const Block &x = blocks_[block], &y = later.blocks_[other];
      if (theirs[block] == Call::Place::none && mine[other] == Call::Place::none) theirs[block] = other, mine[other] = block;
      if (theirs[block] != other || mine[other] != block || offset != other_offset) return differs("uses another tensor");
      if (x.kind == Block::Kind::outside && y.kind == x.kind && x.memory != y.memory &&
          !(gradients_may_move && sum_in(x.memory) != Call::Place::none && sum_in(x.memory) == later.sum_in(y.memory)))
        return differs("uses another tensor from outside: write into it by copy_, do not replace it");
      if (x.kind == Block::Kind::input && (y.kind != x.kind || block != other)) return differs("uses another argument");
      if ((x.kind == Block::Kind::constant) != (y.kind == Block::Kind::constant)) return differs("uses another tensor");
      if (x.kind == Block::Kind::constant && bytes_of(x) != bytes_of(y)) return differs("uses other elements that the host wrote");
    }
  }
  if (calls_.size() != later.calls_.size()) return fmt::format("{} kernels and {}", calls_.size(), later.calls_.size());
  if (drawn_ != later.drawn_) return fmt::format("{} random positions and {}", drawn_, later.drawn_);
  return "";
}

}  // namespace tern::compiler
