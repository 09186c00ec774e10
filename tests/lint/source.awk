# Cuts C files into records, tab-separated, one a line; comments and the insides of literals are gone. Not a compiler: enough for lint.
#   C file line depth code        a line of code            P file line inside code  a preprocessor line; inside: of a function
#   F file line lines head        a function definition     G file line 0 text       anything else at file scope that ends in ';'
#   S file line depth text        a statement inside braces
# `depth` counts open braces at the beginning of the line (C) or of the statement (S).

function strip(line, out, tok) {
  out = ""
  while (line != "") {
    if (in_comment) {
      if (!(p = index(line, "*/"))) return out
      line = substr(line, p + 2)
      in_comment = 0
      continue
    }
    if (!match(line, /["']|\/\*|\/\//)) return out line
    tok = substr(line, RSTART, RLENGTH)
    out = out substr(line, 1, RSTART - 1)
    line = substr(line, RSTART + RLENGTH)
    if (tok == "//") return out
    if (tok == "/*") { in_comment = 1; out = out " "; continue }
    out = out tok tok
    while (match(line, tok == "\"" ? "[\"\\\\]" : "['\\\\]")) {
      closing = substr(line, RSTART, 1) == tok
      line = substr(line, RSTART + (closing ? 1 : 2))
      if (closing) break
    }
  }
  return out
}

function emit(kind, line, number, text) {
  gsub(/[ \t]+/, " ", text)
  sub(/^ /, "", text)
  sub(/ $/, "", text)
  if (text != "") printf "%s\t%s\t%d\t%d\t%s\n", kind, FILENAME, line, number, text
}

function open_brace() {
  if (depth == 0) {
    if (stmt ~ /^[ \t]*extern ""/) { stmt = ""; return }
    head = stmt
    head_line = stmt_line
    head_kind = stmt ~ /=/ ? "G" : stmt ~ /\(/ ? "F" : "G"
  } else
    emit("S", stmt_line, depth, stmt)
  stmt = ""
  depth++
}

function close_brace() {
  emit("S", stmt_line, depth, stmt)
  stmt = ""
  if (depth == 0) return
  if (--depth > 0) return
  if (head_kind == "F")
    emit("F", head_line, FNR - head_line + 1, head)
  else {
    stmt = head "{}"
    stmt_line = head_line
  }
}

function walk(code, c) {
  while (match(code, /[{};]/)) {
    c = substr(code, RSTART, 1)
    add(substr(code, 1, RSTART - 1))
    code = substr(code, RSTART + 1)
    if (c == "{") open_brace()
    else if (c == "}") close_brace()
    else { emit(depth ? "S" : "G", stmt_line, depth, stmt); stmt = "" }
  }
  add(code)
}

function add(text) {
  if (text ~ /^[ \t]*$/) return
  if (depth == 0 && stmt == "" && text ~ /^[A-Z][A-Z0-9_]*\([^()]*\)[ \t]*$/) return # a macro that stands for a definition
  if (stmt == "") stmt_line = FNR
  stmt = stmt " " text
}

FNR == 1 { depth = 0; stmt = ""; in_comment = 0; continued = 0 }
{
  code = strip($0)
  if (continued || code ~ /^[ \t]*#/) {
    continued = $0 ~ /\\$/
    emit("P", FNR, depth > 0 && head_kind == "F", code)
  } else {
    emit("C", FNR, depth, code)
    walk(code)
  }
}
