// The proof refuses programs that are wrong, however they came about: each here is right but for one fault.
#include <cmath>

#include "catch.h"
#include "schedule_text.h"

using namespace study::loops;
using namespace study::loops::test;
using tern::contains, tern::message_of;

namespace {

void for_each(std::vector<Node>& body, const std::function<void(Node&)>& f) {
  for (Node& node : body) {
    f(node);
    for_each(node.body, f);
  }
}
/// The statement that writes the tensor in this way.
Statement& writer(Program& p, const std::string& tensor, Write write) {
  Statement* found = nullptr;
  for_each(p.body, [&](Node& node) {
    if (node.kind == Node::Kind::statement && p.tensors[static_cast<std::size_t>(node.statement.to.tensor)].name == tensor &&
        node.statement.write == write)
      found = &node.statement;
  });
  REQUIRE(found);
  return *found;
}
std::string refusal(const Program& p) {
  const std::string message = message_of([&] { prove(p); });
  CHECK_FALSE(contains(message, "\n"));
  return message;
}
Program product(const std::string& lines) { return scheduled(kernel("matmul", {33, 65, 17}), lines); }

}  // namespace

TEST_CASE("An access outside of its tensor is refused") {
  Program p = product("split i by 8 -> io, i");
  writer(p, "c", Write::add).guards.clear();
  CHECK(contains(refusal(p), "expected c[8 * io + i, j] within 33 elements but it reaches 39"));

  p = product("split k by 4 -> ko, k\nkeep b in shared at ko");
  writer(p, "b_s", Write::assign).inside.clear();
  CHECK(contains(refusal(p), "expected b[4 * ko + b_k, j + b_j] within 17 elements but it reaches 19"));

  p = product("");
  writer(p, "c", Write::add).value.of[0].read.at[1].constant = 1;
  CHECK(contains(refusal(p), "expected a[i, k + 1] within 17 elements but it reaches 17"));
}

TEST_CASE("A guard of another loop, or a wider one, does not keep an access within its tensor") {
  Program p = product("split i by 8 -> io, i\nsplit j by 8 -> jo, j");
  Statement& s = writer(p, "c", Write::add);
  CHECK(refusal(p).empty());
  s.guards[0].limit = 34;
  CHECK(contains(refusal(p), "within 33 elements but it reaches 33"));
  s.guards.erase(s.guards.begin());
  CHECK(contains(refusal(p), "within 33 elements but it reaches 39"));
}

TEST_CASE("An element that is written twice, or never, is refused") {
  Program p = product("");
  writer(p, "c", Write::assign).to.at[1].digits.clear();
  CHECK(contains(refusal(p), "expected each element of c[i, 0] to be written once but loop j writes it again"));

  p = product("split j by 13 -> jo, j");
  writer(p, "c", Write::assign).to.at[1].digits[0].scale = 12;  // tiles that overlap
  CHECK(contains(refusal(p), "its index has gaps or repeats"));

  p = kernel("gelu", {64});
  p.loops[0].extent = 60;
  for_each(p.body, [](Node& node) {
    if (node.kind == Node::Kind::statement) for_each_index(node.statement, [](Index& x) { x.digits[0].extent = 60; });
  });
  CHECK(contains(refusal(p), "expected all 64 elements of y[i] to be written but 60 are"));

  p = kernel("gelu", {64});
  p.body.push_back(p.body[0]);
  CHECK(contains(refusal(p), "expected one assignment of y"));

  p = product("");
  p.body.erase(p.body.begin());
  CHECK(contains(refusal(p), "expected one assignment of c, and at most one reduction"));
}

TEST_CASE("A step of a reduction that is taken twice, or left out, is refused") {
  Program p = product("split k by 4 -> ko, k");
  Statement& s = writer(p, "c", Write::add);
  const std::vector<Bound> guards = s.guards;
  s.guards.clear();
  s.value.of[0].read.at[1].digits.pop_back(), s.value.of[1].read.at[0].digits.pop_back();  // within bounds again
  s.value.of[0].read.at[1].digits[0].scale = 1, s.value.of[1].read.at[0].digits[0].scale = 1;
  CHECK(contains(refusal(p), "expected each of 17 steps to enter c[i, j] once but its loops take 20"));
  s.reduced[0].value.digits[0].scale = 3;
  CHECK(contains(refusal(p), "expected each of 17 steps to enter c[i, j] once but its loops take 0"));
  s.reduced.clear();
  CHECK(contains(refusal(p), "writes it again"));
}

