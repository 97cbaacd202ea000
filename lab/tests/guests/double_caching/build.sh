# Sourced after ../unmapped/build.sh (busybox sh).

# $2 builds of Lua with $1 jobs, one after the other, each after the script $3: a line each in /run/result, and `end`.
builds() {
	: >/run/result
	for build in $(seq $2); do
		rm -f /debian/src/lua/*.o /debian/src/lua/*.so
		from=$(uptime) read=$(paged_in)
		sh -c 'echo $$ >"$0/cgroup.procs"; eval "$1"' $C/b "$3"
		sh -c 'echo $$ >"$0/cgroup.procs" && exec chroot /debian /usr/bin/env PATH=/usr/bin:/bin make -s -j"$1" -C /src/lua' $C/b $1 || break
		echo "$build seconds $(echo $(uptime) $from | awk '{ printf "%.1f", $1 - $2 }') read $(($(paged_in) - read))" >>/run/result
	done
	echo end >>/run/result
}
