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
    echo "install.sh: $1" >&2
    exit 2
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || fail "usage: install.sh PREFIX [BUILT]"
here=$(cd "$(dirname "$0")" && pwd)
case $1 in
/*) prefix=$1 ;;
*) prefix=$(pwd)/$1 ;;
esac
built=${2:-$here/../../target/release}
[ -f "$built/libforebay.so" ] || fail "no libforebay.so in $built; run: cargo build --release -p forebay-capi"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
[ -n "$version" ] || fail "no version in $here/../../Cargo.toml"

root=${DESTDIR:-}$prefix
mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/lib/cmake/Forebay" "$root/share/forebay/fortran"

# A program may run on the old library at this moment: replace the file, do not write into it.
place() {
    cp "$1" "$2.new.$$"
    chmod "$3" "$2.new.$$"
    mv -f "$2.new.$$" "$2"
}

# A "|" or "&" in a prefix would be read by sed.
filled() {
    escaped=$(printf '%s' "$prefix" | sed 's/[&|\\]/\\&/g')
    sed -e "s|@PREFIX@|$escaped|g" -e "s|@VERSION@|$version|g" "$1" >"$2.new.$$"
    chmod 644 "$2.new.$$"
    mv -f "$2.new.$$" "$2"
}

place "$here/include/forebay.h" "$root/include/forebay.h" 644
place "$here/fortran/forebay.f90" "$root/share/forebay/fortran/forebay.f90" 644
"$here/../../packaging/place.sh" "$built/libforebay.so" "$root/lib/libforebay.so"
if [ -f "$built/libforebay.a" ]; then
    "$here/../../packaging/place.sh" "$built/libforebay.a" "$root/lib/libforebay.a"
fi
filled "$here/forebay.pc.in" "$root/lib/pkgconfig/forebay.pc"
filled "$here/cmake/ForebayConfig.cmake.in" "$root/lib/cmake/Forebay/ForebayConfig.cmake"
filled "$here/cmake/ForebayConfigVersion.cmake.in" "$root/lib/cmake/Forebay/ForebayConfigVersion.cmake"
echo "Forebay $version installed in $root"
