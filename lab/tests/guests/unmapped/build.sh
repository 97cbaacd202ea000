# Sourced (busybox sh). Builds of Lua in a Debian, on the kernel alone and with a cap of unmapped page cache.
C=/sys/fs/cgroup
export NO_COLOR=1

prepare() {
	mkdir -p /debian $C/b
	for disk in /sys/block/vd*; do [ "$(cat $disk/serial)" != debian ] || mount /dev/${disk##*/} /debian; done
	mount --bind /proc /debian/proc && mount --bind /dev /debian/dev && mount -t tmpfs tmp /debian/tmp
}
# $1 MiB that hold nothing of use.
ballast() {
	mkdir /ballast && mount -t tmpfs -o size=100% ballast /ballast
	dd if=/dev/zero of=/ballast/file bs=1M count=$1 2>/dev/null
}
# Each second: free, unmapped and mapped, MiB.
watch() {
	while :; do
		awk '{ v[$1] = $2 / 256 } END { f = v["nr_inactive_file"] + v["nr_active_file"]; m = v["nr_mapped"]
			printf "%d %d %d\n", v["nr_free_pages"], f > m ? f - m : 0, m }' /proc/vmstat
		sleep 1
	done
}
uptime() { cut -d' ' -f1 /proc/uptime; }
paged_in() { awk '$1 == "pgpgin" { print int($2 / 1024) }' /proc/vmstat; }
# A build with everything cached that it needs; prints the seconds that it takes, and what there was meanwhile.
build() {
	rm -f /debian/src/lua/*.o /debian/src/lua/*.so
	sync
	cat /debian/usr/lib/gcc/x86_64-linux-gnu/*/cc1 /debian/usr/bin/x86_64-linux-gnu-as /debian/usr/include/*.h /debian/src/lua/* >/dev/null 2>&1
	watch >/run/watch &
	watch=$! from=$(uptime) read=$(paged_in)
	sh -c 'echo $$ >"$0/cgroup.procs" && exec chroot /debian /usr/bin/env PATH=/usr/bin:/bin make -s -j3 -C /src/lua' $C/b || return
	echo "$1 seconds $(echo $(uptime) $from | awk '{ printf "%.1f", $1 - $2 }') read $(($(paged_in) - read)) MiB;" \
		"free, unmapped, mapped on the mean: $(awk '{ f += $1; u += $2; m += $3 } END { printf "%d %d %d", f / NR, u / NR, m / NR }' /run/watch) MiB"
	echo "$1 each 5 s, free: $(awk 'NR % 5 == 1 { printf "%d ", $1 }' /run/watch) unmapped: $(awk 'NR % 5 == 1 { printf "%d ", $2 }' /run/watch)"
	kill $watch
	wait $watch 2>/dev/null
	return 0
}
# Starts the agent with the configuration $1.
agent() {
	echo "$1" >/run/agent.toml
	justitia run --config /run/agent.toml >/run/agent.log 2>&1 &
	agent=$!
	until justitia status --json >/run/status 2>/dev/null && ! grep -q 'being attached' /run/status; do usleep 200000; done
}
