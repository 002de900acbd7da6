#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/data_error.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::text {

using Role = ChatMessage::Role;

namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Without white space at both ends.
std::string stripped(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (!is_python_space(step.code_point)) break;
    text.remove_prefix(step.size);
  }
  return std::string(strip_right(text));
}

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string result(text);
  for (std::size_t at = 0; (at = result.find(what, at)) != std::string::npos; at += by.size()) result.replace(at, what.size(), by);
  return result;
}

/// The bodies of a Jinja text's {{ expressions }}.
std::vector<std::string_view> expressions(std::string_view jinja) {
  std::vector<std::string_view> result;
  for (std::size_t at = 0; (at = jinja.find("{{", at)) != std::string_view::npos;) {
    const std::size_t end = jinja.find("}}", at);
    if (end == std::string_view::npos) break;
    result.push_back(jinja.substr(at + 2, end - at - 2));
    at = end;
  }
  return result;
}

/// " " for an expression with the literal " ", else "".
std::string space_in(std::string_view expression) { return has(expression, "' '") || has(expression, "\" \"") ? " " : ""; }

bool trims(std::string_view expression) { return has(expression, "trim") || has(expression, "strip"); }

/// The system message of a ChatML program that is there without one of the conversation: the literal between its markers.
std::string default_system_of(std::string_view jinja) {
  constexpr std::string_view open = "<|im_start|>system", close = "<|im_end|>";
  for (std::size_t at = 0; (at = jinja.find(open, at)) != std::string_view::npos;) {
    at += open.size();
    const std::size_t end = jinja.find_first_of("'\"{}<", at);
    if (end == std::string_view::npos || !jinja.substr(end).starts_with(close)) continue;
    const std::string message = replaced(jinja.substr(at, end - at), "\\n", "\n");
    if (message.size() > 1 && message.front() == '\n') return message.substr(1);
  }
  return "";
}

}  // namespace

constexpr ChatTemplate::Form ChatTemplate::forms[] = {
    {"plain", "", "{}:", "", " ", "", "\n"},
    {"chatml", "<|im_start|>", "{}", "", "\n", "<|im_end|>", "\n"},
    {"phi4", "<|im_start|>", "{}", "<|im_sep|>", "", "<|im_end|>", ""},
    {"llama3", "<|start_header_id|>", "{}", "<|end_header_id|>", "\n\n", "<|eot_id|>", ""},
    {"gemma", "<start_of_turn>", "{}", "", "\n", "<end_of_turn>", "\n", true},
    {"phi3", "<|{}|>", "", "", "\n", "<|end|>", "\n"},
    {"zephyr", "<|{}|>", "", "", "\n", "", "\n"},
    {"llama2", "", "", "", "", "", "", true},
    {"mistral", "", "", "", "", "", "", true},
};

ChatTemplate::ChatTemplate(std::string_view jinja) {
  const auto question = [&] {  // of Zephyr's form
    const std::size_t at = jinja.find("<|user|>");
    return at == std::string_view::npos ? std::string_view() : jinja.substr(at, jinja.find("}}", at) - at);
  }();
  std::string_view name = "plain";
  if (has(jinja, "<|im_start|>")) name = has(jinja, "<|im_sep|>") ? "phi4" : "chatml";
  else if (has(jinja, "[INST]") && has(jinja, "[/INST]")) name = has(jinja, "<<SYS>>") ? "llama2" : "mistral";
  else if (has(jinja, "<|assistant|>") && has(jinja, "<|end|>")) name = "phi3";
  else if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>")) name = "llama3";
  else if (has(jinja, "<start_of_turn>")) name = "gemma";
  else if (has(question, "eos_token") || has(question, "<|endoftext|>")) name = "zephyr";
  form_ = *std::find_if(std::begin(forms), std::end(forms), [&](const Form& form) { return form.name == name; });
  begins_with_bos_ = has(jinja, "bos_token") && !is_plain();
  trims_ = (name == "llama3" || name == "gemma") && trims(jinja);
  if (name == "chatml") default_system_ = default_system_of(jinja);
  if (name == "zephyr") {
    closes_with_eos_ = has(question, "eos_token");
    if (!closes_with_eos_) form_.close = "<|endoftext|>";
  }
  if (name == "llama2" || name == "mistral") read_turns(jinja);
}

void ChatTemplate::read_turns(std::string_view jinja) {
  const std::size_t open = jinja.find("[INST]"), close = jinja.find("[/INST]");
  turns_.open = fmt::format("{}[INST]{}", open > 0 && jinja[open - 1] == ' ' ? " " : "", jinja.substr(open + 6, 1) == " " ? " " : "");
  turns_.close = close > 0 && jinja[close - 1] == ' ' ? " [/INST]" : "[/INST]";
  turns_.has_tags = form_.name == "llama2";
  turns_.has_bos = has(jinja, "bos_token + '[INST]") || has(jinja, "bos_token + \"[INST]");
  turns_.system_is_last = has(jinja, "loop.last and system_message");
  for (const std::string_view expression : expressions(jinja)) {
    if (has(expression, "[/INST]")) turns_.trims_question = trims(expression);
    const std::size_t content = expression.find("content"), eos = expression.find("eos_token");
    if (content == std::string_view::npos || eos == std::string_view::npos || eos < content) continue;
    turns_.trims_answer = trims(expression);
    turns_.before_answer = space_in(expression.substr(0, content));
    turns_.after_answer = space_in(expression.substr(content, eos - content));
    turns_.after_eos = space_in(expression.substr(eos));
  }
}