TEST_CASE("What is read before it is written is refused") {
  Program p = kernel("softmax", {3, 7});
  std::swap(p.body[0].body[1], p.body[0].body[2]);  // exp before the maximum is known
  CHECK(contains(refusal(p), "expected m to be written before it is read"));

  p = product("keep c in registers at j");
  std::swap(p.body[0].body[0].body[0], p.body[0].body[0].body[1]);
  CHECK(contains(refusal(p), "expected c_r[0, 0] to be written before it is read"));

  p = kernel("softmax", {3, 8});
  Statement& e = writer(p, "e", Write::assign);
  e.guards.push_back({e.to.at[0], 5});  // not the whole row
  CHECK(contains(refusal(p), "expected e[c] to be written before it is read but it is not where c >= 5"));

  // The maximum is read while it is being found.
  p = kernel("softmax", {3, 8});
  std::vector<Node>& body = p.body[0].body;
  Node& maximum = body[1];
  Node exponent = body[2].body[0];
  for_each_index(exponent.statement,
                 [&](Index& x) { x.digits.back().loop = x.digits.back().loop == body[2].loop ? maximum.loop : x.digits.back().loop; });
  maximum.body.push_back(exponent);
  body.erase(body.begin() + 2);
  CHECK(contains(refusal(p), "expected m to be read after its reduction but loop c is not done"));
}

TEST_CASE("A thread that reads what another wrote without a barrier is refused") {
  for (const auto& [name, text] : {std::pair<std::string, std::string>{"matmul", gpu_product}, {"softmax", gpu_softmax}}) {
    Program p = scheduled(kernel(name, odd_sizes(name)[2]), text);
    CHECK(refusal(p).empty());
    // Each of its barriers is needed.
    const std::string printed = to_text(p);
    int barriers = 0;
    for_each(p.body, [&](Node& node) { barriers += node.kind == Node::Kind::barrier; });
    REQUIRE(barriers == 2);
    for (int without = 0; without < barriers; ++without) {
      Program q = p;
      int i = 0;
      const std::function<void(std::vector<Node>&)> erase = [&](std::vector<Node>& body) {
        std::erase_if(body, [&](const Node& node) { return node.kind == Node::Kind::barrier && i++ == without; });
        for (Node& node : body) erase(node.body);
      };
      erase(q.body);
      CHECK(contains(refusal(q), "expected a barrier between threads that write "));
      place_barriers(q);
      CHECK(to_text(q) == printed);
    }
  }
  // One thread writes what all read; a barrier that not all threads reach.
  Program p = scheduled(kernel("softmax", {4, 8}), "split c by 4 -> c, t in y\nkeep s, m, e in shared\nbind r block, t thread");
  CHECK(contains(to_text(p), "barrier\n  for c in 2:\n    for t in 4:  thread\n"));
  p = scheduled(kernel("softmax", {3, 8}), "split r by 2 -> r, q\nbind r block, q thread");
  p.body[0].body[0].body.insert(p.body[0].body[0].body.begin(), Node{.kind = Node::Kind::barrier});
  CHECK(refusal(p).empty());
  p.body[0].body.push_back({.kind = Node::Kind::loop, .loop = static_cast<int>(p.loops.size())});
  p.loops.push_back({"u", 64, Bind::thread});
  CHECK(contains(refusal(p), "expected all threads to reach a barrier but loop q has fewer"));
}

TEST_CASE("A register belongs to one thread, and shared memory to one block") {
  Program p = scheduled(kernel("softmax", {4, 64}), gpu_softmax);
  for (Tensor& t : p.tensors)
    if (t.name == "m_t") t.kind = Tensor::Kind::registers;
  CHECK(contains(refusal(p), "expected each thread to read registers of its own but m_t is written by another"));

  p = product("split i by 8 -> io, i\nbind io block\nkeep a in shared at io");
  for (Loop& l : p.loops) l.bind = l.name == "i" || l.name == "a_i" ? Bind::block : Bind::none;
  CHECK_FALSE(refusal(p).empty());
}

TEST_CASE("The interpreter finds what the proof is to find") {
  // A row that is left out: what is read is nothing, not the row before.
  Program p = kernel("softmax", {2, 8});
  const Values values = make_values(p);
  writer(p, "e", Write::assign).guards.push_back({whole(p, 0), 1});
  const std::vector<double> y = interpret(p, values)[1];
  CHECK((std::isfinite(y[0]) && std::isnan(y[8])));
  // Beside an output, and twice.
  p = kernel("gelu", {8});
  writer(p, "y", Write::assign).to.at[0].constant = 1;
  CHECK(contains(message_of([&] { interpret(p, make_values(p)); }), "expected writes within y but its red zone is written"));
  writer(p, "y", Write::assign).to.at[0] = {};
  CHECK(contains(message_of([&] { interpret(p, make_values(p)); }), "expected each element of y to be assigned once but one is 8 times"));
  p.loops[0].extent = 100'000'000;
  CHECK(contains(message_of([&] { interpret(p, make_values(p)); }), "take smaller tiles"));
  CHECK(contains(message_of([&] { compare("y", {1, 2}, {1, 3}, 1e-3); }), "expected 3 of element 1 of y but got 2"));
}
