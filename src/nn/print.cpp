// Printing of modules: the tree that visit walks, after torch.nn.Module's repr.
#include <ostream>

#include "nn/module.h"

namespace tern::nn {

namespace {

struct Branch {
  std::string path, label, head;  ///< `blocks.0`, that without the parent's path, and `Linear(in=8, out=4`
  std::vector<Branch> children;
};

/// visit walks modules in the order of the tree, so a module's parent is the latest one whose path is a prefix of its own.
struct ReadTree final : Visitor {
  void on_module(const std::string& path, Module& module) override {
    Branch branch{path, path, module.type_name() + "(" + module.settings(), {}};
    if (path.empty()) {
      root = std::move(branch);
      return;
    }
    Branch* parent = &root;
    while (!parent->children.empty() && path.starts_with(parent->children.back().path + ".")) parent = &parent->children.back();
    if (!parent->path.empty()) branch.label = path.substr(parent->path.size() + 1);
    parent->children.push_back(std::move(branch));
  }
  Branch root;
};

std::string text(const Branch& branch, const std::string& indent);

/// Merges `blocks.0` and `blocks.3` to `blocks.0-3`.
std::string range(const std::string& first, const std::string& last) {
  const std::size_t dot = last.rfind('.');
  return first + "-" + (dot == std::string::npos ? last : last.substr(dot + 1));
}

/// The label without its trailing digits, which modules of one list have in common. Empty if there are no digits.
std::string list_of(const std::string& label) {
  const std::size_t end = label.find_last_not_of("0123456789");
  if (end == std::string::npos) return ".";
  return label[end] == '.' && end + 1 < label.size() ? label.substr(0, end + 1) : "";
}

std::string children_text(const std::vector<Branch>& children, const std::string& indent) {
  std::string out;
  for (std::size_t i = 0; i < children.size();) {
    const std::string shown = text(children[i], indent), list = list_of(children[i].label);
    std::size_t end = i + 1;
    while (end < children.size() && !list.empty() && list_of(children[end].label) == list && text(children[end], indent) == shown) ++end;
    const std::size_t count = end - i;
    out += indent + "(" + (count == 1 ? children[i].label : range(children[i].label, children[end - 1].label)) + "): ";
    out += (count == 1 ? "" : std::to_string(count) + " x ") + shown + "\n";
    i = end;
  }
  return out;
}

std::string text(const Branch& branch, const std::string& indent) {
  if (branch.children.empty()) return branch.head + ")";
  return branch.head + "\n" + children_text(branch.children, indent + "  ") + indent + ")";
}

}  // namespace

std::string to_string(const Module& module) {
  ReadTree tree;
  tree.walk(const_cast<Module&>(module));  // only reads
  return text(tree.root, "");
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << to_string(module); }

}  // namespace tern::nn
