#!/usr/bin/env bash
# man.sh VERSION: prints the manual page, in the format of man(1). It is docs/reference/cli.md with other marks.
set -euo pipefail
cd "$(dirname "$0")/.."
awk -v version="$1" '
  function roff(s) { # escapes what roff would interpret, and drops the marks of Markdown
    if (!code) { gsub(/`|\\|\]\(#[^)]*\)/, "", s); gsub(/as for \[/, "as for ", s) }
    gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s)
    if (s ~ /^[.\047]/) s = "\\&" s
    return s
  }
  BEGIN { printf ".TH RLSIDECAR 1 \"\" \"rlsidecar %s\"\n.SH NAME\nrlsidecar \\- a rate limiter that proxies call before every request\n.SH DESCRIPTION\n", version }
  NR < 5 { next }                           # the title, and how the page was made
  /^```/ { code = !code; print code ? ".PP\n.nf" : ".fi"; next }
  code { print roff($0); next }
  /^##/ { print (/^###/ ? ".SS " : ".SH ") roff(substr($0, index($0, " ") + 1)); heading = 1; next }
  /^\|---|^\| (setting|variable) / { next }
  /^\| / { # a row of a table: the name, the variables, the meaning
    gsub(/\\\|/, "\001"); n = split($0, cell, / *\| */)
    text = roff(cell[4] (cell[3] == "" ? "" : " (" cell[3] ")")); name = roff(cell[2])
    gsub(/\001/, "|", text); gsub(/\001/, "|", name)
    gap = heading = 0; print ".TP\n.B " name "\n" text; next
  }
  /^- / { gap = heading = 0; print ".IP \\(bu 2\n" roff(substr($0, 3)); next }
  /^$/ { gap = !heading; next }
  { if (gap) print ".PP"; gap = heading = 0; sub(/^ +/, ""); print roff($0) }
' docs/reference/cli.md
