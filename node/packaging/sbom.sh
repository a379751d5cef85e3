#!/bin/sh
# Prints what a built `shoal` is made of: a software bill of materials as CycloneDX 1.5 in JSON.
#
#   node/packaging/sbom.sh BINARY [FEATURES [TARGET [PACKAGE]]]
#
# FEATURES are those that BINARY was built with (`otlp,gpu`; none by default), TARGET is the platform that it was built for
# (this machine's by default), PACKAGE the crate that it is (shoal-node by default). Crates and their graph are those of `cargo tree`, which resolves features for one package
# and one platform as `cargo build` does; `cargo metadata` adds those that only the tests ask for. What runs while
# compiling only (build scripts, procedural macros) has the scope "excluded". Hashes are those of Cargo.lock: what cargo
# compares a downloaded crate with. No time and no random number: the same program and lock file give the same bytes.
set -eu

fail() { printf 'sbom.sh: %s\n' "$1" >&2; exit 1; }
[ $# -ge 1 ] || fail "name the program: sbom.sh BINARY [FEATURES [TARGET [PACKAGE]]]"
[ -f "$1" ] || fail "$1 does not exist"
root=$(cd "$(dirname "$0")/../.." && pwd -P)
cargo=${CARGO:-cargo}
command -v "$cargo" >/dev/null 2>&1 || fail "$cargo is not here; it knows which crates a build has"
features=${2:-}
target=${3:-$("$cargo" -vV | sed -n 's/^host: //p')}
package=${4:-shoal-node}
export LC_ALL=C

hash_of() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi <"$1" | cut -d ' ' -f 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
# tree EDGES FILE: a line for each edge: depth, crate with version, license.
tree() {
    (cd "$root" && "$cargo" tree --locked --package "$package" --edges "$1" --features "$features" --target "$target" \
        --prefix depth --format '|{p}|{l}|') >"$2" || fail "cargo cannot resolve the crates of this build"
}
tree normal,build "$work/all"
tree normal,no-proc-macro "$work/linked"

# The documents' parts, a line each: `c` components, `d` dependencies, both with a key to sort by.
awk -F '|' -v linked_file="$work/linked" -v lock_file="$root/Cargo.lock" '
    function key(text,    word) { split(text, word, " "); return word[1] " " substr(word[2], 2) }
    function purl(crate,    word) { split(crate, word, " "); gsub(/\+/, "%2B", word[2]); return "pkg:cargo/" word[1] "@" word[2] }
    function quoted(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); return "\"" text "\"" }
    BEGIN {
        while ((getline line < linked_file) > 0) { split(line, part, "|"); linked[key(part[2])] = 1 }
        while ((getline line < lock_file) > 0) {
            if (split(line, part, "\"") < 2) continue
            if (line ~ /^name = /) name = part[2]
            if (line ~ /^version = "/) version = part[2]
            if (line ~ /^checksum = /) sha256[name " " version] = part[2]
        }
    }
    {
        crate = key($2)
        above[$1 + 0] = crate
        license[crate] = $3
        if ($1 > 0 && !seen[above[$1 - 1], crate]++) print "d " above[$1 - 1] "\t" purl(crate)
        if (!($1 > 0)) print "r " crate
    }
    END {
        for (crate in license) {
            split(crate, word, " ")
            gsub(/ *\/ */, " OR ", license[crate])
            line = "{\"type\": \"library\", \"bom-ref\": " quoted(purl(crate)) ", \"name\": " quoted(word[1])
            line = line ", \"version\": " quoted(word[2]) ", \"scope\": \"" (linked[crate] ? "required" : "excluded") "\""
            if (sha256[crate]) line = line ", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"" sha256[crate] "\"}]"
            if (license[crate]) line = line ", \"licenses\": [{\"expression\": " quoted(license[crate]) "}]"
            print "c " crate "\t" line ", \"purl\": " quoted(purl(crate)) "}"
            print "d " crate "\t"
        }
    }
' "$work/all" | sort >"$work/parts"

# The document without its serial number, which is made of it.
awk -F '\t' -v binary="$(hash_of "$1")" -v features="$features" -v target="$target" '
    function purl(crate,    word) { split(crate, word, " "); gsub(/\+/, "%2B", word[2]); return "pkg:cargo/" word[1] "@" word[2] }
    { kind = substr($1, 1, 1); crate = substr($1, 3) }
    kind == "c" { component[++components] = $2; of[components] = crate; next }
    kind == "d" && $2 == "" { ref[++refs] = crate; next }
    kind == "d" { on[crate] = on[crate] (on[crate] == "" ? "" : ", ") "\"" $2 "\""; next }
    { program = crate }
    END {
        for (i = 1; i <= components; i++) if (of[i] == program) whole = component[i]
        if (whole ~ /"name": "shoal-node"/) {
            sub(/"type": "library"/, "\"type\": \"application\"", whole)
            sub(/"name": "shoal-node"/, "\"name\": \"shoal\"", whole)
        }
        sub(/, "scope": "[a-z]*"/, ", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"" binary "\"}]", whole)
        print "  \"version\": 1,\n  \"metadata\": {\n    \"component\": " whole ","
        print "    \"properties\": [{\"name\": \"shoal:target\", \"value\": \"" target "\"}, {\"name\": \"shoal:features\", \"value\": \"" features "\"}]\n  },"
        print "  \"components\": ["
        for (i = 1; i <= components; i++) if (of[i] != program) print "    " component[i] (++written < components - 1 ? "," : "")
        print "  ],\n  \"dependencies\": ["
        for (i = 1; i <= refs; i++) print "    {\"ref\": \"" purl(ref[i]) "\", \"dependsOn\": [" on[ref[i]] "]}" (i < refs ? "," : "")
        print "  ]\n}"
    }
' "$work/parts" >"$work/body"

serial=$(hash_of "$work/body" | sed 's/^\(.\{8\}\)\(.\{4\}\).\(.\{3\}\).\(.\{3\}\)\(.\{12\}\).*/\1-\2-8\3-8\4-\5/')
printf '{\n  "bomFormat": "CycloneDX",\n  "specVersion": "1.5",\n  "serialNumber": "urn:uuid:%s",\n' "$serial"
cat "$work/body"
