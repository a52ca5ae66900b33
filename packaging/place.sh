#!/bin/sh
# Installs one program or library: stripped, with its debug information in a file of its own.
#
#   packaging/place.sh BUILT INSTALLED
#
# The debug information goes to .debug/NAME.debug beside INSTALLED, where gdb and perf look for it. Of a static library
# it is removed. Without objcopy and strip (binutils) the file is installed as it was built. A file that is there is
# replaced, not written into: a program may run on it at this moment.
set -eu

[ $# -eq 2 ] || { echo "usage: place.sh BUILT INSTALLED" >&2; exit 2; }
folder=$(dirname "$2")
name=$(basename "$2")
new=$folder/$name.new.$$
trap 'rm -f "$new" "$folder/.debug/$name.new.$$"' EXIT

mkdir -p "$folder"
cp "$1" "$new"
if command -v objcopy >/dev/null && command -v strip >/dev/null; then
    case $name in
    *.a) strip --strip-debug "$new" ;;
    *)
        mkdir -p "$folder/.debug"
        objcopy --only-keep-debug "$1" "$folder/.debug/$name.new.$$"
        mv -f "$folder/.debug/$name.new.$$" "$folder/.debug/$name.debug"
        chmod 644 "$folder/.debug/$name.debug"
        strip "$new"
        objcopy --add-gnu-debuglink="$folder/.debug/$name.debug" "$new"
        ;;
    esac
fi
case $name in
*.a) chmod 644 "$new" ;;
*) chmod 755 "$new" ;;
esac
mv -f "$new" "$2"
