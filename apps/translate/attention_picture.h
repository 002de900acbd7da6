#pragma once
#include <string>

#include "translate/translator.h"

namespace tern::translate {

/// The attention that a model pays to the tokens of a source where it decides on each token of a translation, as an SVG picture: target
/// tokens x source tokens, the mean over the heads of a layer, counted from 1; 0: the last. Of an encoder-decoder it is cross attention, of
/// a decoder-only LM the source's part of self attention. Computed by plain ops. Throws UsageError for a layer that there is not.
std::string attention_picture(const Translator& translator, const std::string& line, std::int64_t layer = 0);

}  // namespace tern::translate
