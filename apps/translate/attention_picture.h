#pragma once
#include <string>

#include "translate/translator.h"

namespace tern::translate {

/// A heat map, as SVG, of the attention (target tokens, source tokens) with which a model predicts each token of a sentence's translation:
/// the mean over the heads of layer `layer`, from 1; 0 is the last. It is the cross attention of an encoder-decoder, or the source's part
/// of the self attention of a decoder-only LM, and is computed by composed ops. Throws UsageError for a layer that the model lacks.
std::string attention_picture(const Translator& translator, const std::string& line, std::int64_t layer = 0);

}  // namespace tern::translate
