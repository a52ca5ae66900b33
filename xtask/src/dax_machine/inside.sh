# In the emulated machine, below the host's files: makes what was asked of each NVDIMM and runs the command, which finds
# each of them in NVDIMM0 and NVDIMM1: a folder, a device, or the number of a memory node.
# `machine.sh` beside this file sets shape0, shape1 and folder, and defines the function `command_line`.
share=/run/share
. $share/machine.sh

give_up() {
    echo "dax-machine: $1"
    echo 125 >$share/status
    exit
}

# The kernel's number of each NVDIMM: it counts in an order of its own, the addresses are in ours.
numbers=$(for region in /sys/bus/nd/devices/region*; do
    echo "$(($(cat "$region/resource"))) ${region##*region}"
done | sort -n | while read -r _ number; do echo "$number"; done)

# Sets a namespace's mode, where it is another one; prints "new" then.
namespace() {
    have=$(ndctl list --namespace "namespace$1.0" | sed -n 's/.*"mode":"\([a-z]*\)".*/\1/p' | head -n 1)
    [ "$have" = "$2" ] && return
    ndctl create-namespace --force --reconfig "namespace$1.0" --mode "$2" --map mem >/dev/null && echo new
}

# With the kernel's number, the shape and the NVDIMM's own number; sets `place`.
set_up() {
    place=
    case $2 in
    ext4 | xfs)
        if [ "$(namespace "$1" fsdax)" = new ]; then
            case $2 in
            ext4) mke2fs -q -t ext4 -b 4096 "/dev/pmem$1" ;;
            xfs) mkfs.xfs -q -f -m reflink=0 "/dev/pmem$1" ;;
            esac
        fi
        place=/run/pmem$3
        mkdir -p "$place"
        mount -t "$2" -o dax=always "/dev/pmem$1" "$place" || give_up "/dev/pmem$1 has no $2 that can be mounted"
        chmod 1777 "$place"
        ;;
    devdax)
        namespace "$1" devdax >/dev/null
        place=/dev/dax$1.0
        [ -c "$place" ] || give_up "there is no $place"
        ;;
    memory)
        namespace "$1" devdax >/dev/null
        place=$(daxctl reconfigure-device --mode=system-ram "dax$1.0" 2>/dev/null |
            sed -n 's/.*"target_node":\([0-9]*\).*/\1/p')
        [ -n "$place" ] || give_up "dax$1.0 does not become memory"
        ;;
    esac
}

ip link set lo up 2>/dev/null || ifconfig lo up 2>/dev/null
# shellcheck disable=SC2086 # two numbers
set -- $numbers
first=$1 second=$2
set_up "$first" "$shape0" 0
export NVDIMM0="$place"
set_up "$second" "$shape1" 1
export NVDIMM1="$place"
cd "$folder" || give_up "no folder $folder"
export HOME=/run/tmp TMPDIR=/run/tmp
# Through a pipe: a serial line is no terminal with a user.
{
    command_line </dev/null
    echo $? >$share/status
} 2>&1 | cat
sync
