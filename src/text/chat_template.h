#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"

namespace tern::text {

/// Message of a conversation.
struct ChatMessage {
  /// Who wrote it; the system's message is a program's own.
  enum class Role : std::uint8_t { system, user, assistant };
  Role role = Role::user;  ///< the writer
  std::string content;     ///< plain text: special tokens that it spells are text
};

/// Tokens at the beginning and the end of a text, by their ids; -1: none.
struct ChatTokens {
  std::int32_t bos = -1;  ///< begins a text
  std::int32_t eos = -1;  ///< ends a text
};

/// The form of a conversation that a model was trained with. The chat_template of Hugging Face's tokenizer_config.json, and of a GGUF file,
/// is a program in Jinja. It is not run: its form is recognized by its markers, as llama.cpp does, and rendered as the program would for
/// messages in turns that begin with a system's or a user's. Tools, dates and thoughts that some programs add are left out.
class ChatTemplate {
 public:
  /// The form of a program: ChatML (with its default system message), Llama 2 and 3, Mistral (with its spaces), Gemma, Phi-3, Phi-4 or
  /// Zephyr; for any other text the plain form, "User: ...\nAssistant: ...\n", which needs no special tokens.
  explicit ChatTemplate(std::string_view jinja = {});

  std::string_view name() const noexcept { return form_.name; }     ///< "chatml", "llama2", ...; "plain"
  bool is_plain() const noexcept { return form_.name == "plain"; }  ///< true for the plain form

  /// The conversation, and the beginning of an answer if its last message is not one.
  std::string render(std::span<const ChatMessage> messages, std::string_view bos, std::string_view eos) const;
  /// Ids of the same text: those of Tokenizer::encode, with the template's own special tokens, but none of the messages.
  std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, const ChatTokens& tokens) const;
  /// The special token that ends an answer, besides the end of the text; "" if there is none.
  std::string_view end() const noexcept { return form_.close; }
  /// Text that begins the next message in the plain form, where an answer has to be cut; else "".
  std::string_view stop() const noexcept { return is_plain() ? "\nUser:" : ""; }

 private:
  /// A message is open, role, separator, after, its content, close and end; {} is the role's name. Open, separator and close are special
  /// tokens of tokenizers that have them.
  struct Form {
    std::string_view name, open, role, separator, after, close, end;
    bool folds_system = false;  ///< the system's message begins the next user's
  };
  /// Spaces of [INST] question [/INST] answer.
  struct Turns {
    std::string open, close, before_answer, after_answer, after_eos;
    bool trims_question = false, trims_answer = false, has_bos = false, has_tags = false, system_is_last = false;
  };
  struct Piece {
    enum class Kind : std::uint8_t { text, special, bos, eos } kind;
    std::string text = {};
  };
  static const Form forms[];

  void read_turns(std::string_view jinja);
  std::vector<Piece> pieces(std::span<const ChatMessage> messages) const;
  void add_turns(std::span<const ChatMessage> messages, std::vector<Piece>& out) const;
  void add_message(ChatMessage::Role role, const std::string& content, bool is_open, std::vector<Piece>& out) const;

  Form form_;
  Turns turns_;
  bool begins_with_bos_ = false, closes_with_eos_ = false, trims_ = false;
  std::string default_system_;
};

/// The chat_template of the text of a tokenizer_config.json, "" if it has none; of several the one named "default". Throws DataError, which
/// begins with `name`, for a text that is not an object in JSON, and for templates of another type.
std::string chat_template_of(std::string_view json, std::string_view name);

}  // namespace tern::text
