#!/bin/sh
# Installs the C library, its header, the Fortran module's source, and the files for pkg-config and CMake.
#
#   crates/capi/install.sh PREFIX [BUILT]
#
# PREFIX is where it goes (include, lib, lib/pkgconfig, lib/cmake/Forebay, share/forebay/fortran below it) and
# may not exist yet. BUILT is the folder that holds libforebay.so, and libforebay.a if it is wanted; without it
# target/release of this checkout, after `cargo build --release -p forebay-capi`. DESTDIR, if set, goes before
# PREFIX for packagers. Programs are built against the result with `pkg-config --cflags --libs forebay` or
# CMake's find_package(Forebay). Libraries are stripped, their debug information lies in lib/.debug. Existing files of
# these names are replaced; nothing else is touched.
set -eu

fail() {
    printf '%s\n' "install.sh: $1" >&2
    exit "${2:-2}"
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || fail "usage: install.sh PREFIX [BUILT]"
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
case $1 in
/*) prefix=$1 ;;
*) prefix=$(pwd)/$1 ;;
esac
built=${2:-$here/../../target/release}
[ -f "$built/libforebay.so" ] || fail "no libforebay.so in $built; run: cargo build --release -p forebay-capi"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
[ -n "$version" ] || fail "no version in $here/../../Cargo.toml"

root=${DESTDIR:-}$prefix
# A name with a leading dash is not an option.
case $root in -*) root=./$root ;; esac
mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/lib/cmake/Forebay" "$root/share/forebay/fortran"

# dash runs the EXIT trap after a signal only if the signal has a trap, too.
new=
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM

# replace FILE COMMAND...: FILE becomes what the command prints. A program may read the old file at this moment: it is
# replaced, not written into. mv would put the new one into a directory of this name.
replace() {
    file=$1
    shift
    [ ! -e "$file" ] || [ -f "$file" ] || fail "$file exists and is not a file" 1
    new=$file.new.$$
    "$@" >"$new"
    chmod 644 "$new"
    mv -f "$new" "$file"
}

# A "|" or "&" in a prefix would be read by sed.
filled() {
    escaped=$(printf '%s' "$prefix" | sed 's/[&|\\]/\\&/g')
    sed -e "s|@PREFIX@|$escaped|g" -e "s|@VERSION@|$version|g" "$1"
}

replace "$root/include/forebay.h" cat "$here/include/forebay.h"
replace "$root/share/forebay/fortran/forebay.f90" cat "$here/fortran/forebay.f90"
"$here/../../packaging/place.sh" "$built/libforebay.so" "$root/lib/libforebay.so"
if [ -f "$built/libforebay.a" ]; then
    "$here/../../packaging/place.sh" "$built/libforebay.a" "$root/lib/libforebay.a"
fi
replace "$root/lib/pkgconfig/forebay.pc" filled "$here/forebay.pc.in"
replace "$root/lib/cmake/Forebay/ForebayConfig.cmake" filled "$here/cmake/ForebayConfig.cmake.in"
replace "$root/lib/cmake/Forebay/ForebayConfigVersion.cmake" filled "$here/cmake/ForebayConfigVersion.cmake.in"
echo "Forebay $version installed in $root"
