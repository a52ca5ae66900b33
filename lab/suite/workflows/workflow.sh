#!/bin/sh
# Prints a workflow file of the suite:   ./workflow.sh NAME RANKS [SCALE [KIND [BATCH]]] > my.toml
#
# NAME   64mb | 2k | gtc-read | gtc-multiply | amr-read | amr-multiply
# RANKS  of each of the two components; the published workflows have 8, 16 and 24
# SCALE  1 is the published size: 1 GB of each rank in a version (64mb, 2k), 229 MB (gtc), 2.5 GB (amr).
#        Smaller: large objects become smaller, small ones fewer. Default 0.002.
# KIND   space (default), or files: one file per object
# BATCH  small objects of one call; default 1
set -eu
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
name=$1 ranks=$2 scale=${3:-0.002} kind=${4:-space} batch=${5:-1}

count() { awk -v x="$1" 'BEGIN { n = int(x + 0.5); print n < 1 ? 1 : n }'; }
product() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.0f\n", a * b }'; }

case $name in
64mb)
    object=$(count "$(product 64000000 "$scale")") writer="writer" analytics="reader"
    writes="\"--object\", \"$object\", \"--count\", \"16\"" reads=""
    bytes=$((object * 16)) objects=16 ;;
2k)
    objects=$(count "$(product 524288 "$scale")") writer="writer" analytics="reader"
    writes="\"--object\", \"2KiB\", \"--count\", \"$objects\", \"--batch\", \"$batch\""
    reads=", \"--batch\", \"$batch\""
    bytes=$((objects * 2048)) ;;
gtc-read | gtc-multiply)
    writer="particles" analytics="${name#gtc-}" writes="\"--scale\", \"$scale\"" reads=""
    bytes=$(product 229000000 "$scale") objects=1 ;;
amr-read | amr-multiply)
    objects=$(count "$(product 528000 "$scale")") writer="amr" analytics="${name#amr-}"
    writes="\"--scale\", \"$scale\", \"--batch\", \"$batch\"" reads=", \"--batch\", \"$batch\""
    # A mesh can be several times as large as was asked for, because it is made of whole cubes of blocks, at least
    # 64; and blocks come and go with the sphere.
    objects=$((objects * 4 + 2560 / ranks))
    bytes=$((objects * 4672)) ;;
*) echo "workflow.sh: unknown workflow $name" >&2; exit 2 ;;
esac
case $analytics in
read) analytics="read-only" ;;
multiply) analytics="matrix-multiply" ;;
esac
# A version of one rank, headers included. A segment holds any of the objects.
version=$((bytes + objects * 512 + 65536))
segment=$(( (version / (objects < 16 ? objects : 16) + 65536 + 1048575) / 1048576 * 1048576 ))

# All ten versions and a segment for each rank: mode serial keeps them until the simulation has ended. Memory is taken
# as versions need it, not for the whole quota at once.
quota=$((((version * 10 + segment) / segment + 1) * segment * ranks))

cat <<END
# $name on $ranks + $ranks ranks, scale $scale, made by workflow.sh. Run it:   forebay run FILE
forebay = 1

[workflow]
name = "$name-$ranks"

[channel.data]
kind = "$kind"
segment = $segment
quota = $quota

[[component]]
name = "simulation"
command = ["forebay", "app", "$writer", "--channel", "data", "--steps", "10", $writes]
ranks = $ranks
writes = ["data"]

[[component]]
name = "analytics"
command = ["forebay", "app", "$analytics", "--channel", "data"$reads]
ranks = $ranks
reads = ["data"]
END
