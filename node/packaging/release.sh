#!/bin/sh
# Makes what install.sh installs: an archive of this machine's kind and its checksum.
#
#   node/packaging/release.sh DIR [BINARY]
#
# DIR gets shoal-VERSION-SYSTEM-MACHINE.tar.gz, the same name with .cdx.json (what the program is made of, see sbom.sh),
# SHA256SUMS and install.sh: put them on a web server, or hand them over as they are. BINARY is a built `shoal`; without
# one it is built here.
#
# SHOAL_FEATURES names the features to build with (otlp,gpu by default), or those that BINARY was built with (otlp by default).
# CARGO_BUILD_TARGET, which cargo reads too, names the platform where it is not this machine's.
#
# No path of the machine that builds gets into the program: the same sources, compilers and features give the same archive in
# another folder (.ci/reproducible builds it twice).
#
# SHOAL_LIBRARY=FILE packs that libshoal (`cargo build --release -p shoal-embed`) with its header and an example, for
# programs in C: libshoal-VERSION-SYSTEM-MACHINE.tar.gz. SHOAL_MATURIN=PROGRAM builds the wheel for Python with that maturin. Wheels
# that lie in DIR are summed too, and what they are made of is listed beside them.
#
# SHOAL_SIGN_KEY=FILE signs the archive with that secret key of minisign (`minisign -G` makes one), which adds
# shoal-VERSION-SYSTEM-MACHINE.tar.gz.minisig: `shoal upgrade` takes nothing without it. SHOAL_RELEASE_KEY=KEY gives the
# program that is built here the public key, so that its users need not name it.
set -eu

fail() { printf 'release.sh: %s\n' "$1" >&2; exit 1; }
[ $# -ge 1 ] || fail "name the folder to write to: release.sh DIR [BINARY]"
out=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=${2:-}
features=${SHOAL_FEATURES-otlp}
home=${CARGO_HOME:-$HOME/.cargo}
target=${CARGO_TARGET_DIR:-$root/target}
# build COMMAND...: with flags that map every path of this machine. Cargo takes flags for compilers from one place only: those of
# settings for a target do not count then.
build() {
    case $home$root$target in
    *' '*) fail "a path with a space cannot be kept out of the program: build in another folder" ;;
    esac
    part=$(printf '\037')
    flags=${CARGO_ENCODED_RUSTFLAGS:-$(printf '%s' "${RUSTFLAGS:-}" | tr -s ' ' '\037')}
    plain=
    # The last one that fits counts: the target folder may lie within the sources.
    for map in "$home=cargo" "$root=shoal" "$target=target"; do
        flags=${flags:+$flags$part}--remap-path-prefix$part$map
        plain="$plain -ffile-prefix-map=$map"
    done
    (cd "$root" && env CARGO_ENCODED_RUSTFLAGS="$flags" CFLAGS="${CFLAGS:-}$plain" CXXFLAGS="${CXXFLAGS:-}$plain" SHOAL_PORTABLE=1 "$@")
}
if [ -z "$binary" ]; then
    # A packaged program computes on GPUs; one that a newcomer builds compiles a minute sooner without.
    features=${SHOAL_FEATURES-otlp,gpu}
    build cargo build --release --locked --package shoal-node --features "$features"
    binary=$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release/shoal
fi
[ -x "$binary" ] || fail "$binary is no program; build it with: cargo build --release --package shoal-node --features otlp,gpu"

version=$("$binary" --version | cut -d ' ' -f 2)
name=shoal-$version-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name/completions" "$out"
out=$(cd "$out" && pwd)
cp "$binary" "$work/$name/shoal"
"$binary" man "$work/$name/man" >/dev/null
"$binary" completions bash >"$work/$name/completions/shoal"
"$binary" completions zsh >"$work/$name/completions/_shoal"
"$binary" completions fish >"$work/$name/completions/shoal.fish"
# What the Debian package takes: see [package.metadata.deb] in node/Cargo.toml.
parts=$target/release/packaging
rm -rf "$parts"
mkdir -p "$parts"
cp -R "$work/$name/man" "$work/$name/completions" "$parts/"
gzip -n -9 "$parts"/man/*.1
"$here/sbom.sh" "$binary" "$features" "${CARGO_BUILD_TARGET:-}" >"$work/$name/shoal.cdx.json" \
    || fail "without a list of its crates the program is not packed"
cp "$work/$name/shoal.cdx.json" "$parts/"
cp "$work/$name/shoal.cdx.json" "$out/$name.cdx.json"
cp "$here/shoal-user.service" "$here/shoal.desktop" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$work/$name/"
chmod 755 "$work/$name/shoal"
# pack NAME: the folder of that name as an archive; the same input gives the same bytes where tar can do that.
pack() {
    if tar --version 2>/dev/null | grep -q GNU; then
        tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime='2000-01-01 00:00Z' -cf "$work/archive.tar" "$1"
    else
        tar -C "$work" -cf "$work/archive.tar" "$1"
    fi
    gzip -n -9 <"$work/archive.tar" >"$out/$1.tar.gz"
}
pack "$name"
if [ -n "${SHOAL_LIBRARY:-}" ]; then
    [ -f "$SHOAL_LIBRARY" ] || fail "$SHOAL_LIBRARY does not exist; make it with: cargo build --release -p shoal-embed"
    mkdir -p "$work/lib$name/lib" "$work/lib$name/include"
    "$here/sbom.sh" "$SHOAL_LIBRARY" "" "${CARGO_BUILD_TARGET:-}" shoal-embed >"$work/lib$name/libshoal.cdx.json" \
        || fail "without a list of its crates the library is not packed"
    cp "$SHOAL_LIBRARY" "$work/lib$name/lib/"
    cp "$root/node/embed/include/shoal.h" "$work/lib$name/include/"
    cp "$root/node/embed/examples/story.c" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$work/lib$name/"
    pack "lib$name"
fi
if [ -n "${SHOAL_MATURIN:-}" ]; then
    build "$SHOAL_MATURIN" build --release --locked --quiet -m "$root/node/embed/python/Cargo.toml" --out "$out"
fi
for wheel in "$out"/*.whl; do
    [ -f "$wheel" ] || continue
    "$here/sbom.sh" "$wheel" "" "${CARGO_BUILD_TARGET:-}" shoal-python >"${wheel%.whl}.cdx.json" \
        || fail "without a list of its crates the wheel is not summed"
done
cp "$here/install.sh" "$out/install.sh"
(
    cd "$out"
    set -- *.tar.gz *.cdx.json
    for wheel in *.whl; do
        if [ -f "$wheel" ]; then set -- "$@" "$wheel"; fi
    done
    if command -v sha256sum >/dev/null 2>&1; then sha256sum -- "$@"; else shasum -a 256 -- "$@"; fi >SHA256SUMS
)
if [ -n "${SHOAL_SIGN_KEY:-}" ]; then
    command -v minisign >/dev/null 2>&1 || fail "minisign is not here; install it, or unset SHOAL_SIGN_KEY"
    minisign -S -s "$SHOAL_SIGN_KEY" -m "$out/$name.tar.gz" -t "$name"
fi
printf 'wrote %s\n' "$out/$name.tar.gz"
