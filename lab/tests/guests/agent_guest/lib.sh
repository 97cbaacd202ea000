# Sourced by every script of the agent's tests (busybox sh).
C=/sys/fs/cgroup
LOG=/run/agent.log
export NO_COLOR=1

# Makes the cgroup $1, with a process that lives in it.
live() {
	mkdir -p "$C/$1" || return
	sh -c 'echo $$ >"$0/cgroup.procs" && exec sleep 100000' "$C/$1" >/dev/null 2>&1 &
}
# Makes the inner cgroup $1: its children get the memory controller.
inner() { mkdir -p "$C/$1" && echo '+memory +io' >"$C/$1/cgroup.subtree_control"; }
# A file of $2 MiB without blocks: reading it fills the page cache and leaves the disk alone.
hole() { truncate -s "$2M" "$1"; }
# Reads the first $3 MiB of the file $2 in the cgroup $1.
cache() {
	sh -c 'echo $$ >"$0/cgroup.procs" && exec dd if="$1" of=/dev/null bs=1M count="$2" 2>/dev/null' "$C/$1" "$2" "$3"
}
# Reads the file $2 in the cgroup $1 again and again, resting $3 s after each time.
reread() {
	sh -c 'echo $$ >"$0/cgroup.procs" && while :; do cat "$1" >/dev/null; sleep "$2"; done' "$C/$1" "$2" "$3" >/dev/null 2>&1 &
	echo $! >>/run/loads
}
# Reads $2 MiB of the file $1 outside any cgroup, 2 MiB every $3 s: slower than the kernel's own reclaim wakes.
# It ends sooner once the rest of the line, if there is any, succeeds.
seep() {
	file=$1 size=$2 pause=$3 at=0
	shift 3
	while [ $at -lt "$size" ]; do
		dd if="$file" of=/dev/null bs=1M skip=$at count=2 2>/dev/null
		at=$((at + 2))
		[ $# = 0 ] || [ $((at % 16)) != 0 ] || ! "$@" || return 0
		sleep "$pause"
	done
}
# Ends the loads. The kernel detaches probes one by one, each after every task has slept once, or been preempted
# for long: under a load an emulated machine needs minutes for that.
rest() {
	for pid in $(cat /run/loads 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
	rm -f /run/loads
}
# Every memory.low there is, with its path.
lows() { (cd $C && find . -name memory.low -print0 | sort -z | xargs -0 grep -aH ''); }
# Every value that can be written in any cgroup, with its path, and the machine's that the agent writes.
knobs() {
	grep -H '' /proc/sys/vm/dirty_background_ratio /proc/sys/vm/vfs_cache_pressure
	(cd $C && find . -type f -perm -200 \( -name 'memory.*' -o -name 'io.*' -o -name 'cpu.*' -o -name 'pids.max' -o -name 'cgroup.subtree_control' -o -name 'cgroup.freeze' \) \
		! -name 'memory.peak' ! -name '*.pressure' ! -name 'memory.reclaim' -print0 | sort -z | xargs -0 grep -aH '' 2>/dev/null)
}
file_of() { awk '$1 == "inactive_file" || $1 == "active_file" { sum += $2 } END { print sum }' "$C/$1/memory.stat"; }
# What the agent has reclaimed so far, in bytes.
reclaimed() { justitia status --json | tr -d ' \n' | sed 's/.*"agent_usage":{[^}]*"reclaimed":\([0-9]*\).*/\1/'; }
vmstat() { awk -v name="$1" '$1 == name { print $2 }' /proc/vmstat; }

# Starts the agent ($AGENT, if another command does) without waiting for anything; its exit status goes to /run/agent.code.
launch() {
	rm -f /run/agent.pid /run/agent.code
	(${AGENT:-justitia} run "$@" >>$LOG 2>&1 & echo $! >/run/agent.pid; wait $!; echo $? >/run/agent.code) >/dev/null 2>&1 &
	until [ -s /run/agent.pid ]; do usleep 5000; done
}
# Starts the agent and waits until it answers.
start() {
	launch "$@"
	tries=0
	until justitia status --json >/run/agent.status 2>/dev/null && ! grep -q 'probes are being attached' /run/agent.status; do
		tries=$((tries + 1))
		if [ -s /run/agent.code ] || [ $tries -gt 200 ]; then echo "the agent does not answer:"; tail -20 $LOG; return 1; fi
		usleep 100000
	done
}
# Ends the agent by signal $1 and prints its exit status. The kernel detaches its probes meanwhile: see `rest`.
end() {
	kill "-$1" "$(cat /run/agent.pid)"
	tries=0
	until [ -s /run/agent.code ]; do
		tries=$((tries + 1))
		[ $tries -lt 4500 ] || { echo "the agent does not end"; return 1; }
		usleep 20000
	done
	cat /run/agent.code
}
# Waits at most $1 s until the rest of the line succeeds.
within() {
	tries=$(($1 * 10))
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || { echo "did not come to pass: $*"; return 1; }
		usleep 100000
	done
}
protected() { [ "$(cat "$C/$1/memory.low")" -gt 0 ]; }

# Ends whatever a test has started, and removes its cgroups.
clean() {
	rest
	# Gone for good: a failed test's agent, dying slowly, would be taken for the next one's.
	[ -s /run/agent.code ] || [ ! -s /run/agent.pid ] || end KILL >/dev/null 2>&1
	find $C -mindepth 1 -maxdepth 1 -type d -exec sh -c 'for dir; do echo 1 >"$dir/cgroup.kill"; done' - {} +
	tries=0
	while find $C -mindepth 1 -type d | grep -q .; do
		find $C -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "cgroups could not be removed"; find $C -mindepth 1 -type d; return 1; }
		usleep 50000
	done
	rm -rf /run/justitia /etc/justitia /run/agent.* /data/*
	echo 3 >/proc/sys/vm/drop_caches
}
