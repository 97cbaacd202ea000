#!/bin/busybox sh
# The guest's first process: mounts what a cgroup v2 host has, loads the modules that the disks and
# the channel need, then hands over to busybox init, which runs the lab's runner and reaps orphans.
export PATH=/bin
mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
mkdir -p /dev/shm /dev/pts
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
while read -r module; do
	insmod "$module" || echo "init: loading $module failed"
done </etc/modules
hostname lab
ip link set lo up
echo '+memory +io +pids +cpu' >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /run/lab /run/lock /var/run
{
	echo '::respawn:/bin/justitia-lab-guest serve'
	grep -q justitia.shell /proc/cmdline && echo 'ttyS0::respawn:-/bin/sh'
	echo '::ctrlaltdel:/bin/poweroff -f'
} >/etc/inittab
exec /bin/busybox init
