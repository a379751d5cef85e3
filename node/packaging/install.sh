#!/bin/sh
# Installs Shoal for the user who runs it, without root; takes it away again with --uninstall.
#
#   sh install.sh                      from the folder this script lies in
#   sh install.sh --from URL           from a web server (https) or another folder
#   sh install.sh --prefix DIR         somewhere else than ~/.local
#   sh install.sh --uninstall          removes what was installed; models, key and settings stay
#
# Nothing is installed whose SHA-256 is not the one in SHA256SUMS. That protects from a damaged download, and as much as
# you trust the place SHA256SUMS comes from. Running it again changes nothing, or replaces an older version.
set -eu

say() { printf '%s\n' "$1"; }
fail() { printf 'install.sh: %s\n' "$1" >&2; exit 1; }

from=
prefix=${HOME:?HOME is not set; set it to your home folder}/.local
remove=no
while [ $# -gt 0 ]; do
    case $1 in
        --from) [ $# -ge 2 ] || fail "--from needs a URL or a folder"; from=$2; shift 2 ;;
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
        --uninstall) remove=yes; shift ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown argument $1; see --help" ;;
    esac
done
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
# What was installed, one path below the prefix a line.
list=$prefix/share/shoal-install/files
links=x-scheme-handler/shoal

# Tells the desktop that what opens `shoal:` links has come or gone.
applications_changed() {
    set -- "$prefix"/share/applications/*.desktop
    if [ ! -e "$1" ]; then
        rm -f -- "$prefix/share/applications/mimeinfo.cache"
        return
    fi
    if command -v update-desktop-database >/dev/null 2>&1; then
        update-desktop-database -q "$prefix/share/applications" 2>/dev/null || :
    fi
}

uninstall() {
    [ -f "$list" ] || fail "nothing of Shoal was installed below $prefix"
    while IFS= read -r file; do
        case $file in
            '' | /* | *..*) ;;
            *) rm -f -- "$prefix/$file" ;;
        esac
    done <"$list"
    if grep -qx share/applications/shoal.desktop "$list"; then
        applications_changed
        # What xdg-mime wrote; the rest of the file is the user's.
        chosen=${XDG_CONFIG_HOME:-$HOME/.config}/mimeapps.list
        if [ -f "$chosen" ] && grep -q "^$links=shoal.desktop;\{0,1\}\$" "$chosen"; then
            kept=$(grep -v "^$links=shoal.desktop;\{0,1\}\$" "$chosen" || :)
            printf '%s\n' "$kept" >"$chosen"
        fi
    fi
    rm -f -- "$list"
    rmdir "$prefix/share/shoal-install" 2>/dev/null || :
    say "Shoal is removed. Models, key and settings are still in its data folder."
}

if [ "$remove" = yes ]; then
    uninstall
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# fetch NAME: gets a file of the release into $work.
fetch() {
    case $from in
        https://* | http://127.0.0.1:* | http://localhost:*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 3 -o "$work/$1" "$from/$1" || return 1
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$work/$1" "$from/$1" || return 1
            else
                fail "neither curl nor wget is here; install one, or download the release and run install.sh in it"
            fi
            ;;
        *://*) fail "$from: only https is fetched" ;;
        *) [ -f "$from/$1" ] && cp "$from/$1" "$work/$1" ;;
    esac
}

hash_of() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1"
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 "$1"
    else
        fail "neither sha256sum nor shasum is here; without them nothing can be checked"
    fi | cut -d ' ' -f 1
}

if [ -z "$from" ]; then
    case $0 in
        */*) from=$(cd "$(dirname "$0")" && pwd) ;;
        *) from=$PWD ;;
    esac
fi
from=${from%/}

fetch SHA256SUMS || fail "no SHA256SUMS in $from; name the place of a release with --from"
kind=$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
line=$(grep -E "^[0-9a-f]{64}  ?\*?shoal-[0-9A-Za-z.+-]*-$kind\.tar\.gz\$" "$work/SHA256SUMS" | tail -n 1)
[ -n "$line" ] || fail "this release has nothing for $kind; build it: cargo install --path node"
want=${line%% *}
archive=${line##* }
archive=${archive#\*}
name=${archive%.tar.gz}

binary=$prefix/bin/shoal
if [ -f "$list" ] && [ -x "$binary" ] && grep -qx "# $want" "$list"; then
    say "$name is installed already: $binary"
    exit 0
fi

fetch "$archive" || fail "$archive cannot be fetched from $from; try again"
got=$(hash_of "$work/$archive")
[ -n "$got" ] || exit 1
[ "$got" = "$want" ] || fail "$archive is damaged or not what it should be (its SHA-256 is $got, not $want); nothing was installed"
mkdir "$work/unpacked"
tar -xzf "$work/$archive" -C "$work/unpacked"
there=$work/unpacked/$name
[ -f "$there/shoal" ] || fail "$archive has no program in it; nothing was installed"

if [ -f "$list" ]; then
    uninstall >/dev/null
fi
mkdir -p "$prefix/share/shoal-install"
printf '# %s\n' "$want" >"$list"
# put FILE PATH MODE: installs one file, all of it or nothing.
put() {
    mkdir -p "$prefix/$(dirname "$2")"
    cp "$1" "$prefix/$2.new"
    chmod "$3" "$prefix/$2.new"
    mv -f "$prefix/$2.new" "$prefix/$2"
    printf '%s\n' "$2" >>"$list"
}
put "$there/shoal" bin/shoal 755
for page in "$there"/man/*.1; do
    [ -f "$page" ] && put "$page" "share/man/man1/$(basename "$page")" 644
done
[ -f "$there/completions/shoal" ] && put "$there/completions/shoal" share/bash-completion/completions/shoal 644
[ -f "$there/completions/_shoal" ] && put "$there/completions/_shoal" share/zsh/site-functions/_shoal 644
[ -f "$there/completions/shoal.fish" ] && put "$there/completions/shoal.fish" share/fish/vendor_completions.d/shoal.fish 644
[ -f "$there/shoal.cdx.json" ] && put "$there/shoal.cdx.json" share/doc/shoal/shoal.cdx.json 644
if [ "$prefix" = "$HOME/.local" ] && [ -f "$there/shoal-user.service" ]; then
    put "$there/shoal-user.service" share/systemd/user/shoal.service 644
fi
# Desktops of Linux open `shoal:` links with it. A path that an Exec line would have to escape is left out.
if [ "$prefix" = "$HOME/.local" ] && [ "$(uname -s)" = Linux ] && [ -f "$there/shoal.desktop" ]; then
    case $binary in
        *[!A-Za-z0-9/._+@-]*) say "Links shoal:CODE are not opened: the path $binary is none that a desktop file can name" ;;
        *)
            sed "s|^Exec=shoal |Exec=$binary |" "$there/shoal.desktop" >"$work/shoal.desktop"
            put "$work/shoal.desktop" share/applications/shoal.desktop 644
            applications_changed
            if command -v xdg-mime >/dev/null 2>&1; then
                xdg-mime default shoal.desktop "$links" || :
            fi
            ;;
    esac
fi

say "$name is installed: $binary"
case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "Put it on the path: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
say "Try: shoal run \"Tell me a story about a fox\""
