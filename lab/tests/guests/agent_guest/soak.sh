# Sourced after lib.sh: hours of everything that ordinary and hostile hosts do to an agent, at random.
# Each part runs beside the others until /run/soak.end exists; what was found goes to /run/soak.*.
S=/run/soak
DISK=/sys/block/vda/stat

over() { [ -e $S.end ]; }
# A number below $1.
random() { echo $((($RANDOM * 32768 + $RANDOM) % $1)); }
# Sleeps $1 to $1 + $2 tenths of a second.
pause() { usleep $((($1 + $(random $2)) * 100000)); }
count() { echo >>$S.count.$1; }
agent_pid() { cat /run/agent.pid 2>/dev/null; }
watchdog_pid() { grep -ls '^exe$' /proc/[0-9]*/comm | cut -d/ -f3 | head -1; }

# What systemd does: starts the agent, and at each end of it lets `reset` run before the next start.
keep_running() {
	until over; do
		launch
		until [ -s /run/agent.code ]; do over && return; usleep 50000; done
		count end
		justitia reset >>$S.reset 2>&1 || count reset_failed
		rm -f /run/agent.pid
		pause 1 20
	done
}

# Kills the agent, the watchdog or both, or stops the agent for longer than the timeout of the watchdog.
kills() {
	until over; do
		pause 10 100
		agent=$(agent_pid) watchdog=$(watchdog_pid)
		case $(random 10) in
		0 | 1 | 2 | 3) [ -n "$agent" ] && kill -KILL $agent 2>/dev/null && count kill_agent ;;
		4 | 5 | 6) [ -n "$watchdog" ] && kill -KILL $watchdog 2>/dev/null && count kill_watchdog ;;
		7) [ -n "$agent" ] && [ -n "$watchdog" ] && kill -KILL $agent $watchdog 2>/dev/null && count kill_both ;;
		8) [ -n "$agent" ] && kill -TERM $agent 2>/dev/null && count term ;;
		9) [ -n "$agent" ] && kill -STOP $agent 2>/dev/null && count stop && sleep 8 && kill -CONT $agent 2>/dev/null ;;
		esac
	done
}

# Containers that come, read and write a little, and go.
churn() {
	until over; do
		name=box-$1-$(random 1000)
		mkdir $C/$name 2>/dev/null || continue
		echo $((100 + $(random 900))) >$C/$name/io.weight
		sh -c 'echo $$ >"$0/cgroup.procs" && dd if=/data/shared of=/dev/null bs=1M count='$((1 + $(random 30)))' 2>/dev/null
			dd if=/dev/zero of=/data/'$name' bs=64k count='$((1 + $(random 60)))' conv=fsync 2>/dev/null; rm -f /data/'$name $C/$name
		until rmdir $C/$name 2>/dev/null; do usleep 50000; done
		count container
		pause 1 30
	done
}

# Tenants contend for the disk for a while, directly or through the page cache, and then leave it alone.
contention() {
	until over; do
		case $(random 2) in
		0) how="oflag=direct" ;;
		1) how="" ;;
		esac
		until=$(($(date +%s) + 8 + $(random 15)))
		for one in light middle heavy; do
			sh -c 'echo $$ >"$0/cgroup.procs" && while [ $(date +%s) -lt '$until' ]; do dd if=/dev/zero of=/data/'$one' bs=256k count=64 conv=notrunc '"$how"' 2>/dev/null; done' $C/$one &
		done
		wait
		count contention
		sync
		pause 80 80
	done
}

