#!/bin/sh
# Installs one program or library: stripped, with its debug information in a file of its own.
#
#   packaging/place.sh BUILT INSTALLED
#
# The debug information goes to .debug/NAME.debug beside INSTALLED, where gdb and perf look for it. Of a static library
# it is removed. Without objcopy and strip (binutils) the file is installed as it was built. A file that is there is
# replaced, not written into: a program may run on it at this moment. When it fails or is ended by HUP, INT, QUIT, PIPE
# or TERM, the files that were there are unchanged, unless the last rename alone is refused (a sticky folder).
set -eu

fail() {
    printf '%s\n' "place.sh: $1" >&2
    exit 1
}

[ $# -eq 2 ] || { echo "usage: place.sh BUILT INSTALLED" >&2; exit 2; }
# A name with a leading dash is not an option.
case $1 in -*) set -- "./$1" "$2" ;; esac
case $2 in -*) set -- "$1" "./$2" ;; esac
[ -f "$1" ] && [ -r "$1" ] || fail "$1 is not a file that can be read"
case $2 in '' | */) fail "'$2' is not the name of a file" ;; esac
folder=$(dirname "$2")
name=$(basename "$2")
debug=$folder/.debug/$name.debug
# mv puts a file into a directory of this name, and replaces a device.
for file in "$2" "$debug"; do
    [ ! -e "$file" ] || [ -f "$file" ] || fail "$file exists and is not a file"
done

# All work is done in a private folder, for the tools leave files beside their target when they are killed. It lies in
# the target's folder, so that mv renames. dash runs the EXIT trap after a signal only if the signal has a trap, too.
work=
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT QUIT PIPE TERM
mkdir -p "$folder"
work=$(mktemp -d "$folder/.place.XXXXXX")
new=$work/$name

cp "$1" "$new"
chmod 755 "$new"
if command -v objcopy >/dev/null && command -v strip >/dev/null; then
    case $name in
    *.a) strip --strip-debug "$new" ;;
    *)
        objcopy --only-keep-debug "$new" "$new.debug"
        chmod 644 "$new.debug"
        strip "$new"
        objcopy --add-gnu-debuglink="$new.debug" "$new"
        mkdir -p "$folder/.debug"
        ;;
    esac
fi
case $name in *.a) chmod 644 "$new" ;; esac

# Both files are ready and a signal has to wait: only the renames are left. The debug file is first, because .debug may
# not be writable; the folder itself is, the private folder was made there.
trap '' HUP INT QUIT PIPE TERM
[ ! -e "$new.debug" ] || mv -f "$new.debug" "$debug"
mv -f "$new" "$2"
