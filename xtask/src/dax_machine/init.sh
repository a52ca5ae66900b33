#!/bin/sh
# First program of the emulated machine: loads the drivers, puts the host's files (read only) below a root of its own
# and goes on there with `inside.sh` of the folder that host and guest share.
box=/bin/busybox
$box mount -t proc proc /proc
$box mount -t sysfs sys /sys
$box mount -t devtmpfs dev /dev
for module in $($box cat /modules/order); do
    $box insmod /modules/$module || echo "dax-machine: cannot load $module"
done
options=trans=virtio,version=9p2000.L,msize=262144
$box mount -t 9p -o $options,ro,cache=loose host /host || echo 'dax-machine: no files of the host'
for folder in proc sys dev; do
    $box mount --bind /$folder /host/$folder
done
# Nothing else is hidden: programs of the host may lie anywhere, also in its /tmp.
for folder in run dev/shm dev/pts; do
    $box mkdir -p /host/$folder
    $box mount -t tmpfs none /host/$folder
done
$box mkdir /host/run/tmp
$box chmod 1777 /host/run/tmp /host/dev/shm
$box mount -t debugfs debugfs /host/sys/kernel/debug
$box ln -s /proc/self/fd /host/dev/fd
$box mkdir /host/run/share
$box mount -t 9p -o $options share /host/run/share
$box stty -F /dev/ttyS1 raw
# Only the command speaks on the second line; what the kernel and this script say is on the first.
$box chroot /host /bin/sh /run/share/inside.sh >/dev/ttyS1 2>&1
# All that was said has to be on its way before the power goes.
$box sleep 0.2
$box poweroff -f
