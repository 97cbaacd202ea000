# Sourced (busybox sh). Means of holding a cap of unmapped page cache, against a reader that fills it in the cgroup of a process that
# has 96 MiB mapped, of which it uses half.
C=/sys/fs/cgroup
files=$(seq -f /data/r%g 0 39 | tr '\n' ' ')

prepare() {
	mkdir -p /data $C/t && mount /dev/vda /data && dd if=/dev/zero of=/data/mapped bs=1M count=96 2>/dev/null
	for file in $files; do truncate -s 16M $file; done
	sync
}
# Reads all files, 4 MiB a process, again and again.
fill() {
	echo 0 >/run/read
	while :; do
		for file in $files; do
			for part in 0 1 2 3; do
				dd if=$file of=/dev/null bs=1M count=4 skip=$((part * 4)) 2>/dev/null
				read=$((read + 4))
				echo $read >/run/read
			done
		done
	done
}
# A line of MEANS ($2) with the LRU $1 and a cap of $3 MiB.
means() {
	echo $1 >/sys/kernel/mm/lru_gen/enabled
	sync
	echo 3 >/proc/sys/vm/drop_caches
	sh -c 'echo $$ >"$0/cgroup.procs" && exec mapped /data/mapped 96 50 2000' $C/t >/run/mapped 2>&1 &
	mapped=$!
	until grep -q ready /run/mapped; do usleep 50000; done
	sh -c 'echo $$ >"$0/cgroup.procs" && . /root/means.sh && fill' $C/t &
	reader=$!
	sleep 1
	case $2 in
	root) set -- "$1" reclaim "$3" $C/memory.reclaim ;;
	cgroup) set -- "$1" reclaim "$3" $C/t/memory.reclaim ;;
	fadvise) set -- "$1" fadvise "$3" $files ;;
	zone) echo 1 >/proc/sys/vm/zone_reclaim_mode && echo 1 >/proc/sys/vm/min_unmapped_ratio && set -- "$1" none "$3" ;;
	esac
	lru=$1 how=$2 cap=$(($3 << 20)) target=$4
	shift 3
	before=$(cat /run/read)
	held=$(hold $how $cap 10 "$@")
	read=$(($(cat /run/read) - before))
	echo 0 >/proc/sys/vm/zone_reclaim_mode
	echo "mglru $lru ${target:-} $held; mapped: $(tail -n 1 /run/mapped); $((read / 10)) MiB/s read"
	kill $reader $mapped
	wait $reader $mapped 2>/dev/null
	return 0
}
