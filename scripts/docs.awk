# awk -v topic=NAME -f docs.awk HEADER HEADER: the header as Doxygen takes it best. What its namespaces have belongs to the topic, of which the
# text of @file becomes a part. The docstring of a group, /// @{ to /// @}, stands before each of its declarations: Doxygen would give it to
# some. A word that begins a sentence is no link to a class of that name.
FNR == 1 { pass++; in_text = 0 }
/^\/\/\/ @file$/ { in_text = 1; next }
in_text && /^\/\/\// { if (pass == 1) text = text $0 "\n"; next }
{ in_text = 0 }
pass == 1 { if (sub(/^}  \/\/ namespace /, "")) closed[$0] = 1; next }

/^ *\/\/\/ (Bound|Edge|Function|Index|Product|View) / { sub(/\/\/\/ /, "&%") }
# @name begins a section, whose declarations have docstrings of their own.
/^ *\/\/\/ @name/ { is_named = 1 }
/^ *\/\/\/ @[{]$/ && is_named { is_section = 1; is_named = 0; print; next }
/^ *\/\/\/ @[{]$/ { in_group = in_doc = at_begin = 1; doc = ""; next }
/^ *\/\/\/ @[}]$/ && in_group { in_group = 0; next }
/^ *\/\/\/ @[}]$/ && is_section { is_section = 0; print; next }
in_group && in_doc && /^ *\/\/\// { doc = doc $0 "\n"; next }
in_group {
  in_doc = 0
  code = $0
  sub(/ *\/\/.*/, "", code)
  if (at_begin && code ~ /[^ ]/) {
    if ($0 !~ /\/\/\/< /) printf "%s", doc
    else if (doc == "") doc = "/// " substr($0, index($0, "///< ") + 5) "\n"   # the first one's stands behind it
    at_begin = 0
    match(code, /[^ ]/)
    end_of_body = substr(code, 1, RSTART - 1) "}"
  }
  if (code ~ /[{]$/) in_body = 1
  if (code == end_of_body) in_body = 0
  if (!in_body && code ~ /[;}]$/) at_begin = 1
}

/^}  \/\/ namespace tern/ { print "/// @}" }
{ print }
/^namespace tern.* [{]$/ && ($2 in closed) { printf "/// @addtogroup %s\n%s/// @{\n\n", topic, text; text = "" }