void ChatTemplate::add_turns(std::span<const ChatMessage> messages, std::vector<Piece>& out) const {
  using Kind = Piece::Kind;
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == Role::system) {
      system = turns_.has_tags ? fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", message.content) : message.content + "\n\n";
    } else if (message.role == Role::user) {
      const bool takes_system = !turns_.system_is_last || &message == &messages.back();
      const std::string content = (takes_system ? std::exchange(system, {}) : "") + message.content;
      if (turns_.has_bos) out.push_back({Kind::bos});
      const std::string_view mark = turns_.open;
      const std::size_t at = mark.find('[');
      out.push_back({Kind::text, std::string(mark.substr(0, at))});
      out.push_back({Kind::special, "[INST]"});
      out.push_back({Kind::text, std::string(mark.substr(at + 6)) + (turns_.trims_question ? stripped(content) : content)});
      if (turns_.close.front() == ' ') out.push_back({Kind::text, " "});
      out.push_back({Kind::special, "[/INST]"});
    } else {
      const std::string content = turns_.trims_answer ? stripped(message.content) : message.content;
      out.push_back({Kind::text, turns_.before_answer + content + turns_.after_answer});
      out.push_back({Kind::eos});
      out.push_back({Kind::text, turns_.after_eos});
    }
  }
}

void ChatTemplate::add_message(Role role, const std::string& content, bool is_open, std::vector<Piece>& out) const {
  using Kind = Piece::Kind;
  constexpr std::string_view names[] = {"system", "user", "assistant"}, plain[] = {"System", "User", "Assistant"};
  const auto index = static_cast<std::size_t>(role);
  const std::string_view name = is_plain() ? plain[index] : form_.name == "gemma" && role == Role::assistant ? "model" : names[index];
  out.push_back({Kind::special, replaced(form_.open, "{}", name)});
  out.push_back({Kind::text, replaced(form_.role, "{}", name)});
  out.push_back({Kind::special, std::string(form_.separator)});
  // Tokens of words have the space before them: a plain answer begins with its own.
  out.push_back({Kind::text, is_open && is_plain() ? "" : std::string(form_.after)});
  if (is_open) return;
  out.push_back({Kind::text, content});
  out.push_back(closes_with_eos_ ? Piece{Kind::eos} : Piece{Kind::special, std::string(form_.close)});
  out.push_back({Kind::text, std::string(form_.end)});
}

std::vector<ChatTemplate::Piece> ChatTemplate::pieces(std::span<const ChatMessage> messages) const {
  std::vector<Piece> result;
  if (begins_with_bos_ && !turns_.has_bos) result.push_back({Piece::Kind::bos});
  if (!turns_.open.empty()) {
    add_turns(messages, result);
    return result;
  }
  const bool has_system = !messages.empty() && messages.front().role == Role::system;
  if (!has_system && !default_system_.empty()) add_message(Role::system, default_system_, false, result);
  std::string folded;
  for (const ChatMessage& message : messages) {
    const std::string content = trims_ ? stripped(message.content) : message.content;
    if (form_.folds_system && message.role == Role::system) folded += message.content + "\n\n";
    else add_message(message.role, (message.role == Role::user ? std::exchange(folded, {}) : "") + content, false, result);
  }
  if (messages.empty() || messages.back().role != Role::assistant) add_message(Role::assistant, "", true, result);
  return result;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, std::string_view bos, std::string_view eos) const {
  std::string text;
  for (const Piece& piece : pieces(messages)) {
    if (piece.kind == Piece::Kind::bos) text += bos;
    else if (piece.kind == Piece::Kind::eos) text += eos;
    else text += piece.text;
  }
  return text;
}

std::vector<std::int32_t> ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                               const ChatTokens& tokens) const {
  std::vector<std::int32_t> ids;
  std::string run;  // text between special tokens, which is encoded as one
  const auto add = [&](std::int32_t id) {
    const std::vector<std::int32_t> plain = tokenizer.encode(std::exchange(run, {}));
    ids.insert(ids.end(), plain.begin(), plain.end());
    if (id >= 0) ids.push_back(id);
  };
  for (const Piece& piece : pieces(messages)) {
    if (piece.kind == Piece::Kind::bos) {
      add(tokens.bos);
    } else if (piece.kind == Piece::Kind::eos) {
      add(tokens.eos);
    } else {
      const auto id = piece.kind == Piece::Kind::special ? tokenizer.token_to_id(piece.text) : std::nullopt;
      if (id) add(*id);
      else run += piece.text;
    }
  }
  add(-1);
  return ids;
}

std::string chat_template_of(std::string_view json, std::string_view name) {
  const JsonLimits limits;
  JsonSource source(json, std::string(name), limits.max_string_bytes);
  const JsonReader::Json config = JsonReader(source, limits).read();
  const auto fault = [&](const char* expected) { return DataError(fmt::format("{}: \"chat_template\": expected {}", name, expected)); };
  if (!config.is_object()) throw DataError(fmt::format("{}: expected an object", name));
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) throw fault("a text, or a list of templates with names");
  const auto text_of = [](const JsonReader::Json& entry, const char* key) {
    const bool is_there = entry.is_object() && entry.contains(key) && entry[key].is_string();
    return is_there ? entry[key].get<std::string>() : std::string();
  };
  for (const JsonReader::Json& entry : *found)
    if (text_of(entry, "name") == "default") return text_of(entry, "template");
  throw fault("a template of the name default");
}

}  // namespace tern::text