# What systemctl daemon-reload does to memory.low.
reloads() {
	until over; do
		pause 300 600
		for low in $C/*/memory.low; do
			# A shell means what it writes.
			case $low in */own/*) ;; *) echo 0 >$low 2>/dev/null && justitia take ${low#$C/} >/dev/null 2>&1 ;; esac
		done
		count reload
	done
}

# The journal's file system is full for a while.
no_space() {
	until over; do
		pause 200 400
		dd if=/dev/zero of=/run/justitia/full bs=64k 2>/dev/null
		count no_space
		pause 20 60
		rm -f /run/justitia/full
	done
}

# The agent has no descriptors left for a while.
no_descriptors() {
	until over; do
		pause 200 400
		agent=$(agent_pid)
		[ -n "$agent" ] && prlimit --pid $agent --nofile=8:32768 2>/dev/null || continue
		count no_descriptors
		pause 20 60
		prlimit --pid $agent --nofile=32768:32768 2>/dev/null
	done
}

# A delegatee makes more cgroups than are counted apart, writes their knobs, and removes them.
flood() {
	until over; do
		pause 100 200
		mkdir -p $C/given && echo '+memory' >$C/given/cgroup.subtree_control
		chown nobody $C/given $C/given/cgroup.procs $C/given/cgroup.subtree_control
		setpriv --reuid nobody --clear-groups sh -c 'n=0; while [ $n -lt 600 ]; do mkdir '$C'/given/$n; n=$((n + 1)); done
			for low in '$C'/given/1*/memory.low; do echo max >$low; done' 2>/dev/null
		count flood
		pause 10 50
		find $C/given -mindepth 1 -type d -exec rmdir {} + 2>/dev/null
		rmdir $C/given
	done
}

# Limits of ours that stand. `own` has its operator's.
limits() {
	for cgroup in $C/light $C/middle $C/heavy $C/box-*; do
		high=max
		read -r high <$cgroup/memory.high
		[ "$high" = max ] || echo "$cgroup memory.high $high"
	done 2>/dev/null
}

# How long anybody is limited while the disk does nothing: the longest of all, and which, in milliseconds. While neither
# an agent nor a watchdog lives nothing is promised: that is counted apart.
watch_limits() {
	since= longest=0 alone=0 before=
	until over; do
		read -r up _ </proc/uptime
		now=$((${up%.*} * 1000 + 1${up#*.} * 10 - 1000))
		read -r reads _ _ _ writes _ _ _ under_way _ <$DISK
		work="$reads $writes $under_way"
		standing=$(limits)
		if [ "$work" != "$before" ] || [ -z "$standing" ]; then
			since=$now
		elif [ -z "$(watchdog_pid)" ] && ! kill -0 $(agent_pid) 2>/dev/null; then
			[ $((now - since)) -le $alone ] || { alone=$((now - since)); echo $alone >$S.alone; }
		elif [ $((now - since)) -gt $longest ]; then
			longest=$((now - since))
			{ echo $longest; date; echo "$standing"; ps | grep -E 'justiti|watchdog' | grep -v grep; } >$S.longest
		fi
		before=$work
		usleep 200000
	done
}

# What the agent costs, once a minute: descriptors, and resident memory in KiB.
watch_cost() {
	until over; do
		agent=$(agent_pid)
		[ -d "/proc/$agent" ] && echo "$(ls /proc/$agent/fd | wc -l) $(awk '$1 == "VmRSS:" { print $2 }' /proc/$agent/status)" >>$S.cost
		sleep 20
	done
}

soak() {
	echo bfq >/sys/block/vda/queue/scheduler
	mkdir -p /run/justitia /etc/justitia && mount -t tmpfs -o size=2M,mode=700 justitia /run/justitia || return
	printf '[io]\nenabled = true\n' >/etc/justitia/justitia.toml
	for one in light middle heavy own; do live $one; done
	echo 100 >$C/light/io.weight; echo 200 >$C/middle/io.weight; echo 800 >$C/heavy/io.weight
	echo "$(cat /sys/block/vda/dev) wbps=20971520" >$C/own/io.max && echo 12M >$C/own/memory.low && echo 300M >$C/own/memory.high
	dd if=/dev/zero of=/data/shared bs=1M count=64 2>/dev/null
	knobs >$S.before
	for part in keep_running kills "churn 1" "churn 2" contention reloads no_space no_descriptors flood watch_limits watch_cost; do
		$part >/dev/null 2>>$S.errors &
		echo $! >>$S.parts
	done
}

# Ends all parts, and the agent in order; what differs from before goes to /run/soak.diff.
soak_end() {
	touch $S.end
	for pid in $(cat $S.parts); do
		tries=0
		while kill -0 $pid 2>/dev/null; do
			tries=$((tries + 1)); [ $tries -lt 600 ] || { echo "still running: $pid"; return 1; }
			usleep 100000
		done
	done
	rm -f /run/justitia/full
	kill -CONT $(agent_pid) 2>/dev/null
	[ -s /run/agent.code ] || end TERM
	justitia reset >>$S.reset
	knobs >$S.after
	diff $S.before $S.after >$S.diff
}
